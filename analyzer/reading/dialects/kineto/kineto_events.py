"""The events of PyTorch's steps: segments of host threads, works of devices, and what device work waits for.

Nested slices of a host thread become a chain of segments, each of the innermost operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.arrays.numbering import as_of, numbered, unique
from analyzer.reading.dialects import tolerances
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.kineto.collectives import ENGINE, collective_kernels
from analyzer.reading.dialects.kineto.kineto_steps import kind_of_step
from analyzer.reading.dialects.kineto.launches import CALLS_THAT_WAIT, calls_of, integers
from analyzer.reading.dialects.roles import Phase, by_cat, by_name
from analyzer.reading.dialects.step_parts import Joint, edge_rows
from analyzer.reading.dialects.step_windows import ended_last
from analyzer.reading.dialects.system import COPY_CATS, DEVICE_CATS, RUNTIME_CATS
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
    main: int  # the thread on which the steps begin, else the one with the most slices

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
    of_steps = rows[np.isin(trace.ts_ns[rows], steps[:, 1])]
    main = int(np.bincount(trace.track_id[of_steps if len(of_steps) else rows], minlength=1).argmax())
    is_operation, in_update = _annotations(trace, end_ns, rows)
    thread, start, end = trace.track_id[rows].astype(np.int64), trace.ts_ns[rows], end_ns[rows]
    is_around = ~is_operation & ~_are_around_steps(start, end, steps)
    is_around &= ~by_name(trace, lambda name: _WHOLE.fullmatch(name) or kind_of_step(name) is not None)[rows]
    is_around &= ~lies_inside(start, end, thread, is_operation)
    kept = is_operation | is_around
    rows, in_update, is_around = rows[kept], in_update[kept], is_around[kept]
    thread, start, end = thread[kept], start[kept], end[kept]
    outermost = _outermost(thread, start, np.where(is_around, start, end))
    phase = np.where(in_update[outermost], Phase.UPDATE, Phase.FORWARD)
    phase[by_name(trace, lambda name: name.startswith(ENGINE))[rows[outermost]]] = Phase.BACKWARD
    phase[by_name(trace, lambda name: name.startswith(_LOADER))[rows[outermost]]] = Phase.INPUT
    # One segment from the start of each operation, of length 0 where another hides it.
    index, begin, end = innermost(start, end, thread)
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


def _outermost(thread: Int64, start_ns: Int64, end_ns: Int64) -> Int64:
    """Find the outermost slice around each, itself if none, of slices by (thread, start, longest first)."""
    begins = np.ones(len(thread), np.bool_)
    for thread_id in unique(thread).tolist():
        low, high = np.searchsorted(thread, [thread_id, thread_id + 1])
        begins[low + 1 : high] = start_ns[low + 1 : high] >= np.maximum.accumulate(end_ns[low : high - 1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(thread)), 0))


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


# ---- device work

#: A copy from or to pinned memory continues after its call has returned.
_PINNED = "Pinned"


class Works(Struct, frozen=True):
    """The n pieces of device work of a recording, by stream and start."""

    row: Int64  # of the trace
    start_ns: Int64  # where clocks jitter, aligned with the launch
    end_ns: Int64  # and with the next work
    stream: Int64  # index into `streams`
    call: Int64  # row of the host call that launched the work, -1 for none
    call_start_ns: Int64  # without a call, the work's start
    call_end_ns: Int64
    streams: Sequence[tuple[Any, Any]]  # (device, stream)

    def __len__(self) -> int:
        return len(self.row)

    def by_stream(self) -> Iterator[tuple[tuple[Any, Any], int, int]]:
        """Yield each stream with the slice bounds of its work."""
        bounds = np.searchsorted(self.stream, np.arange(len(self.streams) + 1)).tolist()
        yield from zip(self.streams, bounds[:-1], bounds[1:], strict=True)


def read_works(trace: Trace, end_ns: Int64, counts: Mask) -> Works:
    """Read the device work among the slices that count (n,); slices end at `end_ns` (n,)."""
    rows = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__) & counts)
    tracks = [trace.tracks[track] for track in trace.track_id[rows].tolist()]
    streams, stream_of = numbered(
        (track.pid, stream if stream >= 0 else track.tid)
        for track, stream in zip(tracks, integers(trace, "stream", rows).tolist(), strict=True)
    )
    order = np.lexsort((rows, end_ns[rows], trace.ts_ns[rows], stream_of))
    rows, number = rows[order], stream_of[order].astype(np.int64)
    call = calls_of(trace, rows)
    start, end = trace.ts_ns[rows], end_ns[rows]
    call_start = np.where(call >= 0, trace.ts_ns[call], start)
    call_end = np.where(call >= 0, end_ns[call], start)
    early = (call_start > start) & (call_start <= start + tolerances.TOLERANCE_NS)
    start = np.where(early, np.minimum(call_start, end), start)
    jitter = np.clip((end - start) * tolerances.OVERLAP, tolerances.TOLERANCE_NS, tolerances.JITTER_NS)
    # A copy from pageable memory may end after its call: the remaining bytes are on their way.
    outlasts = _blocking_copies(trace, rows) & (call_start <= start) & (start <= call_end)
    end = np.where(outlasts & (call_end + jitter >= end), np.minimum(call_end, end), end)
    following = np.append(start[1:], 0)
    overlaps = np.append(number[1:] == number[:-1], np.zeros(min(len(rows), 1), np.bool_))
    overlaps &= (following < end) & (following + jitter >= end) & (following >= start)
    return Works(rows, start, np.where(overlaps, following, end), number, call, call_start, call_end, streams)


# ---- dependencies of device work


def after_on_stream(works: Works) -> Int64:
    """Link each work to the one of its stream that ended last before it began."""
    numbers = np.arange(len(works))
    last = as_of(works.stream, works.end_ns, works.stream, works.start_ns)
    previous = np.where(works.stream == np.roll(works.stream, 1), numbers - 1, -1)
    sources = np.where((last >= 0) & (last < numbers), last, previous)
    keep = (sources >= 0) & (works.end_ns[sources] <= works.start_ns)
    return edge_rows(sources[keep], numbers[keep], Joint.END_TO_HEAD, Rule.STREAM)


def after_other_streams(trace: Trace, works: Works) -> Int64:
    """Link work of different streams by recorded events, else by times."""
    recorded = np.flatnonzero(by_cat(trace, "cuda_sync".__eq__))
    recorded = recorded[integers(trace, "wait_on_stream", recorded) >= 0]
    if len(recorded):
        return _recorded_waits(trace, works, recorded)
    return np.concatenate([_likely_waits(works), _fed(trace, works)])


def _recorded_waits(trace: Trace, works: Works, rows: Int64) -> Int64:
    """Link the waiting stream's next work to the last work before the event was recorded."""
    waits, records = calls_of(trace, rows), calls_of(trace, rows, "wait_on_cuda_event_record_corr_id")
    records = np.where(records >= 0, records, waits)
    launched = {stream: (low, works.call_start_ns[low:high]) for stream, low, high in works.by_stream()}
    awaited, waiting = (integers(trace, key, rows).tolist() for key in ("wait_on_stream", "stream"))
    pairs = []
    for i in np.flatnonzero(waits >= 0).tolist():
        device = trace.tracks[trace.track_id[rows[i]]].pid
        first, before = launched.get((device, awaited[i]), (0, works.start_ns[:0]))
        following, after = launched.get((device, waiting[i]), (0, works.start_ns[:0]))
        n_before = int(np.searchsorted(before, trace.ts_ns[records[i]]))
        n_over = int(np.searchsorted(after, trace.ts_ns[waits[i]], side="right"))
        if n_before and n_over < len(after):
            pairs.append((first + n_before - 1, following + n_over))
    sources, targets = np.array(pairs, np.int64).reshape(-1, 2).T
    keep = works.end_ns[sources] <= works.start_ns[targets]
    return edge_rows(sources[keep], targets[keep], Joint.END_TO_HEAD, Rule.STREAM_EVENT)


