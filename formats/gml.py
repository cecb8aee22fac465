"""GML as networkx writes it, read and written fast; every other layout goes through networkx itself.

The fast reader knows one layout: a graph of node blocks that begin with ``id`` and ``label`` and edge
blocks that begin with ``source`` and ``target``, followed by scalar values, in any white space. A file
that departs from it anywhere (comments, nested values, other orders, errors) is left to networkx, so
both readers agree by construction on what is not hot.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atomic_output import open_output
from errors import DagError, TraceError
from formats.stream import ByteStream
from formats.values import GREATEST_INT, LEAST_INT, clean_text

if TYPE_CHECKING:
    import networkx as nx

_REAL = r"[+-]?(?:[0-9]*\.[0-9]+|[0-9]+\.[0-9]*)(?:[Ee][+-]?[0-9]+)?"
_INTEGER = r"[+-]?[0-9]{1,18}(?![0-9])"  # within 64 bits
_VALUE = rf'(?:"[^"\r\n]*"|{_REAL}|{_INTEGER}|[+-]INF|INF|NAN)'
_PAIR = rf"[A-Za-z][0-9A-Za-z_]*\s+{_VALUE}(?=[\s\]])"
_PAIRS = rf"((?:\s+{_PAIR})*)"
_BLOCK = re.compile(
    rf'\s*(?:node\s*\[\s*id\s+([0-9]{{1,18}})\s+label\s+("[^"\r\n]*"){_PAIRS}\s*\]'
    rf"|edge\s*\[\s*source\s+([0-9]{{1,18}})\s+target\s+([0-9]{{1,18}}){_PAIRS}\s*\]"
    r"|([^\s]))"
)
_HEAD = re.compile(rf"\s*graph\s*\[{_PAIRS}")
_EACH_PAIR = re.compile(rf"([A-Za-z][0-9A-Za-z_]*)\s+({_VALUE})")
_REFERENCE = re.compile("&#([0-9]{1,6});")
_OTHER_REFERENCE = re.compile("&(?!#[0-9]{1,6};)")
_EMPTY = ('"[]"', '"()"')  # sequences
_NOT_PLAIN = re.compile(r'[^ -~]|[&"]')
_KEY = re.compile(r"[A-Za-z][0-9A-Za-z_]*")
_INT32 = range(-(1 << 31), 1 << 31)  # integers beyond are written as text


@dataclass(frozen=True, slots=True)
class Gml:
    """A graph as its GML file says it: n nodes and m edges, with whatever values they carry.

    Attributes
    ----------
    labels : (n,) the nodes' names, as text unless the file has a bare number
    source, target : (m,) int64, indices into `labels`
    node_attrs, edge_attrs : the values beside id, label, source and target, a dictionary each
    attrs : the graph's own values
    """

    labels: Sequence[Any]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    node_attrs: Sequence[Mapping[str, Any]]
    edge_attrs: Sequence[Mapping[str, Any]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    directed: bool = True
    multigraph: bool = False

    def to_networkx(self) -> nx.Graph[Any]:
        """Return the graph that networkx reads from the same file."""
        import networkx as nx

        kinds = {
            (False, False): nx.Graph, (True, False): nx.DiGraph,
            (False, True): nx.MultiGraph, (True, True): nx.MultiDiGraph,
        }  # fmt: skip
        graph: nx.Graph[Any] = kinds[self.directed, self.multigraph]()
        graph.graph.update(self.attrs)
        graph.add_nodes_from(zip(self.labels, self.node_attrs, strict=True))
        for a, b, attrs in zip(self.source.tolist(), self.target.tolist(), self.edge_attrs, strict=True):
            rest = dict(attrs)
            keys = [rest.pop("key", None)] if self.multigraph else []
            graph.add_edge(self.labels[a], self.labels[b], *keys, **rest)
        return graph


def from_networkx(graph: nx.Graph[Any]) -> Gml:
    """Return `graph` as `Gml`; a multigraph's keys become the edges' ``key``."""
    labels = list(graph)
    index = {label: i for i, label in enumerate(labels)}
    multi = graph.is_multigraph()
    ends, attrs = [], []
    edges: Iterable[Any] = graph.edges(keys=True, data=True) if multi else graph.edges(data=True)  # type: ignore[call-overload]
    for edge in edges:
        ends.append((index[edge[0]], index[edge[1]]))
        attrs.append({"key": edge[2], **edge[3]} if multi else edge[2])
    pairs = np.array(ends, np.int64).reshape(-1, 2)
    nodes = [graph.nodes[label] for label in labels]
    return Gml(labels, pairs[:, 0], pairs[:, 1], nodes, attrs, graph.graph, graph.is_directed(), multi)


def is_gml(path: Path) -> bool:
    """Whether the name of a file says that it is GML, packed or not."""
    return path.name.lower().endswith((".gml", ".gml.gz"))


def read_gml(path: Path) -> Gml:
    """Read a GML file (``.gz`` too).

    Raises
    ------
    DagError
        The file cannot be read, or is no GML: the message says where.
    """
    try:
        stream = ByteStream(path)
        data = b"".join(stream)
    except TraceError as error:
        raise DagError(str(error)) from error
    if stream.damage:
        raise DagError(f"{path}: cannot be read: {stream.damage}")
    try:
        return parse_gml(data.decode("ascii"), str(path))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DagError(f"{path}: line {line}: not ASCII, which GML has to be (others as &#N;)") from error


def parse_gml(text: str, path: str = "GML") -> Gml:
    """Return the graph that `text` describes; `path` is for the messages.

    Raises
    ------
    DagError
        `text` is no GML, or an edge names a missing node, or ids or labels are doubled.
    """
    with contextlib.suppress(_NotScalarError):
        if (gml := _parse_blocks(text)) is not None:
            return gml
    return _parse_by_networkx(text, path)


def format_gml(gml: Gml) -> str:
    """Return `gml` as GML, byte for byte as `networkx.write_gml` writes the same graph.

    Raises
    ------
    DagError
        A value that GML cannot hold (None, an object) or a key that is no GML key.
    """
    if not gml.multigraph and all(type(label) is str for label in gml.labels):
        with contextlib.suppress(_NotScalarError):
            return _format_blocks(gml)
    return _format_by_networkx(gml)


def write_gml(gml: Gml, path: Path) -> None:
    """Write `gml` to `path`, whole or not at all; see `format_gml`.

    Raises
    ------
    DagError, OutputError
    """
    text = format_gml(gml)
    with open_output(path) as file:
        file.write(text.encode("ascii"))


class _NotScalarError(Exception):
    """A graph has values that only networkx reads and writes."""


_GRAPH_KEYS = frozenset(("directed", "multigraph", "node", "edge"))
_NODE_KEYS = frozenset(("id", "label"))
_EDGE_KEYS = frozenset(("source", "target"))


def _parse_blocks(text: str) -> Gml | None:
    """Read the layout that networkx writes; None for any other."""
    head = _HEAD.match(text)
    if head is None or any(empty in text for empty in _EMPTY) or _OTHER_REFERENCE.search(text):
        return None
    found = _BLOCK.findall(text, head.end())
    stray = [block[6] for block in found if block[6]]
    attrs = _values(head[1])
    foreign = _GRAPH_KEYS & (attrs.keys() - {"directed"})
    if stray != ["]"] or found[-1][6] != "]" or foreign:
        return None
    nodes = [block[:3] for block in found if block[1]]
    edges = [block[3:6] for block in found if block[3]]
    directed = bool(attrs.pop("directed", False))
    return _assemble(nodes, edges, attrs, directed)


def _assemble(
    nodes: list[tuple[str, str, str]],
    edges: list[tuple[str, str, str]],
    attrs: dict[str, Any],
    directed: bool,
) -> Gml | None:
    """Return the graph of the captured texts; None where ids, labels or edges contradict each other."""
    ids, labels = [int(node[0]) for node in nodes], [_text(node[1]) for node in nodes]
    index = {node: i for i, node in enumerate(ids)}
    if len(index) < len(ids) or len(set(labels)) < len(labels):
        return None
    try:
        source = np.array([index[int(edge[0])] for edge in edges], np.int64)
        target = np.array([index[int(edge[1])] for edge in edges], np.int64)
    except KeyError:
        return None
    if not directed or len(np.unique(source * len(ids) + target)) < len(edges):
        return None  # undirected graphs are not hot; a doubled edge is an error to be worded
    node_attrs, edge_attrs = [_values(n[2]) for n in nodes], [_values(e[2]) for e in edges]
    if any(not _NODE_KEYS.isdisjoint(a) for a in node_attrs) or any(
        not _EDGE_KEYS.isdisjoint(a) for a in edge_attrs
    ):
        return None  # a second label or source
    return Gml(labels, source, target, node_attrs, edge_attrs, attrs, directed)


def _values(text: str) -> dict[str, Any]:
    """Return the key-value pairs of a block, whose keys differ."""
    if '"' not in text:
        words = text.split()
        if len(words) == 2:  # the usual case: one figure
            raw = words[1]
            return {words[0]: float(raw) if "." in raw or "N" in raw else int(raw)}
        pairs = list(zip(words[::2], words[1::2], strict=True))
    else:
        pairs = _EACH_PAIR.findall(text)
    values = {key: _value(raw) for key, raw in pairs}
    if len(values) < len(pairs):
        raise _NotScalarError  # a key that is repeated is a list
    return values


def _value(raw: str) -> Any:
    if raw[0] == '"':
        return _text(raw)
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
        raise DagError(f"{path}: {' '.join(str(error).split())}") from error
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError) as error:
        raise DagError(
            f"{path}: not a valid GML graph: a node, an edge or a value has the wrong form"
        ) from error
    except RecursionError as error:
        raise DagError(f"{path}: values are nested too deeply") from error
    try:
        return _within_border(from_networkx(graph))
    except (DagError, RecursionError) as error:
        raise DagError(f"{path}: {error}") from error


def _within_border(gml: Gml) -> Gml:
    """Return a graph whose texts can be encoded and whose integers fit into 64 bits."""
    labels = [clean_text(label) if isinstance(label, str) else label for label in gml.labels]
    if len(set(map(str, labels))) < len(labels):
        raise DagError("two nodes have the same name once lone surrogates are replaced")
    nodes, edges = map(_fitting, gml.node_attrs), map(_fitting, gml.edge_attrs)
    return replace(
        gml, labels=labels, node_attrs=list(nodes), edge_attrs=list(edges), attrs=_fitting(gml.attrs)
    )


def _fitting(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {key: _fitting(item) for key, item in value.items()}
    if isinstance(value, int) and not LEAST_INT <= value <= GREATEST_INT:
        raise DagError(f"a number of more than 64 bits in the graph: {str(value)[:40]}…")
    return [_fitting(item) for item in value] if isinstance(value, list) else value


def _format_by_networkx(gml: Gml) -> str:
    import networkx as nx

    try:
        return "".join(line + "\n" for line in nx.generate_gml(gml.to_networkx()))
    except nx.NetworkXError as error:
        raise DagError(f"cannot be written as GML: {error}") from error


def _format_blocks(gml: Gml) -> str:
    """Write a graph of scalar values."""
    parts = ["graph [\n", "  directed 1\n" if gml.directed else "", _pairs(gml.attrs, _GRAPH_KEYS, "  ")]
    labels = gml.labels if _NOT_PLAIN.search("".join(gml.labels)) is None else map(_escape, gml.labels)
    for i, (label, attrs) in enumerate(zip(labels, gml.node_attrs, strict=True)):
        rest = _pairs(attrs, _NODE_KEYS) if attrs else ""
        parts.append(f'  node [\n    id {i}\n    label "{label}"\n{rest}  ]\n')
    for a, b, attrs in zip(gml.source.tolist(), gml.target.tolist(), gml.edge_attrs, strict=True):
        rest = _pairs(attrs, _EDGE_KEYS) if attrs else ""
        parts.append(f"  edge [\n    source {a}\n    target {b}\n{rest}  ]\n")
    parts.append("]\n")
    return "".join(parts)


def _pairs(attrs: Mapping[str, Any], ignored: frozenset[str], indent: str = "    ") -> str:
    lines = ""
    for key, value in attrs.items():
        if key not in ignored:
            lines += f"{indent}{key} {_written(key, value)}\n"
    return lines


def _written(key: str, value: Any) -> str:
    """Return one value in networkx's spelling."""
    _check_key(key)
    if type(value) is float:
        return _real(value)
    if type(value) is str:
        return f'"{_escape(value)}"'
    if type(value) is int:
        return str(value) if value in _INT32 else f'"{value}"'
    raise _NotScalarError


@lru_cache(maxsize=1024)
def _check_key(key: object) -> None:
    if not isinstance(key, str) or _KEY.fullmatch(key) is None or key == "label":
        raise _NotScalarError


def _real(value: float) -> str:
    """Return a real with a decimal point in its mantissa and a sign before INF, as GML demands."""
    text = repr(value)
    if "." in text and "e" not in text:
        return text
    text = text.upper()
    if text == "INF":
        return "+INF"
    mantissa, e, exponent = text.partition("E")
    return f"{mantissa}.E{exponent}" if e and "." not in mantissa else text


def _escape(text: str) -> str:
    return _NOT_PLAIN.sub(lambda match: f"&#{ord(match[0])};", text)
