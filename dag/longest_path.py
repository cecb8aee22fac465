"""The longest path through a `Dag` and the slack of every operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dag.model import Dag
from formats.columns import Int64


@dataclass(frozen=True, slots=True)
class LongestPath:
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

    An empty graph has an empty path of length 0.

    Raises
    ------
    DagError
        A cycle.
    """
    order, inputs, dur = dag.order(), dag.inputs(), dag.dur_ns.tolist()
    finish = dur.copy()
    for node in order:
        finish[node] += max((finish[before] for before in inputs[node]), default=0)
    length = max(finish, default=0)
    latest = [length] * len(dag)
    for node in reversed(order):
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
