"""Occurrences of the operations that several hosts do together, laid side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.median import median
from analyzer.base.arrays.numbering import unique
from analyzer.model.clocks import limits
from analyzer.reading.dialects.sync_points import SyncPoint, SyncPoints

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
            if len(hosts) <= limits.ALL_PAIRS:
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
    """Return (begin, end, error, there) of n occurrences of one operation (4, hosts, n).

    `places` are which of them those of each host are; others than these n are left out.
    """
    block = np.zeros((4, n_hosts, n), np.int64)
    for i, point in points.items():
        rows = np.flatnonzero((positions[i] >= 0) & (positions[i] < n))
        columns = positions[i][rows]
        block[0, i, columns], block[1, i, columns] = point.begin_ns[rows], point.end_ns[rows]
        block[2, i, columns], block[3, i, columns] = point.error_ns, 1
    return block


def _middles(begin: Int64, end: Int64, there: Mask) -> Int64:
    """Return each host's clock reading (n,) at one common instant, roughly: that keeps the numbers small."""
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
