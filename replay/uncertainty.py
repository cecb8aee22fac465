"""95 % intervals of predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import Float64
from analyzer.base.arrays.distributions import FEWEST, longest_usual, student_quantile

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
