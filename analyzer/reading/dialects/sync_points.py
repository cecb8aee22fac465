"""Operations in which ranks wait for each other: what ties the clocks of hosts together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from analyzer.base.arrays import Int64


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
