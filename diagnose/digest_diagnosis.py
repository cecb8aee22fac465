"""The diagnosis of a job of which only figures are known: detectors that need no more, on summed steps.

In each step of a rank its operations follow each other, each as long as what it took of the step (see
`figures.time_by_role`); then all ranks communicate together until the step ends. So the rank that works
longest comes last, and the others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

import numpy as np
from msgspec.structs import replace

import dialects
from arrays import Float64, Int64, Mask
from dag_utils import LoadedSteps, RankFacts, join
from diagnose.diagnosis import DETECTORS, Diagnosis, diagnose
from diagnose.finding import BREAKDOWN, Finding, FindingKind, Skipped
from diagnose.step_log_diagnosis import diagnose_step_log
from dialects import Role
from dialects.roles import Phase
from dialects.step_parts import (
    UNMARKED,
    Edge,
    EdgeKind,
    InStep,
    Joint,
    Meeting,
    Operation,
    RankStep,
    RankSteps,
)
from errors import TraceError
from figures.job_figures import JobFigures
from figures.rank_figures import RankFigures
from figures.time_by_role import NOTHING
from formats.columns import Trace, Track
from trace_utils import JobFiles

_CAVEAT = "from the sums of a digest"
#: What readers should know of any diagnosis of a digest.
NOTE = "Digests have no single events: each rank is taken to work first in a step, then all communicate."


def diagnose_figures(job: JobFigures) -> Diagnosis:
    """Return the diagnosis of a job of which only figures are known; raises as `summed_steps`."""
    if not dialects.named(job.files[0].dialect).has_events:
        return diagnose_step_log(job)
    steps = summed_steps(job)
    asked = [[one for one in of_level if one.of_figures] for of_level in DETECTORS]
    found = diagnose(steps, detectors=asked)
    never: set[str] = {"hang", *dialects.named(steps.files[0].dialect).never_shows}  # as it has steps
    examined = never.union(*(one.kinds for of_level in asked for one in of_level))
    reason = "a digest holds no single events; give the traces"
    skipped = [Skipped(kind, reason) for kind in get_args(FindingKind) if kind not in examined]
    findings = [
        replace(one, finding=_of_digest(one.finding), change=(), tried=(), differs="")
        for one in found.findings
    ]
    return replace(found, findings=findings, skipped=[*found.skipped, *skipped], view=None)


def _of_digest(finding: Finding) -> Finding:
    """Return a finding without events of the summed steps, and the command that shows more instead."""
    caveat = f"{finding.caveat}; {_CAVEAT}" if finding.caveat else _CAVEAT
    found = replace(finding, evidence=(), caveat=caveat, look=BREAKDOWN)
    if NOTHING not in finding.operations:
        return found
    operations = [name for name in finding.operations if name != NOTHING]
    cause = "what ran then is not in the digest" if finding.kind == "idle" else finding.cause
    return replace(found, operations=operations, cause=cause)


_PHASES = {Role.UPDATE: Phase.UPDATE, Role.INPUT: Phase.INPUT}


def summed_steps(job: JobFigures) -> LoadedSteps:
    """Return the steps that all ranks of a job have, by their figures.

    Raises TraceError where there is none.
    """
    ranks = [_rank(rank) for rank in job.ranks if rank.n_slices]
    numbers = sorted(set.intersection(*(set(rank.spent) for rank in ranks)))
    if not numbers:
        raise TraceError(f"{job.path}: no step is in every rank of this digest")
    marked = any(rank.steps.whole for rank in job.ranks)
    recording = join(_steps(ranks, numbers, () if marked else (UNMARKED,)))
    sources = [rank.figures.source for rank in ranks]
    facts = [
        RankFacts(str(rank.figures.source.path), rank.figures.source.rank, rule=rank.figures.rule)
        for rank in ranks
    ]
    return LoadedSteps(
        recording, JobFiles(job.path, "ranks", sources, job.notes), job.files, facts, _no_traces
    )


def _no_traces(**_: object) -> list[Trace]:
    raise TypeError("a digest has no traces")


class _Rank(NamedTuple):
    """A rank: names, categories and roles of n operations, and what each took of each step (n,), ns."""

    figures: RankFigures
    names: Sequence[str]
    cats: Sequence[str]
    roles: Sequence[Role]
    spent: Mapping[int, Float64]

    @property
    def is_comm(self) -> Mask:
        """Which operations are communication (n,)."""
        return dialects.is_communication(np.array(self.roles, np.int8))


def _rank(rank: RankFigures) -> _Rank:
    """Return the time of a rank's operations in its steps; of kinds of work where none are marked."""
    operations = rank.operations
    if operations is None or not rank.steps.whole:
        parts = rank.breakdown
        exposed = parts.exposed_comm_ns
        kinds = np.column_stack([parts.wall_ns - exposed - parts.idle_ns, exposed, parts.idle_ns])
        labels = [step or 0 for step in parts.step]
        spent = dict(zip(labels, kinds.astype(np.float64), strict=True))
        names = ("computation", "communication", NOTHING)
        return _Rank(rank, names, ("", "", ""), (Role.COMPUTE, Role.COMM, Role.FRAME), spent)
    of_steps = dict(zip(operations.labels, operations.spent_ns, strict=True))
    roles = [*map(Role, operations.role.tolist()), Role.FRAME]
    return _Rank(rank, operations.names, [*(key.cat for key in operations.keys), ""], roles, of_steps)


