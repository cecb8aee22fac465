"""Offsets between the clocks of hosts, from what cannot have happened in the wrong order.

In a synchronous operation nobody finishes before the last participant has begun: for all participants
i and j, ``end_j >= begin_i`` in true time. With x the nanoseconds to add to a host's timestamps, every
such pair of one occurrence says ``x_i - x_j <= end_j - begin_i``; the smallest right-hand side over all
occurrences is the weight of an edge j -> i, and shortest paths over these difference constraints give the
tightest window of every offset. Its middle is the estimate, half its width the bound. A cycle of negative
weight is a contradiction. (Duda et al. 1987; Haddad 1988; Jézéquel 1989; Poirier, Roy, Dagenais 2010.)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from clocks.slope_bounds import hull, slopes

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

#: Relative drifts that are thought possible: quartz left alone, then a clock that is being slewed.
DRIFT_LIMITS_PPM = (50.0, 500.0)

#: Occurrences of synchronous operations on one host: operation -> (begins, ends) in ns on its clock, the
#: n-th of one host belonging to the n-th of another.
Anchors = Mapping[Hashable, tuple[Int64, Int64]]


@dataclass(frozen=True, slots=True)
class Clock:
    """How one host's clock relates to the first host's.

    Attributes
    ----------
    offset_ns : what to add to its timestamps, at `middle_ns`, to put them on the first host's clock
    drift_ppm : by how much that grows with time (microseconds a second); 0 unless the trace shows it
    bound_ns : the true offset is within `offset_ns` ± `bound_ns` all through the recording, with
        relative drifts of up to 50 ppm allowed for; None where nothing ties the host to the first
    anchors : occurrences it shares with another host
    violations_before, violations_after : pairs of one occurrence in the impossible order in which this
        host takes part, with the timestamps as recorded and as corrected
    middle_ns : the middle of its anchors, on its own clock
    """

    offset_ns: int = 0
    drift_ppm: float = 0.0
    bound_ns: int | None = None
    anchors: int = 0
    violations_before: int = 0
    violations_after: int = 0
    middle_ns: int = 0

    @property
    def is_tied(self) -> bool:
        """Whether a common operation ties this host to the first one."""
        return self.bound_ns is not None

    def shift(self, ts_ns: Int64) -> Int64:
        """Return what to add to timestamps (n,) of this host: offset and drift, in nanoseconds."""
        if self.drift_ppm == 0.0:
            return np.full(len(ts_ns), self.offset_ns, np.int64)
        drifted: Int64 = np.rint((ts_ns - self.middle_ns) * (self.drift_ppm / 1e6)).astype(np.int64)
        return drifted + self.offset_ns


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clocks of all hosts, and by how much the recorded operations contradict each other."""

    clocks: Sequence[Clock]
    contradiction_ns: int = 0  # 0: none
    contradicting: Sequence[int] = field(default=())  # hosts, in the order of the cycle


@dataclass(frozen=True, slots=True)
class _Occurrences:
    """Begins and ends (hosts, k) of the k occurrences that at least two hosts share; where `there`."""

    begin: Int64
    end: Int64
    there: NDArray[np.bool_]
    middle: Int64  # (hosts,) middle of the recording on each host's clock
    tau: Float64  # (k,) nanoseconds from that middle


def align(hosts: Sequence[Anchors]) -> Alignment:
    """Estimate the clock of every host against the first one's.

    A host whose window contains 0 is taken to share the first host's clock: its offset is 0, and its
    bound the far end of the window. Where the operations contradict each other, even with drift, all
    windows are widened by the least amount that resolves it, and the result says so; nothing is moved
    unless that puts most of what was out of order in order.

    Parameters
    ----------
    hosts : one for each host (worker, or rank where hosts are unknown), n >= 1
    """
    found = _occurrences(hosts)
    if found.begin.shape[1] == 0:
        return Alignment([Clock(bound_ns=0 if i == 0 else None) for i in range(len(hosts))])
    for limit_ppm in DRIFT_LIMITS_PPM:
        cycle = _shortest(_weights(found, limit_ppm))[1]
        if not cycle:
            break
    slack = 0.0
    if cycle:
        limit_ppm = 0.0
        slack = _least_slack(_weights(found, 0.0))
    ranges = [_drift_range(found, i, limit_ppm) for i in range(len(hosts))]
    drifts = np.array([0.0 if low <= 0.0 <= high else (low + high) / 2 for low, high in ranges])
    left = np.array([max(r[1] - d, d - r[0]) for r, d in zip(ranges, drifts, strict=True)])
    steady = _without_drift(found, drifts)
    tight, _ = _shortest(_weights(steady, 2 * left.max() if drifts.any() else limit_ppm) + slack)
    exact, impossible = _shortest(_weights(steady, 0.0) + slack)
    offsets = _choose(tight if impossible else exact)
    clocks = _clocks(found, tight, offsets, drifts, left, slack)
    if cycle and 2 * sum(c.violations_after for c in clocks) > sum(c.violations_before for c in clocks):
        clocks = _clocks(found, tight, np.zeros(len(hosts)), drifts, left, slack)
    return Alignment(clocks, round(slack), cycle)


