"""How fast the clocks of hosts run apart, where a recording is long enough to show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct

from arrays import Float64, Int64
from clocks.common_operations import Occurrences

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
    bounds = [_Bounds(found, hub, host) for host in range(len(found.begin))]
    for limit_ppm in limits_ppm:
        ranges = [own.drift_range(limit_ppm) for own in bounds]
        ppm = np.array([0.0 if low <= 0.0 <= high else (low + high) / 2 for low, high in ranges])
        rest = np.array([max(high - d, d - low) for (low, high), d in zip(ranges, ppm, strict=True)])
        yield Drifts(ppm, rest, limit_ppm)


def _hub(found: Occurrences) -> int:
    """Return the host that shares most occurrences; of several the one that began first, in any order."""
    begins = np.where(found.there, found.begin, np.iinfo(np.int64).max).min(axis=1)
    return int(np.lexsort((found.middle, begins, -found.there.sum(axis=1)))[0])


class _Bounds:
    """The upper and lower bounds of one host's offset against the hub over time."""

    def __init__(self, found: Occurrences, hub: int, host: int) -> None:
        self._found, self._hub, self._host = found, hub, host
        self._hull: tuple[Float64, Float64, Float64, Float64] | None = None

    def drift_range(self, limit_ppm: float) -> tuple[float, float]:
        """Return the drifts (ppm, from and to) of the host that the bounds allow.

        A drift is possible if a straight line passes between the upper and the lower bounds; only the
        corners of their convex hulls matter.
        """
        found, hub, host = self._found, self._hub, self._host
        if host == hub or limit_ppm == 0.0:
            return 0.0, 0.0
        if self._hull is None:
            both = found.shared(hub, host) & found.all_wait
            if both.sum() < 2:
                return -limit_ppm, limit_ppm
            low_at, high_at = found.end[host, both], found.begin[host, both]
            low, high = found.begin[hub, both] - low_at, found.end[hub, both] - high_at
            last, first = (
                max(int(low_at.max()), int(high_at.max())),
                min(int(low_at.min()), int(high_at.min())),
            )
            if limit_ppm * 1e3 * ((last - first) / 1e9) < int(high.min()) - int(low.max()):
                return -limit_ppm, limit_ppm  # the window has room for any drift
            lower, upper = hull(low_at, low), hull(high_at, -high)
            self._hull = (low_at[lower] / 1e9, low[lower] / 1e3, high_at[upper] / 1e9, high[upper] / 1e3)
        return slopes(*self._hull, limit_ppm)


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