def _steps(ranks: Sequence[_Rank], numbers: Sequence[int], notes: Sequence[str]) -> list[RankSteps]:
    """Return the steps of each rank: all begin one at once, and it is as long as on the mean rank."""
    shares = _shares(ranks)
    spent = [np.array([rank.spent[n] for n in numbers]).round().astype(np.int64) for rank in ranks]
    works = [np.flatnonzero(~rank.is_comm) for rank in ranks]
    own = np.array([of_rank[:, rows].sum(1) for of_rank, rows in zip(spent, works, strict=True)])
    wall = np.array([of_rank.sum(1) for of_rank in spent])
    length = np.maximum(wall.mean(0).astype(np.int64), own.max(0))
    # when all have come, and communicated as long as the one that does so least
    over = np.minimum(own.max(0) + (wall - own).min(0), length)
    begins = np.cumsum(length) - length
    transfers = np.outer(over - own.max(0), list(shares.values())).astype(np.int64)
    found = []
    for place, (rank, of_rank, rows) in enumerate(zip(ranks, spent, works, strict=True)):
        source, name = rank.figures.source, rank.figures.name
        operations = [_operation(rank.names[i], rank.cats[i], rank.roles[i], name) for i in rows.tolist()]
        operations += [_operation(comm, "", Role.COMM, name) for comm in shares]
        steps = []
        for row, number in enumerate(numbers):
            took = np.concatenate([of_rank[row, rows], transfers[row]])
            if shares:  # in the first of them ranks wait for each other
                took[len(rows)] += over[row] - took.sum()
            bounds = int(begins[row]), int(begins[row] + length[row])
            steps.append(_step(number, bounds, took, len(rows) if len(ranks) > 1 else -1))
        index = place if source.rank is None else source.rank
        found.append(RankSteps(name, operations, steps, notes, source.worker, index))
    return found


def _operation(name: str, cat: str, role: Role, track: str) -> Operation:
    phase = _PHASES.get(role, Phase.NONE)
    return Operation(name, cat, Track(track, 0), role, phase, is_collective=role is Role.COMM)


def _shares(ranks: Sequence[_Rank]) -> dict[str, float]:
    """Return the names of communications, and the share of each in what all take, the largest first."""
    total: dict[str, float] = {}
    for rank in ranks:
        mean = np.mean(list(rank.spent.values()), axis=0)
        for i in np.flatnonzero(rank.is_comm).tolist():
            total[rank.names[i]] = total.get(rank.names[i], 0.0) + float(mean[i])
    whole = sum(total.values())
    return {name: total[name] / whole for name in sorted(total, key=lambda name: -total[name]) if total[name]}


def _step(number: int, bounds: tuple[int, int], took: Int64, meeting: int) -> RankStep:
    """Return a step of operations that follow each other, took (n,) ns; all ranks come to the `meeting`."""
    taken = np.flatnonzero(took > 0)
    ends = bounds[0] + np.cumsum(took[taken])
    times = np.column_stack([ends - took[taken], ends])
    edges = [Edge(i, i + 1, Joint.END_TO_HEAD, EdgeKind.DEVICE) for i in range(len(taken) - 1)]
    key = InStep("communication", number)
    meets = [Meeting(key, i, True, True) for i in np.flatnonzero(taken == meeting).tolist()]
    return RankStep.of(number, bounds, taken, times, edges, meets)
