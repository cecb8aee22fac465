"""Offset between the clocks of two hosts, by the operations that they have in common.

*Causality*: nobody ends an operation before the last has begun it, which gives a window for the offset.
Where somebody waits, the window is wide and its middle is wrong by half the wait. The one who begins last
does not wait, and the others end when it does, more or less: so an edge of the window misses the truth by
about the shortest time that its host, the one that begins, takes from its own begin to its own end.

*Matched ends*: a collective ends on all its ranks at nearly the same time. Where most differences of the
ends agree closely, as those of kernels do, they are the offset, and their spread is its bound. Those of
collectives that the hosts carry out may scatter by a tenth of a millisecond and all be wrong by five: they
are an estimate, and bound nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.distributions import MAD_TO_SD, MEDIAN_TO_MEAN, median
from analyzer.base.arrays.numbering import unique
from analyzer.reading.dialects.recorded_collectives import SyncPoint, SyncPoints

#: Relative drift: the usual tolerance of quartz oscillators.
QUARTZ_PPM = 50.0

#: Ends of one collective: NCCL's kernels end 1 to 7 us apart on 8 ranks of one host. Each end is
#: within `END_LIMIT_NS` of the message that lets it end, so two differ by less than twice that.
END_ERROR_NS, END_LIMIT_NS = 2_000, 10_000
#: Bounds from ends: above the first, ends scatter and bound nothing; below the second, no window is needed.
ENDS_SCATTER_NS, ENDS_SUFFICE_NS = 40_000, 300_000
FEWEST_ENDS = 3

#: Delay of a message between hosts: an edge of a window may miss the truth by so much in any case.
MESSAGE_NS = 500_000
#: The shortest time is that of the third-quickest occurrence, of many that of this share: the rest may be
#: faults of the recording.
QUICK_SHARE, FEWEST_QUICK = 0.02, 2

#: Standard deviations from the centre beyond which a value is an outlier (Rousseeuw, Leroy 1987, ch. 1).
OUTLIER = 2.5
#: An estimate that is nearer to another than this many times its doubt does not contradict it.
AGREES = 1.5

#: Each of so many hosts is compared with each; windows of more are not closed over all pairs.
ALL_PAIRS, ALL_WINDOWS = 16, 128
#: Offsets are whole microseconds where all windows are at least that wide.
ROUNDED_FROM_NS = 100_000


_LARGEST_NS = 1 << 61  # beyond it, differences of times overflow


class Occurrences(Struct, frozen=True):
    """The k occurrences that at least two of n hosts share."""

    middle: Int64  # (n,) what each clock showed at one common instant, roughly
    begin: Int64  # (n, k) ns from `middle` on each host's clock, where `there`
    end: Int64
    error: Int64  # (n, k) ns by which they may be wrong
    there: Mask
    all_wait: Mask  # (k,) as in `SyncPoint`
    end_together: Mask

    @property
    def tau(self) -> Float64:
        """When each occurrence began (k,), ns from the common instant, on average over the hosts."""
        ahead = np.where(self.there, self.begin, 0)
        return np.asarray(ahead.sum(axis=0) / np.maximum(self.there.sum(axis=0), 1), np.float64)

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Pairs of hosts (n, n) to compare, among those that share occurrences.

        All of what few hosts do together; of what many do, each host with the first and with those 1, 2, 4,
        … places behind it: as many pairs as hosts, times a logarithm, tie all of them closely.
        """
        n = len(self.there)
        chosen = np.zeros((n, n), np.bool_)
        is_new = np.diff(self.there, axis=1, prepend=~self.there[:, :1]).any(axis=0)  # most are like the last
        for members in unique(self.there[:, is_new], axis=1).T:
            hosts = np.flatnonzero(members)
            if len(hosts) <= ALL_PAIRS:
                chosen[np.ix_(hosts, hosts)] = True
                continue
            chosen[hosts[0], hosts] = True
            for stride in 2 ** np.arange(int(np.log2(len(hosts) - 1)) + 1):
                chosen[hosts, np.roll(hosts, -stride)] = True
        chosen |= chosen.T
        np.fill_diagonal(chosen, False)
        return chosen


