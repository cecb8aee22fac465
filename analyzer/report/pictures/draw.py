"""Graphs in the languages of other programs: dot, graphml."""

from __future__ import annotations

from pathlib import Path

from analyzer.base.outputs.atomic import open_output
from analyzer.base.units import in_digits
from analyzer.report.pictures import colours
from analyzer.report.pictures.colours import INK
from analyzer.report.pictures.network import EDGE, looks
from analyzer.report.pictures.svg import legal
from analyzer.report.result import Network, Result


def write(result: Result, path: Path) -> None:
    """Write the first graph of `result` as ``.dot`` or ``.graphml``, by the suffix of `path`."""
    chart = next(chart for chart in result.charts if isinstance(chart, Network))
    text = (_dot if path.suffix.lower() == ".dot" else _graphml)(chart)
    with open_output(path) as stream:
        stream.write(text.encode("utf-8"))


def _dot(chart: Network) -> str:
    """Write the graph in Graphviz's language, nodes coloured as in the pictures."""
    shades = colours.assign(node.cat for node in chart.nodes)
    lines = [
        "digraph {",
        "  rankdir=LR;",
        f'  node [shape=box, style=filled, fontname=Helvetica, color="{EDGE}"]; edge [color="{EDGE}"];',
    ]
    for i, node in enumerate(chart.nodes):
        took = f"\\n{in_digits(node.dur_ms)} ms" if node.dur_ms else ""
        label = _dot_text(node.label) + took
        ink = f'fontcolor="{colours.ink_on(shades[node.cat])}"'
        edge = f', color="{INK}", penwidth=3' if node.critical else ""
        lines.append(f'  n{i} [label="{label}", fillcolor="{shades[node.cat]}", {ink}{edge}];')
    for a, b, kind in looks(chart):
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
