"""Graphs as stills and in the languages of other programs: svg, png, pdf; dot, graphml."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atomic_output import open_output
from errors import OutputError
from output_marks import MARK
from report import colours
from report.tables import printable, shorten
from result import Network, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNIT = (1.75, 0.42)  # inches of one layer and one row
_BOX = (0.86, 0.74)  # of a unit
_MARGIN = 0.3  # inches
_HEAD = 0.75  # inches for title and legend
_MOST_INCHES = 90  # of either side, and
_MOST_SQUARE_INCHES = 2600  # of both: what a bitmap of 150 dots an inch can hold; beyond, everything shrinks
_LABEL = 25  # characters that fit a box
_CRITICAL = "#c8102e"
_EDGE = "#8a94a3"
_EDGES = {  # of each look: colour, opacity, width, line; later ones are drawn over earlier ones
    "next": (_EDGE, 0.5, 0.8, "--"),
    "long": (_EDGE, 0.22, 0.6, "-"),
    "short": (_EDGE, 0.9, 0.8, "-"),
    "critical": (_CRITICAL, 1.0, 2.0, "-"),
}
_LONG = 1.5  # layers or bands: longer edges are drawn faintly
_ILLEGAL_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_Place = tuple[float, float]
_TWO_LINES = 2_500  # from this many nodes on, names go without durations


def write(result: Result, path: Path) -> None:
    """Write the first graph of `result` as ``.dot`` or ``.graphml``, by the suffix of `path`.

    Raises
    ------
    OutputError
        There is no graph in the result, or the file cannot be written.
    """
    chart = next((chart for chart in result.charts if isinstance(chart, Network)), None)
    if chart is None:
        raise OutputError(f"{path}: {result.option} has no graph to write as {path.suffix}")
    text = dot(chart) if path.suffix.lower() == ".dot" else graphml(chart)
    with open_output(path) as stream:
        stream.write(text.encode("utf-8"))


def dot(chart: Network) -> str:
    """Return the graph in Graphviz's language, nodes coloured as in the pictures."""
    colour = colours.assign(str(node["cat"]) for node in chart.nodes)
    lines = ["digraph {", f"  // {MARK}", "  rankdir=LR; node [shape=box, style=filled, fontname=Helvetica];"]
    for i, node in enumerate(chart.nodes):
        label = _dot_text(str(node["label"])) + (f"\\n{node['dur_ms']:.3f} ms" if node.get("dur_ms") else "")
        edge = f', color="{_CRITICAL}", penwidth=3' if node.get("critical") else ""
        lines.append(f'  n{i} [label="{label}", fillcolor="{colour[str(node["cat"])]}"{edge}];')
    for a, b, kind in chart.looks():
        look = f'color="{_CRITICAL}", penwidth=2' if kind == "critical" else f'tooltip="{_dot_text(kind)}"'
        loose = ", style=dashed, constraint=false" if kind == "next" else ""
        lines.append(f"  n{a} -> n{b} [{look}{loose}];")
    return "\n".join([*lines, "}", ""])


