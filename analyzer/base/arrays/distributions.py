"""Distributions of single numbers, and a test of two samples."""

from __future__ import annotations

import math

import numpy as np

from analyzer.base.arrays import Float64


def student_cdf(df: float, t: float) -> float:
    """Probability that Student's t with `df` degrees of freedom is at most `t`.

    >>> round(student_cdf(4, -2.776445), 6)
    0.025
    """
    from scipy.special import stdtr  # takes 0.1 s to load, which most answers do without

    return float(stdtr(df, t))


def student_quantile(df: float, p: float) -> float:
    """Value t below which Student's t with `df` degrees of freedom is with probability `p`.

    >>> round(student_quantile(4, 0.975), 6)
    2.776445
    """
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def binomial_tail(times: int, of: int, probability: float) -> float:
    """Probability that something happens at least `times` times `of` so many.

    >>> round(binomial_tail(2, 2, 0.5), 9)
    0.25
    """
    from scipy.special import bdtrc

    return 1.0 if times <= 0 else float(bdtrc(times - 1, of, probability))


def rank_sum(a: Float64, b: Float64) -> float:
    """Compute how many standard deviations samples `a` (k,) lie above `b` (m,).

    Wilcoxon's rank-sum statistic, which is robust to outliers, in its normal approximation, with ties.

    >>> round(rank_sum(np.array([5.0, 6.0, 7.0]), np.array([1.0, 2.0, 3.0])), 3)
    1.964
    """
    both = np.concatenate([a, b])
    _, value_number, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[value_number.reshape(-1)]
    n, k, m = len(both), len(a), len(b)
    variance = k * m / 12 * (n + 1 - (counts**3 - counts).sum() / (n * (n - 1)))
    return float((ranks[:k].sum() - k * (n + 1) / 2) / math.sqrt(variance)) if variance > 0 else 0.0
