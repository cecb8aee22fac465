"""Significance of differences: Welch's test on per-step values, for thousands of quantities at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: A difference is significant where its p-value is at most this: the convention.
LEVEL = 0.05
#: Steps that a run needs for a p-value: two do not give a variance.
FEWEST_STEPS = 3
#: Fewest steps for a test of the correlation of neighbours (Bartlett's bound is 0.7 then).
_FEWEST_FOR_CORRELATION = 8


class Samples(NamedTuple):
    """Count, mean and spread of m quantities, (m,) each, observed in some steps of one run."""

    mean: Float64  # of all observations
    sd: Float64  # of the per-step values; NaN below 2 steps
    n: Float64  # equivalent number of independent steps
    steps: Float64


class _Differences(NamedTuple):
    """Differences b - a of m quantities; interval and p-value are NaN where there are too few steps."""

    change: Float64
    low: Float64  # 95 % confidence interval, corrected as the p-value
    high: Float64
    p: Float64  # corrected for the number of quantities


def sample(totals: ArrayLike, counts: ArrayLike | None = None) -> Samples:
    """Summarise m quantities from totals and counts (m, k) of their observations in each of k steps.

    Steps are the units of the test, as observations of one step are not independent. The value of a step is
    its contribution to the mean of all observations, ``mean + (total - mean * count) / (mean count)``: the
    usual linearisation of a ratio of sums (Cochran, Sampling Techniques, 1977, ch. 6).

    Where neighbouring steps are correlated (lag-1 autocorrelation r above 1.96/sqrt(k), Bartlett's bound,
    from 8 steps on), k steps are worth only k (1 - r)/(1 + r).
    """
    sums = np.atleast_2d(np.asarray(totals, np.float64))
    n_obs = np.ones_like(sums) if counts is None else np.atleast_2d(np.asarray(counts, np.float64))
    seen = n_obs > 0
    k = seen.sum(1)
    with np.errstate(all="ignore"):
        mean = sums.sum(1) / n_obs.sum(1)
        per_step = n_obs.sum(1) / k
        deviation = np.where(seen, (sums - mean[:, None] * n_obs) / per_step[:, None], 0.0)
        sd = np.where(k > 1, np.sqrt((deviation**2).sum(1) / (k - 1)), np.nan)
        sd = np.where(sd < 1e-9 * np.abs(mean), 0.0, sd)  # rounding of sums is not scatter
        r = (deviation[:, 1:] * deviation[:, :-1]).sum(1) / (deviation**2).sum(1)
        correlated = (k >= _FEWEST_FOR_CORRELATION) & seen.all(1) & (r > 1.96 / np.sqrt(k))
        r = np.where(correlated, np.minimum(r, 0.9), 0.0)
    n = np.maximum(k / ((1 + r) / (1 - r)), np.minimum(k, 2))
    return Samples(mean, sd, n, k.astype(np.float64))


def welch(a: Samples, b: Samples) -> _Differences:
    """Test b against a with Welch's unequal-variances t-test, corrected for the number of quantities.

    An interval is as wide as its p-value was corrected, so it excludes 0 where that is at most `LEVEL`.
    """
    from scipy.special import stdtr, stdtrit  # scipy.stats calls these, too, and takes 0.7 s to load

    change = b.mean - a.mean
    with np.errstate(all="ignore"):
        of_a, of_b = a.sd**2 / a.n, b.sd**2 / b.n
        error = np.sqrt(of_a + of_b)
        freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.n - 1) + of_b**2 / (b.n - 1))  # Satterthwaite
        p = 2 * stdtr(freedom, -np.abs(change) / error)
    p = np.where((a.sd == 0) & (b.sd == 0), np.where(change == 0, 1.0, 0.0), p)
    p = np.where((a.steps >= FEWEST_STEPS) & (b.steps >= FEWEST_STEPS), p, np.nan)
    factor = _corrections(p)
    with np.errstate(all="ignore"):
        half = np.nan_to_num(stdtrit(freedom, 1 - LEVEL / factor / 2) * error)
        low, high, p = (np.where(np.isnan(p), p, ends) for ends in (change - half, change + half, p * factor))
    return _Differences(change, low, high, p)


def _corrections(p: Float64) -> Float64:
    """Find the factors that correct p-values for their number by Benjamini and Hochberg; 1 for NaN."""
    tested = np.flatnonzero(np.isfinite(p))
    factors = np.ones(len(p))
    rising = tested[np.argsort(p[tested])]
    n = len(rising)
    values = np.maximum(p[rising], np.finfo(np.float64).tiny)
    scaled = np.minimum.accumulate((values * n / np.arange(1, n + 1))[::-1])[::-1]
    factors[rising] = np.minimum(scaled, 1.0) / values
    return factors


class Change(Struct, frozen=True):
    """One quantity in two runs, in nanoseconds: b - a with its 95 % interval; None where unknown.

    Interval and p-value are corrected for the number of quantities tested.
    """

    a_ns: float | None
    b_ns: float | None
    low_ns: float | None = None
    high_ns: float | None = None
    p: float | None = None

    @property
    def ns(self) -> float | None:
        """The difference b - a."""
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns

    @property
    def relative(self) -> float | None:
        """The difference as a share of a; None where a is 0 and b is not."""
        if not self.a_ns or self.ns is None:
            return 0.0 if self.ns == 0 else None
        return self.ns / self.a_ns

    @property
    def significant(self) -> bool:
        """True for a p-value of at most `LEVEL`."""
        return self.p is not None and self.p <= LEVEL


def changes(a: Samples, b: Samples) -> list[Change]:
    """Test m quantities, with intervals and p-values corrected for their number."""
    tests = welch(a, b)
    columns = (a.mean, b.mean, tests.low, tests.high, tests.p)
    known = ([value if np.isfinite(value) else None for value in column.tolist()] for column in columns)
    return [Change(*row) for row in zip(*known, strict=True)]
