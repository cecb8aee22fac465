"""Where to draw the nodes of a dependency graph: in layers, the critical path in a straight line.

A layer is a column, time runs to the right; a graph of many layers is folded like lines of text into
bands, so that a long chain still fills a page. In every layer the node of the longest path has the first
row; any other takes the row of what it waits for where that is free, so that chains run straight.
Graphs too large to draw are condensed first: operations whose names begin alike become one node.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from dag.model import Dag, LongestPath
from dialects.step_parts import Kind
from formats.columns import Int64
from result import Network

#: A picture with more nodes than this is condensed.
MOST_NODES = 20_000
#: A still cannot be zoomed into as a page can: it is condensed earlier.
MOST_IN_A_STILL = 5_000
#: What a condensed graph aims at, at most and at least.
_CONDENSED = 2_000
_FEW = 60
#: Width and height of a node's place: what makes a page of bands look well filled.
_PLACE = (190, 34)
_ASPECT = 1.6
_PART = re.compile(r"[._/:-]+|(?<=\D)(?=\d)")


def draw(dag: Dag, path: LongestPath, title: str = "", *, most: int = MOST_NODES) -> Network:
    """Return where everything goes; a graph of more than `most` nodes is condensed by its names.

    A condensed node has the sum of its members' durations, the least slack, and their number
    (``operations``). Without durations there is no slack to show either.
    """
    group = np.arange(len(dag)) if len(dag) <= most else _groups(dag, min(_CONDENSED, most // 10))
    labels = list(dag.names) if len(dag) <= most else _group_labels(dag, group)
    n = len(labels)
    note = "" if n == len(dag) else (
        f"condensed: {len(dag):,} operations are drawn as {n:,}, by the beginnings of their names"
    )  # fmt: skip
    layer = _layers(dag, group, n)
    walk = group[path.nodes].tolist() if path.nodes else []
    steps = dict.fromkeys(  # of a condensed path, only what leads onward
        (a, b) for a, b in itertools.pairwise(walk) if layer[a] < layer[b]
    )
    spine = dict.fromkeys(walk)
    edges = _edges(dag, group)
    x, y = _places(n, layer, spine, edges)
    first = np.unique(group, return_index=True)[1].tolist()
    dur_ms = (np.bincount(group, dag.dur_ns, n) / 1e6).tolist()
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, group, path.slack_ns)
    slack_ms = (slack / 1e6).tolist()
    members = np.bincount(group, minlength=n).tolist()
    timed = bool(dag.dur_ns.any())
    nodes: list[dict[str, Any]] = [
        {
            "label": labels[i],
            "cat": dag.cats[first[i]],
            "x": x[i],
            "y": y[i],
            "dur_ms": dur_ms[i] if timed else None,
            "critical": i in spine,
            **({"slack_ms": slack_ms[i]} if timed else {}),
            **({"operations": members[i]} if members[i] > 1 else {}),
        }
        for i in range(n)
    ]
    return Network(title, nodes, edges, note, list(steps))


def _layers(dag: Dag, group: Int64, n: int) -> list[int]:
    """Return the layer of every drawn node: its depth; what waits for nothing stands before its user."""
    depth = np.array(dag.depths(), np.int64) - 1
    source, target, _ = dag.edges.T
    waits = np.zeros(len(dag), np.bool_)
    waits[target] = True
    nearest = np.full(len(dag), np.iinfo(np.int64).max)
    np.minimum.at(nearest, source, depth[target])
    free = ~waits & (nearest < np.iinfo(np.int64).max)
    depth[free] = nearest[free] - 1
    if n == len(dag):
        return [int(d) for d in depth]
    mean = np.bincount(group, depth, n) / np.bincount(group, minlength=n)
    _, rank = np.unique(np.rint(mean), return_inverse=True)
    return [int(r) for r in rank.reshape(-1)]


def _edges(dag: Dag, group: Int64) -> list[tuple[int, int, str]]:
    """Return the edges between drawn nodes, each pair once, those to the next step too."""
    kinds: dict[tuple[int, int], str] = {}
    for (a, b), kind in zip(group[dag.edges[:, :2]].tolist(), dag.edges[:, 2].tolist(), strict=True):
        if a != b:
            kinds.setdefault((a, b), Kind(kind).label)
    for a, b in group[dag.next_edges].tolist():
        kinds.setdefault((a, b), "next")
    return [(a, b, kind) for (a, b), kind in kinds.items()]


def _places(
    n: int, layer: Sequence[int], spine: dict[int, None], edges: Sequence[tuple[int, int, str]]
) -> tuple[list[float], list[float]]:
    """Return column and row of every node, folded into bands."""
    before: list[list[int]] = [[] for _ in range(n)]
    for a, b, _ in edges:
        if layer[a] < layer[b]:
            before[b].append(a)
    n_layers = max(layer, default=-1) + 1
    columns: list[list[int]] = [[] for _ in range(n_layers)]
    for node in range(n):
        columns[layer[node]].append(node)
    row = [0] * n
    for column in columns:
        _fill(column, row, spine, before)
    heights = [max((row[node] for node in column), default=0) + 1 for column in columns]
    width = _band_width(heights)
    tops = _band_tops(heights, width)
    x = [float(layer[node] % width) for node in range(n)]
    y = [float(tops[layer[node] // width] + row[node]) for node in range(n)]
    return x, y


def _fill(column: list[int], row: list[int], spine: dict[int, None], before: Sequence[Sequence[int]]) -> None:
    """Give every node of a layer a row of its own: the spine's the first, others near what they wait for."""
    taken: set[int] = set()
    wanted = []
    for node in column:
        if node in spine and 0 not in taken:
            row[node] = 0
            taken.add(0)
            continue
        rows = [row[other] for other in before[node]]
        wanted.append((sum(rows) / len(rows) if rows else 1.0, node))
    for where, node in sorted(wanted):
        place = _free_row(max(round(where), 1), taken)
        row[node] = place
        taken.add(place)


