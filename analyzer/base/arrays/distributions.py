"""Distributions of single numbers; scipy.special takes 0.1 s to import."""

from __future__ import annotations

import math

_MOST_TERMS = 10_000
_TINY = 1e-300


def student_cdf(df: float, t: float) -> float:
    """Return the probability that Student's t with `df` degrees of freedom is at most `t`.

    >>> round(student_cdf(4, -2.776445), 6)
    0.025
    """
    tail = _beta_share(df / 2, 0.5, df / (df + t * t)) / 2
    return tail if t < 0 else 1 - tail


def student_quantile(df: float, p: float) -> float:
    """Return the t below which Student's t with `df` degrees of freedom is with probability `p` (above 0.5).

    By Newton's method from 0 on: above 0 the distribution function is concave, so it approaches from below.

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
    """Return the probability that something happens at least `times` times `of` so many.

    >>> round(binomial_tail(2, 2, 0.5), 9)
    0.25
    """
    if times <= 0 or times > of:
        return float(times <= 0)
    return _beta_share(times, of - times + 1, probability)


def _beta_share(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function of x in [0, 1].

    By the continued fraction of Abramowitz and Stegun (26.5.8) with Lentz's method, where it converges
    fast; else by symmetry.
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
