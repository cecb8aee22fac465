"""Kineto's host threads: nested slices become a chain of segments, each of the innermost operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formats.columns import Int64, Trace

Mask = NDArray[np.bool_]

RUNTIME = frozenset(
    ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime", "xpu_driver",
     "privateuse1_runtime", "privateuse1_driver")
)  # fmt: skip
_OPERATION = frozenset(("cpu_op", "Operator", "user_annotation", "overhead")) | RUNTIME
_LOADER = "enumerate(DataLoader)"
_BACKWARD = "autograd::engine::"
_STEP = re.compile(r"ProfilerStep(#\d+|\*)?")
_ANNOTATION = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(DataLoader\)")  # of any category
#: What host operations are for; `Segments.phase` indexes it.
PHASES = ("", "FW", "BW", "STEP", "I/O")


@dataclass(frozen=True, slots=True)
class Segments:
    """What the host threads of a recording did, moment by moment: by thread, then by time.

    Attributes
    ----------
    row : (n,) the innermost operation that was open; one that encloses others has several segments
    start_ns, end_ns : (n,)
    thread : (n,) index into `Trace.tracks`
    phase : (n,) index into `PHASES`
    closes : (n,) whether the outermost operation ends with this segment
    main : the thread that runs the steps
    """

    row: Int64
    start_ns: Int64
    end_ns: Int64
    thread: Int64
    phase: Int64
    closes: Mask
    main: int

    def __len__(self) -> int:
        return len(self.row)

    def of_rows(self, n_rows: int) -> tuple[Int64, Int64]:
        """Return the first and the last segment of each row of the trace (n_rows,); -1 for none."""
        numbers = np.arange(len(self))
        first, last = np.full(n_rows, -1, np.int64), np.full(n_rows, -1, np.int64)
        first[self.row[::-1]] = numbers[::-1]
        last[self.row] = numbers
        return first, last

    def at(self, thread: int, moments: Int64) -> Int64:
        """Return the last segment of `thread` that had started before each of `moments`; -1 for none."""
        low, high = np.searchsorted(self.thread, [thread, thread + 1]) if len(self) else (0, 0)
        found = low + np.searchsorted(self.start_ns[low:high], moments) - 1
        return np.where(found < low, -1, found)

    def cut(self, segments: Int64, moments: Int64) -> Segments:
        """Return the segments with a boundary at each of `moments`, which lies inside its segment."""
        which = np.concatenate([np.arange(len(self)), segments])
        start = np.concatenate([self.start_ns, moments])
        order = np.lexsort((start, which))
        which, start = which[order], start[order]
        last = np.append(which[1:] != which[:-1], np.ones(min(len(which), 1), np.bool_))
        end = np.where(last, self.end_ns[which], np.append(start[1:], 0))
        return Segments(
            self.row[which],
            start,
            end,
            self.thread[which],
            self.phase[which],
            self.closes[which] & last,
            self.main,
        )


def segments(trace: Trace, end_ns: Int64, aside: Mask) -> Segments:
    """Return what the host threads did.

    Parameters
    ----------
    end_ns : ends of the slices (n,)
    aside : (n,) communications that run beside the threads; they are left out

    Python frames and annotations that contain operations are no operations; time that only they cover is
    a gap. An annotation with nothing inside is an operation, and so is the loading of input.
    """
    rows = np.flatnonzero(of_table(trace.cats, _OPERATION.__contains__)[trace.cat_id] & ~aside)
    rows = rows[np.lexsort((rows, -end_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    main = _main_thread(trace, rows)
    is_operation, in_update = _annotations(trace, end_ns, rows)
    rows, in_update = rows[is_operation], in_update[is_operation]
    thread, start = trace.track_id[rows].astype(np.int64), trace.ts_ns[rows]
    nest = nested(thread, start, end_ns[rows])
    phase = _phases(trace, rows[nest.root], in_update[nest.root])
    which, begin, end = nest.innermost()
    root = nest.root[which]
    closes = np.append((root[1:] != root[:-1]), np.ones(min(len(root), 1), np.bool_))
    return Segments(rows[which], begin, end, thread[which], phase[which], closes, main)


def of_table(table: Sequence[str], accept: Callable[[str], object]) -> Mask:
    """Return which entries of a trace's table of names or categories `accept` takes, for use as ``[ids]``."""
    return np.array([*(bool(accept(text)) for text in table), False], np.bool_)


def _main_thread(trace: Trace, rows: Int64) -> int:
    """Return the thread that has the steps, else the one with the most slices; -1 for none."""
    if not len(rows):
        return -1
    steps = rows[of_table(trace.names, _STEP.fullmatch)[trace.name_id[rows]]]
    return int(np.bincount(trace.track_id[steps if len(steps) else rows]).argmax())


