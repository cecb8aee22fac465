"""Graphs as SVG, and in the languages of other programs: dot, graphml."""

from __future__ import annotations

import html
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from errors import OutputError
from outputs.atomic import open_output
from report import colours
from report.colours import INK, SOFT
from report.names import bounded, labels
from report.tables import display_width
from result import Network, Result, in_digits

_UNIT = (190, 34)  # pixels of one layer and one row
_BOX = (156, 26)
_MARGIN = 16
_LEAST_WIDTH = 640
_LABEL = 25  # columns of a name in a box
_NAME, _SMALL, _TEXT, _TITLE = 10.5, 8.5, 11, 15  # font sizes
_EM = 0.58  # of a character, on average
_EDGE = "#7d8896"
_EDGES = {  # of each look: colour, opacity, width, dashes; later ones are drawn over earlier ones
    "next": (_EDGE, 0.6, 1.0, "4 3"),
    "long": (_EDGE, 0.3, 0.8, ""),
    "short": (_EDGE, 0.9, 1.0, ""),
    "critical": (INK, 1.0, 2.4, ""),
}
_LONG = 1.5  # layers or bands: longer edges are drawn faintly
_NEAR_ROWS = 8
_TWO_LINES = 2_500  # from this many nodes on, names go without durations: a text costs a bitmap a millisecond
_ILLEGAL_XML = "[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_SIZE = re.compile(r'<svg[^>]*? width="([\d.]+)" height="([\d.]+)"')
_Place = tuple[float, float]


def write(result: Result, path: Path) -> None:
    """Write the first graph of `result` as ``.dot`` or ``.graphml``, by the suffix of `path`.

    Raises
    ------
    OutputError
        The result has no graph, or the file cannot be written.
    """
    chart = next((chart for chart in result.charts if isinstance(chart, Network)), None)
    if chart is None:
        raise OutputError(f"{path}: {result.option} has no graph to write as {path.suffix}")
    text = dot(chart) if path.suffix.lower() == ".dot" else graphml(chart)
    with open_output(path) as stream:
        stream.write(text.encode("utf-8"))


def dot(chart: Network) -> str:
    """Return the graph in Graphviz's language, nodes coloured as in the pictures."""
    shades = colours.assign(str(node["cat"]) for node in chart.nodes)
    lines = [
        "digraph {",
        "  rankdir=LR;",
        f'  node [shape=box, style=filled, fontname=Helvetica, color="{_EDGE}"]; edge [color="{_EDGE}"];',
    ]
    for i, node in enumerate(chart.nodes):
        label = _dot_text(str(node["label"])) + (
            f"\\n{in_digits(node['dur_ms'])} ms" if node.get("dur_ms") else ""
        )
        ink = f'fontcolor="{colours.ink_on(shades[str(node["cat"])])}"'
        edge = f', color="{INK}", penwidth=3' if node.get("critical") else ""
        lines.append(f'  n{i} [label="{label}", fillcolor="{shades[str(node["cat"])]}", {ink}{edge}];')
    for a, b, kind in chart.looks():
        look = f'color="{INK}", penwidth=2' if kind == "critical" else f'tooltip="{_dot_text(kind)}"'
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
    return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, ""])


def svg(chart: Network, headline: str = "") -> str:
    """Return the graph as SVG: every box where the layout put it, each text escaped and bounded."""
    places = [(float(node["x"]) * _UNIT[0], float(node["y"]) * _UNIT[1]) for node in chart.nodes]
    xs, ys = zip(*places, strict=True) if places else ((0.0,), (0.0,))
    left, top = min(xs) - _BOX[0] / 2, min(ys) - _UNIT[1]
    width = max(max(xs) - left + _BOX[0] / 2, _LEAST_WIDTH)
    height = max(ys) - top + _UNIT[1]
    shades = colours.assign(str(node["cat"]) for node in chart.nodes)
    head, head_height = _head(chart, headline, shades, width)
    parts = [
        *(f'<g transform="translate({_MARGIN},{_MARGIN})">', *head, "</g>"),
        f'<g transform="translate({_MARGIN - left:g},{_MARGIN + head_height - top:g})">',
        *_edges(chart, places),
        *_nodes(chart, places, shades),
        "</g>",
    ]
    wide, high = round(width + 2 * _MARGIN), round(height + head_height + 2 * _MARGIN)
    area, view = f'width="{wide}" height="{high}"', f'viewBox="0 0 {wide} {high}"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {area} {view} font-family="{colours.FONT}">'
    return "\n".join([begin, f'<rect {area} fill="white"/>', *parts, "</svg>"])


def pixels(picture: str) -> tuple[float, float]:
    """Return width and height of an SVG in pixels, as its first element says."""
    match = _SIZE.search(picture)
    return (float(match[1]), float(match[2])) if match else (1.0, 1.0)


def resized(picture: str, scale: float) -> str:
    """Return an SVG with a ``viewBox`` that is shown at another size."""
    width, height = (side * scale for side in pixels(picture))
    first, rest = picture.split(">", 1)
    first = re.sub(r' width="[\d.]+" height="[\d.]+"', f' width="{width:g}" height="{height:g}"', first)
    return f"{first}>{rest}"


