"""Slowdown of a job over the ideal job, in which no rank is slower than another, by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.model.graph.step_graph import Bool, Recording
from replay.runs import Runs
from replay.selection import pipeline_stages
from replay.whatif.straggler import at_mean_work

#: So many kinds of work are put back one by one: those that differ most from the ideal.
_MOST_KINDS = 30


class Slowdown(Struct, frozen=True):
    """T(own work) / T(ideal work), the mean over the steps, both without gaps.

    `by` has the ratio for the ideal job with the own work of one group put back: by ``rank``, ``stage`` and
    ``kind``, largest first.
    """

    ratio: float
    by: Mapping[str, Mapping[str, float]]


def slowdown(recording: Recording) -> Slowdown:
    """Compute the slowdown S, as in published studies, over all whole steps."""
    names, kind = recording.numbered(lambda op: op.name)
    steps = _simulated(recording, kind)
    ideal = np.array([step.ideal_ns for step in steps], np.float64)

    def over_ideal(times: list[int]) -> float:
        return float(np.mean(np.array(times) / np.maximum(ideal, 1.0)))

    def put_back(groups: Sequence[Int64], names: Mapping[int, str]) -> dict[str, float]:
        """S of each group by its name; `groups` has the group of each event (n,) of each step."""
        slowdowns = {
            name: over_ideal(
                [step.with_own(of_step == group) for step, of_step in zip(steps, groups, strict=True)]
            )
            for group, name in names.items()
        }
        return dict(sorted(slowdowns.items(), key=lambda pair: -pair[1]))

    by: dict[str, dict[str, float]] = {"rank": {}, "stage": {}}
    owner = recording.column(lambda op: op.owner)

    def of_operation(table: Int64) -> list[Int64]:
        return [table[step.operation] for step in steps]

    if len(recording.owners) > 1:
        by["rank"] = put_back(of_operation(owner), dict(enumerate(recording.owners)))
    stages = pipeline_stages(recording)
    if stages is not None:
        of_stage = {stage: str(stage) for stage in sorted(set(stages))}
        by["stage"] = put_back(of_operation(np.array(stages)[owner]), of_stage)
    by["kind"] = put_back([step.kind for step in steps], _most_different(steps, names))
    return Slowdown(over_ideal([step.own_ns for step in steps]), by)


def slowdown_ratio(recording: Recording) -> float:
    """Slowdown S alone, without its parts by rank, stage and kind."""
    _, kind = recording.numbered(lambda op: op.name)
    steps = _simulated(recording, kind)
    return float(np.mean([step.own_ns / max(step.ideal_ns, 1) for step in steps]))


def _simulated(recording: Recording, kind: Int64) -> list[_Step]:
    """Simulate the whole steps; `kind` is by operation (n,)."""
    edited = at_mean_work(recording)
    return [
        _Step(recording, row, edited.steps[row].work_ns, kind[recording.steps[row].operation])
        for row in recording.every_whole_step
    ]


class _Step:
    """A step without gaps, simulated with own work, ideal work, or a mixture."""

    def __init__(self, recording: Recording, row: int, ideal: Int64, kind: Int64) -> None:
        step = recording.steps[row]
        zero = {name: np.zeros_like(getattr(step, name)) for name in ("gap_ns", "tail_ns", "begin_ns")}
        bare = replace(step, **zero)
        self.operation, self.own, self.ideal, self.kind = step.operation, step.work_ns, ideal, kind
        self._bare, self._runs = bare, Runs(replace(recording, steps=[bare]), [0])
        self.own_ns = self.with_own(np.ones(len(step), np.bool_))
        self.ideal_ns = self.with_own(np.zeros(len(step), np.bool_))

    def with_own(self, keeps: Bool) -> int:
        """Time of the ideal step if some events (n,) keep their own work."""
        work = np.where(keeps, self.own, self.ideal)
        schedule = self._runs.simulate([replace(self._bare, work_ns=work)])
        return int(self._runs.iteration_ns(schedule).max())


def _most_different(steps: Sequence[_Step], names: Sequence[str]) -> dict[int, str]:
    """Kinds whose own work differs most from the ideal, as number and name."""
    difference = np.zeros(len(names))
    for step in steps:
        difference += np.bincount(step.kind, np.abs(step.own - step.ideal), len(names))
    chosen = np.argsort(-difference, kind="stable")[:_MOST_KINDS].tolist()
    return {one: names[one] for one in chosen}
