"""Topological order over plain arrays, and the cycle where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from errors import DagError

Int32 = NDArray[np.int32]

_CYCLE_SHOWN = 5  # operations of a cycle that a message names


def adjacency(n: int, key: Int32, value: Int32) -> list[list[int]]:
    """Return for every node `k` the `value` of the edges whose `key` is k, in the order of the edges."""
    lists: list[list[int]] = [[] for _ in range(n)]
    for a, b in zip(key.tolist(), value.tolist(), strict=True):
        lists[a].append(b)
    return lists


def topological_order(names: Sequence[str], src: Int32, dst: Int32) -> list[int]:
    """Return the nodes so that every edge leads forward (Kahn's algorithm, generation by generation).

    Raises
    ------
    DagError
        A cycle, printed by the nodes' names.
    """
    n = len(names)
    waiting = np.bincount(dst, minlength=n).tolist()
    after = adjacency(n, src, dst)
    order = [node for node in range(n) if waiting[node] == 0]
    for node in order:  # grows while it is walked
        for successor in after[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                order.append(successor)
    if len(order) < n:
        raise DagError(f"the graph has a cycle: {_cycle_text(names, waiting, src, dst)}")
    return order


def depths(n: int, order: Sequence[int], src: Int32, dst: Int32) -> list[int]:
    """Return for every node the number of nodes on the longest chain that ends in it (at least 1)."""
    depth = [1] * n
    after = adjacency(n, src, dst)
    for node in order:
        below = depth[node] + 1
        for successor in after[node]:
            if depth[successor] < below:
                depth[successor] = below
    return depth


def components(n: int, src: Int32, dst: Int32) -> int:
    """Return the number of parts that no edge connects, whatever its direction."""
    parent = list(range(n))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        parent[root(a)] = root(b)
    return sum(parent[node] == node for node in range(n))


def cycles(n: int, src: Int32, dst: Int32) -> Int32:
    """Return a number for every node, the same for two nodes where each can be reached from the other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(src), np.int8), (src, dst)), shape=(n, n))
    return np.asarray(connected_components(edges, connection="strong")[1], np.int32)


def _cycle_text(names: Sequence[str], waiting: Sequence[int], src: Int32, dst: Int32) -> str:
    """Return one cycle as ``a -> b -> a``: walk back from a node that is still waiting until one repeats."""
    before = {
        b: a for a, b in zip(src.tolist(), dst.tolist(), strict=True) if waiting[a] > 0 and waiting[b] > 0
    }
    node = next(node for node, count in enumerate(waiting) if count > 0 and node in before)
    seen: dict[int, None] = {}
    while node not in seen:
        seen[node] = None
        node = before[node]
    walk = list(seen)
    cycle = [node, *reversed(walk[walk.index(node) :])]
    text = [names[i] for i in cycle]
    if len(text) > _CYCLE_SHOWN + 1:
        text = [*text[:_CYCLE_SHOWN], f"… ({len(cycle) - 1} operations)"]
    return " -> ".join(text)
