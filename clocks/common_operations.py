"""Occurrences of the operations that several hosts do together, laid side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dialects.sync_points import SyncPoint, SyncPoints
from formats.columns import median, unique

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

_ALL_PAIRS = 16  # hosts of which each is compared with each
_LARGEST_NS = 1 << 61  # beyond it, differences of times overflow


@dataclass(frozen=True, slots=True)
class Occurrences:
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

    def shared(self, i: int, j: int) -> Mask:
        """Return which occurrences (k,) both hosts take part in."""
        return np.asarray(self.there[i] & self.there[j])

    @property
    def compared(self) -> NDArray[np.bool_]:
        """Which pairs of hosts (n, n) are compared with each other, of those that share occurrences.

        All of what few hosts do together; of what many do, each host with the first and with those 1, 2, 4,
        … places behind it: as many pairs as hosts, times a logarithm, tie all of them closely.
        """
        n = len(self.there)
        chosen = np.zeros((n, n), np.bool_)
        for members in unique(self.there, axis=1).T:
            hosts = np.flatnonzero(members)
            if len(hosts) <= _ALL_PAIRS:
                chosen[np.ix_(hosts, hosts)] = True
                continue
            chosen[hosts[0], hosts] = True
            for stride in 2 ** np.arange(int(np.log2(len(hosts) - 1)) + 1):
                chosen[hosts, np.roll(hosts, -stride)] = True
        chosen |= chosen.T
        np.fill_diagonal(chosen, False)
        return chosen

    def with_drift(self, drifts_ppm: Float64) -> Occurrences:
        """Return the occurrences with the times of each host corrected by its drift (n,)."""
        if not drifts_ppm.any():
            return self
        added = self.drifted_ns(drifts_ppm)
        return replace(self, begin=self.begin + added, end=self.end + added)

    def drifted_ns(self, drifts_ppm: Float64) -> Int64:
        """Return what each host's drift adds to its begins (n, k)."""
        added: Int64 = np.rint(self.begin * (drifts_ppm[:, None] / 1e6)).astype(np.int64)
        return np.where(self.there, added, 0)


def side_by_side(hosts: Sequence[SyncPoints]) -> Occurrences:
    """Lay the occurrences of all operations side by side."""
    blocks, flags = [], []
    for key in dict.fromkeys(key for host in hosts for key in host):
        known = {i: host[key] for i, host in enumerate(hosts) if key in host}
        lengths = sorted(map(_length, known.values()))
        # Where hosts have recorded more of a collective than others, it is unknown which belong together:
        # they are counted from wherever a rank's recording begins, BytePS's from the job's first traced step.
        is_ambiguous = len(set(lengths)) > 1 and any(p.end_together for p in known.values())
        if len(known) < 2 or lengths[-2] == 0 or is_ambiguous:
            continue
        blocks.append(_block(known, len(hosts), lengths[-2]))
        flag = [all(p.all_wait for p in known.values()), all(p.end_together for p in known.values())]
        flags.append(np.repeat(np.array([flag]).T, lengths[-2], axis=1))
    table = np.concatenate(blocks, axis=2) if blocks else np.zeros((4, len(hosts), 0), np.int64)
    all_wait, together = np.concatenate(flags, axis=1) if flags else np.zeros((2, 0), np.bool_)
    begin, end, error, there = *table[:3], table[3].astype(np.bool_)
    there &= (np.abs(begin) < _LARGEST_NS) & (np.abs(end) < _LARGEST_NS)
    middle = _middles(begin, end, there)
    begin, end = (np.where(there, times - middle[:, None], 0) for times in (begin, end))
    return Occurrences(middle, begin, end, error, there, all_wait, together)


def _length(point: SyncPoint) -> int:
    return min(len(point.begin_ns), len(point.end_ns))


def _block(points: Mapping[int, SyncPoint], n_hosts: int, n: int) -> Int64:
    """Return (begin, end, error, there) of one operation's first `n` occurrences (4, hosts, n)."""
    block = np.zeros((4, n_hosts, n), np.int64)
    for i, point in points.items():
        m = min(n, _length(point))
        block[:2, i, :m] = point.begin_ns[:m], point.end_ns[:m]
        block[2, i, :m], block[3, i, :m] = point.error_ns, 1
    return block


def _middles(begin: Int64, end: Int64, there: Mask) -> Int64:
    """Return each host's clock reading (n,) at one common instant, roughly: that keeps the numbers small."""
    middle = np.zeros(len(begin), np.int64)
    if not there.any():
        return middle
    first = int(there.sum(axis=1).argmax())
    own = there[first]
    start = int(begin[first, own].min() // 2 + end[first, own].max() // 2)
    for i in np.flatnonzero(there.any(axis=1)).tolist():
        both = own & there[i]
        if both.any():
            middle[i] = start - int(median(begin[first, both] - begin[i, both]))
        else:
            middle[i] = begin[i, there[i]].min() // 2 + end[i, there[i]].max() // 2
    return middle
