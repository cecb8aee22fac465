"""A step as a graph to draw, and where its nodes go: in layers, the critical path in a straight line.

A layer is a column, time runs to the right; a graph of many layers is folded like lines of text into
bands, so that a long chain still fills a page. In every layer the node of the longest path has the first
row; the other nodes take the rows of their inputs if these are free, so that chains run straight.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.report.result import GraphNode, Network
from dag_utils import CriticalPath, Dag, LongestPath

#: Most nodes of a readable drawing.
MOST_DRAWN = 1_000
#: Width and height of a node's cell, and width of a page in heights.
_CELL, _ASPECT = (190, 34), 1.6


def draw(dag: Dag, path: LongestPath, title: str = "", *, placed: bool = True) -> Network:
    """Lay out the graph; files for other programs need no positions (`placed`)."""
    spine = set(path.nodes)
    layer, edges = [depth - 1 for depth in dag.depths()], _edges(dag)
    x, y = _positions(layer, spine, edges) if placed else ([0.0] * len(dag),) * 2
    timed = bool(dag.dur_ns.any())
    nodes = [
        GraphNode(
            label,
            cat,
            x[i],
            y[i],
            dur_ms=dag.dur_ns[i].item() / 1e6 if timed else None,
            critical=i in spine,
            slack_ms=path.slack_ns[i].item() / 1e6 if timed else None,
        )
        for i, (label, cat) in enumerate(zip(dag.names, dag.cats, strict=True))
    ]
    onward = dict.fromkeys((a, b) for a, b in itertools.pairwise(path.nodes) if layer[a] < layer[b])
    return Network(title, nodes, edges, path=list(onward))


def _edges(dag: Dag) -> list[tuple[int, int, str]]:
    """List the edges between drawn nodes, each pair once, with those into the next step."""
    kinds: dict[tuple[int, int], str] = {}
    for a, b, kind in dag.edges.tolist():
        if a != b:
            kinds.setdefault((a, b), EdgeKind(kind).label)
    for a, b in dag.next_edges.tolist():
        kinds.setdefault((a, b), "next")
    return [(a, b, kind) for (a, b), kind in kinds.items()]


def _positions(
    layer: Sequence[int], spine: Collection[int], edges: Sequence[tuple[int, int, str]]
) -> tuple[list[float], list[float]]:
    """Choose the column and the row of every node, folded into bands."""
    before: list[list[int]] = [[] for _ in layer]
    for a, b, _ in edges:
        if layer[a] < layer[b]:
            before[b].append(a)
    columns: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, depth in enumerate(layer):
        columns[depth].append(node)
    row = [0] * len(layer)
    for column in columns:
        _fill(column, row, spine, before)
    heights = [max((row[node] for node in column), default=0) + 2 for column in columns]
    width = max(4, round(math.sqrt(_ASPECT * sum(heights) * _CELL[1] / _CELL[0])))
    bands = [max(heights[i : i + width]) for i in range(0, len(heights), width)]
    tops = [0, *itertools.accumulate(bands)]
    return [float(depth % width) for depth in layer], [
        float(tops[depth // width] + row[i]) for i, depth in enumerate(layer)
    ]


def _fill(column: list[int], row: list[int], spine: Collection[int], before: Sequence[Sequence[int]]) -> None:
    """Give every node of a layer a row: the spine the first, others the free row nearest their inputs."""
    first = next((node for node in column if node in spine), None)  # its row stays 0
    wanted = []
    for node in column:
        if node != first:
            rows = [row[source] for source in before[node]]
            wanted.append((sum(rows) / len(rows) if rows else 1.0, node))
    free = set(range(1, len(column) + round(max(wanted, default=(0.0, 0))[0]) + 1))
    for mean, node in sorted(wanted):
        row[node] = min((abs(n - max(round(mean), 1)), n) for n in free)[1]
        free.remove(row[node])


def drawn_step(
    recording: Recording, step: StepGraph, path: CriticalPath, slack_ns: Int64, *, parts: bool
) -> tuple[Dag, LongestPath, Counter[str]]:
    """Turn a recorded step into a graph; return also its critical path and the number of nodes per category.

    Without `parts`, a communication and its partitions and stages are one node. Edges between such nodes
    lead from the node that started first, so that ranks that wait for each other form no cycle.
    """
    node_of, first = _nodes(recording, step, parts)
    n = len(first)
    start = np.full(n, np.iinfo(np.int64).max)
    end = np.full(n, np.iinfo(np.int64).min)
    np.minimum.at(start, node_of, step.start_ns)
    np.maximum.at(end, node_of, step.end_ns)
    edges: dict[tuple[int, int], int] = {}
    ends = node_of[step.edges[:, :2]].tolist()
    for (a, b), kind in zip(ends, kinds_of(step.edges).tolist(), strict=True):
        if a != b:
            edges.setdefault((a, b) if (start[a], a) < (start[b], b) else (b, a), kind)
    operations = [recording.operations[int(step.operation[event])] for event in first]
    dag = Dag.of(
        _names(recording, step, first, parts),
        [operation.stage_or_kind if parts else operation.kind_of_work for operation in operations],
        end - start,
        [(a, b, kind) for (a, b), kind in edges.items()],
    )
    nodes = node_of[path.event[path.event >= 0]].tolist()
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, node_of, slack_ns)
    drawn = LongestPath([node for node, _ in itertools.groupby(nodes)], path.length_ns, slack)
    return dag, drawn, Counter(operation.category for operation in operations)


def _nodes(recording: Recording, step: StepGraph, parts: bool) -> tuple[Int64, list[int]]:
    number: dict[object, int] = {}
    node_of = np.empty(len(step), np.int64)
    first: list[int] = []
    for event, kind in enumerate(step.operation.tolist()):
        operation = recording.operations[kind]
        part = operation.transfer
        whole = operation.is_communication and not parts and (part.whole or part.key is None)
        node_of[event] = number.setdefault((operation.owner, operation.main) if whole else event, len(first))
        if node_of[event] == len(first):
            first.append(event)
    return node_of, first


def _names(recording: Recording, step: StepGraph, first: list[int], parts: bool) -> list[str]:
    """Name each node; names that recur in the step carry a number."""
    names = []
    count: Counter[str] = Counter()
    prefixes = [f"{owner}." if len(recording.owners) > 1 else "" for owner in recording.owners]
    for event in first:
        operation = recording.operations[int(step.operation[event])]
        name = prefixes[operation.owner] + (operation.label if parts else operation.main)
        count[name] += 1
        names.append(name if count[name] == 1 else f"{name} #{count[name]}")
    return names
