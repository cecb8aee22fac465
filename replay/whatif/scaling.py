"""An operation, a category, a rank or a stage that takes longer or shorter."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.median import median
from arrays.numbering import occurrence_number
from dag.step_graph import Bool, Recording, StepGraph
from dialects.roles import Phase, Role
from replay.edit import Edit, EditRequest, Job, Order
from replay.selection import Selection, as_ratio, of_stage, select

NAME = "NAME=R|+400ms"
HELP = (
    "an operation (Comm.x.PUSH, FW.conv0), a category (FW, BW, Comm, I/O), a rank (rank1), a part of one "
    "(rank1.FW) or a pipeline stage (stage0) takes R times as long, or so much longer once in each step"
)

#: What `diagnose` calls no time at all: a share of the time of an operation.
GONE = "0.001"

_ADDED = re.compile(r"\+([0-9]+(?:\.[0-9]+)?)(s|ms|us)")
_UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_STAGE = re.compile(r"stage(\d{1,18})(?:\.(.+))?", re.DOTALL)
_MOST_ADDED_NS = 86_400e9


def parse(request: EditRequest, job: Job) -> Edit:
    """Return the edit that changes the time of what is named: any request that no other edit knows."""
    factor, added_ns = _change(request)
    _chosen(job.recording, request)  # a name that nothing has is refused before anything is simulated

    def apply(recording: Recording) -> Recording:
        chosen = _chosen(recording, request)
        forward = forward_share(job.recording) if chosen.tails.any() else 1.0
        return changed(recording, chosen, factor, added_ns, forward)

    return Edit(apply, order=Order.SUMS if added_ns else Order.FACTORS)


def _chosen(recording: Recording, request: EditRequest) -> Selection:
    if stage := _STAGE.fullmatch(request.name):
        return of_stage(recording, request, int(stage[1]), stage[2] or "")
    return select(recording, request, request.name)


def _change(request: EditRequest) -> tuple[float, int]:
    """Return factor and addend (ns) of a duration: ``1.5`` (times), ``+400ms``, ``+20us``, ``+1s``."""
    added = _ADDED.fullmatch(request.value)
    if added is None and request.value.startswith("+"):
        raise request.refused(f"what is added has a unit: {request.value}ms")
    if added is None:
        return as_ratio(request), 0
    added_ns = float(added[1]) * _UNITS_NS[added[2]]
    if added_ns > _MOST_ADDED_NS:
        raise request.refused("more than a day")
    return 1.0, round(added_ns)


def changed(
    recording: Recording, chosen: Selection, factor: float, added_ns: int = 0, forward: float = 1.0
) -> Recording:
    """Return the recording with the work of what is `chosen` times `factor`, and `added_ns` more.

    Of the time between two steps (`Selection.tails`) the share that is `forward` is work.

    What is added comes once in an iteration and owner, before the first that is chosen; an operation that is
    recorded in pieces is not delayed by each.
    """
    often = _often(recording, chosen) if added_ns else np.ones(0, np.int64)
    partly = 1 + forward * (factor - 1)

    def edited(step: StepGraph) -> StepGraph:
        events = chosen.events(step)
        work = _times(step.work_ns, factor, events)
        first = _first_of_owner(step, _begun(step, chosen), often) if added_ns else np.empty(0, np.int64)
        work[first] += added_ns
        tail = _times(step.tail_ns, partly, chosen.tails)
        late = chosen.tails.copy()
        late[step.owner[first]] = False
        tail[late] += added_ns
        return replace(step, work_ns=work, tail_ns=tail)

    return recording.edited(edited)


def _times(time_ns: Int64, factor: float, chosen: Bool) -> Int64:
    return np.where(chosen, np.rint(time_ns * factor), time_ns).astype(np.int64)


def _often(recording: Recording, chosen: Selection) -> Int64:
    """Return how often what is `chosen` occurs in an iteration of each owner (m,).

    Of a host that is ahead of its device a step may hold the begins of two iterations, or of none.
    """
    n_owners = len(recording.owners)
    counts = [np.bincount(step.owner[_begun(step, chosen)], minlength=n_owners) for step in recording.steps]
    return np.array([median(one[one > 0]) if one.any() else 1 for one in np.array(counts).T], np.int64)


def _begun(step: StepGraph, chosen: Selection) -> Int64:
    """Return the events of what is `chosen` that begin in a step; others go on from the step before."""
    events = chosen.events(step)
    events[step.continued[:, 1]] = False
    return np.flatnonzero(events)


def _first_of_owner(step: StepGraph, events: Int64, often: Int64) -> Int64:
    """Return of some `events` (k,) the first one of each iteration of each owner; `often` as of `_often`."""
    events = events[np.lexsort((step.start_ns[events], step.owner[events]))]
    owner = step.owner[events]
    number = occurrence_number(owner)
    n_iterations = np.rint(np.bincount(owner, minlength=len(often)) / often)
    most = np.maximum(n_iterations, 1)[owner] * often[owner]
    first: Int64 = events[(number % often[owner] == 0) & (number < most)]
    return first


def forward_share(recording: Recording) -> float:
    """Return how much of the time between a step's communication and the next gradient is forward pass.

    As the owners whose operations were traced show it; 1 where none was.
    """
    untraced = {one.owner for one in recording.table.kinds if one.role is Role.UNTRACED}
    forward = recording.which(lambda one: one.phase is Phase.FORWARD)
    gradient = recording.which(lambda one: one.is_communication and one.transfer.key is None)
    work = total = 0
    for step in recording.steps:
        for owner in set(range(len(recording.owners))) - untraced:
            mine = step.owner == owner
            gradients = step.start_ns[mine & gradient[step.operation]]
            if len(gradients):
                work += int(step.work_ns[mine & forward[step.operation]].sum())
                total += int(gradients.min() - step.begin_ns[owner] + step.tail_ns[owner])
    return min(work / total, 1.0) if work and total else 1.0
