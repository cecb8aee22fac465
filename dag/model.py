"""`Dag`: operations with durations and edges that say why one waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
from msgspec import Struct

from arrays import Int64, NDArray
from arrays.numbering import connected, unique
from dialects.step_parts import EdgeKind
from errors import TraceError

_CYCLE_SHOWN = 5  # operations of a cycle that a message names
_TRIMMED = 20  # layers that are taken off a graph before it is searched for cycles


class Dag(Struct, frozen=True):
    """n operations of one training step and the m reasons why one waits for another.

    Attributes
    ----------
    names : (n,) distinct
    cats : (n,) what the share of a path is grouped by: ``FW BW Comm I/O STEP`` …, or as in the trace
    dur_ns : (n,) the average recorded duration, or that in one step; 0 if unrecorded
    edges : (m, 3) rows of source, target (node numbers) and `EdgeKind`
    next_edges : (k, 2) the edges that lead into the next step (STEP to the first FW); in no path here
    unrecorded : nodes that are in the graph but not in the trace
    ungraphed : names that are in the trace but not in the graph
    """

    names: Sequence[str]
    cats: Sequence[str]
    dur_ns: Int64
    edges: Int64
    next_edges: Int64
    unrecorded: Sequence[int] = ()
    ungraphed: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_edges(self) -> int:
        """Edges within the step and into the next."""
        return len(self.edges) + len(self.next_edges)

    def inputs(self) -> list[list[int]]:
        """Return for every node what it waits for, in the order of the edges."""
        inputs: list[list[int]] = [[] for _ in self.names]
        for source, target in zip(*self.edges[:, :2].T.tolist(), strict=True):
            inputs[target].append(source)
        return inputs

    def order(self) -> list[int]:
        """Return the nodes so that every edge leads forward.

        Raises
        ------
        TraceError
            A cycle; the message prints it.
        """
        try:
            return list(TopologicalSorter(dict(enumerate(self.inputs()))).static_order())
        except CycleError as error:
            names = [self.names[node] for node in error.args[1]]
            if len(names) > _CYCLE_SHOWN + 1:
                names[_CYCLE_SHOWN:] = [f"… ({len(names) - 1} operations)"]
            raise TraceError(f"the graph has a cycle: {' -> '.join(names)}") from error

    def depths(self) -> list[int]:
        """Return for every node the number of nodes on the longest chain that ends in it (at least 1)."""
        return self.ends([1] * len(self))

    def ends(self, lengths: Sequence[int]) -> list[int]:
        """Return when every node (n,) of these lengths ends if it starts as soon as its inputs have ended.

        Raises
        ------
        TraceError
            A cycle.
        """
        inputs, end = self.inputs(), list(lengths)
        for node in self.order():
            end[node] += max((end[before] for before in inputs[node]), default=0)
        return end

    def components(self) -> int:
        """Return the number of parts that no edge connects, whatever its direction."""
        return len(unique(connected(len(self), *self.edges[:, :2].T)))


def new_dag(
    names: Sequence[str],
    cats: Sequence[str],
    dur_ns: Sequence[int] | Int64,
    edges: Sequence[Sequence[int]] | Int64 = (),
) -> Dag:
    """Return a `Dag`; an edge is (source, target) or (source, target, kind)."""
    rows = [(*edge, EdgeKind.DATA)[:3] for edge in edges]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Dag(names, cats, np.asarray(dur_ns, np.int64), table, np.empty((0, 2), np.int64))


def cycles(n: int, edges: Int64) -> NDArray[np.int32]:
    """Return a number for every node, the same for two nodes where each can be reached from the other."""
    edges = edges[:, :2]
    for _ in range(_TRIMMED):  # most graphs have none: what nothing leads to, or from, is in no cycle
        on_the_way = np.isin(edges[:, 0], edges[:, 1]) & np.isin(edges[:, 1], edges[:, 0])
        if on_the_way.all():
            break
        edges = edges[on_the_way]
    if len(edges) == 0:
        return np.arange(n, dtype=np.int32)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return np.asarray(connected_components(matrix, connection="strong")[1], np.int32)


class LongestPath(Struct, frozen=True):
    """The chain of operations whose durations add up to most.

    Attributes
    ----------
    nodes : the path, first to last, as node numbers
    length_ns : the sum of their durations
    slack_ns : (n,) how much longer an operation may take before the length grows
    """

    nodes: list[int]
    length_ns: int
    slack_ns: Int64


def longest_path(dag: Dag) -> LongestPath:
    """Return the longest path of `dag`, in O(n + m); ties go to the edge that comes first.

    It is the critical path of a step in which nothing pauses, with the operations that take no time. An empty
    graph has an empty path of length 0.

    Raises
    ------
    TraceError
        A cycle.
    """
    inputs, dur = dag.inputs(), dag.dur_ns.tolist()
    finish = dag.ends(dur)
    length = max(finish, default=0)
    latest = [length] * len(dag)
    for node in reversed(dag.order()):
        start = latest[node] - dur[node]
        for before in inputs[node]:
            latest[before] = min(latest[before], start)
    slack = np.array(latest, np.int64) - np.array(finish, np.int64)
    return LongestPath(_walk_back(inputs, finish, length), length, slack)


def _walk_back(inputs: list[list[int]], finish: list[int], length: int) -> list[int]:
    """Return the path; of several ends that no other end follows, that with the smallest number."""
    ends = {node for node, end in enumerate(finish) if end == length}
    if not ends:
        return []
    node = min(ends - {before for end in ends for before in inputs[end]})
    path = [node]
    while before := inputs[node]:
        node = max(before, key=finish.__getitem__)
        path.append(node)
    return path[::-1]