def _likely_waits(works: Works) -> Int64:
    """Link a launched kernel on an idle stream to the work of another stream that ended just before it.

    A pause of usual length needs no explanation.
    """
    nearest = ended_last(works.end_ns, works.stream, works.start_ns + tolerances.ROUNDED_NS, works.stream)
    order = after_on_stream(works)
    is_launched = works.call >= 0
    ready = np.where(is_launched, works.call_end_ns, np.iinfo(np.int64).min // 2)
    ready[order[:, 1]] = np.maximum(ready[order[:, 1]], works.end_ns[order[:, 0]])
    waits = (nearest >= 0) & (works.end_ns[nearest] > ready) & (works.start_ns[nearest] < works.start_ns)
    pause = works.start_ns - ready
    usual = np.zeros(len(works.streams))
    for number, (_, low, high) in enumerate(works.by_stream()):
        follows = ~waits[low:high] & is_launched[low:high]
        usual[number] = np.median(pause[low:high][follows]) if follows.any() else 0.0
    most = np.rint(tolerances.UNUSUAL * usual).astype(np.int64)[works.stream]
    targets = np.flatnonzero(waits & (pause > most))
    return edge_rows(nearest[targets], targets, Joint.END_TO_HEAD, Rule.STREAM_TIMES)


def _fed(trace: Trace, works: Works) -> Int64:
    """Link a collective to the kernel launched last before it on the stream that computes most.

    PyTorch's process groups wait so. Streams on which a collective began earlier (a prefetch) are left out.
    """
    communicates = collective_kernels(trace)[works.row]
    sends = np.isin(works.stream, works.stream[communicates])
    targets = np.flatnonzero(communicates & (works.call >= 0))
    if sends.all() or not len(targets):
        return edge_rows(targets[:0], targets[:0], Joint.END_TO_HEAD, Rule.COMPUTED)
    computing = np.flatnonzero(works.stream == np.bincount(works.stream[~sends]).argmax())
    launched_ns = np.maximum.accumulate(works.call_start_ns[computing])
    before = np.searchsorted(launched_ns, works.call_start_ns[targets]) - 1
    sources, targets = computing[before[before >= 0]], targets[before >= 0]
    late_ns = works.end_ns[sources] - works.start_ns[targets]
    ahead = unique(works.stream[targets[late_ns > tolerances.TOLERANCE_NS]])
    keep = (late_ns <= 0) & ~np.isin(works.stream[targets], ahead)
    return edge_rows(sources[keep], targets[keep], Joint.END_TO_HEAD, Rule.COMPUTED)


# ---- host calls that wait for the device


def awaited_by_calls(trace: Trace, end_ns: Int64, works: Works) -> tuple[Int64, Int64]:
    """Pair work with the rows of calls that return only when it has ended."""
    of_runtime = by_cat(trace, RUNTIME_CATS.__contains__)
    calls = np.flatnonzero(by_name(trace, CALLS_THAT_WAIT.fullmatch, of_runtime))
    start, until = trace.ts_ns[calls], end_ns[calls] + tolerances.TOLERANCE_NS
    work, work_end = np.full(len(calls), -1, np.int64), start.copy()
    for _, low, high in works.by_stream():
        launched = np.maximum.accumulate(works.call_start_ns[low:high])
        ended = np.maximum.accumulate(works.end_ns[low:high])
        last = np.minimum(np.searchsorted(launched, start), np.searchsorted(ended, until, side="right")) - 1
        later = (last >= 0) & (ended[last] > work_end)
        work[later], work_end[later] = low + last[later], ended[last][later]
    is_over = (works.call >= 0) & (works.end_ns <= works.call_end_ns)
    late_ns = (works.call_end_ns - works.end_ns)[is_over].sum()
    blocks = 2 * int(is_over.sum()) > int((works.call >= 0).sum())
    if not blocks or late_ns > (works.end_ns - works.start_ns)[is_over].sum():  # else launches block, too
        is_over &= _blocking_copies(trace, works.row)
    blocking, is_known = np.flatnonzero(is_over), work >= 0
    return np.concatenate([work[is_known], blocking]), np.concatenate([calls[is_known], works.call[blocking]])


def _blocking_copies(trace: Trace, rows: Int64) -> Mask:
    """Mask the copies among `rows` (k,) whose calls may return only when they are done."""
    copies = by_cat(trace, COPY_CATS.__contains__)
    return (copies & ~by_name(trace, lambda name: _PINNED in name, copies))[rows]


def waiting_for_room(works: Works, low: int, high: int) -> Int64:
    """Pair work of one stream with the row of the call that has room in the queue once the work has begun.

    A call with many launches outstanding that takes much longer than usual waits for the work that began last
    before it returned. The launches outstanding then are the room of the queue.
    """
    calls, first = np.unique(works.call[low:high], return_index=True)
    first = np.sort(first[calls >= 0])
    calls = works.call[low:high][first]
    start, end = works.call_start_ns[low:high][first], works.call_end_ns[low:high][first]
    begun = np.maximum.accumulate(works.start_ns[low:high])
    outstanding = np.arange(len(calls)) - np.searchsorted(begun[first], start, side="right")
    took = end - start
    blocked = (outstanding >= tolerances.FULL_QUEUE) & (took > tolerances.LONG_CALL_NS)
    if blocked.any():
        blocked &= took > tolerances.MUCH_LONGER * np.quantile(took, 0.1)
    source = np.searchsorted(begun, end, side="right") - 1
    blocked &= (source >= 0) & (begun[source] > start)
    if blocked.any():
        room = int(median(outstanding[blocked]))
    else:
        room = max(tolerances.QUEUE, int(outstanding.max(initial=0)) + 1)
    later = np.flatnonzero(~blocked[room:]) + room
    later = later[begun[first[later - room]] <= end[later]]
    sources = np.concatenate([source[blocked], first[later - room]])
    return np.array([low + sources, np.concatenate([calls[blocked], calls[later]])])


def polled(works: Works, start_ns: Int64, end_ns: Int64, is_waiting: Mask) -> Int64:
    """Find the work that a host polls for in intervals (k,) without launches; -1 for none.

    A stream's candidate is the work launched last before the interval and done within it, shortly before its
    end: at most as long as the host waited if its operation `is_waiting` (k,), else `SHORTLY` of that.
    """
    work, done_ns = np.full(len(start_ns), -1, np.int64), start_ns.copy()
    for _, low, high in works.by_stream():
        order = low + np.argsort(works.call_start_ns[low:high], kind="stable")
        last = order[np.searchsorted(works.call_start_ns[order], start_ns) - 1]
        end = works.end_ns[last]
        later = (
            (works.call_start_ns[last] < start_ns)
            & (end > done_ns)
            & (end <= end_ns + tolerances.TOLERANCE_NS)
        )
        work[later], done_ns[later] = last[later], end[later]
    waited = done_ns - start_ns
    is_soon = end_ns - done_ns <= np.where(is_waiting, 1.0, tolerances.SHORTLY) * waited
    return np.where((end_ns - start_ns >= tolerances.POLLS_NS) & is_soon, work, -1)
