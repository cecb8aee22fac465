"""Which rank comes last to what ranks do together, and the rank that is awaited longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from arrays import Int64
from diagnose.job_view import JobView

#: Of each meeting of a step the owner that came last, and how long after the one before (ns).
LastArrivals: TypeAlias = tuple[Int64, Int64]


def last_arrivals(
    view: JobView, *, of_own_step: bool = False, among: Sequence[int] = ()
) -> list[LastArrivals]:
    """List the last arrivals of each whole step.

    `of_own_step`: last as counted from the end of its own step before. A rank that is served last ends,
    and begins, its steps later than the others, without being slow. `among`: only those to which one of
    these owners comes; () for all.
    """
    last = []
    tails = np.array([step.tail_ns for step in view.recording.steps])
    for row, met in zip(view.rows, view.meetings, strict=True):
        step = view.recording.steps[row]
        before_ns = tails[row - 1] if row else np.median(tails, axis=0)
        since = (step.begin_ns - before_ns).astype(np.int64)
        at_ns = met.at_ns - since[met.owner] if of_own_step else met.at_ns
        order = np.lexsort((at_ns, met.meeting))
        after_ns = np.diff(at_ns[order], prepend=0)
        is_last = np.append(np.diff(met.meeting[order]) != 0, np.ones(min(len(order), 1), np.bool_))
        if len(among):
            is_last &= np.isin(met.meeting[order], met.meeting[np.isin(met.owner, among)])
        last.append((met.owner[order[is_last]], after_ns[is_last]))
    return last


def longest_awaited(arrivals: Sequence[LastArrivals]) -> Int64:
    """Return the owner that was awaited longest in each step with a meeting."""
    awaited = [np.bincount(owner, after_ns).argmax() for owner, after_ns in arrivals if len(owner)]
    return np.array(awaited, np.int64)
