"""Kineto's host threads: nested slices become a chain of segments, each of the innermost operation."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.arrays.numbering import as_of, unique
from analyzer.reading.dialects.kineto.collectives import ENGINE
from analyzer.reading.dialects.kineto.kineto_steps import kind_of_step
from analyzer.reading.dialects.roles import Phase, by_cat, by_name
from analyzer.reading.dialects.system import RUNTIME_CATS
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.values import FARTHEST_NS

_OPERATION = frozenset(("cpu_op", "Operator", "user_annotation", "overhead")) | RUNTIME_CATS
_LOADER = "enumerate(DataLoader)"
_STEP = re.compile(r"ProfilerStep(#\d+|\*)?")
_ANNOTATION = re.compile(r"ProfilerStep|Optimizer\.|enumerate\(DataLoader\)")  # of any category
#: PyTorch's own annotations around a user's code, which tell only that it ran.
_WHOLE = re.compile(_STEP.pattern + r"|\w*DataParallel\.forward")


class Segments(Struct, frozen=True):
    """The n segments of the host threads of a recording, by thread and time."""

    row: Int64  # the innermost open operation; one that encloses others has several segments
    start_ns: Int64
    end_ns: Int64
    thread: Int64  # index into `Trace.tracks`
    phase: Int64  # `Phase`
    closes: Mask  # the outermost operation ends with this segment
    is_around: Mask  # an annotation beside the operations in it, which may have waited
    main: int  # the thread that runs the steps

    def __len__(self) -> int:
        return len(self.row)

    def of_rows(self, n_rows: int) -> tuple[Int64, Int64]:
        """Find the first and the last segment of each row of the trace (n_rows,); -1 for none."""
        numbers = np.arange(len(self))
        first, last = np.full(n_rows, -1, np.int64), np.full(n_rows, -1, np.int64)
        first[self.row[::-1]] = numbers[::-1]
        last[self.row] = numbers
        return first, last

    def started(self, thread: Int64, moments: Int64) -> Int64:
        """Find the last segment of each `thread` (k,) that started before each moment (k,); -1 for none."""
        return as_of(self.thread, self.start_ns, thread, moments, before=True)

    def running(self, thread: Int64, moments: Int64) -> Int64:
        """Find the segment of each `thread` (k,) that runs at each moment (k,); -1 for none."""
        last = self.started(thread, moments)
        return np.where(np.append(self.end_ns, -FARTHEST_NS)[last] > moments, last, -1)

    def cut(self, segments: Int64, moments: Int64) -> Segments:
        """Split `segments` (k,) at the moments (k,) inside them."""
        index = np.concatenate([np.arange(len(self)), segments])
        start = np.concatenate([self.start_ns, moments])
        order = np.lexsort((start, index))
        index, start = index[order], start[order]
        last = np.append(index[1:] != index[:-1], np.ones(min(len(index), 1), np.bool_))
        end = np.where(last, self.end_ns[index], np.append(start[1:], 0))
        row, thread, phase, closes, is_around = (
            column[index] for column in (self.row, self.thread, self.phase, self.closes, self.is_around)
        )
        return Segments(row, start, end, thread, phase, closes & last, is_around, self.main)


def segments(trace: Trace, end_ns: Int64, aside: Mask, steps: Int64) -> Segments:
    """Cut the host threads into segments, without the communication `aside` (n,) that runs beside them.

    `end_ns` (n,) are the ends of the slices. Time that only Python frames cover is a gap. The loading of
    input and an annotation with nothing inside are operations. An annotation with operations inside counts
    where none of them runs, unless it is around a step, or a whole forward pass.
    """
    rows = np.flatnonzero(by_cat(trace, _OPERATION.__contains__) & ~aside)
    rows = rows[np.lexsort((rows, -end_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    main = _main_thread(trace, rows, steps[:, 1])
    is_operation, in_update = _annotations(trace, end_ns, rows)
    thread, start, end = trace.track_id[rows], trace.ts_ns[rows], end_ns[rows]
    is_around = ~is_operation & ~_are_around_steps(start, end, steps)
    is_around &= ~by_name(trace, lambda name: _WHOLE.fullmatch(name) or kind_of_step(name) is not None)[rows]
    is_around &= ~lies_inside(start, end, thread, is_operation)
    kept = is_operation | is_around
    rows, in_update, is_around = rows[kept], in_update[kept], is_around[kept]
    outermost = _outermost(thread[kept], start[kept], np.where(is_around, start[kept], end[kept]))
    phase = np.where(in_update[outermost], Phase.UPDATE, Phase.FORWARD)
    phase[by_name(trace, lambda name: name.startswith(ENGINE))[rows[outermost]]] = Phase.BACKWARD
    phase[by_name(trace, lambda name: name.startswith(_LOADER))[rows[outermost]]] = Phase.INPUT
    # One segment from the start of each operation, of length 0 where another hides it.
    start, thread = trace.ts_ns[rows], trace.track_id[rows].astype(np.int64)
    index, begin, end = innermost(start, end_ns[rows], thread)
    begins = begin == start[index]
    hidden = np.setdiff1d(np.flatnonzero(~is_around), index[begins], assume_unique=True)
    shown = Segments(index, begin, end, thread[index], phase[index], begins, is_around[index], main)
    around = shown.running(thread[hidden], start[hidden])
    shown = shown.cut(around[around >= 0], start[hidden][around >= 0])
    index = np.concatenate([shown.row, hidden])
    begin = np.concatenate([shown.start_ns, start[hidden]])
    end = np.concatenate([shown.end_ns, start[hidden]])
    order = np.lexsort((index, end, begin, thread[index]))
    index, begin, end = index[order], begin[order], end[order]
    root = outermost[index]
    closes = np.append(root[1:] != root[:-1], np.ones(min(len(root), 1), np.bool_))
    closes &= ~is_around[index]
    return Segments(rows[index], begin, end, thread[index], phase[index], closes, is_around[index], main)


def _outermost(thread: NDArray[np.int32], start_ns: Int64, end_ns: Int64) -> Int64:
    """Find the outermost slice around each, itself if none, of slices by (thread, start, longest first)."""
    begins = np.ones(len(thread), np.bool_)
    for thread_id in unique(thread).tolist():
        low, high = np.searchsorted(thread, [thread_id, thread_id + 1])
        begins[low + 1 : high] = start_ns[low + 1 : high] >= np.maximum.accumulate(end_ns[low : high - 1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(thread)), 0))


def _main_thread(trace: Trace, rows: Int64, begins_ns: Int64) -> int:
    """Find the thread on which the steps begin, else the one with the most slices; -1 for none."""
    if not len(rows):
        return -1
    steps = rows[np.isin(trace.ts_ns[rows], begins_ns)]
    return int(np.bincount(trace.track_id[steps if len(steps) else rows]).argmax())


def _annotations(trace: Trace, end_ns: Int64, rows: Int64) -> tuple[Mask, Mask]:
    """Mask the operations among `rows` (by thread and start), and those in an optimizer's step."""
    thread, start = trace.track_id[rows], trace.ts_ns[rows]
    is_frame = (by_cat(trace, "user_annotation".__eq__) | by_name(trace, _ANNOTATION.match))[rows]
    has_inside = np.zeros(len(rows), np.bool_)
    has_inside[:-1] = (thread[1:] == thread[:-1]) & (start[1:] < end_ns[rows][:-1])
    loads = by_name(trace, lambda name: name.startswith(_LOADER))[rows]
    is_operation = ~by_name(trace, _STEP.fullmatch)[rows] & (~is_frame | loads | ~has_inside)
    updates = by_name(trace, lambda name: name.startswith("Optimizer."))[rows]
    return is_operation, updates | lies_inside(start, end_ns[rows], thread, updates)


def _are_around_steps(start_ns: Int64, end_ns: Int64, steps: Int64) -> Mask:
    """Mask the slices (n,) that last for a whole step, or on into another one."""
    order = np.argsort(steps[:, 1], kind="stable")
    begin, end = (np.append(column, FARTHEST_NS) for column in steps[order, 1:].T)
    since = np.searchsorted(begin, start_ns)
    is_whole: Mask = (end[since] <= end_ns) | (begin[np.searchsorted(begin, start_ns, "right")] < end_ns)
    return is_whole
