"""Unions and overlaps of time intervals, as array operations."""

from __future__ import annotations

import numpy as np

from formats.columns import Int64


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Return the union of intervals (n,) as disjoint intervals in order; those of no length vanish."""
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    real = end > start
    start, end = start[real], end[real]
    if len(start) == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.ones(len(start), np.bool_)
    first[1:] = start[1:] > reach[:-1]
    last = np.append(first[1:], True)
    return start[first], reach[last]


def length(intervals: tuple[Int64, Int64]) -> int:
    """Return the total length of disjoint intervals, nanoseconds."""
    return int((intervals[1] - intervals[0]).sum())


def clip(intervals: tuple[Int64, Int64], start_ns: int, end_ns: int) -> tuple[Int64, Int64]:
    """Return the parts of disjoint, ordered intervals that lie in [start_ns, end_ns)."""
    start, end = np.clip(intervals[0], start_ns, end_ns), np.clip(intervals[1], start_ns, end_ns)
    inside = end > start
    return start[inside], end[inside]


def union_length(start_ns: Int64, end_ns: Int64) -> int:
    """Return how long at least one of the intervals (n,) was open, nanoseconds."""
    return length(union(start_ns, end_ns))
