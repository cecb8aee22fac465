"""`Dag`: operations with durations and edges that say why one waits for another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int32, Int64
from analyzer.base.arrays.numbering import connected, unique
from analyzer.base.errors import TraceError
from analyzer.reading.dialects.edge_rules import EdgeKind

_CYCLE_SHOWN = 5  # operations of a cycle that a message names


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


def cycles(n: int, edges: Int64) -> Int32:
    """Assign a number to each node (n,): the nodes of a cycle of `edges` (m, 2) share one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return np.asarray(connected_components(matrix, connection="strong")[1], np.int32)


class LongestPath(Struct, frozen=True):
    """The chain of operations with the largest sum of durations."""

    nodes: list[int]
    length_ns: int
    slack_ns: Int64  # (n,) how much longer each operation may take before the length grows
