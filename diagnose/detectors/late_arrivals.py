"""The rank that comes last to synchronisations far more often than chance, though it works no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from arrays import Float64
from arrays.distributions import binomial_tail
from arrays.median import FEWEST
from diagnose.evidence import event_of, gap_before
from diagnose.finding import Evidence, edit
from diagnose.finding_thresholds import CHANCE, EXPOSED, NEGLIGIBLE
from diagnose.job_view import JobView
from diagnose.last_arrivals import LastArrivals, last_arrivals, longest_awaited
from function_names import named
from replay.edit import EditRequest

MACHINE = "compare its batch, its data and its machine (clocks, other processes) with its peers'"
PAUSES = "look at what runs there: input, Python code, garbage collection, other processes"


class Cause(NamedTuple):
    """Why owners are late by `late_ns` a step: `most` of it is in these operations, or before them."""

    owners: Sequence[int]
    late_ns: float
    most: str
    edits: Sequence[EditRequest]
    action: str
    operations: Sequence[str] = ()
    evidence: Sequence[Evidence] = ()
    caveat: str = ""


def names(view: JobView, owners: Sequence[int]) -> list[str]:
    """Return the names of owners."""
    return [view.recording.owners[owner] for owner in owners]


def often_last(view: JobView, work: Float64) -> Cause | None:
    """Find the rank that comes last far more often than chance, though its `work` (steps, m) is usual."""
    several = len(view.rows) >= FEWEST
    arrivals = last_arrivals(view, of_own_step=several)
    # meetings of one step are not independent, as one delay makes a rank late for all that follow: of each
    # step counts who was waited for longest
    last = longest_awaited(arrivals) if several else np.concatenate([owner for owner, _ in arrivals])
    if not len(last):
        return None
    n_owners, owner = len(view.recording.owners), int(np.bincount(last).argmax())
    delays = _delays(view, owner, arrivals)
    if binomial_tail(int((last == owner).sum()), len(last), 1 / n_owners) * n_owners > CHANCE or not delays:
        return None
    late_ns = sum(delay.ns for delay in delays) / len(arrivals)
    if not several and late_ns < EXPOSED * view.step_ns:
        return None
    later = begin_later_ns(view)
    late = sorted({owner, *np.flatnonzero(later > NEGLIGIBLE * view.step_ns).tolist()})
    works_longer = np.median(work[:, owner] - work.mean(axis=1)) > NEGLIGIBLE * view.step_ns
    if works_longer and late == [owner] and later[owner] < NEGLIGIBLE * view.step_ns:
        return None
    name = event_of(view, view.recording.steps[delays[0].row], delays[0].event).name
    return Cause(
        [owner],
        late_ns,
        f"before {named([name])}, though it works no longer than its peers",
        [edit(f"{','.join(names(view, late if len(late) < n_owners else [owner]))}.gap", "peers")],
        PAUSES,
        evidence=[_before(view, delay) for delay in delays[:3]],
    )


def begin_later_ns(view: JobView) -> Float64:
    """Return the delay with which each owner (m,) begins its steps after the median one, the usual one."""
    begins = np.array([step.begin_ns for step in view.steps], np.float64)
    return np.median(begins - np.median(begins, axis=1, keepdims=True), axis=0)


class _Delay(NamedTuple):
    """How long after the median owner one comes last, at most in a step, and its event there."""

    ns: float
    row: int
    event: int


def _delays(view: JobView, owner: int, arrivals: Sequence[LastArrivals]) -> list[_Delay]:
    """Return the largest delay of each step in which an owner comes last, the largest first."""
    largest = []
    for row, (last, _), met in zip(view.rows, arrivals, view.meetings, strict=True):
        bounds = np.searchsorted(met.meeting, np.arange(met.meeting.max(initial=-1) + 2))
        delays = []
        for meeting in np.flatnonzero(last == owner).tolist():
            inside = slice(bounds[meeting], bounds[meeting + 1])
            arrival = bounds[meeting] + int((met.owner[inside] == owner).argmax())
            late_ns = float(met.at_ns[arrival] - np.median(met.at_ns[inside]))
            delays.append(_Delay(late_ns, row, int(met.event[arrival])))
        if delays:
            largest.append(max(delays))
    return sorted(largest, reverse=True)


def _before(view: JobView, delay: _Delay) -> Evidence:
    """Return the gap for which an owner is late, else the event at which it is."""
    step, event = view.recording.steps[delay.row], delay.event
    earlier = np.flatnonzero((step.owner == step.owner[event]) & (step.start_ns <= step.start_ns[event]))
    longest = int(earlier[step.gap_ns[earlier].argmax()])
    if 2 * step.gap_ns[longest] > delay.ns:
        return gap_before(view, step, longest)
    return event_of(view, step, event)
