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
    """The occurrences of one synchronous operation on one rank.

    `begin_ns` (k,) and `end_ns` (l,) are each in order of time, in nanoseconds of the trace. Where
    `all_wait`, no rank ends before all have begun; otherwise some may (the root of a broadcast). Where
    `end_together`, all ranks end when the last message has arrived, so that their ends may agree closely.
    `error_ns` is by how much the times may be wrong.

    `number` (k,) ascends; occurrences of one number belong together, however many each rank has recorded.
    Without numbers the n-th of one rank belongs to the n-th of the others.
    """

    begin_ns: Int64
    end_ns: Int64
    all_wait: bool = True
    end_together: bool = False
    error_ns: int = 0
    number: Int64 | None = None


class SyncPart(NamedTuple):
    """One event of an occurrence of a synchronous operation: when its rank begins or ends it.

    `key` names the operation on all ranks; the other fields are as in `SyncPoint`.
    """

    key: Hashable
    begins: bool = True
    ends: bool = True
    all_wait: bool = True
    end_together: bool = False


#: An operation occurs less often in a step: numbers of occurrences are multiples of it, one for each step.
_MOST_A_STEP = 1 << 20

#: Synchronous operation -> its occurrences; keys are equal across ranks.
SyncPoints: TypeAlias = Mapping[Hashable, SyncPoint]


def collected(parts: Iterable[tuple[SyncPart, Int64, Int64]]) -> SyncPoints:
    """Return the operations that both begin and end, from parts with their begins and ends."""
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
    """Return a point with its occurrences numbered by the step that each begins in, and its turn there.

    `labels` and `begins_ns` (n,), n >= 1, are of the recorded steps, in order of time. What begins before the
    first of them is counted back from there. No numbers are given where they would not ascend.
    """
    step = np.maximum(np.searchsorted(begins_ns, point.begin_ns, side="right") - 1, 0)
    first = np.searchsorted(point.begin_ns, begins_ns)
    return _ascending(point, labels[step] * _MOST_A_STEP + np.arange(len(step)) - first[step])


def _ascending(point: SyncPoint, number: Int64) -> SyncPoint:
    return point._replace(number=number if (np.diff(number) > 0).all() else None)


def merged(hosts: Iterable[SyncPoints]) -> SyncPoints:
    """Return the sync points of several traces of one rank or host as one."""
    found: dict[Hashable, list[SyncPoint]] = {}
    for points in hosts:
        for key, point in points.items():
            found.setdefault(key, []).append(point)
    return {key: points[0] if len(points) == 1 else _merged(points) for key, points in found.items()}


def _merged(points: Sequence[SyncPoint]) -> SyncPoint:
    one = points[0]._replace(
        begin_ns=_by_time([point.begin_ns for point in points]),
        end_ns=_by_time([point.end_ns for point in points]),
        error_ns=max(point.error_ns for point in points),
        number=None,
    )
    numbers = [point.number for point in points if point.number is not None]
    if len(numbers) < len(points):
        return one
    order = np.argsort(np.concatenate([point.begin_ns for point in points]), kind="stable")
    return _ascending(one, np.concatenate(numbers)[order])


def _by_time(times: list[Int64]) -> Int64:
    return np.sort(np.concatenate(times))


#: What to call kinds, by what is in their names: the first that fits.
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
    """Kind, group and bytes that collectives of a rank have in common.

    Attributes
    ----------
    kind : as of `kind_of`
    group : description and ranks of the group; "" where they are not recorded
    n_ranks : of the group; 0 where that is not recorded
    sent, received : bytes that the rank gives and gets; 0 where they are not recorded
    key : by which other ranks know it; None where none can
    waits : whether its time holds the waiting for other ranks
    """

    kind: str
    group: str = ""
    n_ranks: int = 0
    sent: int = 0
    received: int = 0
    key: Hashable = None
    waits: bool = True

    @property
    def n_bytes(self) -> int:
        """Its size as nccl-tests count it: the larger of what a rank gives and gets."""
        return max(self.sent, self.received)


class Collectives(Struct, frozen=True):
    """The k collectives of a rank's trace.

    `row` (k,) of the trace; `call` (k,) index into `calls`. Those of one key and `number` (k,) are one
    collective, on all ranks; see `numbers_of`.
    """

    row: Int64
    call: Int64
    calls: Sequence[Call]
    number: Int64

    @classmethod
    def of(cls, row: Int64, calls: Sequence[Call], base: Int64, start_ns: Int64) -> Collectives:
        """Return collectives (k,) of k calls, of which equal ones become one; `base` as of `numbers_of`."""
        place: dict[Call, int] = {}
        call = np.array([place.setdefault(one, len(place)) for one in calls], np.int64)
        keys: dict[Hashable, int] = {}
        key = np.array([keys.setdefault(one.key, len(keys)) for one in place], np.int64)
        numbers = ("n_ranks", "sent", "received")
        sure = [replace(one, **{name: plausible(getattr(one, name)) for name in numbers}) for one in place]
        return cls(row, call, sure, numbers_of(key[call], base, start_ns))

    @property
    def n_bytes(self) -> Int64:
        """The size of each (k,); 0 where it is not recorded."""
        return np.array([call.n_bytes for call in self.calls], np.int64)[self.call]


NO_COLLECTIVES = Collectives(*(np.empty(0, np.int64),) * 2, (), np.empty(0, np.int64))


def numbers_of(key: Int64, base: Int64, start_ns: Int64) -> Int64:
    """Return the number of each collective (k,): its `base`, and its turn in time among those of that base.

    `base` (k,) is a number that all ranks have: the step in which it was asked for, its sequence number.
    """
    order = np.lexsort((start_ns, base, key))
    is_new = (np.diff(key[order], prepend=-1) != 0) | (np.diff(base[order], prepend=-1) != 0)
    turn = np.empty(len(key), np.int64)
    turn[order] = occurrence_number(np.cumsum(is_new))
    return base * _MOST_AT_ONCE + turn


def base_of(number: Int64) -> Int64:
    """Return the base that each number (k,) was made of."""
    return number // _MOST_AT_ONCE


def plausible(number: int) -> int:
    """Return a number of bytes or ranks; 0, for unknown, where it can only be damage."""
    return number if 0 < number < _MOST else 0


def kind_of(name: str) -> str:
    """Return the kind of collective that a name means; of an unknown one the name without parameters.

    >>> kind_of("nccl:_all_gather_base"), kind_of("all-reduce.17"), kind_of("HostBarrier")
    ('all-gather', 'all-reduce', 'barrier')
    """
    found = (kind for pattern, kind in _KINDS if re.search(pattern, name, re.IGNORECASE))
    return next(found, "") or re.split(r"[(<]", name, maxsplit=1)[0].split("::")[-1].removeprefix("void ")


def may_reduce(name: str) -> bool:
    """Whether a collective of that name may add up what ranks give: all but those that do something else."""
    kind = kind_of(name)
    return "reduce" in kind or all(kind != other for _, other in _KINDS)


def bus_factor(kind: str, n_ranks: int) -> float:
    """Return the share of each byte that the bus carries: ``2 (n - 1) / n`` in an all-reduce.

    As nccl-tests count it (doc/PERFORMANCE.md there), so that the rate of a link is the same whatever the
    collective.
    """
    n = max(n_ranks, 1)
    if kind == "all-reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if kind in _ONE_OF_N else 1.0


def size_classes(n_bytes: Float64 | Int64) -> Int64:
    """Return the class of each size (k,): the nearest power of two."""
    return np.rint(np.log2(np.maximum(n_bytes, 1))).astype(np.int64)
