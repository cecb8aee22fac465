"""Operations in which ranks wait for each other: what ties the clocks of hosts together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from formats.columns import Int64


class SyncPoint(NamedTuple):
    """The occurrences of one synchronous operation on one rank.

    `begin_ns` (k,) and `end_ns` (l,) are each in order of time, in nanoseconds of the trace; the n-th of one
    rank belongs to the n-th of the others. Where `all_wait`, no rank ends before all have begun; otherwise
    some may (the root of a broadcast). Where `end_together`, all ranks end when the last message has
    arrived, so that their ends may agree closely. `error_ns` is by how much the times may be wrong.
    """

    begin_ns: Int64
    end_ns: Int64
    all_wait: bool = True
    end_together: bool = False
    error_ns: int = 0


class SyncPart(NamedTuple):
    """What one event tells of an occurrence of a synchronous operation: when its rank begins or ends it.

    `key` names the operation on all ranks; the other fields are as in `SyncPoint`.
    """

    key: Hashable
    begins: bool = True
    ends: bool = True
    all_wait: bool = True
    end_together: bool = False


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
        key: SyncPoint(_in_order(begins[key]), _in_order(ends[key]), part.all_wait, part.end_together)
        for key, part in known.items()
        if key in begins and key in ends
    }


def merged(hosts: Iterable[SyncPoints]) -> SyncPoints:
    """Return the sync points of several traces of one rank or host as one."""
    found: dict[Hashable, list[SyncPoint]] = {}
    for points in hosts:
        for key, point in points.items():
            found.setdefault(key, []).append(point)
    return {
        key: points[0]
        if len(points) == 1
        else points[0]._replace(
            begin_ns=_in_order([point.begin_ns for point in points]),
            end_ns=_in_order([point.end_ns for point in points]),
            error_ns=max(point.error_ns for point in points),
        )
        for key, points in found.items()
    }


def _in_order(times: list[Int64]) -> Int64:
    return np.sort(np.concatenate(times))
