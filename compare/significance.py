"""Is a difference real: Welch's test on per-step values, for one quantity or for thousands at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from arrays import Float64, NDArray, distributions
from arrays.numbering import unique
from compare.thresholds import (
    CAUTION,
    FEWEST_ALIKE,
    FEWEST_FOR_CORRELATION,
    FEWEST_STEPS,
    LEVEL,
    WORTH_TESTING,
)
from dialects import Role
from opname import OpName

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


_BLOCK = 1 << 21  # values that are looked at together


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
    n_obs = None if counts is None else np.atleast_2d(np.asarray(counts))
    m, k = sums.shape
    several = max(2, _BLOCK // max(1, k))  # so that what is made on the way stays small
    blocks = (slice(at, at + several) for at in range(0, max(1, m), several))
    parts = [_sample(sums[rows], None if n_obs is None else n_obs[rows]) for rows in blocks]
    return parts[0] if len(parts) == 1 else Samples(*map(np.concatenate, zip(*parts, strict=True)))


def _sample(sums: Float64, counts: NDArray[Any] | None) -> Samples:
    """Return the same as `sample`, computed for few quantities at a time."""
    n_obs = np.ones_like(sums) if counts is None else np.asarray(counts, np.float64)
    seen = n_obs > 0
    k = seen.sum(1)
    with np.errstate(all="ignore"):
        mean = sums.sum(1) / n_obs.sum(1)
        per_step = n_obs.sum(1) / k
        deviation = np.where(seen, (sums - mean[:, None] * n_obs) / per_step[:, None], 0.0)
        sd = np.where(k > 1, np.sqrt((deviation**2).sum(1) / (k - 1)), np.nan)
        sd = np.where(sd < 1e-9 * np.abs(mean), 0.0, sd)  # rounding of sums is not scatter
    return Samples(
        mean, sd, np.maximum(k / _inflation(deviation, seen, k), np.minimum(k, 2)), k.astype(np.float64)
    )


def welch(a: Samples, b: Samples, alike: NDArray[np.int64] | None = None) -> Differences:
    """Test b against a with Welch's unequal-variances t-test (scipy), quantity by quantity.

    The p-values of quantities of one number in `alike` (m,) use the variances of all of them; see
    `_steadier`. Intervals are those of each quantity's own.
    """
    from scipy.special import stdtr, stdtrit  # scipy.stats asks these too, and takes 0.7 s to load

    enough = (a.steps >= FEWEST_STEPS) & (b.steps >= FEWEST_STEPS)
    change = b.mean - a.mean
    low, high, p = (np.full(len(change), np.nan) for _ in range(3))
    if enough.any():
        x, y = (Samples(*(column[enough] for column in side)) for side in (a, b))
        with np.errstate(all="ignore"):
            error, freedom = _error(x, y)
            size = np.abs(change[enough])
            p[enough] = 2 * stdtr(freedom, -size / error)
            if alike is not None:
                (x, more_x), (y, more_y) = _steadier(x, alike[enough]), _steadier(y, alike[enough])
                steadier, more = _error(x, y, more_x, more_y)
                p[enough] = 2 * stdtr(more, -size / steadier)
            half = np.nan_to_num(stdtrit(freedom, 1 - LEVEL / 2) * error)
        low[enough], high[enough] = change[enough] - half, change[enough] + half
        constant = enough & (a.sd == 0) & (b.sd == 0)
        p[constant] = np.where(change[constant] == 0, 1.0, 0.0)
    return Differences(change, low, high, p)


def rank_sum(a: Float64, b: Float64) -> float:
    """Return the p-value of two runs' steps (k,), (m,) in Wilcoxon's rank-sum test, which bears outliers.

    Steps that resemble their neighbours count as fewer (`sample`).
    """
    worth = min(float(sample(each).n[0]) / len(each) for each in (a, b))
    return math.erfc(abs(distributions.rank_sum(a, b)) * math.sqrt(worth / 2))


def corrected(p: Float64) -> Float64:
    """Return p-values corrected for their number by Benjamini and Hochberg; NaN stay NaN."""
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
        """Whether the difference is more than chance."""
        return self.p is not None and self.p <= LEVEL


def changes(
    a: Samples,
    b: Samples,
    *,
    tested: NDArray[np.bool_] | None = None,
    correct: Callable[[Float64], Float64] = corrected,
    alike: NDArray[np.int64] | None = None,
) -> list[Change]:
    """Return the changes of m quantities, their p-values (m,) corrected for their number by `correct`.

    `tested` (m,) leaves quantities out of the tests that are too small to matter, judged by both runs
    together: so the others need not be corrected for them (Bourgon, Gentleman, Huber, PNAS 2010).
    Quantities of one number in `alike` (m,) are taken to vary alike.
    """
    found = welch(a, b, alike)
    p = correct(found.p if tested is None else np.where(tested, found.p, np.nan))
    columns = (a.mean, b.mean, found.low, found.high, p)
    return [Change(*map(_known, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _inflation(deviation: Float64, seen: NDArray[np.bool_], k: NDArray[np.int64]) -> Float64:
    """Return by how much the correlation of neighbouring steps inflates the variance of each mean."""
    with np.errstate(all="ignore"):
        r = (deviation[:, 1:] * deviation[:, :-1]).sum(1) / (deviation**2).sum(1)
        judged = (k >= FEWEST_FOR_CORRELATION) & seen.all(1) & (r > 1.96 / np.sqrt(k))
        r = np.where(judged, np.minimum(r, 0.9), 0.0)
    return np.asarray((1 + r) / (1 - r), np.float64)


def _error(
    a: Samples, b: Samples, more_a: Float64 | int = 0, more_b: Float64 | int = 0
) -> tuple[Float64, Float64]:
    """Return the standard error of the difference of means, and its degrees of freedom (Satterthwaite).

    Those of `a` and `b` are one less than their steps, and `more`.
    """
    of_a, of_b = a.sd**2 / a.n, b.sd**2 / b.n
    each = of_a**2 / (a.n - 1 + more_a) + of_b**2 / (b.n - 1 + more_b)
    return np.sqrt(of_a + of_b), (of_a + of_b) ** 2 / each


def _steadier(samples: Samples, alike: NDArray[np.int64]) -> tuple[Samples, Float64]:
    """Return samples with standard deviations steadied by similar quantities, and the freedom gained (m,).

    A few steps tell a variance badly; many quantities tell together how variances, relative to the squared
    mean, scatter. Each is drawn towards the usual one, and gains the degrees of freedom that this is worth
    (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, sections 3 and 6.2); but no
    quantity is taken to vary less than it did.
    """
    relative = (samples.sd / samples.mean) ** 2
    sd, more = samples.sd.copy(), np.zeros(len(relative))
    for number in unique(alike):
        own = np.flatnonzero((alike == number) & np.isfinite(relative) & (relative > 0))
        if len(own) >= FEWEST_ALIKE:
            freedom = samples.steps[own] - 1
            usual, weight = usual_variance(relative[own], freedom)
            drawn = (weight * usual + freedom * relative[own]) / (weight + freedom)
            sd[own] = np.sqrt(np.maximum(drawn, relative[own])) * np.abs(samples.mean[own])
            more[own] = weight
    return samples._replace(sd=sd), more


def usual_variance(variance: Float64, freedom: Float64) -> tuple[float, float]:
    """Return the prior of some variances (m,): its value, and the degrees of freedom it is worth.

    By the mean and the variance of their logarithms, which are those of a scaled F distribution.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    half = freedom / 2
    logs = np.log(variance) - digamma(half) + np.log(half)
    beyond = float(logs.var(ddof=1) - polygamma(1, half).mean())
    most = 500.0  # as good as all variances alike
    if beyond <= polygamma(1, most):
        return float(np.exp(logs.mean())), 2 * most
    weight = float(brentq(lambda x: polygamma(1, x) - beyond, 1e-3, most)) if beyond < 1e5 else 1e-3
    return float(np.exp(logs.mean() + digamma(weight) - np.log(weight))), 2 * weight


