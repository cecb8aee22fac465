"""What a thread did at every moment: nested slices become a row of segments without nesting."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: `Segment.row` where the thread had no slice open.
IDLE = -1


class Segment(NamedTuple):
    """From `start_ns` to `end_ns` the innermost open slice of the thread was `row`, or none (`IDLE`)."""

    row: int
    start_ns: int
    end_ns: int


def segments(
    rows: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int], begin_ns: int | None = None
) -> list[Segment]:
    """Return the segments of one thread, gapless from `begin_ns` (its first start) to its last end.

    Parameters
    ----------
    rows, start_ns, end_ns : the thread's slices in any order; one that sticks out of the slice in which
        it began is cut there

    Every slice has at least one segment, of length 0 if need be.
    """
    order = sorted(range(len(rows)), key=lambda i: (start_ns[i], -end_ns[i], rows[i]))
    found: list[Segment] = []
    open_rows: list[tuple[int, int]] = []  # (row, end), outermost first
    shown: set[int] = set()
    now = start_ns[order[0]] if order else 0
    if begin_ns is not None and begin_ns < now:
        now = begin_ns

    def emit(row: int, until: int) -> None:
        nonlocal now
        if until > now or (row != IDLE and row not in shown):
            found.append(Segment(row, now, max(until, now)))
            shown.add(row)
            now = max(until, now)

    def close(until: int) -> None:
        while open_rows and open_rows[-1][1] <= until:
            emit(*open_rows.pop())

    for i in order:
        close(start_ns[i])
        if open_rows and start_ns[i] > now:
            emit(open_rows[-1][0], start_ns[i])
        elif not open_rows:
            emit(IDLE, start_ns[i])
        end = min(end_ns[i], open_rows[-1][1]) if open_rows else end_ns[i]
        open_rows.append((rows[i], max(end, start_ns[i])))
    while open_rows:
        emit(*open_rows.pop())
    return found


def split(thread: Sequence[Segment], cuts: Iterable[int]) -> list[Segment]:
    """Return the segments with a boundary at every moment of `cuts` that lies inside one."""
    moments = sorted(set(cuts))
    pieces: list[Segment] = []
    for segment in thread:
        start = segment.start_ns
        for i in range(bisect_right(moments, start), len(moments)):
            if moments[i] >= segment.end_ns:
                break
            pieces.append(Segment(segment.row, start, moments[i]))
            start = moments[i]
        pieces.append(Segment(segment.row, start, segment.end_ns))
    return pieces
