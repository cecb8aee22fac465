"""Stills: a graph or a 3-D chart as a PNG, SVG or PDF file, drawn by matplotlib without a display."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomic_output import open_output
from errors import OutputError, UsageError
from output_marks import MARK
from report import colours
from report.tables import printable, shorten
from result import Bars3D, Network, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of each format, the property that carries our mark; no date, so that the same chart gives the same file.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {"Software": MARK},
    ".svg": {"Creator": MARK, "Date": None},
    ".pdf": {"Creator": MARK, "CreationDate": None},
}
SUFFIXES = tuple(_METADATA)

_DPI = 150
_MOST_LABELS_3D = 16
_LABEL = 36  # characters of a name on an axis
_LABEL_3D = 22
_MOST_LABELS = 60  # on one axis; beyond, every n-th is written
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a $ in a name is a dollar
    "svg.hashsalt": "analyze",  # the same chart gives the same file
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
}


def write(result: Result, path: Path) -> None:
    """Draw the first chart of `result` into `path`, whose suffix (.png, .svg, .pdf) decides the format.

    Raises
    ------
    UsageError
        The suffix is none of these, or this kind of chart has no still.
    OutputError
        There is no chart, or the file cannot be written.
    """
    if not result.charts:
        raise OutputError(f"{path}: {result.option} has no chart to draw here")
    chart, suffix = result.charts[0], path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: a picture ends in {', '.join(SUFFIXES)} or .html")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from report import graph_still

    with mpl.rc_context(_STYLE), warnings.catch_warnings(), open_output(path) as stream:
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks is drawn as a box
        figure = Figure(layout="constrained")
        if isinstance(chart, Network):
            graph_still.draw(chart, figure)
        elif isinstance(chart, Bars3D):
            _draw_bars_3d(chart, figure)
        else:
            raise UsageError("this chart has no still picture; use .html")
        figure.savefig(stream, format=suffix[1:], dpi=_DPI, metadata=_METADATA[suffix])


def _draw_bars_3d(chart: Bars3D, figure: Figure) -> None:
    figure.set_size_inches(10, 8)
    axes: Any = figure.add_subplot(projection="3d")
    colour = colours.assign(chart.group)
    axes.computed_zorder = False  # matplotlib sorts by the faces' middles, which is wrong for long bars
    for row, (values, group) in enumerate(zip(chart.z, chart.group, strict=True)):
        bars = [(run, z) for run, z in enumerate(values) if z is not None and not math.isnan(z)]
        if bars:
            left, heights = [run - 0.3 for run, _ in bars], [height for _, height in bars]
            order = 10 + len(chart.z) - row
            axes.bar3d(left, row - 0.4, 0, 0.6, 0.8, heights, color=colour[group], zorder=order)
    _name_places(axes.xaxis, chart.x)
    _name_places(axes.yaxis, chart.y, most=_MOST_LABELS_3D, longest=_LABEL_3D)
    axes.tick_params(axis="both", labelsize=7)
    for label in axes.get_yticklabels():
        label.set_horizontalalignment("left")
    axes.set_xlabel(printable(chart.x_label), labelpad=8)
    axes.set_ylabel(printable(chart.y_label), labelpad=3 * min(_LABEL_3D, max(map(len, chart.y), default=0)))
    axes.set_zlabel(printable(chart.z_label))
    axes.set_title(shorten(printable(chart.title), 110), fontweight="bold")
    axes.view_init(elev=28, azim=-50)
    axes.set_box_aspect((1.0, 1.6, 0.9), zoom=0.95)
    _legend(figure, colour)


def _legend(figure: Figure, colour: dict[str, str]) -> None:
    """Say which colour is which group."""
    from matplotlib.patches import Patch

    handles = [Patch(color=shade, label=_label(name)) for name, shade in colour.items()]
    figure.legend(handles=handles, loc="outside right upper", frameon=False)


def _name_places(axis: Any, names: Sequence[str], *, most: int = _MOST_LABELS, longest: int = _LABEL) -> None:
    """Write the names at 0, 1, 2, … on an axis; every n-th where there are too many."""
    places = range(0, len(names), max(1, math.ceil(len(names) / most)))
    axis.set_ticks(list(places), [_label(names[place], longest) for place in places])


def _label(name: str, longest: int = _LABEL) -> str:
    text = shorten(printable(name), longest)
    return f" {text}" if text.startswith("_") else text  # matplotlib hides labels that begin with _
