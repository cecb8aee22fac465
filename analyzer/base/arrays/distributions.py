"""Distributions of single numbers."""

from __future__ import annotations


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
