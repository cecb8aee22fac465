"""Charts as stills: .svg, .png and .pdf without a display or a browser."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from analyzer.base.errors import optional
from analyzer.base.outputs.atomic import open_output
from analyzer.report.pictures import bars, heat_map, network, roofline
from analyzer.report.pictures.svg import WIDTH, picture
from analyzer.report.result import Bars, HeatMap, Network, Result, Roofline, Timeline

_MOST_BITMAP_PIXELS = 50_000_000


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` as .svg, .png or .pdf, by the suffix of `path`.

    Raises AnalyzeError if vl-convert, which turns SVG into PNG and PDF, is missing.
    """
    chart = next(chart for chart in result.charts if not isinstance(chart, Timeline))
    svg, n_pixels = painted(chart, WIDTH, [result.headline, chart.title])
    with open_output(path) as stream:
        stream.write(_encoded(svg, n_pixels, path.suffix.lower()))


def painted(
    chart: Bars | HeatMap | Roofline | Network, width: float, heading: list[str] | None = None
) -> tuple[str, int]:
    """Draw a chart: for a page without a heading, else as a still; also the number of pixels."""
    painters: dict[type, Any] = {Bars: bars, HeatMap: heat_map, Network: network, Roofline: roofline}
    return picture(painters[type(chart)].paint(chart, width), heading or ())


def _encoded(svg: str, n_pixels: int, suffix: str) -> bytes:
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'.encode()
    vl_convert = optional("vl_convert", "vl-convert-python", suffix)
    if suffix == ".pdf":
        return bytes(vl_convert.svg_to_pdf(svg))
    return bytes(vl_convert.svg_to_png(svg, scale=min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / n_pixels))))
