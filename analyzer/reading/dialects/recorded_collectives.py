"""Collectives as far as one rank records them: kind, group, bytes, and the key that other ranks know."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.numbering import occurrence_number


class SyncPoint(NamedTuple):
    """The occurrences of one synchronous operation on one rank."""

    begin_ns: Int64  # (k,) ascending
    end_ns: Int64  # (l,) ascending
    all_wait: bool = True  # no rank ends before all have begun; False: the root of a broadcast may
    end_together: bool = False  # all ranks end with the last message
    error_ns: int = 0  # of the times
    #: (k,) ascending; equal numbers belong together across ranks. None: the n-th belongs to the n-th.
    number: Int64 | None = None


class SyncPart(NamedTuple):
    """An event that begins or ends an occurrence of a synchronous operation."""

    key: Hashable  # the operation's name on all ranks
    begins: bool = True
    ends: bool = True
    all_wait: bool = True
    end_together: bool = False


#: An operation occurs less often in a step: numbers of occurrences are multiples of it, one for each step.
_MOST_A_STEP = 1 << 20

#: Synchronous operation -> its occurrences; keys are equal across ranks.
SyncPoints: TypeAlias = Mapping[Hashable, SyncPoint]


def collected(parts: Iterable[tuple[SyncPart, Int64, Int64]]) -> SyncPoints:
    """Collect the operations that have both begins and ends from parts with their times."""
    begins: dict[Hashable, list[Int64]] = {}
    ends: dict[Hashable, list[Int64]] = {}
    known: dict[Hashable, SyncPart] = {}
    for part, begin_ns, end_ns in parts:
        known[part.key] = part
        if part.begins:
            begins.setdefault(part.key, []).append(begin_ns)
        if part.ends:
            ends.setdefault(part.key, []).append(end_ns)
    return {
        key: SyncPoint(_by_time(begins[key]), _by_time(ends[key]), part.all_wait, part.end_together)
        for key, part in known.items()
        if key in begins and key in ends
    }


def numbered(point: SyncPoint, labels: Int64, begins_ns: Int64) -> SyncPoint:
    """Give occurrences numbers: the step in which each begins, and the turn in that step.

    `labels` and `begins_ns` (n,), n >= 1, are of the recorded steps, in order of time. Occurrences before the
    first step are counted back from there. None if the numbers would not ascend.
    """
    step = np.maximum(np.searchsorted(begins_ns, point.begin_ns, side="right") - 1, 0)
    first = np.searchsorted(point.begin_ns, begins_ns)
    return _ascending(point, labels[step] * _MOST_A_STEP + np.arange(len(step)) - first[step])


def _ascending(point: SyncPoint, number: Int64) -> SyncPoint:
    return point._replace(number=number if (np.diff(number) > 0).all() else None)


def merged(hosts: Iterable[SyncPoints]) -> SyncPoints:
    """Merge the sync points of several traces of one rank or host."""
    points_of: dict[Hashable, list[SyncPoint]] = {}
    for host in hosts:
        for key, point in host.items():
            points_of.setdefault(key, []).append(point)
    return {key: points[0] if len(points) == 1 else _merged(points) for key, points in points_of.items()}


def _merged(points: Sequence[SyncPoint]) -> SyncPoint:
    joined = points[0]._replace(
        begin_ns=_by_time([point.begin_ns for point in points]),
        end_ns=_by_time([point.end_ns for point in points]),
        error_ns=max(point.error_ns for point in points),
        number=None,
    )
    numbers = [point.number for point in points if point.number is not None]
    if len(numbers) < len(points):
        return joined
    order = np.argsort(np.concatenate([point.begin_ns for point in points]), kind="stable")
    return _ascending(joined, np.concatenate(numbers)[order])


def _by_time(times: list[Int64]) -> Int64:
    return np.sort(np.concatenate(times))


#: (pattern, kind): the first match decides.
_KINDS = (
    (r"all[-_]?reduce|psum", "all-reduce"), (r"reduce[-_]?scatter", "reduce-scatter"),
    (r"all[-_]?gather", "all-gather"), (r"all[-_]?to[-_]?all", "all-to-all"),
    (r"broadcast|bcast", "broadcast"), (r"send|recv", "send/recv"), (r"barrier", "barrier"),
    (r"reduce", "reduce"), (r"gather", "gather"), (r"scatter", "scatter"),
)  # fmt: skip
_ONE_OF_N = ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter")
_MOST = 1 << 50  # bytes and ranks; more is damage
_MOST_AT_ONCE = 1 << 20  # collectives of one step or sequence number


class Call(Struct, frozen=True):
    """Kind, group and bytes that collectives of a rank have in common; 0 and "" where not recorded."""

    kind: str
    group: str = ""  # description and ranks
    n_ranks: int = 0
    sent: int = 0  # bytes that the rank gives
    received: int = 0  # bytes that the rank gets
    key: Hashable = None  # equal on the other ranks; None where they cannot be matched
    waits: bool = True  # the recorded time includes waiting for other ranks

    @property
    def n_bytes(self) -> int:
        """The size as nccl-tests count it: the larger of sent and received."""
        return max(self.sent, self.received)


class Collectives(Struct, frozen=True):
    """The k collectives of a rank's trace; equal key and `number` mean the same collective on all ranks."""

    row: Int64  # (k,) of the trace
    call: Int64  # (k,) index into `calls`
    calls: Sequence[Call]
    number: Int64  # (k,)

    @classmethod
    def of(cls, row: Int64, calls: Sequence[Call], base: Int64, start_ns: Int64) -> Collectives:
        """Make collectives (k,) of k calls and number them.

        `base` (k,) is a number that all ranks have: the step of the request, or the sequence number. The
        number adds the turn in time among collectives of one key and base.
        """
        index_of: dict[Call, int] = {}
        call = np.array([index_of.setdefault(each, len(index_of)) for each in calls], np.int64)
        keys: dict[Hashable, int] = {}
        key = np.array([keys.setdefault(distinct.key, len(keys)) for distinct in index_of], np.int64)[call]
        numbers = ("n_ranks", "sent", "received")
        sane = [
            replace(distinct, **{name: plausible(getattr(distinct, name)) for name in numbers})
            for distinct in index_of
        ]
        order = np.lexsort((start_ns, base, key))
        is_new = (np.diff(key[order], prepend=-1) != 0) | (np.diff(base[order], prepend=-1) != 0)
        turn = np.empty(len(key), np.int64)
        turn[order] = occurrence_number(np.cumsum(is_new))
        return cls(row, call, sane, base * _MOST_AT_ONCE + turn)

    @property
    def n_bytes(self) -> Int64:
        """The size of each (k,); 0 where it is not recorded."""
        return np.array([call.n_bytes for call in self.calls], np.int64)[self.call]


