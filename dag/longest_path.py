"""The longest path through a `Dag` and the slack of every operation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dag.model import COUPLING, Dag, Kind

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LongestPath:
    """The chain of operations that makes the step as long as it is.

    Attributes
    ----------
    nodes : the path, first to last, as node numbers
    part_ns : what each node adds to the length: its duration, or only its service time where the
        path enters it through a `COUPLING` edge; the sum is `length_ns`
    kinds : the `Kind` of the edge by which the path enters each node, -1 for the first
    length_ns : the longest chain of durations
    finish_ns : (n,) earliest end of every operation when all start as early as their inputs allow
    slack_ns : (n,) how much longer an operation may take before the length grows
    """

    nodes: list[int]
    part_ns: list[int]
    kinds: list[int]
    length_ns: int
    finish_ns: Int64
    slack_ns: Int64


def longest_path(dag: Dag) -> LongestPath:
    """Return the longest path of `dag`, in O(n + m); ties go to the edge that comes first.

    But an operation that waited is entered after its wait where that is no shorter, so that the path
    names what was waited for. An empty graph has an empty path of length 0.

    Raises
    ------
    DagError
        A cycle.
    """
    n, order = len(dag), dag.order()
    whole, service = dag.dur_ns.tolist(), (dag.dur_ns - dag.wait_ns).tolist()
    waited = (dag.wait_ns > 0).tolist()
    into, out = _edge_lists(dag)
    finish, best = whole.copy(), [-1] * n
    for node in dag.dst[dag.kind == Kind.JOIN].tolist():
        finish[node] = -1  # no path begins with one that is under way before what it waits for
    for node in order:
        after_wait = False
        for edge, before, coupled in into[node]:
            end = finish[before] + (service[node] if coupled else whole[node])
            names_it = coupled and waited[node] and not after_wait
            if end > finish[node] or (end == finish[node] and (best[node] < 0 or names_it)):
                finish[node], best[node], after_wait = end, edge, coupled
    length = max(finish, default=0)
    latest = [length] * n
    for node in reversed(order):
        for after, coupled in out[node]:
            limit = latest[after] - (service[after] if coupled else whole[after])
            if limit < latest[node]:
                latest[node] = limit
    finish_ns = np.array(finish, np.int64)
    slack_ns = np.array(latest, np.int64) - finish_ns
    nodes, kinds = _walk_back(dag, finish, best)
    parts = [finish[b] - finish[a] for a, b in itertools.pairwise(nodes)]
    parts = ([finish[nodes[0]]] if nodes else []) + parts
    return LongestPath(nodes, parts, kinds, length, finish_ns, slack_ns)


def _edge_lists(
    dag: Dag,
) -> tuple[list[list[tuple[int, int, bool]]], list[list[tuple[int, bool]]]]:
    """Return per node the edges (number, source, coupled) into it and (target, coupled) out of it."""
    into: list[list[tuple[int, int, bool]]] = [[] for _ in range(len(dag))]
    out: list[list[tuple[int, bool]]] = [[] for _ in range(len(dag))]
    coupled = np.isin(dag.kind, COUPLING).tolist()
    for edge, (a, b, c) in enumerate(zip(dag.src.tolist(), dag.dst.tolist(), coupled, strict=True)):
        into[b].append((edge, a, c))
        out[a].append((b, c))
    return into, out


def _walk_back(dag: Dag, finish: list[int], best: list[int]) -> tuple[list[int], list[int]]:
    """Return the path and the kinds of its edges; of several ends, that with the smallest number."""
    length = max(finish, default=0)
    ends = {node for node, end in enumerate(finish) if end == length}
    followed = {a for a, b in zip(dag.src.tolist(), dag.dst.tolist(), strict=True) if a in ends and b in ends}
    if not ends:
        return [], []
    node = min(ends - followed)
    nodes, kinds = [node], []
    while (edge := best[node]) >= 0:
        node = int(dag.src[edge])
        nodes.append(node)
        kinds.append(int(dag.kind[edge]))
    return nodes[::-1], [-1, *reversed(kinds)]