def _annotations(trace: Trace, end_ns: Int64, rows: Int64) -> tuple[Mask, Mask]:
    """Return which of `rows` (by thread and start) are operations, and which lie in an optimizer's step."""
    names, thread, start = trace.name_id[rows], trace.track_id[rows], trace.ts_ns[rows]
    is_frame = of_table(trace.cats, "user_annotation".__eq__)[trace.cat_id[rows]]
    is_frame |= of_table(trace.names, _ANNOTATION.match)[names]
    has_inside = np.zeros(len(rows), np.bool_)
    has_inside[:-1] = (thread[1:] == thread[:-1]) & (start[1:] < end_ns[rows][:-1])
    loads = of_table(trace.names, lambda name: name.startswith(_LOADER))[names]
    marks_step = of_table(trace.names, _STEP.fullmatch)[names]
    is_operation = ~marks_step & (~is_frame | loads | ~has_inside)
    updates = np.flatnonzero(of_table(trace.names, lambda name: name.startswith("Optimizer."))[names])
    in_update = np.zeros(len(rows) + 1, np.int64)
    for i in updates.tolist():
        until = i + np.searchsorted(start[i : _thread_end(thread, i)], end_ns[rows[i]])
        in_update[i] += 1
        in_update[max(until, i + 1)] -= 1
    return is_operation, np.cumsum(in_update)[:-1] > 0


def _thread_end(thread: NDArray[np.int32], i: int) -> int:
    return int(np.searchsorted(thread, thread[i], side="right"))


def _phases(trace: Trace, outermost: Int64, in_update: Mask) -> Int64:
    """Return the phase (index into `PHASES`) of operations, from their outermost ones."""
    names = trace.name_id[outermost]
    phase = np.where(in_update, PHASES.index("STEP"), PHASES.index("FW"))
    backward = of_table(trace.names, lambda name: name.startswith(_BACKWARD))[names]
    phase[backward] = PHASES.index("BW")
    phase[of_table(trace.names, lambda name: name.startswith(_LOADER))[names]] = PHASES.index("I/O")
    return phase


# ---- nesting


@dataclass(frozen=True, slots=True)
class Nest:
    """Slices of several threads, by (thread, start, longest first), and how they nest.

    Attributes
    ----------
    start_ns, end_ns : (n,); one that sticks out of the slice in which it began ends with that
    closes_at : (n,) the slice before which it ends
    parent : (n,) the slice around it, -1 for none
    root : (n,) the outermost slice around it, or itself
    """

    start_ns: Int64
    end_ns: Int64
    closes_at: Int64
    parent: Int64
    root: Int64

    def innermost(self) -> tuple[Int64, Int64, Int64]:
        """Return slice, start and end (s,) of the stretches in which a slice is the innermost.

        Every slice has at least one, of length 0 if need be.
        """
        n = len(self.start_ns)
        slices = np.tile(np.arange(n), 2)
        at = np.concatenate([2 * np.arange(n) + 1, 2 * self.closes_at])  # begins odd, ends even
        order = np.lexsort((-slices, at))
        is_begin = order < n
        which = slices[order]
        time = np.where(is_begin, self.start_ns[which], self.end_ns[which])
        inner = np.where(is_begin, which, self.parent[which])
        length = np.append(time[1:], time[-1:]) - time
        has_length = np.zeros(n, np.bool_)
        has_length[inner[(inner >= 0) & (length > 0)]] = True
        keep = (inner >= 0) & ((length > 0) | (is_begin & ~has_length[which]))
        return inner[keep], time[keep], (time + length)[keep]


def nested(thread: Int64, start_ns: Int64, end_ns: Int64) -> Nest:
    """Return how slices (n,), sorted by (thread, start, longest first), nest within their threads."""
    nest = _nested(thread, start_ns, end_ns)
    outside = (nest.parent >= 0) & (end_ns > end_ns[nest.parent])
    if not outside.any():
        return nest
    end_ns = end_ns.copy()
    for one in np.unique(thread[outside]).tolist():
        low, high = np.searchsorted(thread, [one, one + 1]).tolist()
        end_ns[low:high] = _inside_parents(start_ns[low:high].tolist(), end_ns[low:high].tolist())
    return _nested(thread, start_ns, end_ns)


def _inside_parents(start_ns: Sequence[int], end_ns: Sequence[int]) -> list[int]:
    """Return the ends of one thread's slices, each at most that of the slice in which it began."""
    open_ends: list[int] = []
    found = []
    for start, end in zip(start_ns, end_ns, strict=True):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        open_ends.append(min(end, open_ends[-1]) if open_ends else end)
        found.append(open_ends[-1])
    return found


def _nested(thread: Int64, start_ns: Int64, end_ns: Int64) -> Nest:
    n = len(thread)
    numbers = np.arange(n)
    closes_at = numbers + 1
    for one in np.unique(thread).tolist():
        low, high = np.searchsorted(thread, [one, one + 1])
        after = low + np.searchsorted(start_ns[low:high], end_ns[low:high])
        np.maximum(closes_at[low:high], after, out=closes_at[low:high])
    depth = numbers - np.cumsum(np.bincount(closes_at, minlength=n + 1))[:n]
    by_depth = np.sort(depth * n + numbers)
    above = np.searchsorted(by_depth, (depth - 1) * n + numbers) - 1
    parent = np.where(depth > 0, by_depth[above] % max(n, 1), -1)
    root = np.maximum.accumulate(np.where(depth == 0, numbers, 0))
    return Nest(start_ns, end_ns, closes_at, parent, root)
