"""GML in the layout of networkx, read fast; networkx itself reads all other layouts.

The fast reader knows one layout: a directed graph with a pair of key and scalar value, or the beginning or
end of a block, on each line. networkx reads any other file (comments, nested values, errors).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import NDArray
from analyzer.base.errors import TraceError
from analyzer.reading.formats.stream import ByteStream, text_pieces
from analyzer.reading.formats.values import GREATEST_INT, LEAST_INT, clean_text

if TYPE_CHECKING:
    import networkx as nx

_UNUSUAL = ("&", '"[]"', '"()"')  # references to characters, and empty sequences
_NOT_FINITE = ("NAN", "INF", "+INF", "-INF")
_MOST_DIGITS = 18  # of an integer that is certain to have 64 bits


class Gml(Struct, frozen=True):
    """The graph in a GML file: n nodes and m edges, with their other values."""

    labels: Sequence[Any]  # (n,) names of the nodes: texts, or bare numbers of the file
    source: NDArray[np.int64]  # (m,) indices into `labels`
    target: NDArray[np.int64]
    node_attrs: Sequence[Mapping[str, Any]]
    edge_attrs: Sequence[Mapping[str, Any]]
    directed: bool = True


def is_gml(path: Path) -> bool:
    """Check whether a file is named as GML, packed or not."""
    return path.name.lower().endswith((".gml", ".gml.gz"))


def read_gml(path: Path) -> Gml:
    """Read a GML file (``.gz`` too); TraceError if it is unreadable or not GML."""
    stream = ByteStream(path)
    data = b"".join(text_pieces(stream))
    if stream.damage:
        raise TraceError(f"{path}: cannot be read: {stream.damage}")
    try:
        return parse_gml(data.decode("ascii"), str(path))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise TraceError(f"{path}: line {line}: not ASCII, which GML has to be (others as &#N;)") from error


def parse_gml(text: str, path: str = "GML") -> Gml:
    """Parse a graph; `path` is for the messages.

    TraceError if it is not GML, an edge names a missing node, or ids or labels are doubled.
    """
    with contextlib.suppress(ValueError, KeyError, StopIteration):
        return _parse_lines(text)
    return _parse_by_networkx(text, path)


def _parse_lines(text: str) -> Gml:
    """Parse the layout of networkx; ValueError, KeyError or StopIteration for any other."""
    lines = map(str.strip, text.split("\n"))
    if next(lines) != "graph [" or any(part in text for part in _UNUSUAL):
        raise ValueError
    blocks: dict[str, list[dict[str, Any]]] = {"node [": [], "edge [": []}
    graph: dict[str, Any] = {}
    while (line := next(lines)) != "]":
        if line in blocks:
            blocks[line].append(_block(lines))
        else:
            _add_pair(line, graph)
    nodes, edges = blocks.values()
    index = {node.pop("id"): i for i, node in enumerate(nodes)}
    labels = [node.pop("label") for node in nodes]
    ends = [(index[edge.pop("source")], index[edge.pop("target")]) for edge in edges]
    is_typed = all(type(label) is str for label in labels) and all(type(i) is int for i in index)
    is_distinct = len(index) == len(set(labels)) == len(nodes) and len(set(ends)) == len(edges)
    if any(lines) or not graph.pop("directed") or "multigraph" in graph or not is_typed or not is_distinct:
        raise ValueError
    source, target = np.array(ends, np.int64).reshape(-1, 2).T
    return Gml(labels, source, target, nodes, edges)


def _block(lines: Iterator[str]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    while (line := next(lines)) != "]":
        _add_pair(line, block)
    return block


def _add_pair(line: str, block: dict[str, Any]) -> None:
    """Add the key and the value of a line; ValueError if it is no such pair, or the key is doubled."""
    key, _, raw = line.partition(" ")
    raw = raw.lstrip()
    if not key.isidentifier() or key[0] == "_" or key in block:
        raise ValueError
    if raw[:1] == '"':
        if raw[-1] != '"' or len(raw) < 2 or '"' in raw[1:-1] or "\r" in raw:
            raise ValueError
        block[key] = raw[1:-1]
    elif "." in raw or raw in _NOT_FINITE:
        if "_" in raw:  # allowed by Python only
            raise ValueError
        block[key] = float(raw)
    elif raw.lstrip("+-").isdecimal() and len(raw) <= _MOST_DIGITS:
        block[key] = int(raw)
    else:
        raise ValueError


def _parse_by_networkx(text: str, path: str) -> Gml:
    import networkx as nx

    try:
        graph = nx.parse_gml(text.split("\n"))
    except nx.NetworkXError as error:
        raise TraceError(f"{path}: {' '.join(str(error).split())}") from error
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{path}: not a valid GML graph: a node, an edge or a value has the wrong form"
        ) from error
    except RecursionError as error:
        raise TraceError(f"{path}: values are nested too deeply") from error
    try:
        return _within_border(graph)
    except (TraceError, RecursionError) as error:
        raise TraceError(f"{path}: {error}") from error


def _within_border(graph: nx.Graph[Any]) -> Gml:
    """Bring a graph within the border of `formats.values`; TraceError if an integer has over 64 bits."""
    labels = [_fitting(label) if isinstance(label, str) else label for label in graph]
    if len(set(map(str, labels))) < len(labels):
        raise TraceError("two nodes have the same name once lone surrogates are replaced")
    index = {label: i for i, label in enumerate(graph)}
    edges = list(graph.edges(data=True))
    ends = np.array([(index[a], index[b]) for a, b, _ in edges], np.int64).reshape(-1, 2)
    nodes, values = [_fitting(graph.nodes[label]) for label in graph], [_fitting(edge[2]) for edge in edges]
    _fitting(graph.graph)
    return Gml(labels, ends[:, 0], ends[:, 1], nodes, values, graph.is_directed())


def _fitting(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {key: _fitting(item) for key, item in value.items()}
    if isinstance(value, int) and not LEAST_INT <= value <= GREATEST_INT:
        raise TraceError(f"a number of more than 64 bits in the graph: {str(value)[:40]}…")
    return [_fitting(item) for item in value] if isinstance(value, list) else value
