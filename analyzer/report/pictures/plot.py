"""Charts as stills: .svg, .png and .pdf without a display or a browser."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from analyzer.base.errors import AnalyzeError
from analyzer.base.outputs.atomic import open_output
from analyzer.report.pictures import bars, heat_map, network
from analyzer.report.pictures.svg import WIDTH, Picture, picture
from analyzer.report.result import Bars, HeatMap, Network, Result, Timeline

_MOST_BITMAP_PIXELS = 50_000_000


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` as .svg, .png or .pdf, by the suffix of `path`.

    Raises AnalyzeError if vl-convert, which turns SVG into PNG and PDF, is missing.
    """
    chart = next(chart for chart in result.charts if not isinstance(chart, Timeline))
    drawn = painted(chart, WIDTH, [result.headline, chart.title])
    with open_output(path) as stream:
        stream.write(_encoded(drawn, path.suffix.lower()))


def painted(chart: Bars | HeatMap | Network, width: float, heading: list[str] | None = None) -> Picture:
    """Draw a chart: for a page without a heading, else as a still."""
    painters: dict[type, Any] = {Bars: bars.paint, HeatMap: heat_map.paint, Network: network.paint}
    return picture(painters[type(chart)](chart, width), heading or ())


def _encoded(drawn: Picture, suffix: str) -> bytes:
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn.svg}\n'.encode()
    try:
        import vl_convert
    except ImportError as error:
        raise AnalyzeError(
            f"{suffix} needs vl-convert-python: python3 -m pip install vl-convert-python"
        ) from error
    scale = min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / (drawn.width * drawn.height)))
    pdf = suffix == ".pdf"
    return bytes(vl_convert.svg_to_pdf(drawn.svg) if pdf else vl_convert.svg_to_png(drawn.svg, scale=scale))