def _edges(chart: Network, places: Sequence[_Place]) -> Iterator[str]:
    """Yield every edge as a curve from the right of its source to the left of its target, by looks."""
    curves: dict[str, list[str]] = {}
    for (a, b, kind), row in zip(chart.looks(), chart.rows(), strict=True):
        start, end = (places[a][0] + _BOX[0] / 2, places[a][1]), (places[b][0] - _BOX[0] / 2, places[b][1])
        near = end[0] - start[0] < _LONG * _UNIT[0] and abs(end[1] - start[1]) < _NEAR_ROWS * _UNIT[1]
        look = kind if kind in _EDGES else "short" if near and end[0] > start[0] else "long"
        curves.setdefault(look, []).append(_curve(start, end, row))
        curves.setdefault(f"{look} heads", []).append(f"M{end[0]:g} {end[1]:g}l-6 -3.2v6.4z")
    for look, (colour, opacity, width, dashes) in _EDGES.items():
        if look not in curves:
            continue
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        line = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"{dashed}'
        yield f'<path {line} d="{"".join(curves[look])}"/>'
        faint = f'fill="{colour}" fill-opacity="{max(opacity, 0.4)}"'
        yield f'<path {faint} d="{"".join(curves[f"{look} heads"])}"/>'


def _curve(start: _Place, end: _Place, row: float | None) -> str:
    (x0, y0), (x1, y1) = start, end
    if row is not None:
        return f"M{x0:g} {y0:g}h12V{row * _UNIT[1]:g}H{x1 - 12:g}V{y1:g}H{x1:g}"
    bend = max(10.0, min(0.5 * _UNIT[0], (x1 - x0) / 2))
    return f"M{x0:g} {y0:g}C{x0 + bend:g} {y0:g} {x1 - bend:g} {y1:g} {x1:g} {y1:g}"


def _nodes(chart: Network, places: Sequence[_Place], shades: Mapping[str, str]) -> Iterator[str]:
    """Yield the boxes with names and durations, those of the critical path framed."""
    names = labels([str(node["label"]) for node in chart.nodes], _LABEL)
    room = _BOX[0] - 10
    for node, name, (x, y) in zip(chart.nodes, names, places, strict=True):
        shade = shades[str(node["cat"])]
        ink = f'text-anchor="middle" fill="{colours.ink_on(shade)}"'
        frame = f' stroke="{INK}" stroke-width="3"' if node.get("critical") else ""
        corner = f'x="{x - _BOX[0] / 2:g}" y="{y - _BOX[1] / 2:g}"'
        yield f'<rect {corner} width="{_BOX[0]}" height="{_BOX[1]}" rx="3" fill="{shade}"{frame}/>'
        ms = node.get("dur_ms") if len(chart.nodes) < _TWO_LINES else None
        yield _text(name, x, y + (-1.5 if ms else 3.5), _NAME, ink, room=room)
        if ms:
            yield _text(f"{in_digits(ms)} ms", x, y + 9.5, _SMALL, ink)


def _head(chart: Network, headline: str, shades: Mapping[str, str], width: float) -> tuple[list[str], float]:
    """Return title, note and legend, and how high they are."""
    parts, y = [], 0.0
    first, *others = filter(None, (headline, chart.title, chart.note)) or ("",)
    for line in textwrap.wrap(bounded(first), max(20, int(width / (_TITLE * _EM))))[:4]:
        y += _TITLE * 1.3
        parts.append(_text(line, 0, y, _TITLE, f'font-weight="bold" fill="{INK}"', room=width))
    for line in others:
        y += _TEXT * 1.6
        parts.append(_text(bounded(line), 0, y, _TEXT, f'fill="{SOFT}"', room=width))
    counts = Counter(str(node["cat"]) for node in chart.nodes)
    words = labels([cat or "other" for cat in counts], 2 * _LABEL)
    entries = [
        (f'<rect x="{{0:g}}" y="{{1:g}}" width="12" height="12" fill="{shades[cat]}"/>', f"{word} ({n:,})")
        for (cat, n), word in zip(counts.items(), words, strict=True)
    ]
    drawn = {kind for _, _, kind in chart.looks()}
    said = {"critical": "critical path", "next": "into the next step"}
    entries += [(_stroke(look), words) for look, words in said.items() if look in drawn]
    x, y = 0.0, y + 10
    for symbol, word in entries:
        wide = 20 + _wide(word, _TEXT) + 18
        if x and x + wide > width:
            x, y = 0.0, y + 18
        parts.append(symbol.format(x, y))
        parts.append(_text(word, x + 18, y + 10, _TEXT, f'fill="{INK}"'))
        x += wide
    return parts, y + 26


def _stroke(look: str) -> str:
    colour, _, width, dashes = _EDGES[look]
    line = f'stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes or "none"}"'
    return f'<path transform="translate({{0:g}},{{1:g}})" d="M0 6h14" {line}/>'


def _text(text: str, x: float, y: float, size: float, look: str, room: float = 0) -> str:
    """Return a text; one that is probably wider than `room` is squeezed into it."""
    squeezed = (
        f' textLength="{room:g}" lengthAdjust="spacingAndGlyphs"' if 0 < room < _wide(text, size) else ""
    )
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {look}{squeezed}>{_escaped(text)}</text>'


def _wide(text: str, size: float) -> float:
    """Return about how many pixels a text takes; capitals are wider than the average."""
    return (display_width(text) + 0.25 * sum(map(str.isupper, text))) * size * _EM


def _escaped(text: str) -> str:
    return html.escape(str(_legal(text)))


def _dot_text(text: str) -> str:
    return str(_legal(text)).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _legal(value: Any) -> Any:
    return re.sub(_ILLEGAL_XML, "\ufffd", value) if isinstance(value, str) else value
