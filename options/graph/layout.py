"""A step as a graph to draw, and where its nodes go: in layers, the critical path in a straight line.

A layer is a column, time runs to the right; a graph of many layers is folded like lines of text into
bands, so that a long chain still fills a page. In every layer the node of the longest path has the first
row; any other takes the row of what it waits for where that is free, so that chains run straight.
Graphs too large to read are condensed first: a node is a kind of work in one of some stretches of layers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.numbering import numbered, unique
from dag.step_graph import Recording, StepGraph
from dag_utils import (
    NO_EVENT,
    CriticalPath,
    Dag,
    LongestPath,
    category,
    group_of,
    kind_of_work,
    new_dag,
)
from dialects.step_parts import EdgeKind
from function_names import brief
from result import Network

#: A still cannot be zoomed into as a page can: it is condensed earlier.
MOST_IN_A_STILL = 5_000
_FEW = 60
_CHAIN = 3  # operations
#: What a page draws at most, and the stretches of a graph that is larger.
_MOST_ON_A_PAGE, _STRETCHES = 1_000, 9
#: Names in all boxes of such a graph; each takes 60 bytes of the page.
_MOST_MEMBERS = 15_000
#: Width and height of a node's place: what makes a page of bands look well filled.
_PLACE = (190, 34)
_ASPECT = 1.6
_TURN = re.compile(r" #\d+$")


def draw(dag: Dag, path: LongestPath, title: str = "", *, most: int | None = None) -> Network:
    """Return where everything goes; a graph of more than `most` nodes is an overview without members.

    Without durations there is no slack to show.
    """
    if most is not None and len(dag) > most:
        chart = _overview(dag, path, title)
        nodes = [{key: value for key, value in node.items() if key != "members"} for node in chart.nodes]
        return chart._replace(nodes=nodes, note=chart.note.partition(";")[0])
    group = np.arange(len(dag))
    layer = _layers(dag)
    x, y = _places(layer, {*path.nodes}, _edges(dag, group))
    return _placed(dag, path, title, group, dag.names, layer, x, y)


def _placed(
    dag: Dag,
    path: LongestPath,
    title: str,
    group: Int64,
    labels: Sequence[str],
    layer: Sequence[int],
    x: Sequence[float],
    y: Sequence[float],
) -> Network:
    """Return the picture of groups of nodes (n,), each group with label, layer and place."""
    n = len(labels)
    walk = group[path.nodes].tolist() if path.nodes else []
    spine = set(walk)
    edges = _edges(dag, group)
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, group, path.slack_ns)
    nodes: list[dict[str, Any]] = [
        {"label": label, "cat": dag.cats[first], "x": x[i], "y": y[i], "dur_ms": None, "critical": i in spine}
        for i, (label, first) in enumerate(zip(labels, np.unique(group, return_index=True)[1], strict=True))
    ]
    if dag.dur_ns.any():
        dur_ms = (np.bincount(group, dag.dur_ns, n) / 1e6).tolist()
        for node, dur, free in zip(nodes, dur_ms, (slack / 1e6).tolist(), strict=True):
            node |= {"dur_ms": dur, "slack_ms": free}
    if n < len(dag):
        for node, members in zip(nodes, np.bincount(group).tolist(), strict=True):
            node |= {"operations": members} if members > 1 else {}
    onward = dict.fromkeys((a, b) for a, b in itertools.pairwise(walk) if layer[a] < layer[b])
    return Network(title, nodes, edges, path=list(onward))


def draw_folded(dag: Dag, path: LongestPath, title: str = "") -> Network:
    """Return `draw`'s picture; of more than 60 operations with each chain of three or more as one node.

    A chain is what follows each other and nothing else, all of it on the path or none. Its node has its
    ``members``: names and milliseconds, in order. What would be more than 1,000 nodes is an overview.
    """
    if len(dag) <= _FEW:
        return draw(dag, path, title)
    chains = _chains(dag, path)
    if len(dag) - sum(len(chain) - 1 for chain in chains) > _MOST_ON_A_PAGE:
        return _overview(dag, path, title)
    group = np.arange(len(dag))
    for chain in chains:
        group[chain] = chain[0]
    heads, group = np.unique(group, return_inverse=True)
    n, group = len(heads), group.reshape(-1)
    kept = group[dag.edges[:, 0]] != group[dag.edges[:, 1]]
    folded = replace(
        dag,
        names=[dag.names[head] for head in heads.tolist()],
        cats=[dag.cats[head] for head in heads.tolist()],
        dur_ns=np.bincount(group, dag.dur_ns, n).astype(np.int64),
        edges=np.column_stack([group[dag.edges[kept, :2]], dag.edges[kept, 2]]),
        next_edges=group[dag.next_edges],
    )
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, group, path.slack_ns)
    nodes = [node for node, _ in itertools.groupby(group[path.nodes].tolist())] if path.nodes else []
    chart = draw(folded, LongestPath(nodes, path.length_ns, slack), title)
    if len(chart.nodes) < n or not chains:
        return chart
    shown = [dict(node) for node in chart.nodes]
    for chain in chains:
        own = [(brief(dag.names[at]), float(dag.dur_ns[at]) / 1e6) for at in chain]
        cats = Counter({dag.cats[at]: 0 for at in chain})
        for at in chain:
            cats[dag.cats[at]] += int(dag.dur_ns[at])
        label = f"{len(chain):,} operations"
        shown[int(group[chain[0]])] |= {"label": label, "cat": cats.most_common(1)[0][0], "members": own}
    note = f"{len(dag):,} operations are drawn as {n:,}: a chain is one box, which a click opens"
    return chart._replace(nodes=shown, note=note)


def _overview(dag: Dag, path: LongestPath, title: str) -> Network:
    """Return a graph too large to be read as a box for each kind of work in some stretches of layers.

    A box has as ``members`` the names in it, each with its number and the sum of its milliseconds, longest
    first. Edges within a stretch are left out.
    """
    depth = np.array(dag.depths(), np.int64) - 1
    stretch = depth * _STRETCHES // (int(depth.max()) + 1)
    rows = {cat: at for at, (cat, _) in enumerate(Counter(dag.cats).most_common())}
    of, group = numbered(zip(stretch.tolist(), dag.cats, strict=True))
    x, cats = zip(*of, strict=True)
    sums: list[dict[str, tuple[int, int]]] = [{} for _ in of]
    for name, at, ns in zip(dag.names, group.tolist(), dag.dur_ns.tolist(), strict=True):
        bare = brief(_TURN.sub("", name))
        count, before = sums[at].get(bare, (0, 0))
        sums[at][bare] = count + 1, before + ns
    note = (
        f"{len(dag):,} operations are drawn as {len(of):,} boxes, one for each kind of work in each of "
        f"{len({*x})} stretches of the graph; a click lists what is in a box"
    )
    y = [float(rows[cat]) for cat in cats]
    labels = [cat or "other" for cat in cats]
    chart = _placed(dag, path, title, group.astype(np.int64), labels, x, list(map(float, x)), y)
    most = _MOST_MEMBERS // len(of)
    members = []
    for own in sums:
        longest = sorted(own.items(), key=lambda one: -one[1][1])
        named = [(f"{name} ×{n:,}" if n > 1 else name, ns / 1e6) for name, (n, ns) in longest[:most]]
        if rest := longest[most:]:
            named.append((f"{len(rest):,} more names", sum(ns for _, (_, ns) in rest) / 1e6))
        members.append(named)
    nodes = [{**node, "members": own} for node, own in zip(chart.nodes, members, strict=True)]
    onward = [edge for edge in chart.edges if x[edge[0]] < x[edge[1]]]
    return chart._replace(nodes=nodes, edges=onward, note=note)


def _chains(dag: Dag, path: LongestPath) -> list[list[int]]:
    """Return the nodes of each chain (see `draw_folded`)."""
    source, target = unique(dag.edges[:, :2], axis=0).T
    is_alone = (np.bincount(source, minlength=len(dag))[source] == 1) & (
        np.bincount(target, minlength=len(dag))[target] == 1
    )
    on_path = np.zeros(len(dag), np.bool_)
    on_path[path.nodes] = True
    is_alone &= on_path[source] == on_path[target]
    after = dict(zip(source[is_alone].tolist(), target[is_alone].tolist(), strict=True))
    chains = []
    for head in after.keys() - set(after.values()):
        chain = [head]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        if len(chain) >= _CHAIN:
            chains.append(chain)
    return chains


def _layers(dag: Dag) -> list[int]:
    """Return the layer of every drawn node: its depth; what waits for nothing stands before its user."""
    depth = np.array(dag.depths(), np.int64) - 1
    source, target, _ = dag.edges.T
    waits = np.zeros(len(dag), np.bool_)
    waits[target] = True
    nearest = np.full(len(dag), np.iinfo(np.int64).max)
    np.minimum.at(nearest, source, depth[target])
    free = ~waits & (nearest < np.iinfo(np.int64).max)
    depth[free] = nearest[free] - 1
    layers: list[int] = depth.tolist()
    return layers


def _edges(dag: Dag, group: Int64) -> list[tuple[int, int, str]]:
    """Return the edges between drawn nodes, each pair once, those to the next step too."""
    kinds: dict[tuple[int, int], str] = {}
    for (a, b), kind in zip(group[dag.edges[:, :2]].tolist(), dag.edges[:, 2].tolist(), strict=True):
        if a != b:
            kinds.setdefault((a, b), EdgeKind(kind).label)
    for a, b in group[dag.next_edges].tolist():
        kinds.setdefault((a, b), "next")
    return [(a, b, kind) for (a, b), kind in kinds.items()]


def _places(
    layer: Sequence[int], spine: Collection[int], edges: Sequence[tuple[int, int, str]]
) -> tuple[list[float], list[float]]:
    """Return column and row of every node, folded into bands."""
    before: list[list[int]] = [[] for _ in layer]
    for a, b, _ in edges:
        if layer[a] < layer[b]:
            before[b].append(a)
    columns: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, at in enumerate(layer):
        columns[at].append(node)
    row = [0] * len(layer)
    for column in columns:
        _fill(column, row, spine, before)
    heights = [max((row[node] for node in column), default=0) + 1 for column in columns]
    width = _band_width(heights)
    tops = [0, *itertools.accumulate(_band_heights(heights, width))]
    return [float(at % width) for at in layer], [
        float(tops[at // width] + row[i]) for i, at in enumerate(layer)
    ]


def _fill(column: list[int], row: list[int], spine: Collection[int], before: Sequence[Sequence[int]]) -> None:
    """Give every node of a layer a row of its own: the spine's the first, others near what they wait for."""
    free = FreeRows()
    has_spine = False
    wanted = []
    for node in column:
        if node in spine and not has_spine:
            row[node] = 0
            has_spine = True
            continue
        rows = [row[other] for other in before[node]]
        wanted.append((sum(rows) / len(rows) if rows else 1.0, node))
    for mean, node in sorted(wanted):
        row[node] = free.take(max(round(mean), 1))


