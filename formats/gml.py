"""GML as networkx writes it, read and written fast; every other layout is read by networkx itself.

The fast reader knows one layout: a directed graph of node blocks that begin with ``id`` and ``label`` and
edge blocks that begin with ``source`` and ``target``, followed by scalar values, in any white space. A file
that departs from it anywhere (comments, nested values, other orders, errors) is left to networkx, so
both readers agree by construction on what is not hot.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from arrays import NDArray
from arrays.numbering import unique
from errors import TraceError
from formats.stream import ByteStream, text_pieces
from formats.values import GREATEST_INT, LEAST_INT, clean_text

if TYPE_CHECKING:
    import networkx as nx

_REAL = r"[+-]?(?:[0-9]*\.[0-9]+|[0-9]+\.[0-9]*)(?:[Ee][+-]?[0-9]+)?"
_INTEGER = r"[+-]?[0-9]{1,18}(?![0-9])"  # within 64 bits
_VALUE = rf'(?:"[^"\r\n]*"|{_REAL}|{_INTEGER}|[+-]INF|INF|NAN)'
_PAIR = rf"[A-Za-z][0-9A-Za-z_]*\s+{_VALUE}(?=[\s\]])"
_PAIRS = rf"((?:\s+{_PAIR})*)"
_BLOCK = (
    rf'(?:node\s*\[\s*id\s+([0-9]{{1,18}})\s+label\s+("[^"\r\n]*"){_PAIRS}\s*\]'
    rf"|edge\s*\[\s*source\s+([0-9]{{1,18}})\s+target\s+([0-9]{{1,18}}){_PAIRS}\s*\]"
    r"|([^\s]))"
)
_HEAD = rf"\s*graph\s*\[{_PAIRS}"
_EACH_PAIR = rf"([A-Za-z][0-9A-Za-z_]*)\s+({_VALUE})"
_REFERENCE = re.compile("&#([0-9]{1,6});")
_FOREIGN = re.compile(r'&(?!#[0-9]{1,6};)|"\[\]"|"\(\)"')  # other references, and sequences
_NOT_PLAIN = re.compile(r'[^ -~]|[&"]')
_GRAPH_KEYS = frozenset(("multigraph", "node", "edge"))
_NODE_KEYS = frozenset(("id", "label"))
_EDGE_KEYS = frozenset(("source", "target"))


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
    with contextlib.suppress(_OtherLayoutError):
        return _parse_blocks(text)
    return _parse_by_networkx(text, path)


class _OtherLayoutError(Exception):
    """A text is for networkx to read, or to refuse in its words."""


def _parse_blocks(text: str) -> Gml:
    """Read the layout that networkx writes."""
    head = re.match(_HEAD, text)
    if head is None or _FOREIGN.search(text):
        raise _OtherLayoutError
    found = re.compile(_BLOCK).findall(text, head.end())
    attrs = _values(head[1])
    is_whole = [block[6] for block in found if block[6]] == ["]"] and found[-1][6] == "]"
    if not is_whole or not attrs.get("directed") or not _GRAPH_KEYS.isdisjoint(attrs):
        raise _OtherLayoutError
    nodes = [block[:3] for block in found if block[1]]
    edges = [block[3:6] for block in found if block[3]]
    labels = [_text(node[1]) for node in nodes]
    index = {int(node[0]): i for i, node in enumerate(nodes)}
    source = np.array([index.get(int(edge[0]), -1) for edge in edges], np.int64)
    target = np.array([index.get(int(edge[1]), -1) for edge in edges], np.int64)
    node_attrs, edge_attrs = [_values(node[2]) for node in nodes], [_values(edge[2]) for edge in edges]
    if (
        len(index) < len(nodes)
        or len(set(labels)) < len(nodes)
        or min(source.min(initial=0), target.min(initial=0)) < 0
        or len(unique(source * len(nodes) + target)) < len(edges)
        or not all(map(_NODE_KEYS.isdisjoint, node_attrs))
        or not all(map(_EDGE_KEYS.isdisjoint, edge_attrs))
    ):
        raise _OtherLayoutError  # ids, labels or edges contradict each other
    return Gml(labels, source, target, node_attrs, edge_attrs)


def _values(text: str) -> dict[str, Any]:
    """Return the key-value pairs of a block, whose keys differ."""
    if '"' in text:
        pairs = re.findall(_EACH_PAIR, text)
    else:
        words = text.split()
        if len(words) == 2:  # the usual case: one figure
            return {words[0]: _number(words[1])}
        pairs = list(zip(words[::2], words[1::2], strict=True))
    values = {key: _text(raw) if raw[0] == '"' else _number(raw) for key, raw in pairs}
    if len(values) < len(pairs):
        raise _OtherLayoutError  # a key that is repeated is a list
    return values


def _number(raw: str) -> float:
    return float(raw) if "." in raw or "N" in raw else int(raw)


def _text(quoted: str) -> str:
    """Return the text between the quotes, references to characters resolved."""
    text = quoted[1:-1]
    return clean_text(_REFERENCE.sub(lambda match: chr(int(match[1])), text)) if "&" in text else text


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
