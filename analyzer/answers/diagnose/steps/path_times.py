"""Work and gaps on the critical paths of a job's steps, and the steps that are far longer than others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from analyzer.answers.diagnose.finding import HALF
from analyzer.base.arrays import Float64
from analyzer.base.arrays.change_points import LEAST_STEPS
from analyzer.base.arrays.intervals import stretches
from analyzer.model.figures.time_by_role import outliers
from analyzer.model.graph.step_graph import Bool, StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Phase
from dag_utils import CriticalPath, critical_path
from replay.whatif.host import PYTHON

if TYPE_CHECKING:
    from analyzer.answers.diagnose.steps.job_view import JobView

#: Steps whose critical paths are walked at most; more of steps that are short, so many events.
_MOST_PATHS, _MOST_EVENTS = 20, 300_000


class PathTimes(Struct, frozen=True):
    """Work of each kind of operation (k,) on the path of a step, and gaps before it; the mean over `rows`.

    The last of the gaps (k + 1,) are before no operation. `beside_ns` is how long a host decides while its
    device works: the path follows the device then.
    """

    rows: Sequence[int]
    work_ns: Float64
    gap_ns: Float64
    beside_ns: float


def mean_path_times(view: JobView) -> PathTimes:
    """Walk the paths of all whole steps, or of some of many, without the outliers."""
    usual = [row for place, row in enumerate(view.rows) if place not in view.outliers]
    rows = some_rows(view, usual)
    work, gaps, beside = np.mean([times_of(view, row) for row in rows], axis=0)
    return PathTimes(rows, work[:-1], gaps, beside.sum())


def some_rows(view: JobView, rows: Sequence[int]) -> list[int]:
    """Choose so many of some steps that walking their paths does not take long."""
    events = sum(len(view.recording.steps[row]) for row in rows[:_MOST_PATHS])
    most = max(_MOST_PATHS, _MOST_EVENTS * _MOST_PATHS // max(events, 1))
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))
    return [rows[i] for i in places]


def times_of(view: JobView, row: int) -> tuple[Float64, Float64, Float64]:
    """Work, gaps and work beside a host on the path of a step by kind (k + 1,); the last is of none.

    Short gaps of a device's host are its work.
    """
    n, kind = len(view.recording.table.kinds), view.recording.table.kind
    step = view.recording.steps[row]
    path = critical_path(step)
    of = np.append(kind, n)[np.append(step.operation, -1)[path.event]]  # a step may have no event at all
    lasts, is_python = path.end_ns - path.start_ns, is_python_gap(view, step, path)
    is_work = path.is_work | is_python
    is_gap = path.is_gap & ~is_python
    work, gaps, beside = (
        np.bincount(of[chosen], lasts[chosen], n + 1).astype(np.float64)
        for chosen in (is_work, is_gap, path.rule == Rule.BUSY)
    )
    return work, gaps, beside


def is_python_gap(view: JobView, step: StepGraph, path: CriticalPath) -> Bool:
    """Mark the stretches of a path that are gaps of a host so short that just Python ran there."""
    of_host = view.is_of_host[np.append(step.operation, 0)[path.event]]
    is_gap: Bool = of_host & (path.event >= 0) & path.is_gap
    return is_gap & (path.end_ns - path.start_ns < PYTHON * view.step_ns)


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