class FreeRows:
    """The rows from 1 on that no node has yet; taking one costs no more when many are taken."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}  # for each row that is taken, one nearer to the next free one
        self._below: dict[int, int] = {}

    def take(self, wish: int) -> int:
        """Take the free row nearest to `wish`, the lower of two, and return it."""
        above, below = _end(self._above, wish), _end(self._below, wish)
        row = below if below >= 1 and wish - below <= above - wish else above
        self._above[row], self._below[row] = row + 1, row - 1
        return row


def _end(links: dict[int, int], place: int) -> int:
    """Return where the links from `place` end, and shorten them."""
    while place in links:
        following = links[place]
        links[place] = links.get(following, following)
        place = following
    return place


def _band_width(heights: Sequence[int]) -> int:
    """Return how many layers a band holds so that the page comes nearest to the wanted aspect.

    Tried are widths from 4 layers (or fewer) to all, each a twentieth more than the last.
    """
    n = len(heights)
    widths, width = [], min(n, 4)
    while 0 < width < n:
        widths.append(width)
        width += max(1, width // 20)

    def off(width: int) -> float:
        total = sum(_band_heights(heights, width))
        return abs(math.log(width * _PLACE[0] / (total * _PLACE[1]) / _ASPECT))

    return min([*widths, n], key=off) if n else 1


def _band_heights(heights: Sequence[int], width: int) -> list[int]:
    return [max(heights[i : i + width]) + 1 for i in range(0, len(heights), width)]


def drawn_step(
    recording: Recording, step: StepGraph, path: CriticalPath, slack_ns: Int64, *, parts: bool
) -> tuple[Dag, LongestPath, Counter[str]]:
    """Return the graph of `step`, its critical path as nodes of it, and how many nodes a category has.

    A node's group is its kind of work. Without `parts`, a communication and its partitions and stages are
    one node. Edges between such nodes lead from what started first, so that ranks that wait for each other
    do not form a cycle.
    """
    node_of, first = _nodes(recording, step, parts)
    n = len(first)
    start = np.full(n, np.iinfo(np.int64).max)
    end = np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(start, node_of, step.start_ns)
    np.maximum.at(end, node_of, step.end_ns)
    edges: dict[tuple[int, int], int] = {}
    for source, target, _, kind in step.edges.tolist():
        a, b = int(node_of[source]), int(node_of[target])
        if a != b:
            edges.setdefault((a, b) if (start[a], a) < (start[b], b) else (b, a), kind)
    operations = [recording.operations[int(step.operation[event])] for event in first]
    dag = new_dag(
        _names(recording, step, first, parts),
        [group_of(operation) if parts else kind_of_work(operation) for operation in operations],
        end - start,
        [(a, b, kind) for (a, b), kind in edges.items()],
    )
    nodes = node_of[path.event[path.event != NO_EVENT]].tolist()
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, node_of, slack_ns)
    drawn = LongestPath([node for node, _ in itertools.groupby(nodes)], path.length_ns, slack)
    return dag, drawn, Counter(map(category, operations))


def _nodes(recording: Recording, step: StepGraph, parts: bool) -> tuple[Int64, list[int]]:
    number: dict[object, int] = {}
    node_of = np.empty(len(step), np.int64)
    first: list[int] = []
    for event, at in enumerate(step.operation.tolist()):
        operation = recording.operations[at]
        part = operation.transfer
        whole = operation.is_communication and not parts and (part.whole or part.key is None)
        node_of[event] = number.setdefault((operation.owner, operation.main) if whole else event, len(first))
        if node_of[event] == len(first):
            first.append(event)
    return node_of, first


def _names(recording: Recording, step: StepGraph, first: list[int], parts: bool) -> list[str]:
    """Return a name for each node; those that recur in the step carry their turn."""
    names = []
    seen: Counter[str] = Counter()
    several = len(recording.owners) > 1
    for event in first:
        operation = recording.operations[int(step.operation[event])]
        prefix = f"{recording.owners[operation.owner]}." if several else ""
        name = prefix + (operation.label if parts else operation.main)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names
