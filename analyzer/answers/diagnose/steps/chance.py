"""Whether a rank that is behind the others is so by more than chance."""

from __future__ import annotations

import numpy as np

from analyzer.answers.diagnose.finding_thresholds import CHANCE, MOST_STEPS, MUCH
from analyzer.base.arrays import Float64
from analyzer.base.arrays.distributions import student_cdf
from analyzer.base.arrays.median import FEWEST


def is_no_chance(excess: Float64, ratio: float, n_owners: int, *, always_most: bool = False) -> bool:
    """Whether a rank's excess (steps,) over its peers, `ratio` times theirs in the median step, is real.

    By a t-test over all `n_owners`, or by being so much in most steps that a disturbed step does not hide it.
    Of few steps: by being much, or because one of so many alike would hardly have the most in all of them.
    """
    if len(excess) < FEWEST:
        is_luck = float(n_owners) ** (1 - len(excess)) >= CHANCE
        return bool((excess > 0).all() and (ratio > MUCH or (always_most and not is_luck)))
    if ratio > MUCH and (excess > 0).mean() >= MOST_STEPS:
        return True
    return surely_positive(excess, CHANCE / n_owners)


def surely_positive(values: Float64, chance: float) -> bool:
    """Whether the mean of the values (n,) is above 0, but for a chance."""
    if np.ptp(values) == 0:
        return bool(values[0] > 0)
    n = len(values)
    t = float(values.mean() / (values.std(ddof=1) / n**0.5))
    return student_cdf(n - 1, -t) < chance