# -- which occurrences belong together ----------------------------------------------------------


def _occurrences(hosts: Sequence[Anchors]) -> _Occurrences:
    """Lay the occurrences of all operations side by side."""
    blocks = []
    for key in dict.fromkeys(key for host in hosts for key in host):
        lengths = [min(map(len, host[key])) if key in host else 0 for host in hosts]
        n = sorted(lengths)[-2] if len(lengths) > 1 else 0
        if n == 0:
            continue
        block = np.zeros((3, len(hosts), n), np.int64)
        for i, host in enumerate(hosts):
            m = min(n, lengths[i])
            if m:
                block[0, i, :m], block[1, i, :m], block[2, i, :m] = host[key][0][:m], host[key][1][:m], 1
        blocks.append(block)
    table = np.concatenate(blocks, axis=2) if blocks else np.zeros((3, len(hosts), 0), np.int64)
    begin, end, there = table[0], table[1], table[2].astype(np.bool_)
    middle, tau = _middles(begin, end, there)
    return _Occurrences(begin, end, there, middle, tau)


def _middles(begin: Int64, end: Int64, there: NDArray[np.bool_]) -> tuple[Int64, Float64]:
    """Return each host's clock reading at one common instant, roughly, and the time of each occurrence.

    A rough instant is enough: it only says how much drift may have added up by an occurrence.
    """
    if begin.shape[1] == 0:
        return np.zeros(len(begin), np.int64), np.empty(0)
    first = int(there.sum(axis=1).argmax())
    own = there[first]
    start = int((begin[first, own].min() + end[first, own].max()) // 2)
    middle = np.full(len(begin), start, np.int64)
    for i in range(len(begin)):
        both = own & there[i]
        if both.any():
            middle[i] = start - int(np.median(begin[first, both] - begin[i, both]))
        elif there[i].any():
            middle[i] = (begin[i, there[i]].min() + end[i, there[i]].max()) // 2
    ahead = np.where(there, begin - middle[:, None], 0)
    return middle, ahead.sum(axis=0) / np.maximum(there.sum(axis=0), 1)


# -- windows ------------------------------------------------------------------------------------


def _weights(found: _Occurrences, drift_ppm: float) -> Float64:
    """Return w (n, n): ``x_i - x_j <= w[i, j]`` for the offsets at the middle of the recording."""
    n = len(found.begin)
    allowance = np.abs(found.tau) * (drift_ppm / 1e6)
    weights = np.full((n, n), np.inf)
    for i in range(n):
        for j in range(n):
            both = found.there[i] & found.there[j]
            if i != j and both.any():
                slack = (found.end[j, both] - found.begin[i, both]) + allowance[both]
                weights[i, j] = slack.min()
    np.fill_diagonal(weights, 0.0)
    return weights


def _shortest(weights: Float64) -> tuple[Float64, list[int]]:
    """Return all shortest paths (Floyd, Warshall), and the hosts of a negative cycle ([]: none)."""
    tight = weights.copy()
    n = len(tight)
    via = np.where(np.isfinite(tight), np.arange(n)[None, :], -1)
    for k in range(n):
        through = tight[:, k, None] + tight[None, k, :]
        better = through < tight
        tight = np.where(better, through, tight)
        via = np.where(better, via[:, k, None], via)
        negative = np.flatnonzero(np.diagonal(tight) < 0)
        if len(negative):
            return tight, _cycle(via, int(negative[0]))
    return tight, []


def _cycle(via: Int64, start: int) -> list[int]:
    """Follow the next hops from `start` until a host comes twice."""
    seen = [start]
    while (step := int(via[seen[-1], start])) not in seen:
        seen.append(step)
    return seen[seen.index(step) :]


def _least_slack(weights: Float64) -> float:
    """Return the least amount to add to every weight so that no cycle is negative, to a nanosecond."""
    low, high = 0.0, 1.0
    while _shortest(weights + high)[1]:
        low, high = high, high * 2
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if _shortest(weights + middle)[1] else (low, middle)
    return high


def _choose(tight: Float64) -> Float64:
    """Return the offsets (n,): 0 where that is possible (and jointly so), else the window's middle.

    The middles of all windows satisfy every constraint together, because each side of a window is a
    shortest path; the offsets that stay 0 are fixed first, by an edge of weight 0 in both directions.
    """
    fixed = tight.copy()
    zero = [0]
    for i in range(1, len(tight)):
        if np.isfinite(fixed[i, 0]) and np.isfinite(fixed[0, i]) and fixed[i, 0] >= 0 <= fixed[0, i]:
            fixed[i, 0] = fixed[0, i] = 0.0
            for k in (i, 0):
                fixed = np.minimum(fixed, fixed[:, k, None] + fixed[None, k, :])
            zero.append(i)
    tied = np.isfinite(fixed[:, 0]) & np.isfinite(fixed[0])
    offsets = np.zeros(len(tight))
    offsets[tied] = (fixed[tied, 0] - fixed[0, tied]) / 2
    offsets[zero] = 0.0
    return _whole(offsets, tight, tied)


def _whole(offsets: Float64, tight: Float64, tied: NDArray[np.bool_]) -> Float64:
    """Round to whole microseconds, as most traces have them, where the windows leave room; else to ns."""
    rounded = np.rint(offsets / 1000) * 1000
    room = (tight[tied, 0] + tight[0, tied])[offsets[tied] != 0]
    if np.all(room >= 2000) and np.all(rounded[:, None] - rounded[None, :] <= tight):
        return rounded
    return np.rint(offsets)


# -- drift --------------------------------------------------------------------------------------


def _drift_range(found: _Occurrences, host: int, limit_ppm: float) -> tuple[float, float]:
    """Return the drifts (ppm, from and to) of `host` against the first one that the windows allow.

    A drift is possible if a straight line passes between the upper and the lower bounds of the offset
    over time; only the corners of their convex hulls matter.
    """
    both = found.there[0] & found.there[host]
    if host == 0 or both.sum() < 2 or limit_ppm == 0.0:
        return (0.0, 0.0) if host == 0 else (-limit_ppm, limit_ppm)
    begin, end = found.begin[:, both], found.end[:, both]
    middle = found.middle[host]
    rough = found.middle[0] - middle
    low_at, low = end[host] - middle, begin[0] - end[host] - rough
    high_at, high = begin[host] - middle, end[0] - begin[host] - rough
    lower, upper = hull(low_at, low, 1), hull(high_at, high, -1)
    return slopes(low_at[lower] / 1e9, low[lower] / 1e3, high_at[upper] / 1e9, high[upper] / 1e3, limit_ppm)


def _drifted(found: _Occurrences, drifts: Float64) -> Int64:
    """Return what each host's drift (ppm) adds to its begins (hosts, k)."""
    ahead = found.begin - found.middle[:, None]
    added: Int64 = np.rint(ahead * (drifts[:, None] / 1e6)).astype(np.int64)
    return np.where(found.there, added, 0)


def _without_drift(found: _Occurrences, drifts: Float64) -> _Occurrences:
    if not drifts.any():
        return found
    added = _drifted(found, drifts)
    return replace(found, begin=found.begin + added, end=found.end + added)


# -- the answer ---------------------------------------------------------------------------------


def _clocks(
    found: _Occurrences, tight: Float64, offsets: Float64, drifts: Float64, left: Float64, slack: float
) -> list[Clock]:
    tied = np.isfinite(tight[:, 0]) & np.isfinite(tight[0])
    shift = np.where(tied, offsets, 0.0).astype(np.int64)[:, None] + _drifted(found, drifts)
    before = _violations(found, np.zeros_like(shift))
    after = _violations(found, shift)
    half_ns = float(np.abs(found.tau).max())
    shared = found.there.sum(axis=1)
    clocks = []
    for i in range(len(offsets)):
        far = max(tight[i, 0] - offsets[i], offsets[i] + tight[0, i])
        bound = far + left[i] / 1e6 * half_ns + slack
        clocks.append(
            Clock(
                offset_ns=int(offsets[i]) if tied[i] else 0,
                drift_ppm=float(drifts[i]) if tied[i] else 0.0,
                bound_ns=0 if i == 0 else int(np.ceil(bound)) if tied[i] else None,
                anchors=int(shared[i]),
                violations_before=int(before[i]),
                violations_after=int(after[i]),
                middle_ns=int(found.middle[i]),
            )
        )
    return clocks


def _violations(found: _Occurrences, shift: Int64) -> Int64:
    """Return for each host how many pairs of one occurrence that it is part of are out of order."""
    begin, end = found.begin + shift, found.end + shift
    counts = np.zeros(len(begin), np.int64)
    for i in range(len(begin)):
        early = (end < begin[i]) & found.there & found.there[i]
        early[i] = False
        per_host = early.sum(axis=1)
        counts += per_host
        counts[i] += per_host.sum()
    return counts
