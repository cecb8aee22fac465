"""The longest path through a `Dag` and the slack of every operation."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from dag.model import Dag
from dag.topology import adjacency
from formats.columns import Int64


@dataclass(frozen=True, slots=True)
class LongestPath:
    """The chain of operations whose durations add up to most.

    Attributes
    ----------
    nodes : the path, first to last, as node numbers
    part_ns : what each node adds to the length; the sum is `length_ns`
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

    An empty graph has an empty path of length 0.

    Raises
    ------
    DagError
        A cycle.
    """
    n, order, dur = len(dag), dag.order(), dag.dur_ns.tolist()
    into: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for edge, (a, b) in enumerate(zip(dag.src.tolist(), dag.dst.tolist(), strict=True)):
        into[b].append((edge, a))
    finish, best = dur.copy(), [-1] * n
    for node in order:
        for edge, before in into[node]:
            end = finish[before] + dur[node]
            if end > finish[node] or (end == finish[node] and best[node] < 0):
                finish[node], best[node] = end, edge
    length = max(finish, default=0)
    latest = [length] * n
    out = adjacency(n, dag.src, dag.dst)
    for node in reversed(order):
        for after in out[node]:
            latest[node] = min(latest[node], latest[after] - dur[after])
    finish_ns = np.array(finish, np.int64)
    nodes, kinds = _walk_back(dag, finish, best)
    ends = [finish[node] for node in nodes]
    parts = [b - a for a, b in itertools.pairwise([0, *ends])]
    return LongestPath(nodes, parts, kinds, length, finish_ns, np.array(latest, np.int64) - finish_ns)


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
