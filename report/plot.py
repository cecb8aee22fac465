"""Charts as stills: .svg, .png and .pdf without a display or a browser."""

from __future__ import annotations

import contextlib
import math
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from errors import AnalyzeError, OutputError, UsageError
from outputs.atomic import open_output
from report import charts as specs
from report import draw
from report.names import bounded
from report.vega import CONFIG, WIDTH, Spec, legend_columns
from result import Bars, HeatMap, Network, Result, Timeline

SUFFIXES = (".svg", ".png", ".pdf")

_MOST_BITMAP_PIXELS = 50_000_000
_LONGEST_SIDE = 14_400  # points, what PDF allows
_ADDRESS_SPACE = 80 << 30  # the engine that runs Vega reserves most of this, and aborts where it cannot
_SHAPE, _FINE = re.compile(r' d="[^"]*"'), re.compile(r"(?<=\.\d\d)\d+")  # nobody sees thousandths of a pixel

#: What an SVG of Vega holds: nothing that runs, loads or leads anywhere.
_INERT = {
    f"{{http://www.w3.org/2000/svg}}{tag}"
    for tag in (
        "svg", "g", "path", "rect", "line", "text", "tspan", "defs", "clipPath", "linearGradient", "stop"
    )
}  # fmt: skip


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` that is no timeline as .svg, .png or .pdf, by the suffix of `path`.

    Raises
    ------
    UsageError
        Another suffix, or no chart.
    OutputError
        The file cannot be written.
    AnalyzeError
        vl-convert is missing, or has too little address space.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: a picture ends in {', '.join(SUFFIXES)} or .html")
    chart = next((chart for chart in result.charts if not isinstance(chart, Timeline)), None)
    if chart is None:
        raise UsageError(f"{path}: {result.option} has no chart to draw here")
    with open_output(path) as stream:
        if isinstance(chart, Network):
            picture = draw.svg(chart, result.headline)
        else:
            spec = specification(chart)
            spec["title"] = _headed(chart.title, result.headline)
            picture = _converted(spec | {"background": "white", "padding": 16})
        stream.write(_encoded(picture, suffix))


def svg(chart: Bars | HeatMap, width: int = WIDTH) -> str:
    """Return a chart as SVG for a page: no title, no background, nothing that runs.

    Each mark has its name, value and unit as ``aria-label``.
    """
    from xml.etree import ElementTree

    picture = _SHAPE.sub(lambda shape: _FINE.sub("", shape[0]), _converted(specification(chart, width)))
    for part in ElementTree.fromstring(picture).iter():
        active = [name for name in part.attrib if name.startswith("on") or name.endswith(("href", "style"))]
        if part.tag not in _INERT or active:
            raise OutputError(f"{chart.title}: a drawing with {part.tag} {active} is not put into a page")
    return picture


def specification(chart: Bars | HeatMap, width: int = WIDTH) -> Spec:
    """Return the Vega-Lite specification of a chart, its texts fit to be drawn.

    Names occur only as data and are looked up by number, so that equal ones stay apart and none is read
    as an expression.
    """
    spec = specs.bars(chart, width) if isinstance(chart, Bars) else specs.heat_map(chart, width)
    return {"config": {**CONFIG, "legend": {**CONFIG["legend"], **legend_columns(spec, width)}}, **spec}


def _headed(title: str, headline: str) -> Spec:
    """Return the title of a picture: the answer, and below it what is shown."""
    first, second = (headline, title) if headline else (title, "")
    return {"text": textwrap.wrap(bounded(first), 105)[:4], "subtitle": [bounded(second)] if second else []}


# ---- files


def _converted(spec: Spec) -> str:
    library = _library()
    try:
        picture: str = library.vegalite_to_svg(spec, vl_version="6.1", allowed_base_urls=[])
    except ValueError as error:  # what it makes of too few file handles
        reason = str(error).rpartition("\n")[2] or error
        raise OutputError(f"the chart cannot be drawn: {reason}") from error
    return picture


def problem() -> str:
    """Why bars and heat maps cannot be drawn, nor PNG and PDF be made; "" where they can."""
    if find_spec("vl_convert") is None:
        return "charts need vl-convert-python: python3 -m pip install vl-convert-python"
    with contextlib.suppress(ImportError):  # not on this system
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if resource.RLIM_INFINITY != limit < _ADDRESS_SPACE:
            return f"charts need {_ADDRESS_SPACE >> 30} GiB of address space (ulimit -v)"
    return ""


def _library() -> Any:
    """Load vl-convert. AnalyzeError where it is missing or cannot run."""
    if reason := problem():
        raise AnalyzeError(reason)
    import vl_convert

    return vl_convert


def _encoded(picture: str, suffix: str) -> bytes:
    """Return an SVG as a file of the format."""
    if suffix == ".svg":
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{picture}\n'.encode()
    library = _library()
    width, height = draw.pixels(picture)
    if suffix == ".pdf":
        longest = max(width, height)
        fits = picture if longest <= _LONGEST_SIDE else draw.resized(picture, _LONGEST_SIDE / longest)
        pdf: bytes = library.svg_to_pdf(fits)
        return pdf
    scale = min(2.0, math.sqrt(_MOST_BITMAP_PIXELS / (width * height)))
    png: bytes = library.svg_to_png(picture, scale=scale)
    return png
