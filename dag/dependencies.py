"""Who waits for whom, without times: from GML or the inputs in event args, and to GML again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dag.model import Dag, new_dag
from dag.topology import Int32, cycles
from dialects.step_parts import Kind
from errors import DagError
from formats.columns import Trace
from formats.gml import Gml
from opname import OpName

#: Categories that end a step: what follows them belongs to the next one.
_LAST = ("STEP", "UPDATE")
#: Categories that begin a step, where an edge from one of `_LAST` leads into the next step. So does one
#: from a communication that itself waits for the operation: those are the weights of the step before.
_FIRST = ("FW", "I/O")

Bool = NDArray[np.bool_]

_INPUT = re.compile(r"(?:input|arg)[0-9]+")
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
    last, comm, first = (_of_category(dag, cats) for cats in (_LAST, ("Comm",), _FIRST))
    cut = last[src] & first[dst]
    weights = comm[src] & first[dst]
    if weights.any():
        cycle = cycles(len(dag), src[~cut], dst[~cut])
        cut |= weights & (cycle[src] == cycle[dst])
    kind = np.array(kinds, np.uint8)
    return replace(dag, src=src[~cut], dst=dst[~cut], kind=kind[~cut], next_src=src[cut], next_dst=dst[cut])


def _of_category(dag: Dag, cats: Sequence[str]) -> Bool:
    """Return which nodes (n,) have one of these categories."""
    return np.array([cat in cats for cat in dag.cats], np.bool_)


def _avg_ns(attrs: Mapping[str, Any], path: str) -> int:
    value = attrs.get("avg", 0)
    try:
        if (ms := float(value)) < 0:
            raise ValueError
        return round(ms * 1e6)
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


def dag_from_inputs(trace: Trace) -> Dag | None:
    """Return the graph that the events' args tell (``input0``, …, or ``arg0``, …); None if none do.

    Operations are the distinct names, sub-tasks of communications left out; what is only named as an
    input is an operation too. An OUTPUT has no event that could name its inputs: it waits for the
    forward operations that no other one waits for.

    Raises
    ------
    DagError
        A cycle within the step.
    """
    columns = [column for key, column in trace.args.items() if _INPUT.fullmatch(key)]
    used = [trace.names[i] for i in np.unique(trace.name_id).tolist()]
    own = {name for name in used if OpName.parse(name).cat is not None}
    edges: dict[tuple[str, str], None] = {}
    for column in columns:
        names = trace.name_id[column.rows].tolist()
        for name_id, source in dict.fromkeys(zip(names, map(str, column.values), strict=True)):
            if trace.names[name_id] in own:
                edges[_main(source), _main(trace.names[name_id])] = None
    if not edges:
        return None
    edges.update(dict.fromkeys(_into_outputs(edges)))
    seen = [_main(name) for name in used if name in own]
    names = list(dict.fromkeys([*seen, *(end for edge in edges for end in edge)]))
    index = {name: i for i, name in enumerate(names)}
    pairs = np.array([(index[a], index[b]) for a, b in edges if a != b], np.int32).reshape(-1, 2)
    dag = new_dag(names, [category(name) for name in names], [0] * len(names))
    dag = with_edges(dag, pairs[:, 0], pairs[:, 1], [Kind.DATA] * len(pairs))
    try:
        dag.order()
    except DagError as error:
        raise DagError(f"{trace.path}: {error}") from error
    return dag


def _into_outputs(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the edges from the last forward operations to the outputs of which no input is known."""
    pairs = list(edges)
    waited_for = {a for a, b in pairs if category(b) == "FW"}
    names = dict.fromkeys(name for pair in pairs for name in pair)
    last = [name for name in names if category(name) == "FW" and name not in waited_for]
    given = {b for _, b in pairs}
    outputs = [name for name in names if category(name) == "OUTPUT" and name not in given]
    return [(a, b) for a in last for b in outputs]


def _main(name: str) -> str:
    op = OpName.parse(name)
    return name if op.queue is None and op.prefix == "" else str(op.main.bare())
