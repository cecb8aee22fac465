"""Steps that take far longer than the others, and whether they only wait for their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from arrays.change_points import LEAST_STEPS
from arrays.intervals import stretches
from diagnose.finding_thresholds import HALF
from diagnose.path_times import some_rows, times_of
from dialects.roles import Phase
from figures.time_by_role import outliers

if TYPE_CHECKING:
    from diagnose.job_view import JobView


def far_longer(view: JobView) -> list[int]:
    """Return the places among the whole steps of those that took far longer than the others.

    Where gradients are accumulated, only every n-th step updates the model, and takes longer
    because it does. So steps that do and that do not are compared among themselves. Many in a row are a
    change of the level.
    """
    if not outliers(view.job_ns).any():
        return []
    is_update = view.which(lambda operation: operation.phase is Phase.UPDATE)
    updates = np.array([is_update[step.operation].any() for step in view.steps], np.bool_)
    is_far = np.zeros(len(view.rows), np.bool_)
    for places in (np.flatnonzero(~updates), np.flatnonzero(updates)):
        is_far[places[outliers(view.job_ns[places])]] = True
    for begin, end in stretches(is_far).tolist():
        is_far[begin:end] &= end - begin < LEAST_STEPS
    far: list[int] = np.flatnonzero(is_far).tolist()
    return far


def slow_without_input(view: JobView, far: Sequence[int]) -> list[int]:
    """Leave out of the `far` longer steps those whose excess is mostly loading on their paths."""
    if not far:
        return []
    usual = some_rows(view, [row for place, row in enumerate(view.rows) if place not in far])
    loading_ns = float(np.median([_loading_ns(view, row) for row in usual]))
    more_ns = view.job_ns - np.median(view.job_ns)
    return [
        place for place in far if _loading_ns(view, view.rows[place]) - loading_ns < HALF * more_ns[place]
    ]


def _loading_ns(view: JobView, row: int) -> float:
    return float(times_of(view, row)[0][:-1][view.of_kinds(view.is_input)].sum())