class Family(IntEnum):
    """The family of an operation, whose p-values are corrected together."""

    COMPUTATION = 0  # that takes a part of the step worth speaking of
    TRANSFERS = 1  # whole communications
    STAGES = 2  # parts of communications: several for every transfer
    REST = 3


#: The share of false alarms that each family may have; of those without operations, the others get it.
_SHARE = {Family.COMPUTATION: 0.8, Family.TRANSFERS: 0.1, Family.STAGES: 0.06, Family.REST: 0.04}


def families(names: Sequence[str], role: NDArray[np.int8], share_of_step: Float64) -> NDArray[np.int64]:
    """Return the `Family` of each of m operations, by name and the first role (m,) of its events.

    `share_of_step` (m,) is what its events last together, as a share of the step.
    """
    found = np.full(len(names), int(Family.REST))
    found[(role == Role.COMPUTE) & (share_of_step >= WORTH_TESTING)] = Family.COMPUTATION
    found[np.isin(role, (Role.COMM, Role.COPY))] = Family.TRANSFERS
    for i, op in enumerate(map(OpName.parse, names)):
        if op.is_comm:
            found[i] = Family.TRANSFERS if op.queue is None else Family.STAGES
    return found


def corrected_by_family(p: Float64, family: NDArray[np.int64], share_of_step: Float64) -> Float64:
    """Return p-values (m,) corrected by Benjamini and Hochberg within each family; NaN stay NaN.

    Before, each is divided by a weight: that of its family, and within it one that grows with the
    square root of what the operation takes of a step. Weights that are 1 on average, and do not
    look at the difference, cost no more false alarms (Genovese, Roeder, Wasserman, Biometrika 2006).
    """
    tested = np.isfinite(p)
    present = [which for which in Family if (tested & (family == which)).any()]
    whole = sum(_SHARE[which] for which in present)
    result = np.full(len(p), np.nan)
    for which in present:
        own = tested & (family == which)
        size = np.sqrt(np.maximum(share_of_step[own], 1e-9))
        weighted = np.minimum(p[own] * size.mean() / size, 1.0)
        result[own] = np.minimum(corrected(weighted) * whole / (_SHARE[which] * CAUTION), 1.0)
    return result
