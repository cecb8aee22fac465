"""Ranks that hold the others up, and jobs in which none does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.numbering import occurrence_number
from dag.step_graph import Recording, StepGraph
from dialects.edge_rules import EdgeKind, kinds_of
from dialects.roles import Role
from dialects.step_parts import Joint
from replay.edit import Edit, EditRequest, Job, Order, measured
from replay.even_work import even_in_each_step, evened, peers_of, peers_usual, stages, work_by_owner
from replay.occurrences import medians, pair_numbers
from result import in_percent

NAME = "straggler=none|even|mean|each_step"
HELP = (
    "none: slow ranks work like their peers; even: an operation takes what it takes on the mean rank; mean: "
    "the ideal step, each kind of work at its mean over ranks and steps; each_step: in each step every rank "
    "works as long as the mean one"
)

#: A rank that works this much longer in a step than its peers do (their median) is a straggler.
THRESHOLD = 1.1


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that evens out the ranks' work; None for any other request."""
    kinds = {"even": evened, "mean": at_mean_work, "each_step": even_in_each_step}
    if not request.asks("straggler", "none", *kinds):
        return None
    if request.value == "none":
        why = why_none(job.recording)
        caution = f"straggler=none changes nothing: {why}" if why else ""
        return replace(measured(job, without_stragglers), caution=caution)
    return Edit(kinds[request.value], order=Order.EVENED)


def stragglers(recording: Recording) -> list[int]:
    """Return the owners whose host or device works longer than its peers' median by `THRESHOLD`.

    In the median step.
    """
    if len(recording.owners) < 2:
        return []
    group = _groups(recording)
    own = recording.which(lambda one: not one.is_communication)
    on_device = recording.which(lambda one: one.on_device)
    found: set[int] = set()
    for which in (on_device, ~on_device):
        work = work_by_owner(recording, own & which)
        ratio = np.median(work / np.maximum(peers_usual(work, group), 1), axis=0)
        found.update(np.flatnonzero(ratio > THRESHOLD).tolist())
    return sorted(found)


def why_none(recording: Recording) -> str:
    """Return why no rank is behind another (`without_stragglers` changes nothing); "" where one is."""
    if len(recording.owners) > 1:
        few = f"no rank works {in_percent(THRESHOLD - 1)} longer than its peers in the median step"
        return "" if stragglers(recording) else few
    if any(operation.role is Role.WAIT for operation in recording.table.kinds):
        return "a Horovod timeline is that of rank 0 and does not tell the ranks' own work apart"
    return "only one rank is recorded, without a peer to compare it with"


def without_stragglers(recording: Recording) -> Recording:
    """Return the recording with each straggler's operations as long as their median over its peers.

    The n-th event of a name in a step is compared with the peers' n-th; what no peer does takes no
    time. A straggler's gaps are at most those of its peers. Without a straggler nothing changes. Peers are
    those of its stage of a pipeline, where there are any.
    """
    slow = stragglers(recording)
    fast = [owner for owner in range(len(recording.owners)) if owner not in slow]
    if not slow or not fast:
        return recording
    own = recording.which(lambda one: not one.is_communication)
    kind = recording.numbered(lambda one: one.label)[1]
    group = _groups(recording)
    is_slow = np.isin(np.arange(len(recording.owners)), slow)

    def evened(step: StepGraph) -> StepGraph:
        same = pair_numbers(_same(step, kind), group[step.owner])
        peers = ~is_slow[step.owner]
        late = ~peers & own[step.operation]
        n_same = int(same.max(initial=0)) + 1
        work, gap = (
            medians(same[peers], column[peers], n_same)[same] for column in (step.work_ns, step.gap_ns)
        )
        tail = step.tail_ns.copy()
        for owner in slow:
            tail[owner] = min(tail[owner], int(np.median(tail[peers_of(owner, slow, group)])))
        return replace(
            step,
            work_ns=np.where(late, work, step.work_ns),
            gap_ns=np.where(late, np.minimum(gap, step.gap_ns), step.gap_ns),
            tail_ns=tail,
        )

    return recording.edited(evened)


def _groups(recording: Recording) -> Int64:
    """Return the group in which the work of each owner (m,) is compared: its stage, where others have it."""
    stage = stages(recording)
    return stage if np.bincount(stage).min() > 1 else np.zeros_like(stage)


def at_mean_work(recording: Recording) -> Recording:
    """Return the ideal job: each kind of work at its mean over ranks and steps, no rank behind another.

    A transfer (communication without the waiting for others) is at the median of its kind. A rank alone is
    behind nobody: what its operations of one name do need not be alike.
    """
    ideal = ideal_work_ns(recording, kinds_of_work(recording)[1])
    steps = zip(recording.steps, ideal, strict=True)
    return recording.with_steps(replace(step, work_ns=work) for step, work in steps)


def kinds_of_work(recording: Recording) -> tuple[list[str], list[Int64]]:
    """Return the kinds of work, and which one each event of each step (n,) is.

    A kind is an operation's name, and with how many others it is done: a reduction of two ranks is not one
    of all.
    """
    names, name = recording.numbered(lambda one: one.name)
    steps = recording.steps
    number = [name[step.operation] for step in steps]
    flat, others = np.concatenate(number), np.concatenate([_met(step) for step in steps])
    kind = pair_numbers(flat, others)
    _, event = np.unique(kind, return_index=True)
    several = np.bincount(flat[event], minlength=len(names)) > 1
    called = [
        names[one] + (f" of {n + 1} ranks" if several[one] else "")
        for one, n in zip(flat[event].tolist(), others[event].tolist(), strict=True)
    ]
    return called, np.split(kind, np.cumsum([len(one) for one in number])[:-1])


def ideal_work_ns(recording: Recording, kinds: Sequence[Int64]) -> list[Int64]:
    """Return the work of each step's events (n,), of these `kinds`, in the ideal job; see `at_mean_work`."""
    if len(recording.owners) < 2:
        return [step.work_ns for step in recording.steps]
    moves = recording.which(lambda one: one.is_communication)
    kind, work, is_moving = (
        np.concatenate(column)
        for column in zip(
            *(
                (of, step.work_ns, moves[step.operation])
                for of, step in zip(kinds, recording.steps, strict=True)
            ),
            strict=True,
        )
    )
    n_kinds = int(kind.max(initial=-1)) + 1
    mean = np.bincount(kind, work, n_kinds) / np.maximum(np.bincount(kind, minlength=n_kinds), 1)
    is_transfer = np.bincount(kind, is_moving, n_kinds) > 0
    usual = np.where(is_transfer, medians(kind, work, n_kinds), np.rint(mean).astype(np.int64))
    return [usual[one] for one in kinds]


def _met(step: StepGraph) -> Int64:
    """Return with how many others each event (n,) is done: those that it waits for to come to a meeting."""
    source, target, joint, _ = step.edges.T
    entered = np.bincount(target[joint == Joint.START_TO_HEAD], minlength=len(step))  # meetings of many
    meets = (joint >= Joint.END_TO_BODY) & np.isin(kinds_of(step.edges), (EdgeKind.GROUP, EdgeKind.DATA))
    others = np.where(joint == Joint.END_TO_BODY, entered[source], 1)
    return np.bincount(target[meets], others[meets], len(step)).astype(np.int64)


def _same(step: StepGraph, kind: Int64) -> Int64:
    """Return for each event of a step a number that the n-th events of one kind share on all owners."""
    of_event = kind[step.operation]
    return pair_numbers(of_event, occurrence_number(of_event * len(step.begin_ns) + step.owner))
