"""Work and gaps on the critical paths of a job's steps, and far longer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from analyzer.answers.diagnose.finding import HALF
from analyzer.base.arrays import Float64, Mask
from analyzer.base.arrays.change_points import LEAST_STEPS
from analyzer.base.arrays.distributions import outliers
from analyzer.base.arrays.intervals import stretches
from analyzer.model.graph.step_graph import StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Phase
from dag_utils import CriticalPath, critical_path
from replay.whatif.host import PYTHON

if TYPE_CHECKING:
    from analyzer.answers.diagnose.steps.job_view import JobView

#: Critical paths to walk: so many, or if steps are short, paths of steps with so many events.
_MOST_PATHS, _MOST_EVENTS = 20, 300_000


class PathTimes(Struct, frozen=True):
    """Work of each kind of operation on the path of a step, and gaps before it; the mean over `rows`."""

    rows: Sequence[int]
    work_ns: Float64  # (k,)
    gap_ns: Float64  # (k + 1,), the last before no operation
    beside_ns: float  # the host decides while its device works, which the path follows then


def mean_path_times(view: JobView, rows: Sequence[int]) -> PathTimes:
    """Average the paths of the steps `rows`, or of a sample."""
    rows = some_rows(view, rows)
    work, gaps, beside = np.mean([times_of(view, row) for row in rows], axis=0)
    return PathTimes(rows, work[:-1], gaps, beside.sum())


def some_rows(view: JobView, rows: Sequence[int]) -> list[int]:
    """Sample steps so that walking their paths does not take long."""
    events = sum(len(view.recording.steps[row]) for row in rows[:_MOST_PATHS])
    most = max(_MOST_PATHS, _MOST_EVENTS * _MOST_PATHS // max(events, 1))
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int))
    return [rows[i] for i in places]


def times_of(view: JobView, row: int) -> tuple[Float64, Float64, Float64]:
    """Add up work, gaps and work beside a host on the path of a step by kind (k + 1,); the last is of none.

    Short gaps of a device's host are its work.
    """
    n, kind = len(view.recording.operations.kinds), view.recording.operations.kind
    step = view.recording.steps[row]
    path = critical_path(step)
    kinds = np.append(kind, n)[np.append(step.operation, -1)[path.event]]  # a step may have no event
    lasts, is_python = path.end_ns - path.start_ns, is_python_gap(view, step, path)
    is_work = path.is_work | is_python
    is_gap = path.is_gap & ~is_python
    work, gaps, beside = (
        np.bincount(kinds[chosen], lasts[chosen], n + 1).astype(np.float64)
        for chosen in (is_work, is_gap, path.rule == Rule.BUSY)
    )
    return work, gaps, beside


def is_python_gap(view: JobView, step: StepGraph, path: CriticalPath) -> Mask:
    """Mask the stretches of a path that are gaps of a host so short that only Python ran."""
    of_host = view.is_of_host[np.append(step.operation, 0)[path.event]]
    is_gap: Mask = of_host & (path.event >= 0) & path.is_gap
    return is_gap & (path.end_ns - path.start_ns < PYTHON * view.step_ns)


def far_longer(view: JobView) -> list[int]:
    """List the indices of whole steps that took far longer than the others.

    With accumulated gradients only every n-th step updates the model, and takes longer. So steps with and
    without an update are compared among themselves. Many in a row are a change of the level.
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

    def loading_ns(row: int) -> float:
        return float(times_of(view, row)[0][:-1][view.of_kinds(view.is_input)].sum())

    usual = some_rows(view, [row for i, row in enumerate(view.rows) if i not in far])
    usual_ns = float(np.median([loading_ns(row) for row in usual]))
    more_ns = view.job_ns - np.median(view.job_ns)
    return [i for i in far if loading_ns(view.rows[i]) - usual_ns < HALF * more_ns[i]]
