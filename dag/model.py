"""`Dag`: operations with durations and edges that say why one waits for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dag.topology import Int32, topological_order
from errors import DagError
from opname import OpName

if TYPE_CHECKING:
    import networkx as nx

Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]

#: In `Dag.step_start_ns` and `Dag.step_dur_ns`: the operation was not recorded in that step.
MISSING = -1

#: Category of the nodes without work of their own at which several ranks meet (duration 0).
MEETING = "meeting"


class Kind(IntEnum):
    """Why the target of an edge waits for its source."""

    DATA = 0  # needs its result
    DEVICE = 1  # next on the same thread, stream or link
    LAUNCH = 2  # was launched by it (a kernel by its CPU call)
    SYNCHRONISE = 3  # a host call that waits for work on a device, a stream that waits for an event
    MESSAGE = 4  # comes over the network from another worker
    GROUP = 5  # all ranks of the group must have come this far
    JOIN = 6  # is under way before that ends, and does its own work after it

    @property
    def label(self) -> str:
        """The kind as a word."""
        return self.name.lower()


#: Edges of these kinds enter an operation at the end of its waiting part (`Dag.wait_ns`).
COUPLING = (Kind.MESSAGE, Kind.GROUP, Kind.JOIN)


_NEVER = np.int64(np.iinfo(np.int64).min)


def _no_edges() -> Int32:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Dag:
    """n operations of one training step and the m reasons why one waits for another.

    Attributes
    ----------
    names : (n,) distinct; with a prefix ``wk<i>.rank<r>.`` where several ranks are merged
    cats : (n,) what `statistic` and the share of a path group by: ``FW BW Comm I/O STEP …`` of BytePS,
        Kineto's categories; `MEETING` for a point where ranks meet
    dur_ns : (n,) the average recorded duration, or that of the step chosen by `at_step`; 0 if unrecorded
    wait_ns : (n,) how much of `dur_ns`, at its beginning, the operation spent waiting for the sources of
        its MESSAGE, GROUP and JOIN edges; these edges enter at the end of this part. ``dur_ns - wait_ns``
        is the service (transfer) time
    device : (n,) index into `devices`, where the operation runs; the device "" is unlimited
    src, dst : (m,) the edges, as node numbers
    kind : (m,) `Kind` of the edge
    next_src, next_dst : the edges that lead into the next step (STEP to the first FW); in no path here
    step_start_ns, step_dur_ns : (s, n) start and duration in each recorded step, `MISSING` where the
        operation was not recorded; s is 0 without a trace
    attrs : further values of nodes by name of the value: {"op": {node: "Convolution"}}
    unrecorded : nodes that are in the graph but not in the trace
    ungraphed : names that are in the trace but not in the graph
    notes : what the builder has to say about gaps in its sources, a sentence each
    """

    names: Sequence[str]
    cats: Sequence[str]
    dur_ns: Int64
    src: Int32
    dst: Int32
    kind: UInt8
    device: Int32
    devices: Sequence[str]
    wait_ns: Int64
    step_start_ns: Int64
    step_dur_ns: Int64
    next_src: Int32 = field(default_factory=_no_edges)
    next_dst: Int32 = field(default_factory=_no_edges)
    attrs: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    unrecorded: Sequence[int] = ()
    ungraphed: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_edges(self) -> int:
        """Edges within the step."""
        return len(self.src)

    @property
    def n_steps(self) -> int:
        """Recorded steps."""
        return len(self.step_dur_ns)

    def at_step(self, step: int) -> Dag:
        """Return the graph with the durations of recorded step `step` (0-based) instead of the averages.

        What was not recorded in that step counts as 0. `wait_ns` is taken anew from the step's starts.

        Raises
        ------
        DagError
            There is no such step.
        """
        if not 0 <= step < self.n_steps:
            have = f"steps 0 to {self.n_steps - 1}" if self.n_steps else "no steps"
            raise DagError(f"step {step} was not recorded: the trace holds {have}")
        rows = slice(step, step + 1)
        waits = waiting_ns(self, self.step_start_ns[rows], self.step_dur_ns[rows])
        dur = np.maximum(self.step_dur_ns[step], 0)
        return replace(
            self,
            dur_ns=dur,
            wait_ns=np.minimum(waits, dur),
            step_start_ns=self.step_start_ns[rows],
            step_dur_ns=self.step_dur_ns[rows],
        )

    def order(self) -> list[int]:
        """Return the nodes in topological order, the smallest number first among equals.

        Raises
        ------
        DagError
            A cycle; the message prints it.
        """
        return topological_order(self.names, self.src, self.dst)

    def to_networkx(self) -> nx.DiGraph[str]:
        """Return the graph with the attributes ``cat``, ``avg`` (ms) and the edges' ``kind`` (a word)."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph()
        for node, (name, cat) in enumerate(zip(self.names, self.cats, strict=True)):
            extra = {key: values[node] for key, values in self.attrs.items() if node in values}
            graph.add_node(name, **{**extra, "cat": cat, "avg": float(self.dur_ns[node]) / 1e6})
        for a, b, kind in zip(self.src.tolist(), self.dst.tolist(), self.kind.tolist(), strict=True):
            graph.add_edge(self.names[a], self.names[b], kind=Kind(kind).label)
        for a, b in zip(self.next_src.tolist(), self.next_dst.tolist(), strict=True):
            graph.add_edge(self.names[a], self.names[b], kind="next")
        return graph


