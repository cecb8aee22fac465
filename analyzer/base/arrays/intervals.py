"""Unions and overlaps of time intervals, and the innermost of nested ones at every moment."""

from __future__ import annotations

import numpy as np

from analyzer.base.arrays import Int64, Mask, NDArray


def union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Join intervals (n,) into disjoint intervals in order; empty intervals vanish.

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


def overlap_groups(start_ns: Int64, end_ns: Int64) -> Int64:
    """Assign numbers from 0 to intervals (n,) in order of time; overlapping intervals have the same number.

    >>> overlap_groups(np.array([7, 0, 2]), np.array([9, 3, 5])).tolist()
    [1, 0, 0]
    """
    order = np.argsort(start_ns, kind="stable")
    reach = np.maximum.accumulate(end_ns[order])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(np.append(0, start_ns[order][1:] >= reach[:-1]))[: len(order)]
    return numbers


def clipped_lengths(intervals: tuple[Int64, Int64], starts: Int64, ends: Int64) -> Int64:
    """Measure the part of disjoint, ordered intervals that lies in each [start, end) (k,), in nanoseconds.

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


def stretches(chosen: Mask) -> Int64:
    """Find begin and end index of each run of `chosen` neighbours (n,), as rows (k, 2).

    >>> stretches(np.array([True, False, True, True])).tolist()
    [[0, 1], [2, 4]]
    """
    return np.flatnonzero(np.diff(chosen, prepend=False, append=False)).reshape(-1, 2)


def union_length(start_ns: Int64, end_ns: Int64) -> int:
    """Measure the union of intervals (n,), in nanoseconds."""
    start, end = union(start_ns, end_ns)
    return int((end - start).sum())


def innermost(
    start_ns: Int64, end_ns: Int64, track: NDArray[np.integer] | None = None
) -> tuple[Int64, Int64, Int64]:
    """Split the time of each track into segments of its innermost open slice: owner, start, end (m,) each.

    The innermost slice is the open slice that began last; of slices that began together the shortest, then
    the last given. A slice may outlast the slice around it. `owner` is the row of a segment's slice. Segments
    are in order of track and time, without overlap; none is empty, so a slice covered by others owns none.

    >>> owner, start, end = innermost(np.array([0, 3]), np.array([10, 5]))
    >>> list(zip(owner.tolist(), start.tolist(), end.tolist()))
    [(0, 0, 3), (1, 3, 5), (0, 5, 10)]
    """
    n = len(start_ns)
    if n == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    track = np.zeros(n, np.int64) if track is None else track
    order = np.lexsort((-end_ns, start_ns, track))  # outer slices before inner ones
    moments, moment = _moments(np.concatenate([start_ns, end_ns]), np.tile(track, 2))
    last = _last_over(moment[:n][order], moment[n:][order], len(moments))
    changes = np.flatnonzero(np.diff(last, prepend=-1))
    begins = last[changes] >= 0
    until = np.append(changes[1:], len(moments) - 1)  # a segment ends where another one, or none, begins
    return order[last[changes[begins]]], moments[changes[begins]], moments[until[begins]]


def _moments(at_ns: Int64, track: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """List the times of the distinct (track, time) pairs in order, and the index of each pair."""
    order = np.lexsort((at_ns, track))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(at_ns[order]) != 0) | (np.diff(track[order]) != 0)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return at_ns[order][is_new], number


def _last_over(left: Int64, right: Int64, n: int) -> Int64:
    """Find the last of the ranges [left, right) that covers each index 0 … n - 1; -1 for none.

    Each range is the union of two blocks of one power of two; going down the powers, a block hands its
    cover to its two halves.
    """
    cover = np.full(n, -1, np.int64)
    level = np.frexp(np.maximum(right - left, 0).astype(np.float64))[1] - 1  # -1 for an empty range
    for power in range(int(level.max(initial=-1)), -1, -1):
        half = 1 << power
        if power < level.max():
            cover[half:] = np.maximum(cover[half:], cover[:-half])
        here = np.flatnonzero(level == power)
        np.maximum.at(cover, left[here], here)
        np.maximum.at(cover, right[here] - half, here)
    return cover


def lies_inside(
    start_ns: Int64, end_ns: Int64, track: NDArray[np.integer], outer: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mark the slices (n,) inside an `outer` slice of their track; of equal slices, all but the first."""
    order = np.lexsort((-end_ns, start_ns, track))
    is_inside = np.zeros(len(order), np.bool_)
    for rows in np.split(order, np.flatnonzero(np.diff(track[order])) + 1):
        ends = np.where(outer[rows], end_ns[rows], np.iinfo(np.int64).min)
        is_inside[rows[1:]] = end_ns[rows[1:]] <= np.maximum.accumulate(ends)[:-1]
    return is_inside