def _free_row(wish: int, taken: set[int]) -> int:
    for distance in range(len(taken) + 2):
        for place in (wish - distance, wish + distance):
            if place >= 1 and place not in taken:
                return place
    return wish + len(taken) + 2


def _band_width(heights: Sequence[int]) -> int:
    """Return how many layers a band holds so that the page comes nearest to the wanted aspect."""
    n = len(heights)
    best, best_off = max(n, 1), math.inf
    for width in _widths(n):
        total = sum(max(heights[i : i + width]) + 1 for i in range(0, n, width))
        off = abs(math.log(width * _PLACE[0] / (total * _PLACE[1]) / _ASPECT))
        if off < best_off:
            best, best_off = width, off
    return best


def _widths(n: int) -> list[int]:
    """Return widths to try, from 4 layers (or fewer) to all, each a twentieth more than the last."""
    widths, width = [], min(n, 4)
    while 0 < width < n:
        widths.append(width)
        width += max(1, width // 20)
    return [*widths, n] if n else []


def _band_tops(heights: Sequence[int], width: int) -> list[int]:
    tops, top = [], 0
    for i in range(0, len(heights), width):
        tops.append(top)
        top += max(heights[i : i + width]) + 1
    return tops


def _groups(dag: Dag, limit: int) -> Int64:
    """Return the group (0, 1, …) of each node: as many parts of the name as keep the groups few.

    Where that leaves next to nothing, a group is one of these within a stretch of layers.
    """
    parts = [[part for part in _PART.split(name) if part] for name in dag.names]
    most = max(map(len, parts), default=1)
    group: list[int] = [0] * len(dag)
    for length in range(1, most + 1):
        finer = _numbered((cat, *words[:length]) for cat, words in zip(dag.cats, parts, strict=True))
        if max(finer) >= limit and length > 1:
            break
        group = finer
    if max(group) + 1 < _FEW:
        depth = dag.depths()
        stretch = max(depth) // _FEW + 1
        group = _numbered((g, d // stretch) for g, d in zip(group, depth, strict=True))
    return np.array(group, np.int64)


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    """Return each key's number, in the order of their first appearance."""
    index: dict[Hashable, int] = {}
    return [index.setdefault(key, len(index)) for key in keys]


def _group_labels(dag: Dag, group: Int64) -> list[str]:
    """Return per group what its members' names have in common (or the first), and how many they are."""
    members: dict[int, list[str]] = {}
    for name, g in zip(dag.names, group.tolist(), strict=True):
        members.setdefault(g, []).append(name)
    common = {g: _common(names) for g, names in members.items()}
    seen = Counter(common.values())
    labels = []
    for g in range(len(members)):
        names = members[g]
        begin = common[g] if seen[common[g]] == 1 else names[0]
        labels.append(names[0] if len(names) == 1 else f"{begin}… ({len(names):,})")
    return labels


def _common(names: Sequence[str]) -> str:
    low, high = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:length]