def side_by_side(hosts: Sequence[SyncPoints]) -> Occurrences:
    """Lay the occurrences of all operations side by side."""
    blocks, flags = [], []
    for key in dict.fromkeys(key for host in hosts for key in host):
        known = {i: host[key] for i, host in enumerate(hosts) if key in host}
        lengths = sorted(map(_length, known.values()))
        positions = {i: np.arange(_length(point)) for i, point in known.items()}
        n = lengths[-2] if len(known) > 1 else 0
        # Where hosts have recorded more of a collective than others, counting does not tell which belong
        # together (it begins wherever a rank's recording does, BytePS's with the job's first traced step).
        # Steps that the recording itself numbers do, if every host has them and lost nothing in between.
        numbers = [point.number for point in known.values() if point.number is not None]
        if len(numbers) == len(known) and _go_on(numbers):
            every, count = np.unique(np.concatenate(numbers), return_counts=True)
            every = every[count > 1]
            positions = {
                i: np.where(np.isin(number, every), np.searchsorted(every, number), -1)
                for i, number in zip(known, numbers, strict=True)
            }
            n = len(every)
        elif len(set(lengths)) > 1 and any(p.end_together for p in known.values()):
            continue  # some host lost a part of them
        if n == 0:
            continue
        blocks.append(_block(known, positions, len(hosts), n))
        flag = [all(p.all_wait for p in known.values()), all(p.end_together for p in known.values())]
        flags.append(np.repeat(np.array([flag]).T, n, axis=1))
    table = np.concatenate(blocks, axis=2) if blocks else np.zeros((4, len(hosts), 0), np.int64)
    all_wait, together = np.concatenate(flags, axis=1) if flags else np.zeros((2, 0), np.bool_)
    begin, end, error, there = *table[:3], table[3].astype(np.bool_)
    there &= (np.abs(begin) < _LARGEST_NS) & (np.abs(end) < _LARGEST_NS)
    middle = _middles(begin, end, there)
    begin, end = (np.where(there, times - middle[:, None], 0) for times in (begin, end))
    return Occurrences(middle, begin, end, error, there, all_wait, together)


def _length(point: SyncPoint) -> int:
    return min(len(point.begin_ns), len(point.end_ns))


def _go_on(numbers: Sequence[Int64]) -> bool:
    """Check whether all hosts have the same numbers in the time that all recorded.

    A file that was cut may lack some of each step, and the marks of others.
    """
    if not all(map(len, numbers)):
        return False
    low, high = max(number[0] for number in numbers), min(number[-1] for number in numbers)
    within = [number[(number >= low) & (number <= high)] for number in numbers]
    return low <= high and all(np.array_equal(number, within[0]) for number in within)


def _block(points: Mapping[int, SyncPoint], positions: Mapping[int, Int64], n_hosts: int, n: int) -> Int64:
    """Tabulate (begin, end, error, there) of n occurrences of one operation (4, hosts, n).

    `positions` are the columns of each host's occurrences; others than these n are left out.
    """
    block = np.zeros((4, n_hosts, n), np.int64)
    for i, point in points.items():
        rows = np.flatnonzero((positions[i] >= 0) & (positions[i] < n))
        columns = positions[i][rows]
        block[0, i, columns], block[1, i, columns] = point.begin_ns[rows], point.end_ns[rows]
        block[2, i, columns], block[3, i, columns] = point.error_ns, 1
    return block


