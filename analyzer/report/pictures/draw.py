"""Graphs: the painter of boxes where the layout put them, and the languages dot and graphml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analyzer.base.outputs.atomic import open_output
from analyzer.base.units import in_digits
from analyzer.report.cells import bounded, labels
from analyzer.report.pictures import colours
from analyzer.report.pictures.colours import INK
from analyzer.report.pictures.svg import Drawing, escaped, legal, line, swatch, text
from analyzer.report.result import Network, Result

_UNIT = (190, 34)  # pixels of one layer and one row
_BOX = (156, 26)
_BESIDE = 14  # pixels of the edges beside the first and the last layer
_LEAST_WIDTH = 640  # pixels of a drawing
_LABEL = 25  # columns of a name in a box
_NAME, _SMALL = 10.5, 8.5  # font sizes
_EDGE = "#7d8896"
_LOOKS = {  # colour, opacity, width and dashes of an edge, in the order of drawing
    "next": (_EDGE, 0.6, 1.0, "4 3"),
    "": (_EDGE, 0.7, 1.0, ""),
    "critical": (INK, 1.0, 2.4, ""),
}
_Point = tuple[float, float]


def write(result: Result, path: Path) -> None:
    """Write the first graph of `result` as ``.dot`` or ``.graphml``, by the suffix of `path`."""
    chart = next(chart for chart in result.charts if isinstance(chart, Network))
    content = (_dot if path.suffix.lower() == ".dot" else _graphml)(chart)
    with open_output(path) as stream:
        stream.write(content.encode("utf-8"))


def _dot(chart: Network) -> str:
    """Write the graph in Graphviz's language, nodes coloured as in the pictures."""
    shades = colours.assign(node.cat for node in chart.nodes)
    lines = [
        "digraph {",
        "  rankdir=LR;",
        f'  node [shape=box, style=filled, fontname=Helvetica, color="{_EDGE}"]; edge [color="{_EDGE}"];',
    ]
    for i, node in enumerate(chart.nodes):
        took = f"\\n{in_digits(node.dur_ms)} ms" if node.dur_ms else ""
        label = _dot_text(node.label) + took
        ink = f'fontcolor="{colours.ink_on(shades[node.cat])}"'
        edge = f', color="{INK}", penwidth=3' if node.critical else ""
        lines.append(f'  n{i} [label="{label}", fillcolor="{shades[node.cat]}", {ink}{edge}];')
    for a, b, kind in _looks(chart):
        look = f'color="{INK}", penwidth=2' if kind == "critical" else f'tooltip="{_dot_text(kind)}"'
        loose = ", style=dashed, constraint=false" if kind == "next" else ""
        lines.append(f"  n{a} -> n{b} [{look}{loose}];")
    return "\n".join([*lines, "}", ""])