def new_dag(
    names: Sequence[str],
    cats: Sequence[str],
    dur_ns: Sequence[int] | Int64,
    edges: Sequence[tuple[int, int]] | Sequence[tuple[int, int, int]] = (),
    *,
    device: Sequence[str] | None = None,
) -> Dag:
    """Return a `Dag` from plain lists; an edge is (source, target) or (source, target, kind).

    Without `device` every operation has the unlimited device "".
    """
    n = len(names)
    words = list(device) if device is not None else [""] * n
    devices = list(dict.fromkeys(words))
    index = {word: i for i, word in enumerate(devices)}
    dur = np.asarray(dur_ns, np.int64).reshape(n)
    return Dag(
        names=list(names),
        cats=list(cats),
        dur_ns=dur,
        src=np.array([edge[0] for edge in edges], np.int32),
        dst=np.array([edge[1] for edge in edges], np.int32),
        kind=np.array([edge[2] if len(edge) > 2 else Kind.DATA for edge in edges], np.uint8),
        device=np.array([index[word] for word in words], np.int32),
        devices=devices,
        wait_ns=np.zeros(n, np.int64),
        step_start_ns=np.empty((0, n), np.int64),
        step_dur_ns=np.empty((0, n), np.int64),
    )


def subgraph(dag: Dag, keep: NDArray[np.bool_]) -> Dag:
    """Return `dag` with only the nodes of the mask `keep` (n,) and the edges between them."""
    new = np.cumsum(keep, dtype=np.int32) - 1
    inside = keep[dag.src] & keep[dag.dst]
    onward = keep[dag.next_src] & keep[dag.next_dst]
    kept = np.flatnonzero(keep).tolist()
    numbers = {old: i for i, old in enumerate(kept)}
    return replace(
        dag,
        names=[dag.names[i] for i in kept],
        cats=[dag.cats[i] for i in kept],
        dur_ns=dag.dur_ns[keep],
        wait_ns=dag.wait_ns[keep],
        device=dag.device[keep],
        src=new[dag.src[inside]],
        dst=new[dag.dst[inside]],
        kind=dag.kind[inside],
        next_src=new[dag.next_src[onward]],
        next_dst=new[dag.next_dst[onward]],
        step_start_ns=dag.step_start_ns[:, keep],
        step_dur_ns=dag.step_dur_ns[:, keep],
        attrs={
            key: {numbers[i]: value for i, value in values.items() if i in numbers}
            for key, values in dag.attrs.items()
        },
        unrecorded=[numbers[i] for i in dag.unrecorded if i in numbers],
    )


def without_others(dag: Dag, wanted: Sequence[str]) -> Dag:
    """Return `dag` with only the communications named in `wanted` (with or without rank), and all else.

    Raises
    ------
    DagError
        A name is no communication of the graph.
    """
    names = [OpName.parse(name) for name in dag.names]
    mains = [{str(op.main), str(op.main.bare())} if op.is_comm else set() for op in names]
    for name in wanted:
        if not any(name in main for main in mains):
            raise DagError(f"--filter {name}: no such communication operation in the graph")
    keep = [not main or not main.isdisjoint(wanted) for main in mains]
    return subgraph(dag, np.array(keep, np.bool_))


def waiting_ns(dag: Dag, start_ns: Int64, dur_ns: Int64) -> Int64:
    """Return how long each operation waited, after its start, for the sources of its coupling edges.

    Parameters
    ----------
    dag : its edges and categories
    start_ns, dur_ns : (s, n) per recorded step, on one clock; `MISSING` where not recorded

    Returns
    -------
    (n,) int64
        Averaged over the steps: from the operation's start to the latest end of a source, never more
        than its duration. A meeting point ends when the latest of its own sources does.
    """
    n = start_ns.shape[1]
    coupled = np.isin(dag.kind, COUPLING)
    a, b = dag.src[coupled], dag.dst[coupled]
    total = np.zeros(n, np.int64)
    recorded: NDArray[np.bool_] = dur_ns >= 0
    meets = np.array([cat == MEETING for cat in dag.cats], np.bool_)[b]
    for start, dur, known in zip(start_ns, dur_ns, recorded, strict=True):
        end = np.where(known, start + dur, _NEVER)
        np.maximum.at(end, b[meets], end[a[meets]])
        ready = np.full(n, _NEVER)
        np.maximum.at(ready, b[~meets], end[a[~meets]])
        waited = known & (ready > start)
        total[waited] += np.minimum(ready - start, dur)[waited]
    average: Int64 = total // np.maximum(recorded.sum(axis=0), 1)
    return average
