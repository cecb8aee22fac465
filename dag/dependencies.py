"""Who waits for whom, without times: from GML or the inputs in event args."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.numbering import unique
from dag.model import Dag, cycles, new_dag
from dialects.step_parts import EdgeKind
from errors import DagError
from formats.columns import Trace
from formats.gml import Gml
from opname import COMM, FIRST, FORWARD, LAST, OUTPUT, OpName

_INPUT = re.compile(r"(?:input|arg)[0-9]+")
_KINDS = {kind.label: kind for kind in EdgeKind}


def dag_from_gml(gml: Gml, path: str = "GML") -> Dag:
    """Return `gml` as a `Dag`, its step boundary cut; `path` is for the messages.

    A node's ``avg`` (ms) is its duration, an edge's ``kind`` its kind (data where missing).

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
    kinds = [_KINDS.get(str(attrs.get("kind")), EdgeKind.DATA) for attrs in gml.edge_attrs]
    edges = np.column_stack([gml.source, gml.target, np.array(kinds, np.int64)])
    return _one_step(new_dag(names, cats, [_avg_ns(attrs, path) for attrs in gml.node_attrs]), edges, path)


def category(name: str) -> str:
    """Return the category that the name of an operation tells; "" for a name outside BytePS's grammar."""
    return OpName.parse(name).cat or ""


def _one_step(dag: Dag, edges: Int64, path: str) -> Dag:
    """Return `dag` with these edges, those from a step's end into the next step's begin kept apart.

    So are those into it from a communication that itself waits for the operation: the weights of the step
    before.
    """
    last, comm, first = (np.array([c in cats for c in dag.cats], np.bool_) for cats in (LAST, (COMM,), FIRST))
    source, target = edges[:, 0], edges[:, 1]
    cut = last[source] & first[target]
    weights = comm[source] & first[target]
    if weights.any():
        cycle = cycles(len(dag), edges[~cut])
        cut |= weights & (cycle[source] == cycle[target])
    dag = replace(dag, edges=edges[~cut], next_edges=edges[cut, :2])
    try:
        dag.order()
    except DagError as error:
        raise DagError(f"{path}: {error}") from error
    return dag


def _avg_ns(attrs: Mapping[str, Any], path: str) -> int:
    value = attrs.get("avg", 0)
    try:
        if (ms := float(value)) < 0:
            raise ValueError
        return round(ms * 1e6)
    except (TypeError, ValueError, OverflowError) as error:
        raise DagError(f"{path}: avg {value!r} is not a duration in milliseconds") from error


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
    used = [trace.names[i] for i in unique(trace.name_id).tolist()]
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
    rows = [(index[a], index[b], EdgeKind.DATA) for a, b in edges if a != b]
    dag = new_dag(names, [category(name) for name in names], [0] * len(names))
    return _one_step(dag, np.array(rows, np.int64).reshape(-1, 3), trace.path)


def _into_outputs(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the edges from the last forward operations to the outputs of which no input is known."""
    pairs = list(edges)
    waited_for = {a for a, b in pairs if category(b) == FORWARD}
    names = dict.fromkeys(name for pair in pairs for name in pair)
    last = [name for name in names if category(name) == FORWARD and name not in waited_for]
    given = {b for _, b in pairs}
    outputs = [name for name in names if category(name) == OUTPUT and name not in given]
    return [(a, b) for a in last for b in outputs]


def _main(name: str) -> str:
    op = OpName.parse(name)
    return name if op.queue is None and op.prefix == "" else str(op.main.bare())
