"""Medians, outliers and distributions of numbers; scipy.special takes 0.1 s to import."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from analyzer.base.arrays import Float64, Mask, NDArray

#: Ratios for normal values: standard deviation to median absolute deviation, and standard errors of median to
#: mean.
MAD_TO_SD, MEDIAN_TO_MEAN = 1.4826, math.sqrt(math.pi / 2)
#: Least steps to estimate their variation.
FEWEST = 4
#: An outlier is this many median deviations above the median, and larger by this factor.
_OUTLIER_DEVIATIONS, _OUTLIER_FACTOR = 3.0, 1.10
#: Most steps of the warm-up.
WARM_UP = 3
#: Least ratio of a step of the warm-up to later outliers (steps with a checkpoint are up to 1.2 times as long
#: as each other); of the first of fewer than four steps to the others.
_ONCE, _FIRST_FACTOR = 1.5, 3.0


def median(values: NDArray[np.generic]) -> float:
    """Compute the median of numbers (n,), n > 0, without NaN; `np.median` loads `numpy.ma`."""
    ordered = np.sort(values).astype(np.float64)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def medians_of_others(values: Float64) -> Float64:
    """Compute for each value (k, m) the median of the others in its row; m is at least two.

    >>> medians_of_others(np.array([[1.0, 2.0, 4.0, 9.0]]))
    array([[4., 4., 2., 2.]])
    """
    order = np.argsort(values, axis=1)
    ordered, position = np.take_along_axis(values, order, axis=1), np.argsort(order, axis=1)
    n_others = values.shape[1] - 1
    low, high = (
        np.take_along_axis(ordered, middle + (middle >= position), axis=1)
        for middle in ((n_others - 1) // 2, n_others // 2)
    )
    return (low + high) / 2


def longest_usual(lengths: NDArray[np.number[Any]]) -> float:
    """Compute the length beyond which a step is an outlier among steps (n,); infinite for fewer than four.

    >>> longest_usual(np.array([10, 11, 12, 13, 14]))
    15.0
    """
    if len(lengths) < FEWEST:
        return math.inf
    middle = median(lengths)
    return max(middle + _OUTLIER_DEVIATIONS * median(np.abs(lengths - middle)), _OUTLIER_FACTOR * middle)


def outliers(lengths: NDArray[np.number[Any]]) -> Mask:
    """Mask the steps that took far longer than the median (of four or more), by their lengths (n,)."""
    return lengths > longest_usual(lengths)


def n_warm_up(lengths: NDArray[np.number[Any]]) -> int:
    """Count the steps of the warm-up: the first outliers (n,), if longer than all later steps.

    If outliers follow, only steps `_ONCE` times as long as these count: the others happen again.

    Among two or three steps, the first is a warm-up if it is `_FIRST_FACTOR` times as long as any other.

    >>> n_warm_up(np.array([90, 40, 10, 11, 12, 11, 10])), n_warm_up(np.array([90, 40, 10, 11, 40, 11, 10]))
    (2, 1)
    >>> n_warm_up(np.array([45, 10, 11, 12, 40, 11, 10]))
    0
    """
    if len(lengths) < FEWEST:
        return int(len(lengths) > 1 and lengths[0] > _FIRST_FACTOR * lengths[1:].max())
    usual = longest_usual(lengths)
    is_usual = lengths <= usual
    n_first = int(is_usual.argmax()) if is_usual.any() else 0
    if not 0 < n_first <= WARM_UP:
        return 0
    longest = float(lengths[n_first:].max())
    is_once = lengths[:n_first] > (longest if longest <= usual else _ONCE * longest)
    return n_first if is_once.all() else int(is_once.argmin())


def student_cdf(df: int, t: float) -> float:
    """Compute the probability that Student's t with `df` degrees of freedom is at most `t`.

    By the sums of Abramowitz and Stegun (26.7.3 and 26.7.4).

    >>> round(student_cdf(4, -2.776445), 6), round(student_cdf(3, 3.182446), 6)
    (0.025, 0.975)
    """
    angle, is_odd = math.atan(t / math.sqrt(df)), df % 2
    term, total = math.cos(angle) if is_odd else 1.0, 0.0
    for k in range(is_odd + 1, df + is_odd, 2):
        total += term
        term *= k / (k + 1) * math.cos(angle) ** 2
    share = math.sin(angle) * total
    return 0.5 + (angle + share) / math.pi if is_odd else (1 + share) / 2


def student_quantile(df: int, p: float) -> float:
    """Compute the quantile `p` (above 0.5) of Student's t with `df` degrees of freedom.

    By Newton's method from 0: above 0 the distribution function is concave.

    >>> round(student_quantile(4, 0.975), 6)
    2.776445
    """
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t, further = 0.0, math.inf
    while further > 1e-12 * t:
        density = scale * (1 + t * t / df) ** (-(df + 1) / 2)
        further = (p - student_cdf(df, t)) / density
        t += further
    return t


def binomial_tail(times: int, of: int, probability: float) -> float:
    """Compute the probability of at least `times` successes in `of` trials.

    >>> round(binomial_tail(2, 3, 0.5), 9)
    0.5
    """
    if probability == 1:
        return 1.0
    odds, none = math.log(probability / (1 - probability)), of * math.log1p(-probability)
    logs = (math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(times, of + 1))
    return math.fsum(math.exp(log + none + k * odds) for k, log in enumerate(logs, start=times))
