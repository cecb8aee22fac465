"""`Dag`: operations with durations and edges that say why one waits for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dag.topology import Int32, topological_order
from dialects.step_parts import Kind

if TYPE_CHECKING:
    import networkx as nx

Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]


def _no_edges() -> Int32:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Dag:
    """n operations of one training step and the m reasons why one waits for another.

    Attributes
    ----------
    names : (n,) distinct; with a prefix ``wk<i>.rank<r>.`` where several ranks are merged
    cats : (n,) what the share of a path is grouped by: ``FW BW Comm I/O STEP`` …, or as in the trace
    dur_ns : (n,) the average recorded duration, or that in one step; 0 if unrecorded
    device : (n,) index into `devices`, where the operation runs; the device "" is unlimited
    src, dst : (m,) the edges, as node numbers
    kind : (m,) `Kind` of the edge
    next_src, next_dst : the edges that lead into the next step (STEP to the first FW); in no path here
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
    )
