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

    They are `_ONCE` times as long as a later outlier, or else happen again.

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


_MOST_TERMS = 10_000
_TINY = 1e-300


def student_cdf(df: float, t: float) -> float:
    """Compute the probability that Student's t with `df` degrees of freedom is at most `t`.

    >>> round(student_cdf(4, -2.776445), 6)
    0.025
    """
    tail = _beta_share(df / 2, 0.5, df / (df + t * t)) / 2
    return tail if t < 0 else 1 - tail


def student_quantile(df: float, p: float) -> float:
    """Compute the quantile `p` (above 0.5) of Student's t with `df` degrees of freedom.

    By Newton's method from 0: above 0 the distribution function is concave.

    >>> round(student_quantile(4, 0.975), 6)
    2.776445
    """
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t, further = 0.0, math.inf
    while further > 1e-14 * t:
        density = scale * (1 + t * t / df) ** (-(df + 1) / 2)
        further = (p - student_cdf(df, t)) / density
        t += further
    return t


def binomial_tail(times: int, of: int, probability: float) -> float:
    """Compute the probability of at least `times` successes in `of` trials.

    >>> round(binomial_tail(2, 2, 0.5), 9)
    0.25
    """
    if times <= 0 or times > of:
        return float(times <= 0)
    return _beta_share(times, of - times + 1, probability)


def _beta_share(a: float, b: float, x: float) -> float:
    """Compute the regularised incomplete beta function of x in [0, 1].

    By the continued fraction of Abramowitz and Stegun (26.5.8) with Lentz's method, or by symmetry.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(b, a, 1 - x)
    value, c, d = 1.0, 1.0, 0.0
    for i in range(_MOST_TERMS):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if i and abs(c * d - 1) < 1e-15:
            break
    log = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log) * (value - 1) / a
