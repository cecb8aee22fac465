"""Ranks that hold the others up, and jobs in which none does."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.units import in_percent
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.roles import Role
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
from replay.occurrences import medians

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
    if len(recording.owners) < 2:
        return recording
    ideal = ideal_work_ns(recording)
    return recording.edited(lambda step: replace(step, work_ns=ideal[step.operation]))


def ideal_work_ns(recording: Recording) -> Int64:
    """Return the work of each operation (n,) in the ideal job, of its name; see `at_mean_work`."""
    names, kind = recording.numbered(lambda operation: operation.name)
    moves = recording.which(lambda operation: operation.is_communication)
    of_event = np.concatenate([kind[step.operation] for step in recording.steps])
    work = np.concatenate([step.work_ns for step in recording.steps])
    count = np.maximum(np.bincount(of_event, minlength=len(names)), 1)
    mean = np.rint(np.bincount(of_event, work, len(names)) / count).astype(np.int64)
    return np.where(moves, medians(of_event, work, len(names))[kind], mean[kind])