NO_COLLECTIVES = Collectives(*(np.empty(0, np.int64),) * 2, (), np.empty(0, np.int64))


def base_of(number: Int64) -> Int64:
    """Recover the base of each number (k,); see `Collectives.of`."""
    return number // _MOST_AT_ONCE


def plausible(number: int) -> int:
    """Replace a number of bytes or ranks that can only be damage by 0, for unknown."""
    return number if 0 < number < _MOST else 0


def kind_of(name: str) -> str:
    """Classify a collective by its name; an unknown name is returned without parameters.

    >>> kind_of("nccl:_all_gather_base"), kind_of("all-reduce.17"), kind_of("HostBarrier")
    ('all-gather', 'all-reduce', 'barrier')
    """
    kinds = (kind for pattern, kind in _KINDS if re.search(pattern, name, re.IGNORECASE))
    return next(kinds, "") or re.split(r"[(<]", name, maxsplit=1)[0].split("::")[-1].removeprefix("void ")


def may_reduce(name: str) -> bool:
    """Tell if a collective may add up the ranks' data: a reduction or an unknown kind."""
    kind = kind_of(name)
    return "reduce" in kind or all(kind != other for _, other in _KINDS)


def bus_factor(kind: str, n_ranks: int) -> float:
    """Compute bus bytes per byte of data as nccl-tests do: ``2 (n - 1) / n`` for an all-reduce.

    With it (doc/PERFORMANCE.md there) the rate of a link is the same for all collectives.
    """
    n = max(n_ranks, 1)
    if kind == "all-reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if kind in _ONE_OF_N else 1.0


def size_classes(n_bytes: Float64 | Int64) -> Int64:
    """Round each size (k,) to the exponent of the nearest power of two."""
    return np.rint(np.log2(np.maximum(n_bytes, 1))).astype(np.int64)