def _graphml(chart: Network) -> str:
    """Write the graph as GraphML; every figure of a node is an attribute."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for n, node in enumerate(chart.nodes):
        times = {"dur_ms": node.dur_ms, "slack_ms": node.slack_ms}
        known = {key: ms for key, ms in times.items() if ms is not None}
        graph.add_node(f"n{n}", label=legal(node.label), cat=legal(node.cat), critical=node.critical, **known)
    path = set(chart.path)
    for a, b, kind in chart.edges:
        graph.add_edge(f"n{a}", f"n{b}", kind=kind, critical=(a, b) in path)
    lines = nx.generate_graphml(graph, named_key_ids=True)
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, ""])


def _dot_text(text: str) -> str:
    return legal(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def paint(chart: Network, _: float) -> Drawing:
    """Draw the graph as large as it is."""
    centres = [(node.x * _UNIT[0], node.y * _UNIT[1]) for node in chart.nodes]
    xs, ys = zip(*centres, strict=True) if centres else ((0.0,), (0.0,))
    left, top = min(xs) - _BOX[0] / 2 - _BESIDE, min(ys) - _UNIT[1]
    width = max(max(xs) - left + _BOX[0] / 2 + _BESIDE, _LEAST_WIDTH)
    shades = colours.assign(node.cat for node in chart.nodes)
    shapes = [
        f'<g transform="translate({-left:g},{-top:g})">',
        *_lanes(chart, left, left + width),
        *_edges(chart, centres),
        *_boxes(chart, centres, shades),
        "</g>",
    ]
    return Drawing(shapes, width, max(ys) - top + _UNIT[1], _legend(chart, shades))


def _lanes(chart: Network, left: float, right: float) -> Iterator[str]:
    for name, row in chart.lanes:
        top = (row - 1) * _UNIT[1]
        yield line(left, top, right, top, "grid")
        yield text(labels([name], _LABEL)[0], left + 2, top + 13)


def _looks(chart: Network) -> list[tuple[int, int, str]]:
    """List the edges to draw; edges of the path have the kind ``critical``."""
    path = set(chart.path)
    return [(a, b, "critical" if (a, b) in path else kind) for a, b, kind in chart.edges]


def _legend(chart: Network, shades: Mapping[str, str]) -> list[tuple[str, str]]:
    counts = Counter(node.cat for node in chart.nodes)
    words = labels([cat or "other" for cat in counts], 2 * _LABEL)
    legend = [
        (swatch(shades[cat]), f"{word} ({n:,})") for (cat, n), word in zip(counts.items(), words, strict=True)
    ]
    drawn = {kind for _, _, kind in _looks(chart)}
    for look, meaning in (("critical", "critical path"), ("next", "into the next step")):
        if look in drawn:
            legend.append((f'<path d="M0 6h14" {_stroke(look)}/>', meaning))
    return legend


def _stroke(look: str) -> str:
    colour, opacity, width, dashes = _LOOKS[look]
    kind = "rule" if look == "critical" else "edge"
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    shape = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"'
    return f'class="{kind}" {shape}{dashed}'


def _edges(chart: Network, centres: Sequence[_Point]) -> Iterator[str]:
    """Draw every edge from the right of its source to the left of its target: one path for each look."""
    curves: dict[str, list[str]] = {}
    for a, b, kind in _looks(chart):
        start, end = (
            (centres[a][0] + _BOX[0] / 2, centres[a][1]),
            (centres[b][0] - _BOX[0] / 2, centres[b][1]),
        )
        head = f"M{end[0] - 6:g} {end[1] - 3.2:g}l6 3.2l-6 3.2"
        curves.setdefault(kind if kind in _LOOKS else "", []).append(_curve(start, end) + head)
    for look in _LOOKS:
        if look in curves:
            yield f'<path {_stroke(look)} d="{"".join(curves[look])}"/>'


def _curve(start: _Point, end: _Point) -> str:
    """Draw a curve to a later layer, or a line above the target's row to any other layer."""
    (x0, y0), (x1, y1) = start, end
    if x1 <= x0:
        return f"M{x0:g} {y0:g}h12V{y1 - _UNIT[1]:g}H{x1 - 12:g}V{y1:g}H{x1:g}"
    bend = max(10.0, min(0.5 * _UNIT[0], (x1 - x0) / 2))
    return f"M{x0:g} {y0:g}C{x0 + bend:g} {y0:g} {x1 - bend:g} {y1:g} {x1:g} {y1:g}"


def _boxes(chart: Network, centres: Sequence[_Point], shades: Mapping[str, str]) -> Iterator[str]:
    """Draw the boxes with names and durations; boxes on the critical path have a frame."""
    names = labels([node.label for node in chart.nodes], _LABEL)
    for node, name, (x, y) in zip(chart.nodes, names, centres, strict=True):
        ink = f'class="on" text-anchor="middle" fill="{colours.ink_on(shades[node.cat])}"'
        frame = f'class="rule" stroke="{INK}" stroke-width="3"' if node.critical else ""
        corner = (
            f'x="{x - _BOX[0] / 2:g}" y="{y - _BOX[1] / 2:g}" width="{_BOX[0]}" height="{_BOX[1]}" rx="3"'
        )
        figures = [(node.dur_ms, ""), (node.slack_ms, "slack ")]
        times = [f"{what}{in_digits(ms)} ms" for ms, what in figures if ms is not None]
        head = [bounded(", ".join(node.names or [node.label])), node.cat or "other"]
        description = " · ".join([*head, *times, *["critical path"] * node.critical])
        yield f'<g role="graphics-symbol" aria-label="{escaped(description)}">'
        yield f'<rect {corner} fill="{shades[node.cat]}" {frame}/>'
        yield text(name, x, y + (-1.5 if node.dur_ms else 3.5), _NAME, ink, room=_BOX[0] - 10)
        if node.dur_ms:
            yield text(f"{in_digits(node.dur_ms)} ms", x, y + 9.5, _SMALL, ink)
        yield "</g>"
