"""Is a difference real: Welch's test on per-step values, for one quantity or for thousands at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

LEVEL = 0.05  # a difference is significant where its p-value is at most this
FEWEST_STEPS = 3  # steps a run must have for a p-value
_FEWEST_ALIKE = 10  # quantities that tell together how much such quantities vary
_FEWEST_FOR_CORRELATION = 8  # steps from which on the correlation between neighbours can be judged


@dataclass(frozen=True, slots=True)
class Samples:
    """What a test must know of m quantities, each observed in some steps of one run.

    (m,) each: `mean` of all observations, `sd` of the per-step values (NaN below 2 steps), `n`: how
    many independent steps they are worth, `steps`: how many steps there are.
    """

    mean: Float
    sd: Float
    n: Float
    steps: NDArray[np.int64]
    more_freedom: Float | float = 0.0  # what other quantities add to the n - 1 degrees of freedom


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences b - a of m quantities; interval and p-value are NaN where there are too few steps."""

    change: Float
    low: Float  # 95 % confidence interval
    high: Float
    p: Float


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
        sd = np.where(sd < 1e-9 * np.abs(mean), 0.0, sd)  # rounding of sums is no scatter
    return Samples(mean, sd, np.maximum(k / _inflation(deviation, seen, k), np.minimum(k, 2)), k)


def welch(a: Samples, b: Samples, alike: NDArray[np.int64] | None = None) -> Differences:
    """Test b against a with Welch's unequal-variances t-test (scipy), quantity by quantity.

    With `alike` (m,) the p-values of quantities of one number are told by the variances of all of them; see
    `_steadier`. The intervals stay those of each quantity's own.
    """
    from scipy import stats

    enough = (a.steps >= FEWEST_STEPS) & (b.steps >= FEWEST_STEPS)
    change = b.mean - a.mean
    low, high, p = (np.full(len(change), np.nan) for _ in range(3))
    if enough.any():
        x, y = _only(a, enough), _only(b, enough)
        with np.errstate(all="ignore"):
            error = np.sqrt(x.sd**2 / x.n + y.sd**2 / y.n)
            freedom = _freedom(x, y)
            p[enough] = 2 * stats.t.sf(np.abs(change[enough]) / error, freedom)
            if alike is not None:
                x, y = _steadier(x, alike[enough]), _steadier(y, alike[enough])
                told = np.sqrt(x.sd**2 / x.n + y.sd**2 / y.n)
                p[enough] = 2 * stats.t.sf(np.abs(change[enough]) / told, _freedom(x, y))
            half = np.nan_to_num(stats.t.ppf(1 - LEVEL / 2, freedom) * error)
        low[enough], high[enough] = change[enough] - half, change[enough] + half
        constant = enough & (a.sd == 0) & (b.sd == 0)
        p[constant] = np.where(change[constant] == 0, 1.0, 0.0)
    return Differences(change, low, high, p)


def corrected(p: Float) -> Float:
    """Return p-values corrected for their number by Benjamini and Hochberg (scipy); NaN stay NaN."""
    from scipy import stats

    tested = np.isfinite(p)
    result = np.full(len(p), np.nan)
    if tested.any():
        result[tested] = stats.false_discovery_control(np.clip(p[tested], 0.0, 1.0))
    return result


def _inflation(deviation: Float, seen: NDArray[np.bool_], k: NDArray[np.int64]) -> Float:
    """Return by how much the correlation of neighbouring steps inflates the variance of each mean."""
    with np.errstate(all="ignore"):
        r = (deviation[:, 1:] * deviation[:, :-1]).sum(1) / (deviation**2).sum(1)
        judged = (k >= _FEWEST_FOR_CORRELATION) & seen.all(1) & (r > 1.96 / np.sqrt(k))
        r = np.where(judged, np.minimum(r, 0.9), 0.0)
    return np.asarray((1 + r) / (1 - r), np.float64)


def _only(samples: Samples, rows: NDArray[np.bool_]) -> Samples:
    return Samples(samples.mean[rows], samples.sd[rows], samples.n[rows], samples.steps[rows])


def _steadier(samples: Samples, alike: NDArray[np.int64]) -> Samples:
    """Return the samples with standard deviations that those of similar quantities have steadied.

    A few steps tell a variance badly; many quantities tell together how variances, relative to the squared
    mean, scatter. Each is drawn towards the usual one, and gains the degrees of freedom that this is worth
    (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, sections 3 and 6.2); but no
    quantity is taken to vary less than it did.
    """
    relative = (samples.sd / samples.mean) ** 2
    sd, more = samples.sd.copy(), np.zeros(len(relative))
    for number in np.unique(alike):
        own = np.flatnonzero((alike == number) & np.isfinite(relative) & (relative > 0))
        if len(own) >= _FEWEST_ALIKE:
            freedom = samples.steps[own] - 1
            usual, weight = usual_variance(relative[own], freedom)
            drawn = (weight * usual + freedom * relative[own]) / (weight + freedom)
            sd[own] = np.sqrt(np.maximum(drawn, relative[own])) * np.abs(samples.mean[own])
            more[own] = weight
    return replace(samples, sd=sd, more_freedom=more)


def usual_variance(variance: Float, freedom: NDArray[np.int64]) -> tuple[float, float]:
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


def _freedom(a: Samples, b: Samples) -> Float:
    """Degrees of freedom of the difference of means, by Welch and Satterthwaite."""
    of_a, of_b = a.sd**2 / a.n, b.sd**2 / b.n
    each = of_a**2 / (a.n - 1 + a.more_freedom) + of_b**2 / (b.n - 1 + b.more_freedom)
    return np.asarray((of_a + of_b) ** 2 / each, np.float64)
