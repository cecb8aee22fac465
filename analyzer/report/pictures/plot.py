"""Charts as stills: .svg, .png and .pdf without a display or a browser."""

from __future__ import annotations

import math
from pathlib import Path

from analyzer.base.errors import AnalyzeError
from analyzer.base.outputs.atomic import open_output
from analyzer.report.pictures import bars, heat_map, network
from analyzer.report.pictures.svg import WIDTH, Picture, picture
from analyzer.report.result import Bars, HeatMap, Network, Result, Timeline

_MOST_BITMAP_PIXELS = 50_000_000


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` as .svg, .png or .pdf, by the suffix of `path`.

    Raises
    ------
    OutputError
        The file cannot be written.
    AnalyzeError
        vl-convert, which makes PNG and PDF of SVG, is missing.
    """
    chart = next(chart for chart in result.charts if not isinstance(chart, Timeline))
    note = chart.note if isinstance(chart, Network) else ""
    drawn = painted(chart, WIDTH, [result.headline, chart.title, note])
    with open_output(path) as stream:
        stream.write(_encoded(drawn, path.suffix.lower()))


def painted(chart: Bars | HeatMap | Network, width: float, heading: list[str] | None = None) -> Picture:
    """Draw a chart: for a page without a heading, else as a still."""
    if isinstance(chart, Bars):
        drawing = bars.paint(chart, width)
    elif isinstance(chart, HeatMap):
        drawing = heat_map.paint(chart, width)
    else:
        drawing = network.paint(chart, width)
    return picture(drawing, heading or ())


def _encoded(drawn: Picture, suffix: str) -> bytes:
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn.svg}\n'.encode()
    try:
        import vl_convert
    except ImportError as error:
        raise AnalyzeError(
            f"{suffix} needs vl-convert-python: python3 -m pip install vl-convert-python"
        ) from error
    if suffix == ".pdf":
        pdf: bytes = vl_convert.svg_to_pdf(drawn.svg)
        return pdf
    scale = min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / (drawn.width * drawn.height)))
    png: bytes = vl_convert.svg_to_png(drawn.svg, scale=scale)
    return png
