"""Is a difference real: Welch's test on per-step values, for one quantity or for thousands at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64, Mask

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

#: A difference is significant where its p-value is at most this: the convention.
LEVEL = 0.05
#: Steps that a run needs for a p-value: two are too few to estimate a variance.
FEWEST_STEPS = 3
#: Fewest steps for a test of the correlation of neighbours (Bartlett's bound is 0.7 then).
_FEWEST_FOR_CORRELATION = 8


class Samples(NamedTuple):
    """Count, mean and spread of m quantities, each observed in some steps of one run.

    (m,) each: `mean` of all observations, `sd` of the per-step values (NaN below 2 steps), `n`: how
    many independent steps they are worth, `steps`: how many steps there are.
    """

    mean: Float64
    sd: Float64
    n: Float64
    steps: Float64


class Differences(NamedTuple):
    """Differences b - a of m quantities; interval and p-value are NaN where there are too few steps."""

    change: Float64
    low: Float64  # 95 % confidence interval
    high: Float64
    p: Float64


def sample(totals: ArrayLike, counts: ArrayLike | None = None) -> Samples:
    """Summarise m quantities by the steps in which they were observed.

    Parameters
    ----------
    totals : (m, k) sum of the observations in each of k steps
    counts : (m, k) how many they were; 0 where none. Default: one in every step

    Returns
    -------
    Samples
        The mean is over all observations. The value of a step is its contribution to that mean,
        ``mean + (total - mean * count) / (mean count)``: the step's own mean where each step has
        equally many observations, and the usual linearisation of a ratio of sums (Cochran, Sampling
        Techniques, 1977, ch. 6) where not. So steps are the units of the test, however many
        observations each holds; observations of one step are not independent.

    Notes
    -----
    Where neighbouring steps resemble each other beyond chance (lag-1 autocorrelation r above
    1.96/sqrt(k), Bartlett's bound, from 8 steps on), k steps are worth only k (1 - r)/(1 + r).
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
    n = np.maximum(k / _inflation(deviation, seen, k), np.minimum(k, 2))
    return Samples(mean, sd, n, k.astype(np.float64))


def _inflation(deviation: Float64, seen: Mask, k: Int64) -> Float64:
    """Compute by how much the correlation of neighbouring steps inflates the variance of each mean."""
    with np.errstate(all="ignore"):
        r = (deviation[:, 1:] * deviation[:, :-1]).sum(1) / (deviation**2).sum(1)
        judged = (k >= _FEWEST_FOR_CORRELATION) & seen.all(1) & (r > 1.96 / np.sqrt(k))
        r = np.where(judged, np.minimum(r, 0.9), 0.0)
    return np.asarray((1 + r) / (1 - r), np.float64)


def welch(a: Samples, b: Samples) -> Differences:
    """Test b against a with Welch's unequal-variances t-test, quantity by quantity."""
    from scipy.special import stdtr, stdtrit  # scipy.stats calls these, too, and takes 0.7 s to load

    change = b.mean - a.mean
    with np.errstate(all="ignore"):
        of_a, of_b = a.sd**2 / a.n, b.sd**2 / b.n
        error = np.sqrt(of_a + of_b)
        freedom = (of_a + of_b) ** 2 / (of_a**2 / (a.n - 1) + of_b**2 / (b.n - 1))  # Satterthwaite
        p = 2 * stdtr(freedom, -np.abs(change) / error)
        half = np.nan_to_num(stdtrit(freedom, 1 - LEVEL / 2) * error)
    p = np.where((a.sd == 0) & (b.sd == 0), np.where(change == 0, 1.0, 0.0), p)
    enough = (a.steps >= FEWEST_STEPS) & (b.steps >= FEWEST_STEPS)
    low, high, p = (np.where(enough, values, np.nan) for values in (change - half, change + half, p))
    return Differences(change, low, high, p)


def corrected(p: Float64) -> Float64:
    """Correct p-values for their number by Benjamini and Hochberg; NaN stay NaN."""
    tested = np.flatnonzero(np.isfinite(p))
    result = np.full(len(p), np.nan)
    rising = tested[np.argsort(p[tested])]
    n = len(rising)
    scaled = np.clip(p[rising], 0.0, 1.0) * (n / np.arange(1, n + 1))
    result[rising] = np.clip(np.minimum.accumulate(scaled[::-1])[::-1], 0.0, 1.0)
    return result


class Change(Struct, frozen=True):
    """One quantity in two runs, in nanoseconds: b - a with its 95 % interval.

    `low_ns`, `high_ns` and `p` (corrected for the number of quantities beside it) are None where a
    run has too few steps for a test, all but the averages where it does not occur in one run.
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
        """Whether the p-value is at most `LEVEL`."""
        return self.p is not None and self.p <= LEVEL


def changes(a: Samples, b: Samples) -> list[Change]:
    """Test m quantities; their p-values (m,) are corrected for their number."""
    tests = welch(a, b)
    columns = (a.mean, b.mean, tests.low, tests.high, corrected(tests.p))
    return [Change(*map(_known, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
