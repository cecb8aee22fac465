"""How much longer a job takes than the ideal one, in which no rank is behind another, and because of whom."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Bool, Recording
from replay.runs import Runs
from replay.selection import pipeline_stages
from replay.whatif.straggler import ideal_work_ns

#: Kinds of work that are put back one by one: those whose work differs most from the ideal.
_MOST_KINDS = 30


class Slowdown(Struct, frozen=True):
    """T(own work) / T(ideal work), the mean over the steps, both without gaps.

    `by` has the same for the ideal job with only one group's own work put back: by ``rank``, ``stage``
    and ``kind``, the largest first.
    """

    ratio: float
    by: Mapping[str, Mapping[str, float]]


def slowdown(recording: Recording) -> Slowdown:
    """Return the slowdown of the recorded steps that are whole."""
    rows = recording.whole_steps
    work = ideal_work_ns(recording)
    steps = [_Step(recording, row, work[row]) for row in rows]
    ideal = np.array([step.ideal_ns for step in steps], np.float64)

    def over_ideal(times: list[int]) -> float:
        return float(np.mean(np.array(times) / np.maximum(ideal, 1.0)))

    def put_back(table: Int64, names: Mapping[int, str]) -> dict[str, float]:
        found = {
            name: over_ideal([step.with_own(table, group) for step in steps]) for group, name in names.items()
        }
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    by: dict[str, dict[str, float]] = {"rank": {}, "stage": {}}
    owner = recording.column(lambda one: one.owner)
    if len(recording.owners) > 1:
        by["rank"] = put_back(owner, dict(enumerate(recording.owners)))
    stages = pipeline_stages(recording)
    if stages is not None:
        by["stage"] = put_back(np.array(stages)[owner], {stage: str(stage) for stage in sorted(set(stages))})
    names, kind = recording.numbered(lambda one: one.name)
    by["kind"] = put_back(kind, {i: names[i] for i in _most_different(steps, kind, len(names))})
    return Slowdown(over_ideal([step.own_ns for step in steps]), by)


class _Step:
    """One step without gaps, with its own work, with the ideal work, and with some of each."""

    def __init__(self, recording: Recording, row: int, ideal: Int64) -> None:
        step = recording.steps[row]
        zero = {name: np.zeros_like(getattr(step, name)) for name in ("gap_ns", "tail_ns", "begin_ns")}
        bare = replace(step, **zero)
        self.operation, self.own, self.ideal = step.operation, step.work_ns, ideal
        self._bare, self._runs = bare, Runs(replace(recording, steps=[bare]), [0])
        self.own_ns = self._time(np.ones(len(step), np.bool_))
        self.ideal_ns = self._time(np.zeros(len(step), np.bool_))

    def with_own(self, group_of: Int64, group: int) -> int:
        """Return how long the ideal step takes with the own work of one group of operations."""
        return self._time(group_of[self.operation] == group)

    def _time(self, keeps: Bool) -> int:
        work = np.where(keeps, self.own, self.ideal)
        schedule = self._runs.simulate([replace(self._bare, work_ns=work)])
        return int(self._runs.iteration_ns(schedule).max())


def _most_different(steps: list[_Step], kind: Int64, n_kinds: int) -> list[int]:
    """Return the kinds whose own work differs most from the ideal, in all."""
    difference = np.zeros(n_kinds)
    for step in steps:
        difference += np.bincount(kind[step.operation], np.abs(step.own - step.ideal), n_kinds)
    return [int(one) for one in np.argsort(-difference, kind="stable")[:_MOST_KINDS]]
