"""Ranks that hold the others up, and jobs in which none does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Recording, StepGraph
from dialects.roles import Role
from dialects.step_parts import EdgeKind, Joint
from replay.edit import Edit, EditRequest, Job, Order, measured
from replay.even_work import (
    as_peers,
    as_usual,
    done_by_all,
    of_mean_owner,
    peers_usual,
    stages,
    work_by_owner,
)
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
    group = stages(recording)
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
    """Let stragglers work, and pause, like their peers."""
    slow = stragglers(recording)
    if len(slow) == len(recording.owners):
        return recording
    return as_peers(recording, slow, gaps=True, over_steps=False)


def evened(recording: Recording) -> Recording:
    """Share out the work of each kind evenly over the owners, if all of them have it."""
    own = recording.which(lambda one: not one.is_communication)
    return as_usual(recording, "work_ns", of_mean_owner, own & done_by_all(recording))


def even_in_each_step(recording: Recording) -> Recording:
    """Give each kind of own work the mean owner's time in that step."""
    own = recording.which(lambda one: not one.is_communication)
    return as_usual(recording, "work_ns", of_mean_owner, own, over_steps=False)


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
    source, target, joint, kind = step.edges.T
    entered = np.bincount(target[joint == Joint.START_TO_HEAD], minlength=len(step))  # meetings of many
    meets = (joint >= Joint.END_TO_BODY) & np.isin(kind, (EdgeKind.GROUP, EdgeKind.DATA))
    others = np.where(joint == Joint.END_TO_BODY, entered[source], 1)
    return np.bincount(target[meets], others[meets], len(step)).astype(np.int64)
