"""Operations in which ranks wait for each other: what ties the clocks of hosts together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from formats.columns import Int64


class SyncPoint(NamedTuple):
    """The occurrences of one synchronous operation on one rank.

    `begin_ns` (k,) and `end_ns` (l,) are each in order of time, in nanoseconds of the trace; the n-th of one
    rank belongs to the n-th of the others. Where `all_wait`, no rank ends before all have begun; otherwise
    some may (the root of a broadcast).
    """

    begin_ns: Int64
    end_ns: Int64
    all_wait: bool = True


#: Synchronous operation -> its occurrences; keys are equal across ranks.
SyncPoints: TypeAlias = Mapping[Hashable, SyncPoint]


def merged(parts: list[SyncPoints]) -> SyncPoints:
    """Return the sync points of several traces of one rank or host as one."""
    found: dict[Hashable, list[SyncPoint]] = {}
    for part in parts:
        for key, point in part.items():
            found.setdefault(key, []).append(point)
    return {
        key: SyncPoint(
            np.sort(np.concatenate([point.begin_ns for point in points])),
            np.sort(np.concatenate([point.end_ns for point in points])),
            all(point.all_wait for point in points),
        )
        for key, points in found.items()
    }
