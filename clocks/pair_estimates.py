"""Offset and drift between the clocks of two hosts, by the operations that they have in common.

*Causality*: nobody ends an operation before the last has begun it, which gives a window for the offset.
Where somebody waits, the window is wide and its middle is wrong by half the wait. The one who begins last
does not wait, and the others end when it does, more or less: so an edge of the window misses the truth by
about the shortest time that its host, the one that begins, takes from its own begin to its own end.

*Matched ends*: a collective ends on all its ranks at nearly the same time. Where most differences of the
ends agree closely, as those of kernels do, they are the offset, and their spread is its bound. Those of
collectives that the hosts carry out may scatter by a tenth of a millisecond and all be wrong by five: they
are an estimate, and bound nothing.

*Drift*, how fast clocks run apart, shows where a recording is long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from arrays import Float64, Int64, Mask
from arrays.median import MAD_TO_SD, MEDIAN_TO_MEAN, median
from clocks import limits
from clocks.common_operations import Occurrences


class PairOffset(Struct, frozen=True):
    """The offset of host j against host i (what to add to j's times, less what to add to i's), in ns."""

    i: int
    j: int
    estimate: float
    doubt: float  # how far the truth usually is from the estimate
    ends: tuple[float, float] | None = None  # window from matched ends; None where they disagree


def evidence(found: Occurrences, compared: Mask, *, use_ends: bool) -> list[PairOffset]:
    """Return the evidence of every pair of hosts that is `compared` (n, n) and has any."""
    chosen = np.argwhere(np.triu(compared)).tolist()
    pairs = [_pair(found, i, j, use_ends=use_ends) for i, j in chosen]
    return [pair for pair in pairs if pair is not None]


def _pair(found: Occurrences, i: int, j: int, *, use_ends: bool) -> PairOffset | None:
    both = found.shared(i, j)
    waits, together = both & found.all_wait, both & found.end_together
    width, by_window = 2.0 * limits.ENDS_SUFFICE_NS, None
    if waits.any():
        upper = found.end[i, waits] - found.begin[j, waits]
        lower = found.begin[i, waits] - found.end[j, waits]
        misses = [_shortest(found.end[host, waits] - found.begin[host, waits]) for host in (i, j)]
        estimate, doubt, width = _from_window(upper, lower, misses)
        by_window = PairOffset(i, j, estimate, doubt)
    if use_ends and together.sum() >= limits.FEWEST_ENDS:
        estimate, doubt, limit = _from_ends(found.end[i, together] - found.end[j, together])
        if 2 * limit < width and (limit <= limits.ENDS_SCATTER_NS or by_window is None):
            return PairOffset(i, j, estimate, doubt, (estimate - limit, estimate + limit))
        if 2 * limit < width:
            return PairOffset(i, j, estimate, limit)
    return by_window


def _shortest(times: Int64) -> float:
    """Return the shortest of some times (k,) without a few, which may be faults of the recording."""
    at = min(max(limits.FEWEST_QUICK, int(limits.QUICK_SHARE * len(times))), len(times) - 1)
    return max(float(np.partition(times, at)[at]), 0.0)


def _from_window(upper: Int64, lower: Int64, misses: Sequence[float]) -> tuple[float, float, float]:
    """Return (estimate, doubt, width) of an offset that is at most `upper` and at least `lower` (k,).

    By `misses` the lower and the upper edge miss the truth, more or less; the estimate divides the window
    in that ratio. Where the edges contradict each other, as many occurrences as necessary are left out on
    either side: that keeps the sum of contradictions least.
    """
    high, low = np.sort(upper), np.sort(lower)[::-1]
    first = int(np.argmax(low <= high))
    width = max(float(high[first] - low[first]), 0.0)
    below, above = np.array(misses) + 1.0  # ns, so that they have a ratio
    doubt = float(((np.array(misses) + limits.MESSAGE_NS) ** -2.0).sum() ** -0.5)
    return float(low[first] + width * below / (below + above)), min(doubt, max(width / 2, 1.0)), width


def _from_ends(differences: Int64) -> tuple[float, float, float]:
    """Return (estimate, doubt, limit) of an offset from differences of ends (k,).

    The estimate is the median of those that agree. They agree with the half that lies closest together
    (Rousseeuw, Leroy, Robust Regression and Outlier Detection, 1987, ch. 4: least median of squares, then
    once more without the outliers).
    """
    centre = _densest(np.sort(differences))
    distance = np.abs(differences - centre)
    agree = distance <= limits.OUTLIER * MAD_TO_SD * median(distance)
    middle = median(differences[agree])
    spread = MAD_TO_SD * median(np.abs(differences - middle))
    doubt = limits.END_ERROR_NS + MEDIAN_TO_MEAN * spread / np.sqrt(len(differences))
    return middle, float(doubt), limits.END_LIMIT_NS + 3 * spread


def _densest(values: Int64) -> float:
    """Return the middle of the shortest stretch of sorted `values` that holds more than half of them.

    Of several such stretches the mean of their middles: the answer for negated values is the negated one.
    """
    size = len(values) // 2 + 1
    lengths = values[size - 1 :] - values[: len(values) - size + 1]
    first = np.flatnonzero(lengths == lengths.min())
    return float(np.mean([median(values[at : at + size]) for at in first]))


_ROUNDING_US = 1e-7  # us, and us per s


class Drifts(Struct, frozen=True):
    """Drifts of n clocks against one of them, in ppm (microseconds a second)."""

    ppm: Float64  # (n,) 0 where constant offsets explain the recording
    rest: Float64  # (n,) how far a true drift may be from it
    limit: float  # the largest relative drift that was thought possible

    def doubts_ppm(self, host: int) -> Float64:
        """Return how far the drifts against one host may be from the estimated ones (n,)."""
        widest = 2 * self.limit if self.ppm.any() else self.limit
        return np.asarray(np.minimum(self.rest + self.rest[host], widest))


def drifts_of(found: Occurrences, limits_ppm: Iterable[float]) -> Iterator[Drifts]:
    """Yield for each limit the drift of every clock against the one with most in common with the others."""
    hub = _hub(found)
    for limit_ppm in limits_ppm:
        ranges = [_drift_range(found, hub, host, limit_ppm) for host in range(len(found.begin))]
        ppm = np.array([0.0 if low <= 0.0 <= high else (low + high) / 2 for low, high in ranges])
        rest = np.array([max(high - d, d - low) for (low, high), d in zip(ranges, ppm, strict=True)])
        yield Drifts(ppm, rest, limit_ppm)


def _hub(found: Occurrences) -> int:
    """Return the host that shares most occurrences; of several the one that began first, in any order."""
    begins = np.where(found.there, found.begin, np.iinfo(np.int64).max).min(axis=1)
    return int(np.lexsort((found.middle, begins, -found.there.sum(axis=1)))[0])


def _drift_range(found: Occurrences, hub: int, host: int, limit_ppm: float) -> tuple[float, float]:
    """Return the drifts (ppm, from and to) of a host against the hub that the bounds of its offset allow.

    A drift is possible if a straight line passes between the upper and the lower bounds over time; only the
    corners of their convex hulls matter.
    """
    both = found.shared(hub, host) & found.all_wait
    if host == hub or limit_ppm == 0.0:
        return 0.0, 0.0
    if both.sum() < 2:
        return -limit_ppm, limit_ppm
    low_at, high_at = found.end[host, both], found.begin[host, both]
    low, high = found.begin[hub, both] - low_at, found.end[hub, both] - high_at
    span_ns = max(int(low_at.max()), int(high_at.max())) - min(int(low_at.min()), int(high_at.min()))
    if limit_ppm * 1e3 * (span_ns / 1e9) < int(high.min()) - int(low.max()):
        return -limit_ppm, limit_ppm  # the window has room for any drift
    lower, upper = hull(low_at, low), hull(high_at, -high)
    corners = low_at[lower] / 1e9, low[lower] / 1e3, high_at[upper] / 1e9, high[upper] / 1e3
    return slopes(*corners, limit_ppm)


def hull(x: Int64, y: Int64) -> Int64:
    """Return the corners of the points' upper convex hull."""
    order = np.argsort(x)
    same = np.diff(x[order]) == 0
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        order[tied] = order[tied][np.lexsort((-y[order[tied]], x[order[tied]]))]
        order = order[np.append(True, ~same)]
    while True:
        dx, dy = np.diff(x[order]).astype(np.float64), np.diff(y[order]).astype(np.float64)
        stands_out = dy[:-1] * dx[1:] > dy[1:] * dx[:-1]
        if stands_out.all():
            return order
        order = order[np.concatenate([[True], stands_out, [True]])]


def slopes(
    low_at: Float64, low: Float64, high_at: Float64, high: Float64, limit_ppm: float
) -> tuple[float, float]:
    """Return the least and greatest slope (us per s) of the lines above `low` and below `high`.

    A line of slope s passes above the i-th and below the k-th corner only if ``s (high_at[k] - low_at[i])
    <= high[k] - low[i]``, and one passes all of them if this holds for every pair; (-limit, limit) where
    no line does.
    """
    least, greatest = -limit_ppm, limit_ppm
    for at, height in zip(low_at, low, strict=True):
        run, rise = high_at - at, high - height
        if (rise[run == 0] < -_ROUNDING_US).any():
            return -limit_ppm, limit_ppm
        least = max(least, float((rise[run < 0] / run[run < 0]).max(initial=-np.inf)))
        greatest = min(greatest, float((rise[run > 0] / run[run > 0]).min(initial=np.inf)))
    if least > greatest + _ROUNDING_US:
        return -limit_ppm, limit_ppm
    return min(least, greatest), max(least, greatest)
