"""Unions and overlaps of time intervals, as array operations."""

from __future__ import annotations

import numpy as np

from arrays import Int64


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Return the union of intervals (n,) as disjoint intervals in order; those of no length vanish.

    >>> start, end = union(np.array([0, 2, 9]), np.array([3, 5, 9]))
    >>> start.tolist(), end.tolist()
    ([0], [5])
    """
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


def at_once(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return a number for each interval (n,), from 0 in order of time: the same for those that overlap.

    >>> at_once(np.array([7, 0, 2]), np.array([9, 3, 5])).tolist()
    [1, 0, 0]
    """
    order = np.argsort(start_ns, kind="stable")
    reach = np.maximum.accumulate(end_ns[order])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(np.append(0, start_ns[order][1:] >= reach[:-1]))[: len(order)]
    return numbers


def clipped_lengths(intervals: tuple[Int64, Int64], starts: Int64, ends: Int64) -> Int64:
    """Return how much of disjoint, ordered intervals lies in each [start, end) (k,), nanoseconds.

    >>> busy = np.array([0, 10]), np.array([4, 20])
    >>> clipped_lengths(busy, np.array([0, 3]), np.array([2, 12])).tolist()
    [2, 3]
    """
    total = np.concatenate([[0], np.cumsum(intervals[1] - intervals[0])])
    bounds = np.concatenate([starts, ends])
    begun = np.searchsorted(intervals[0], bounds, side="right")
    still_to_come = np.append(0, intervals[1])[begun] - bounds
    before = total[begun] - np.where(begun > 0, np.maximum(still_to_come, 0), 0)
    return np.asarray(before[len(starts) :] - before[: len(starts)])


def union_length(start_ns: Int64, end_ns: Int64) -> int:
    """Return how long at least one of the intervals (n,) was open, nanoseconds."""
    start, end = union(start_ns, end_ns)
    return int((end - start).sum())
