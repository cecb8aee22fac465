"""`Dag`: operations with durations and edges that say why one waits for another, as in GML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import connected, cycles, unique
from analyzer.base.errors import TraceError
from analyzer.base.names import COMM, FIRST, LAST, OpName
from analyzer.reading.dialects.edge_rules import EdgeKind
from analyzer.reading.formats.gml import Gml

_CYCLE_SHOWN = 5  # operations of a cycle that a message names
_KINDS = {kind.label: kind for kind in EdgeKind}


class Dag(Struct, frozen=True):
    """n operations of one training step and the m edges between operations that wait for each other."""

    names: Sequence[str]  # (n,) distinct
    cats: Sequence[str]  # (n,) ``FW BW Comm I/O STEP`` …, or as in the trace
    dur_ns: Int64  # (n,) the mean of the recording, or of one step; 0 if unrecorded
    edges: Int64  # (m, 3) source, target (nodes) and `EdgeKind`
    next_edges: Int64  # (k, 2) into the next step (STEP to the first FW); in no path here
    unrecorded: Sequence[int] = ()  # nodes that the trace lacks
    ungraphed: Sequence[str] = ()  # names that the graph lacks

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        cats: Sequence[str],
        dur_ns: Sequence[int] | Int64,
        edges: Sequence[Sequence[int]] | Int64 = (),
    ) -> Dag:
        """Make a graph; an edge is (source, target) or (source, target, kind)."""
        rows = [(*edge, EdgeKind.DATA)[:3] for edge in edges]
        table = np.array(rows, np.int64).reshape(-1, 3)
        return cls(names, cats, np.asarray(dur_ns, np.int64), table, np.empty((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_edges(self) -> int:
        """Edges within the step and into the next."""
        return len(self.edges) + len(self.next_edges)

    def inputs(self) -> list[list[int]]:
        """List the nodes that each node (n,) waits for, in the order of the edges."""
        inputs: list[list[int]] = [[] for _ in self.names]
        for source, target in self.edges[:, :2].tolist():
            inputs[target].append(source)
        return inputs

    def order(self) -> list[int]:
        """List the nodes so that every edge leads forward; TraceError prints a cycle."""
        from graphlib import CycleError, TopologicalSorter

        try:
            return list(TopologicalSorter(dict(enumerate(self.inputs()))).static_order())
        except CycleError as error:
            cycle = [self.names[node] for node in error.args[1][:-1]]
            shown = cycle[:_CYCLE_SHOWN]
            end = [f"… ({len(cycle)} operations)"] if len(cycle) > _CYCLE_SHOWN else cycle[:1]
            raise TraceError(f"the graph has a cycle: {' -> '.join([*shown, *end])}") from error

    def depths(self) -> list[int]:
        """Count the nodes on the longest chain that ends in each node (n,)."""
        return self.ends([1] * len(self))

    def ends(self, lengths: Sequence[int]) -> list[int]:
        """Compute the end of each node (n,) if it starts as soon as its inputs have ended."""
        inputs, end = self.inputs(), list(lengths)
        for node in self.order():
            end[node] += max((end[before] for before in inputs[node]), default=0)
        return end

    def components(self) -> int:
        """Count the parts that no edge connects, whatever its direction."""
        return len(unique(connected(len(self), *self.edges[:, :2].T)))

    def longest_path(self) -> LongestPath:
        """Find the longest path; ties go to the edge that comes first.

        It is the critical path of a step without gaps, with the operations that take no time.
        """
        inputs, dur = self.inputs(), self.dur_ns.tolist()
        finish = self.ends(dur)
        length = max(finish, default=0)
        latest = [length] * len(self)
        for node in reversed(self.order()):
            for before in inputs[node]:
                latest[before] = min(latest[before], latest[node] - dur[node])
        last = sorted(set(range(len(self))) - set(self.edges[:, 0].tolist()))
        path = [max(last, key=finish.__getitem__)] if last else []
        while path and inputs[path[-1]]:
            path.append(max(inputs[path[-1]], key=finish.__getitem__))
        return LongestPath(path[::-1], length, np.array(latest, np.int64) - np.array(finish, np.int64))


class LongestPath(Struct, frozen=True):
    """The chain of operations with the largest sum of durations."""

    nodes: list[int]
    length_ns: int
    slack_ns: Int64  # (n,) how much longer each operation may take before the length grows


def dag_from_gml(gml: Gml, path: str = "GML") -> Dag:
    """Convert GML to a `Dag`, cut at the step boundary; `path` is for the messages.

    A node's ``avg`` (ms) is its duration, an edge's ``kind`` its kind (data where missing). TraceError if the
    graph is undirected, has equal labels, or a cycle within the step.
    """
    if not gml.directed:
        raise TraceError(f"{path}: the graph is undirected: nothing says which of two operations waits")
    names = [str(label) for label in gml.labels]
    if len(set(names)) < len(names):
        raise TraceError(f"{path}: two nodes have the same label")
    cats = [
        str(a["cat"]) if "cat" in a else category_of_name(n)
        for n, a in zip(names, gml.node_attrs, strict=True)
    ]
    kinds = [_KINDS.get(str(attrs.get("kind")), EdgeKind.DATA) for attrs in gml.edge_attrs]
    edges = np.column_stack([gml.source, gml.target, np.array(kinds, np.int64)])
    return one_step(Dag.of(names, cats, [_avg_ns(attrs, path) for attrs in gml.node_attrs]), edges, path)


def category_of_name(name: str) -> str:
    """Derive the category of an operation from its name; "" for a name outside BytePS's grammar."""
    return OpName.parse(name).cat or ""


def one_step(dag: Dag, edges: Int64, path: str) -> Dag:
    """Add `edges` to `dag`, with those into the next step's start apart.

    These come from a step's end, or from a communication that itself waits for their target: it brings the
    weights of the previous step.
    """
    last, comm, first = (np.array([c in cats for c in dag.cats], np.bool_) for cats in (LAST, (COMM,), FIRST))
    source, target = edges[:, 0], edges[:, 1]
    cut = last[source] & first[target]
    weights = comm[source] & first[target]
    if weights.any():
        cycle = cycles(len(dag), edges[~cut, :2])
        cut |= weights & (cycle[source] == cycle[target])
    dag = replace(dag, edges=edges[~cut], next_edges=edges[cut, :2])
    try:
        dag.order()
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    return dag


def _avg_ns(attrs: Mapping[str, Any], path: str) -> int:
    value = attrs.get("avg", 0)
    try:
        if (ms := float(value)) < 0:
            raise ValueError
        return round(ms * 1e6)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: avg {value!r} is not a duration in milliseconds") from error
