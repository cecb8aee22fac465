"""Slowdown of a job over the ideal job, in which no rank is slower than another, by cause."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.model.graph.step_graph import Recording
from replay.runs import Runs
from replay.selection import pipeline_stages
from replay.whatif.straggler import at_mean_work

#: Number of kinds of work that are put back, each by itself: those that differ most from the ideal.
_MOST_KINDS = 30


class Slowdown(Struct, frozen=True):
    """T(own work) / T(ideal work), the mean over the steps, both without gaps.

    `by` has the ratio of the ideal job with the own work of a ``rank``, ``stage`` or ``kind`` put back,
    largest first.
    """

    ratio: float
    by: Mapping[str, Mapping[str, float]]


def slowdown(recording: Recording) -> Slowdown:
    """Compute the slowdown S, as in published studies, over all whole steps."""
    names, kind = recording.numbered(lambda op: op.name)
    steps = _simulated(recording)
    ideal = np.array([step.ideal_ns for step in steps], np.float64)

    def over_ideal(times: list[int]) -> float:
        return float(np.mean(np.array(times) / np.maximum(ideal, 1.0)))

    def put_back(group_of: Int64, names: Mapping[int, str]) -> dict[str, float]:
        """Compute S of each group by its name; `group_of` is by operation (n,)."""
        slowdowns = {
            name: over_ideal([step.with_own(group_of[step.operation] == group) for step in steps])
            for group, name in names.items()
        }
        return dict(sorted(slowdowns.items(), key=lambda pair: -pair[1]))

    by: dict[str, dict[str, float]] = {"rank": {}, "stage": {}}
    owner = recording.column(lambda op: op.owner)
    if len(recording.owners) > 1:
        by["rank"] = put_back(owner, dict(enumerate(recording.owners)))
    if (stages := pipeline_stages(recording)) is not None:
        by["stage"] = put_back(np.array(stages)[owner], {stage: str(stage) for stage in sorted(set(stages))})
    difference = np.zeros(len(names))
    for step in steps:
        difference += np.bincount(kind[step.operation], np.abs(step.recorded - step.ideal), len(names))
    most_different = np.argsort(-difference, kind="stable")[:_MOST_KINDS].tolist()
    by["kind"] = put_back(kind, {number: names[number] for number in most_different})
    return Slowdown(over_ideal([step.own_ns for step in steps]), by)


def slowdown_ratio(recording: Recording) -> float:
    """Compute the slowdown S alone, without its parts by rank, stage and kind."""
    return float(np.mean([step.own_ns / max(step.ideal_ns, 1) for step in _simulated(recording)]))


def _simulated(recording: Recording) -> list[_Step]:
    edited = at_mean_work(recording)
    return [_Step(recording, row, edited.steps[row].work_ns) for row in recording.every_whole_step]


class _Step:
    """A step without gaps, simulated with recorded work, ideal work, or a mixture."""

    def __init__(self, recording: Recording, row: int, ideal: Int64) -> None:
        step = recording.steps[row]
        zero = {name: np.zeros_like(getattr(step, name)) for name in ("gap_ns", "tail_ns", "begin_ns")}
        self.operation, self.recorded, self.ideal = step.operation, step.work_ns, ideal
        self._bare = replace(step, **zero)
        self._runs = Runs(replace(recording, steps=[self._bare]), [0])
        self.own_ns = self.with_own(np.ones(len(step), np.bool_))
        self.ideal_ns = self.with_own(np.zeros(len(step), np.bool_))

    def with_own(self, keeps: Mask) -> int:
        """Time of the ideal step if some events (n,) keep their recorded work."""
        work = np.where(keeps, self.recorded, self.ideal)
        schedule = self._runs.simulate([replace(self._bare, work_ns=work)])
        return int(self._runs.iteration_ns(schedule).max())
