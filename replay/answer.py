"""Replayed iteration times beside the recorded ones, and 95 % intervals of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.distributions import FEWEST, longest_usual, student_quantile
from analyzer.base.errors import TraceError, UsageError
from analyzer.model.graph.step_graph import Recording
from replay.runs import replayed_ns

#: Standard deviation of the relative error of a what-if if nothing varies.
MODEL_ERROR = 0.05
#: The same for jobs whose recorded devices work for half of a step. Nine in ten edits of simulated jobs have
#: a smaller error (docs/dev/accuracy.md, table 3).
DEVICE_ERROR = 0.02
#: The same for jobs limited by launches: the mean step varies so much between runs of one job (14 jobs on an
#: H200, each recorded two or three times).
HOST_ERROR = 0.15
#: Kernels may take so much longer beside collectives that move bytes (95 %): arXiv 2507.03114 measured 19 %
#: in the mean and 40 % at most on four kinds of GPU.
CROWDED = 0.3

#: Error as a share of an edit's effect (the logarithm of after over before): far from the recorded job other
#: limits apply, which the recording does not show.
EXTRAPOLATED = 0.05

_DRAWS = 2000
_AT_ONCE = 1 << 20  # values that are drawn together
#: So many successive steps count as one independent step: load from other programs lasts longer than a step.
#: (The correlation of successive steps is 0.4 in long recordings, so a mean varies like one of half as many
#: steps.)
_ALIKE = 2
_SEED = 20210117
#: Half of a 95 % interval in standard errors: the normal distribution's 0.975 quantile.
Z_95 = 1.959963984540054


def mean_interval(times: Sequence[float] | Float64) -> tuple[float, float] | None:
    """Compute the 95 % interval of the mean of equally many further steps; None for too few steps.

    The n steps are resampled twice, for the recorded mean and for the further steps; in logarithms, because
    steps are sometimes far too long and never far too short. Few steps underestimate the spread, so it is
    widened like Student's t over the normal distribution. Successive steps are correlated (`_ALIKE`).
    """
    values = np.log(np.maximum(np.asarray(times, np.float64), 1.0))
    n = len(values)
    if n < FEWEST:
        return None
    draw = np.random.default_rng(_SEED)
    (past,), (further,) = (_means_of_draws(-(-n // _ALIKE), draw, values) for _ in range(2))
    low, high = np.array([-1, 1]) * np.abs(np.percentile(further - past, [2.5, 97.5]) * _wider(n))
    mean = float(np.mean(times))
    return mean * float(np.exp(low)), mean * float(np.exp(high))


def without_outliers(times: Float64) -> Float64:
    """Limit step times (n,) to the longest usual one.

    A delay that happened once (another process) need not happen in the edited job. Few steps have no outlier.
    """
    return np.minimum(times, longest_usual(times))


def paired_change(before: Float64, after: Float64) -> tuple[float, float] | None:
    """Compute the 95 % interval of the relative change of the mean step, paired by step (n,).

    It shows how much the answer depends on the choice of steps, not how accurate it is.
    """
    n = len(before)
    if n < FEWEST:
        return None
    means_before, means_after = _means_of_draws(n, np.random.default_rng(_SEED), before, after)
    changes = means_after / means_before - 1
    mean = float(after.mean() / before.mean() - 1)
    low, high = mean + (np.percentile(changes, [2.5, 97.5]) - mean) * _wider(n)
    return float(low), float(high)


def _means_of_draws(size: int, draw: np.random.Generator, *values: Float64) -> list[Float64]:
    """Bootstrap means (draws,) of each of the values (n,), with the same draws of `size` for all."""
    means: list[list[Float64]] = [[] for _ in values]
    n_rows = max(1, _AT_ONCE // size)
    for first in range(0, _DRAWS, n_rows):
        chosen = draw.integers(0, len(values[0]), (min(n_rows, _DRAWS - first), size))
        for parts, column in zip(means, values, strict=True):
            parts.append(column[chosen].mean(axis=1))
    return [np.concatenate(parts) for parts in means]


def _wider(n: int) -> float:
    """Ratio of Student's interval of n values to the normal one."""
    return student_quantile(n - 1, 0.975) / Z_95 * math.sqrt(n / (n - 1))


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
