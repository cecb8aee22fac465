"""The critical paths of each GPU, each worker and the job in one step, and the slack of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.model.graph.critical_path import CriticalPath, CriticalPaths
from analyzer.model.graph.model import Dag
from analyzer.model.graph.path_summary import Label, NamedPath
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.roles import Role

#: What a scope covers.
ScopeKind: TypeAlias = Literal["GPU", "worker", "job"]
_Group: TypeAlias = tuple[ScopeKind, str, int, list[int]]  # kind, name, worker, owners


class Scope(Struct, frozen=True):
    """A GPU, a worker or the job, and how the critical path through its events is found."""

    kind: ScopeKind
    name: str  # ``GPU-1``
    worker: int
    length_ns: int
    path: Callable[[], NamedPath]  # of many scopes most are never asked for theirs


class OperationSlack(Struct):
    """All events of one name in a step: their durations together, and the least slack."""

    name: str
    cat: str
    dur_ns: int
    slack_ns: int


def scopes_of(
    recording: Recording, kind: str, step: StepGraph, *, parts: bool
) -> tuple[list[Scope], CriticalPath]:
    """Return each GPU, each worker and the job with their paths, the widest last; and that one's path.

    `kind` is that of the job (`Job.kind`), `parts` as for `NamedPath.of`.
    """

    def scope(of: ScopeKind, name: str, worker: int, paths: CriticalPaths, part: int) -> Scope:
        def path() -> NamedPath:
            return NamedPath.of(recording, paths.path(part), parts=parts)

        return Scope(of, name, worker, paths.length_ns(part), path)

    scopes = []
    for groups in _groups(recording, kind):
        paths = CriticalPaths(step, [owners for *_, owners in groups])
        scopes += [scope(of, name, worker, paths, i) for i, (of, name, worker, _) in enumerate(groups)]
    widest = paths.path(len(groups) - 1)
    named = NamedPath.of(recording, widest, parts=parts)  # which every output format shows
    scopes[-1] = replace(scopes[-1], path=lambda: named)
    return scopes, widest


def _groups(recording: Recording, kind: str) -> list[list[_Group]]:
    """Return each GPU, each worker and the job, as far as they differ."""
    everyone = list(range(len(recording.owners)))
    workers = [worker or 0 for worker in recording.workers]
    gpus: list[_Group] = [
        ("GPU", f"GPU-{recording.ranks[owner] or 0}", workers[owner], [owner]) for owner in everyone
    ]
    if len(everyone) == 1:
        return [gpus]
    if kind == "worker":
        return [gpus, [("worker", "worker-0", 0, everyone)]]
    if len(set(workers)) == 1:
        return [gpus, [("job", "job", 0, everyone)]]
    members = {worker: [i for i in everyone if workers[i] == worker] for worker in sorted(set(workers))}
    return [
        gpus,
        [("worker", f"worker-{w}", w, owners) for w, owners in members.items()],
        [("job", "job", 0, everyone)],
    ]


def step_operations(recording: Recording, step: StepGraph) -> list[OperationSlack]:
    """Return the operations of a step by name and category, in the order of their first events."""
    is_meeting = recording.which(lambda one: one.role is Role.MEETING)
    number, first, row = np.unique(step.operation, return_index=True, return_inverse=True)
    row = row.reshape(-1)
    least = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(least, row, step.slack_ns())
    dur = np.bincount(row, step.end_ns - step.start_ns, len(number)).astype(np.int64)
    order = np.argsort(first)
    order = order[~is_meeting[number[order]]]
    by_name: dict[tuple[str, str], OperationSlack] = {}
    columns = (column[order].tolist() for column in (number, first, dur, least))
    for kind, event, dur_ns, least_ns in zip(*columns, strict=True):
        key = recording.name_of(step, event), recording.operations[kind].category
        operation = by_name.setdefault(key, OperationSlack(*key, 0, least_ns))
        operation.dur_ns += dur_ns
        operation.slack_ns = min(operation.slack_ns, least_ns)
    return list(by_name.values())


def longest_chain(name: str, worker: int, dag: Dag) -> tuple[Scope, list[OperationSlack]]:
    """Return the longest chain through a GPU's DAG as the path of its scope, and all operations' slack."""
    chain = dag.longest_path()
    nodes = np.array(chain.nodes, np.int64)
    labels = [Label(dag.names[node], dag.cats[node], "", dag.cats[node]) for node in chain.nodes]
    nowhere = np.zeros(len(nodes), np.int64)
    path = NamedPath(labels, np.arange(len(nodes)), nowhere, dag.dur_ns[nodes], nowhere - 1)
    rows = zip(dag.names, dag.cats, dag.dur_ns.tolist(), chain.slack_ns.tolist(), strict=True)
    return Scope("GPU", name, worker, chain.length_ns, lambda: path), [OperationSlack(*row) for row in rows]
