"""A recorded step as a `Dag`, the form in which graphs are drawn and written."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from arrays import Int64
from dag.step_graph import Recording, StepGraph
from dag_utils import NO_EVENT, CriticalPath, Dag, LongestPath, category, new_dag


def drawn_step(
    recording: Recording, step: StepGraph, path: CriticalPath, slack_ns: Int64, *, parts: bool
) -> tuple[Dag, LongestPath]:
    """Return the graph of `step` and its critical path as nodes of that graph.

    Without `parts`, a communication and its partitions and stages are one node. Edges between such
    nodes lead from what started first, so that ranks that wait for each other do not form a cycle.
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
        [category(operation) for operation in operations],
        end - start,
        [(a, b, kind) for (a, b), kind in edges.items()],
    )
    nodes = node_of[path.event[path.event != NO_EVENT]].tolist()
    slack = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(slack, node_of, slack_ns)
    return dag, LongestPath([node for node, _ in itertools.groupby(nodes)], path.length_ns, slack)


def _nodes(recording: Recording, step: StepGraph, parts: bool) -> tuple[Int64, list[int]]:
    """Return the node of each event (n,), and the first event of each node."""
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
