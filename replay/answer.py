"""Replayed iteration times beside the recorded ones, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64
from analyzer.base.errors import TraceError, UsageError
from analyzer.model.graph.step_graph import Recording
from replay.runs import replayed_ns
from replay.uncertainty import mean_interval

#: A replay of more events than this would take more than a few gigabytes.
MOST_EVENTS = 20_000_000


class Answer(Struct, frozen=True, dict=True):
    """Replayed and recorded times of some steps (`rows`) of m owners."""

    recording: Recording
    rows: Sequence[int]
    replayed_ns: Int64  # (steps, m)
    predicted_ns: Float64  # mean over the steps (m,)
    measured_ns: Float64  # mean over the steps (m,); NaN for owners without a whole recorded step

    @property
    def iteration_ns(self) -> float:
        """The predicted iteration time of the job: the mean over its owners, which step together."""
        return float(self.predicted_ns.mean())

    @property
    def recorded_ns(self) -> float | None:
        """The recorded iteration time of the job; None where no step is whole."""
        known = self.measured_ns[~np.isnan(self.measured_ns)]
        return float(known.mean()) if len(known) else None

    @cached_property
    def by_step_ns(self) -> tuple[Float64, Float64]:
        """Recorded and replayed time of each step (steps,), the mean over owners that recorded it whole."""
        measured = measured_ns(self.recording)[self.rows]
        known = ~np.isnan(measured)
        counts = known | ~known.any(axis=1, keepdims=True)
        return _known_mean(measured.T), _known_mean(np.where(counts, self.replayed_ns, np.nan).T)

    @cached_property
    def interval_ns(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean of equally many further steps; None for too few steps."""
        return mean_interval(self.replayed_ns[: len(set(self.rows))].mean(axis=1))


def answer(recording: Recording, rows: Sequence[int], replayed: Int64 | None = None) -> Answer:
    """Replay the recorded steps `rows`; `replayed` (steps, m) gives their times if known.

    Raises TraceError if no operation takes any time.
    """
    if replayed is None:
        replayed = replayed_ns(recording, rows)
    if not replayed.any():
        raise TraceError("the recorded operations have no duration: nothing to replay")
    recorded = measured_ns(recording)[rows]
    counts = ~np.isnan(recorded) | np.isnan(recorded).all(axis=0)
    predicted = _known_mean(np.where(counts, replayed, np.nan))
    return Answer(recording, rows, replayed, predicted, _known_mean(recorded))


def replayed_rows(recording: Recording, n_steps: int | None = None) -> list[int]:
    """Choose the recorded steps for `n_steps` (None: all whole ones), repeating them in turn.

    Raises UsageError for more steps than fit into memory.
    """
    rows = recording.whole_steps
    wanted = len(rows) if n_steps is None else n_steps
    per_step = sum(len(recording.steps[row]) for row in rows) / len(rows)
    if wanted * per_step > MOST_EVENTS:
        most = max(int(MOST_EVENTS / per_step), 1)
        raise UsageError(f"--step_num {wanted}: that many steps do not fit into memory; up to {most:,} do")
    return [rows[i % len(rows)] for i in range(wanted)]


def measured_ns(recording: Recording) -> Float64:
    """Durations of the recorded steps for each owner (steps, m), NaN where unknown."""
    times = np.array([step.iteration_ns for step in recording.bounds], np.float64)
    return np.where(times > 0, times, np.nan)


def _known_mean(times: Float64) -> Float64:
    known = ~np.isnan(times)
    total = np.where(known, times, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