def _middles(begin: Int64, end: Int64, there: Mask) -> Int64:
    """Read each host's clock (n,) at one common instant, roughly: that keeps the numbers small."""
    middle = np.zeros(len(begin), np.int64)
    if not there.any():
        return middle
    first = int(there.sum(axis=1).argmax())
    has_first = there[first]
    start = int(begin[first, has_first].min() // 2 + end[first, has_first].max() // 2)
    for i in np.flatnonzero(there.any(axis=1)).tolist():
        both = has_first & there[i]
        if both.any():
            middle[i] = start - int(median(begin[first, both] - begin[i, both]))
        else:
            middle[i] = begin[i, there[i]].min() // 2 + end[i, there[i]].max() // 2
    return middle


class PairOffset(Struct, frozen=True):
    """The offset of host j against host i (what to add to j's times, less what to add to i's), in ns."""

    i: int
    j: int
    estimate: float
    doubt: float  # how far the truth usually is from the estimate
    ends: tuple[float, float] | None = None  # window from matched ends; None where they disagree


def evidence(events: Occurrences, compared: Mask) -> list[PairOffset]:
    """List the evidence of every pair of hosts that is `compared` (n, n) and has any."""
    pairs = (_pair(events, i, j) for i, j in np.argwhere(np.triu(compared)).tolist())
    return [pair for pair in pairs if pair is not None]


def _pair(events: Occurrences, i: int, j: int) -> PairOffset | None:
    both = events.there[i] & events.there[j]
    waits, together = both & events.all_wait, both & events.end_together
    width, by_window = 2.0 * ENDS_SUFFICE_NS, None
    if waits.any():
        upper = events.end[i, waits] - events.begin[j, waits]
        lower = events.begin[i, waits] - events.end[j, waits]
        misses = [_shortest(events.end[host, waits] - events.begin[host, waits]) for host in (i, j)]
        estimate, doubt, width = _from_window(upper, lower, misses)
        by_window = PairOffset(i, j, estimate, doubt)
    if together.sum() >= FEWEST_ENDS:
        estimate, doubt, limit = _from_ends(events.end[i, together] - events.end[j, together])
        if 2 * limit < width and (limit <= ENDS_SCATTER_NS or by_window is None):
            return PairOffset(i, j, estimate, doubt, (estimate - limit, estimate + limit))
        if 2 * limit < width:
            return PairOffset(i, j, estimate, limit)
    return by_window


def _shortest(times: Int64) -> float:
    """Find the shortest of some times (k,) without a few, which may be faults of the recording."""
    rank = min(max(FEWEST_QUICK, int(QUICK_SHARE * len(times))), len(times) - 1)
    return max(float(np.partition(times, rank)[rank]), 0.0)


def _from_window(upper: Int64, lower: Int64, misses: Sequence[float]) -> tuple[float, float, float]:
    """Estimate an offset that is at most `upper` and at least `lower` (k,): estimate, doubt and width.

    By `misses` the lower and the upper edge miss the truth, more or less; the estimate divides the window
    in that ratio. Where the edges contradict each other, as many occurrences as necessary are left out on
    either side: that keeps the sum of contradictions least.
    """
    high, low = np.sort(upper), np.sort(lower)[::-1]
    first = int(np.argmax(low <= high))
    width = max(float(high[first] - low[first]), 0.0)
    below, above = np.array(misses) + 1.0  # ns, so that they have a ratio
    doubt = float(((np.array(misses) + MESSAGE_NS) ** -2.0).sum() ** -0.5)
    return float(low[first] + width * below / (below + above)), min(doubt, max(width / 2, 1.0)), width


def _from_ends(differences: Int64) -> tuple[float, float, float]:
    """Estimate an offset from differences of ends (k,): estimate, doubt and limit.

    The estimate is the median of those that agree. They agree with the half that lies closest together
    (Rousseeuw, Leroy, Robust Regression and Outlier Detection, 1987, ch. 4: least median of squares, then
    once more without the outliers).
    """
    centre = _densest(np.sort(differences))
    distance = np.abs(differences - centre)
    agree = distance <= OUTLIER * MAD_TO_SD * median(distance)
    middle = median(differences[agree])
    spread = MAD_TO_SD * median(np.abs(differences - middle))
    doubt = END_ERROR_NS + MEDIAN_TO_MEAN * spread / np.sqrt(len(differences))
    return middle, float(doubt), END_LIMIT_NS + 3 * spread


def _densest(values: Int64) -> float:
    """Find the middle of the shortest stretch of sorted `values` that holds more than half of them.

    Of several such stretches the mean of their middles: the answer for negated values is the negated one.
    """
    size = len(values) // 2 + 1
    lengths = values[size - 1 :] - values[: len(values) - size + 1]
    first = np.flatnonzero(lengths == lengths.min())
    return float(np.mean([median(values[begin : begin + size]) for begin in first]))
