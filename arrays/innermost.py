"""Nested slices of a track: which is the innermost one at every moment, and what lies in what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from arrays import Int64


def innermost(
    start_ns: Int64, end_ns: Int64, track: NDArray[np.integer] | None = None
) -> tuple[Int64, Int64, Int64]:
    """Return the segments of time in which one slice is the innermost open one of its track.

    Innermost is the open slice that began last; of those that began together the shortest, then the last
    one given. A slice may stick out of the slice in which it began.

    Parameters
    ----------
    start_ns, end_ns, track : (n,) the slices, in any order; all are of one track if that is not given

    Returns
    -------
    owner, start, end : (m,) each
        The row of the slice that owns the segment, and its times; by track, then by time. Segments of a
        track do not overlap, and none is empty: a slice that its children cover all the time owns none.

    Examples
    --------
    A slice of 10 ns with another one inside, from 3 to 5:

    >>> owner, start, end = innermost(np.array([0, 3]), np.array([10, 5]))
    >>> list(zip(owner.tolist(), start.tolist(), end.tolist()))
    [(0, 0, 3), (1, 3, 5), (0, 5, 10)]
    """
    n = len(start_ns)
    if n == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    track = np.zeros(n, np.int64) if track is None else track
    order = np.lexsort((-end_ns, start_ns, track))  # outer slices before inner ones
    moments, place = _moments(np.concatenate([start_ns, end_ns]), np.tile(track, 2))
    last = _last_over(place[:n][order], place[n:][order], len(moments))
    changes = np.flatnonzero(np.diff(last, prepend=-1))
    begins = last[changes] >= 0
    until = np.append(changes[1:], len(moments) - 1)  # a segment ends where another one, or none, begins
    return order[last[changes[begins]]], moments[changes[begins]], moments[until[begins]]


def _moments(at_ns: Int64, track: NDArray[np.integer]) -> tuple[Int64, Int64]:
    """Return the distinct (track, time) pairs' times in order, and the place of each pair among them."""
    order = np.lexsort((at_ns, track))
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(at_ns[order]) != 0) | (np.diff(track[order]) != 0)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(is_new) - 1
    return at_ns[order][is_new], place


def _last_over(left: Int64, right: Int64, n: int) -> Int64:
    """Return for each place of 0 … n - 1 the last of the ranges [left, right) that covers it; -1 for none.

    Each range is the union of two blocks of one power of two; going down the powers, a block hands what
    covers it to its two halves.
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
    """Return which slices (n,) lie inside one of the `outer` (n,) slices of their track but themselves.

    Of equal slices, the later ones lie inside the first.
    """
    order = np.lexsort((-end_ns, start_ns, track))
    found = np.zeros(len(order), np.bool_)
    for own in np.split(order, np.flatnonzero(np.diff(track[order])) + 1):
        ends = np.where(outer[own], end_ns[own], np.iinfo(np.int64).min)
        found[own[1:]] = end_ns[own[1:]] <= np.maximum.accumulate(ends)[:-1]
    return found