def graphml(chart: Network) -> str:
    """Return the graph as GraphML; every figure of a node is an attribute."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for n, node in enumerate(chart.nodes):
        graph.add_node(f"n{n}", **{key: _legal(value) for key, value in node.items() if value is not None})
    path = set(chart.path)
    for a, b, kind in chart.edges:
        graph.add_edge(f"n{a}", f"n{b}", kind=kind, critical=(a, b) in path)
    lines = nx.generate_graphml(graph, named_key_ids=True)
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', f"<!-- {MARK} -->", *lines, ""])


def draw(chart: Network, figure: Figure) -> None:
    """Draw the graph on `figure`, which gets the size it needs; text stays text in SVG."""
    import matplotlib as mpl

    mpl.rcParams["svg.fonttype"] = "none"
    places = [(float(node["x"]), float(node["y"])) for node in chart.nodes]
    xs, ys = zip(*places, strict=True) if places else ((0.0,), (0.0,))
    left, right, top, bottom = min(xs) - 0.55, max(xs) + 0.55, min(ys) - 0.8, max(ys) + 0.8
    width = (right - left) * _UNIT[0] + 2 * _MARGIN
    height = (bottom - top) * _UNIT[1] + 2 * _MARGIN + _HEAD
    scale = min(1.0, _MOST_INCHES / max(width, height), math.sqrt(_MOST_SQUARE_INCHES / (width * height)))
    width, height = max(width * scale, 6.0), max(height * scale, 2.0)
    figure.set_layout_engine("none")
    figure.set_size_inches(width, height)
    axes = figure.add_axes((0, 0, 1, 1 - _HEAD / height))
    axes.set(xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    colour = colours.assign(str(node["cat"]) for node in chart.nodes)
    _draw_edges(axes, chart, places)
    _draw_nodes(axes, chart, places, colour, scale)
    _draw_legend(figure, chart, colour)


def _draw_edges(axes: Axes, chart: Network, places: Sequence[_Place]) -> None:
    """Draw every edge as a curve from the right of its source to the left of its target."""
    from matplotlib.collections import PathCollection

    curves: dict[str, list[Any]] = {}
    heads: dict[str, list[_Place]] = {}
    for a, b, kind in chart.looks():
        start, end = (places[a][0] + _BOX[0] / 2, places[a][1]), (places[b][0] - _BOX[0] / 2, places[b][1])
        near = -0.2 < end[0] - start[0] < _LONG and abs(end[1] - start[1]) < 8
        look = kind if kind in _EDGES else "short" if near else "long"
        curves.setdefault(look, []).append(_curve(start, end))
        heads.setdefault(look, []).append(end)
    for order, (look, (colour, alpha, width, line)) in enumerate(_EDGES.items(), 1):
        if look not in curves:
            continue
        collection = PathCollection(curves[look], facecolors="none", edgecolors=colour, alpha=alpha,
                                    linewidths=width, linestyles=line, zorder=order)  # fmt: skip
        axes.add_collection(collection, autolim=False)
        xs, ys = zip(*heads[look], strict=True)
        axes.scatter(xs, ys, marker=">", s=14, zorder=order + 5, color=colour, alpha=max(alpha, 0.4),
                     linewidths=0)  # fmt: skip


def _curve(start: _Place, end: _Place) -> Any:
    from matplotlib.path import Path as Curve

    (x0, y0), (x1, y1) = start, end
    if x1 <= x0:  # back to the left, in the gap between two bands
        between = y1 - 0.75 if y1 > y0 else y1 + 0.75
        out, back = x0 + 0.12, x1 - 0.12
        points = [start, (out, y0), (out, between), (back, between), (back, y1), end]
        return Curve(points, [Curve.MOVETO] + [Curve.LINETO] * 5)
    bend = max(0.06, min(0.5, (x1 - x0) / 2))
    points = [start, (x0 + bend, y0), (x1 - bend, y1), end]
    if x1 - x0 > 1 and y1 == y0:  # past the boxes between them
        points = [start, (x0 + 0.2, y0 + 0.65), (x1 - 0.2, y0 + 0.65), end]
    return Curve(points, [Curve.MOVETO] + [Curve.CURVE4] * 3)


def _draw_nodes(
    axes: Axes, chart: Network, places: Sequence[_Place], colour: Mapping[str, str], scale: float
) -> None:
    """Draw the boxes with names and durations, those of the critical path framed."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import FancyBboxPatch

    corners = [(x - _BOX[0] / 2, y - _BOX[1] / 2) for x, y in places]
    style = "round,pad=0,rounding_size=0.06"
    boxes = [FancyBboxPatch(corner, *_BOX, boxstyle=style, mutation_aspect=4) for corner in corners]
    faces = [_pale(colour[str(node["cat"])]) for node in chart.nodes]
    frames = [_CRITICAL if node.get("critical") else "#ffffff" for node in chart.nodes]
    widths = [2.2 if node.get("critical") else 0.6 for node in chart.nodes]
    collection = PatchCollection(boxes, facecolors=faces, edgecolors=frames, linewidths=widths, zorder=20)
    axes.add_collection(collection, autolim=False)
    centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 21}
    for node, (x, y) in zip(chart.nodes, places, strict=True):
        ms = node.get("dur_ms") if len(chart.nodes) < _TWO_LINES else None
        text = printable(shorten(str(node["label"]), _LABEL))
        axes.text(x, y - (0.16 if ms else 0), text, fontsize=7 * scale, color="#1c2733", **centred)
        if ms:
            text = f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"
            axes.text(x, y + 0.19, text, fontsize=6 * scale, color="#44505e", **centred)


def _draw_legend(figure: Figure, chart: Network, colour: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    counts = Counter(str(node["cat"]) for node in chart.nodes)
    handles: list[Any] = [
        Patch(facecolor=_pale(colour[cat]), label=f"{cat or 'other'} ({n:,})") for cat, n in counts.items()
    ]
    if any(node.get("critical") for node in chart.nodes):
        handles.append(Line2D([], [], color=_CRITICAL, lw=2, label="critical path"))
    if any(kind == "next" for _, _, kind in chart.looks()):
        handles.append(Line2D([], [], color=_EDGE, lw=1, ls="--", label="into the next step"))
    left = _MARGIN / 2 / width
    figure.text(left, 1 - 0.2 / height, printable(chart.title), fontsize=11, fontweight="bold", va="center")
    if chart.note:
        figure.text(left, 1 - 0.62 / height, printable(chart.note), fontsize=8, va="center")
    if handles:
        columns = max(1, min(len(handles), int(width / 1.5)))
        figure.legend(handles=handles, loc="upper left", ncols=columns, bbox_to_anchor=(0, 1 - 0.3 / height),
                      frameon=False, fontsize=8)  # fmt: skip


def _pale(colour: str) -> str:
    """Return `colour` mixed with white, so that dark text on it can be read."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part * 0.5 + 255 * 0.5):02x}" for part in parts)


def _dot_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _legal(value: Any) -> Any:
    """Return a text without the characters that XML cannot hold."""
    return _ILLEGAL_XML.sub("\ufffd", value) if isinstance(value, str) else value
