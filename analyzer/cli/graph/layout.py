"""A step as a graph to draw: boxes of operations in layers, time to the right, and a lane for each rank.

Operations of one kind that follow each other, with nothing else between, are one box. In every layer of a
lane the box of the longest path has the first row; the others take the rows of their inputs if these are
free, so that chains run straight.
"""

from __future__ import annotations

import itertools
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


def draw(
    dag: Dag,
    path: LongestPath,
    title: str = "",
    owner: Sequence[int] = (),
    lanes: Sequence[str] = ("",),
    *,
    placed: bool = True,
    joined: bool = True,
) -> Network:
    """Lay out the graph; `owner` has the lane of each operation (n,).

    Files for other programs need no positions (`placed`), and a node for each operation (not `joined`).
    """
    owner, spine = owner or [0] * len(dag), set(path.nodes)
    boxes = _boxes(dag, owner, spine) if joined else [[node] for node in range(len(dag))]
    box_of = {node: i for i, box in enumerate(boxes) for node in box}
    edges: dict[tuple[int, int], str] = {}
    kinds = [(a, b, EdgeKind(kind).label) for a, b, kind in dag.edges.tolist()]
    for a, b, kind in (*kinds, *((a, b, "next") for a, b in dag.next_edges.tolist())):
        if box_of[a] != box_of[b]:
            edges.setdefault((box_of[a], box_of[b]), kind)
    within = [ends for ends, kind in edges.items() if kind != "next"]
    depths = Dag.of(boxes, [""] * len(boxes), [0] * len(boxes), within).depths()  # type: ignore[arg-type]
    onward = dict.fromkeys((box_of[a], box_of[b]) for a, b in itertools.pairwise(path.nodes))
    lane = [owner[box[0]] for box in boxes]
    prefixes = [f"{name}." if joined and len(lanes) > 1 else "" for name in lanes]  # the lane says it
    y, tops = [0.0] * len(boxes), [0.0] * len(lanes)
    if placed:
        y, tops = _rows(depths, lane, {box_of[node] for node in spine}, within, len(lanes))
    return Network(
        title,
        [
            _node(dag, path, box, (float(depths[i] - 1), y[i]), box[0] in spine, prefixes[lane[i]])
            for i, box in enumerate(boxes)
        ],
        [(a, b, kind) for (a, b), kind in edges.items()],
        path=[(a, b) for a, b in onward if depths[a] < depths[b]],
        lanes=list(zip(lanes, tops, strict=True)) if len(lanes) > 1 else (),
    )


def _boxes(dag: Dag, owner: Sequence[int], spine: Collection[int]) -> list[list[int]]:
    """Join operations of one kind and rank between which nothing else begins or ends."""
    inputs, n_outputs = dag.inputs(), np.bincount(dag.edges[:, 0], minlength=len(dag))
    alike = [(cat, owner[node], node in spine) for node, cat in enumerate(dag.cats)]
    boxes: list[list[int]] = []
    box_of: dict[int, list[int]] = {}
    for node in dag.order():
        before = inputs[node][0] if len(inputs[node]) == 1 else node
        if before == node or n_outputs[before] > 1 or alike[before] != alike[node]:
            boxes.append([])
            box_of[node] = boxes[-1]
        else:
            box_of[node] = box_of[before]
        box_of[node].append(node)
    return boxes


def _node(
    dag: Dag, path: LongestPath, box: list[int], position: tuple[float, float], critical: bool, prefix: str
) -> GraphNode:
    """Name a box by its longest operation, without the prefix."""
    dur_ns = dag.dur_ns[box]
    longest = box[int(dur_ns.argmax())]
    others = f" +{len(box) - 1}" if len(box) > 1 else ""
    label = f"{dag.names[longest].removeprefix(prefix)}{others}"
    times = (int(dur_ns.sum()) / 1e6, int(path.slack_ns[box].min()) / 1e6) if path.length_ns else (None, None)
    names = [dag.names[node] for node in box]
    return GraphNode(label, dag.cats[longest], *position, times[0], critical, times[1], names)


def _rows(
    depths: Sequence[int],
    lane: Sequence[int],
    spine: Collection[int],
    edges: Sequence[tuple[int, int]],
    n_lanes: int,
) -> tuple[list[float], list[float]]:
    """Choose the row of every box, and the first row of every lane."""
    before: list[list[int]] = [[] for _ in depths]
    for a, b in edges:
        before[b].append(a)
    columns: dict[tuple[int, int], list[int]] = {}
    for box in sorted(range(len(depths)), key=depths.__getitem__):
        columns.setdefault((depths[box], lane[box]), []).append(box)
    row = [0] * len(depths)
    rows: list[list[int]] = [[] for _ in range(n_lanes)]
    for (_, of_lane), column in columns.items():
        _fill(column, row, spine, before)
        rows[of_lane] += [row[box] for box in column]
    least = [min(of_lane, default=0) for of_lane in rows]  # the path's row is empty in a lane beside it
    heights = [max(of_lane, default=0) - low + 2 for of_lane, low in zip(rows, least, strict=True)]
    tops = [float(top) for top in itertools.accumulate(heights, initial=0)][:-1]
    return [tops[of_lane] + row[box] - least[of_lane] for box, of_lane in enumerate(lane)], tops


def _fill(column: list[int], row: list[int], spine: Collection[int], before: Sequence[Sequence[int]]) -> None:
    """Give every node of a layer a row: the spine the first, others the free row nearest their inputs."""
    wanted, taken = [], set[int]()
    for node in column:
        rows = [row[source] for source in before[node]]
        wanted.append((node not in spine, sum(rows) / len(rows) if rows else 1.0, node))
    for is_beside, mean, node in sorted(wanted):
        row[node] = max(round(mean), 1) if is_beside or taken else 0
        while row[node] in taken:
            row[node] += 1
        taken.add(row[node])


def drawn_step(
    recording: Recording, step: StepGraph, path: CriticalPath, slack_ns: Int64, *, parts: bool
) -> tuple[Dag, LongestPath, Counter[str], list[int]]:
    """Turn a recorded step into a graph; return also its critical path, nodes per category, and owners.

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
    by_cat = Counter(operation.category for operation in operations)
    return dag, drawn, by_cat, [operation.owner for operation in operations]


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
