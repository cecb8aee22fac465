"""BytePS's dependency graphs: from the profiler's GML or the inputs in event args, to GML again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dag.gml import Gml
from dag.model import Dag, Kind, new_dag
from dag.order import Int32
from errors import DagError
from opname import OpName

#: Categories that end a step: what follows them belongs to the next one.
_LAST = ("STEP", "UPDATE")
#: Categories that begin a step, where an edge from one of `_LAST` leads into the next step.
_FIRST = ("FW", "I/O")

_KINDS = {kind.label: kind for kind in Kind}


def dag_from_gml(gml: Gml, path: str = "GML") -> Dag:
    """Return `gml` as a `Dag`, its step boundary cut; `path` is for the messages.

    A node's ``avg`` (ms) is its duration, an edge's ``kind`` its kind (data where missing). All other
    values of nodes are kept in `Dag.attrs`.

    Raises
    ------
    DagError
        The graph is undirected, two labels are the same text, or a cycle remains within the step.
    """
    if not gml.directed:
        raise DagError(f"{path}: the graph is undirected: nothing says which of two operations waits")
    names = [str(label) for label in gml.labels]
    if len(set(names)) < len(names):
        raise DagError(f"{path}: two nodes have the same label")
    cats = [str(a["cat"]) if "cat" in a else category(n) for n, a in zip(names, gml.node_attrs, strict=True)]
    dag = new_dag(names, cats, [_avg_ns(attrs, path) for attrs in gml.node_attrs])
    kinds = [_KINDS.get(str(attrs.get("kind")), Kind.DATA) for attrs in gml.edge_attrs]
    dag = with_edges(dag, gml.source.astype(np.int32), gml.target.astype(np.int32), kinds)
    dag = replace(dag, attrs=_node_values(gml.node_attrs))
    try:
        dag.order()
    except DagError as error:
        raise DagError(f"{path}: {error}") from error
    return dag


def dag_to_gml(dag: Dag) -> Gml:
    """Return `dag` as `Gml`; inverse of `dag_from_gml` but for what only a trace knows."""
    timed = bool(dag.dur_ns.any())
    nodes = []
    for i, (name, cat, dur) in enumerate(zip(dag.names, dag.cats, dag.dur_ns.tolist(), strict=True)):
        attrs = {key: values[i] for key, values in dag.attrs.items() if i in values}
        if timed:
            attrs["avg"] = dur / 1e6
        if cat != category(name):
            attrs["cat"] = cat
        nodes.append(attrs)
    edges = [{} if kind == Kind.DATA else {"kind": Kind(kind).label} for kind in dag.kind.tolist()]
    source, target = np.append(dag.src, dag.next_src), np.append(dag.dst, dag.next_dst)
    edges += [{}] * len(dag.next_src)
    return Gml(list(dag.names), source.astype(np.int64), target.astype(np.int64), nodes, edges)


def category(name: str) -> str:
    """Return the category that the name of an operation tells; "" for a name outside BytePS's grammar."""
    return OpName.parse(name).cat or ""


def with_edges(dag: Dag, src: Int32, dst: Int32, kinds: Sequence[int]) -> Dag:
    """Return `dag` with these edges, those from a step's end into the next step's begin kept apart."""
    last = np.array([cat in _LAST for cat in dag.cats], np.bool_)
    first = np.array([cat in _FIRST for cat in dag.cats], np.bool_)
    cut = last[src] & first[dst] if len(dag) else np.empty(0, np.bool_)
    kind = np.array(kinds, np.uint8)
    return replace(dag, src=src[~cut], dst=dst[~cut], kind=kind[~cut], next_src=src[cut], next_dst=dst[cut])


def _avg_ns(attrs: Mapping[str, Any], path: str) -> int:
    value = attrs.get("avg", 0)
    try:
        return round(float(value) * 1e6)
    except (TypeError, ValueError, OverflowError) as error:
        raise DagError(f"{path}: avg {value!r} is no duration in milliseconds") from error


def _node_values(attrs: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return the values by their keys: {"op": {node: "Convolution"}}."""
    values: dict[str, dict[int, Any]] = {}
    for node, pairs in enumerate(attrs):
        for key, value in pairs.items():
            if key not in ("avg", "cat"):
                values.setdefault(key, {})[node] = value
    return values
