"""GML: read by networkx, and written as networkx writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from arrays import NDArray
from errors import TraceError
from formats.stream import ByteStream, text_pieces
from formats.values import GREATEST_INT, LEAST_INT, clean_text

if TYPE_CHECKING:
    import networkx as nx

_NOT_PLAIN = re.compile(r'[^ -~]|[&"]')


class Gml(Struct, frozen=True):
    """A graph as its GML file says it: n nodes and m edges, with whatever values they carry.

    Attributes
    ----------
    labels : (n,) the nodes' names, as text unless the file has a bare number
    source, target : (m,) int64, indices into `labels`
    node_attrs, edge_attrs : the values beside id, label, source and target, a dictionary each
    """

    labels: Sequence[Any]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    node_attrs: Sequence[Mapping[str, Any]]
    edge_attrs: Sequence[Mapping[str, Any]]
    directed: bool = True


def is_gml(path: Path) -> bool:
    """Whether the name of a file says that it is GML, packed or not."""
    return path.name.lower().endswith((".gml", ".gml.gz"))


def read_gml(path: Path) -> Gml:
    """Read a GML file (``.gz`` too); TraceError where it cannot be read, or where and why it is not GML."""
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
    """Return the graph that `text` describes; `path` is for the messages.

    Raises TraceError where it is not GML, an edge names a missing node, or ids or labels are doubled.
    """
    import networkx as nx

    try:
        return _within_border(nx.parse_gml(text.split("\n")))
    except (nx.NetworkXError, TraceError) as error:
        raise TraceError(f"{path}: {' '.join(str(error).split())}") from error
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{path}: not a valid GML graph: a node, an edge or a value has the wrong form"
        ) from error
    except RecursionError as error:
        raise TraceError(f"{path}: values are nested too deeply") from error


def _within_border(graph: nx.Graph[Any]) -> Gml:
    """Return the graph, if its integers fit into 64 bits; of its texts, what can be encoded."""
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


def format_gml(gml: Gml) -> str:
    """Return `gml` as `networkx.write_gml` writes the same graph; its values are texts and finite floats."""
    parts = ["graph [\n  directed 1\n"]
    for i, (label, attrs) in enumerate(zip(gml.labels, gml.node_attrs, strict=True)):
        parts.append(f'  node [\n    id {i}\n    label "{_escape(label)}"\n{_pairs(attrs)}  ]\n')
    for a, b, attrs in zip(gml.source.tolist(), gml.target.tolist(), gml.edge_attrs, strict=True):
        parts.append(f"  edge [\n    source {a}\n    target {b}\n{_pairs(attrs)}  ]\n")
    parts.append("]\n")
    return "".join(parts)


def _pairs(attrs: Mapping[str, str | float]) -> str:
    lines = ""
    for key, value in attrs.items():
        written = f'"{_escape(value)}"' if isinstance(value, str) else f"{value:#}".upper()
        lines += f"    {key} {written}\n"
    return lines


def _escape(text: str) -> str:
    return _NOT_PLAIN.sub(lambda match: f"&#{ord(match[0])};", text)
