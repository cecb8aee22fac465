"""Kineto's device work: its streams, the calls that launched it, and the events that wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import as_of, numbered, unique
from analyzer.reading.dialects import tolerances
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.kineto.collectives import collective_kernels
from analyzer.reading.dialects.kineto.launches import CALLS_THAT_WAIT, calls_of, integers
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.step_parts import Joint, edge_rows
from analyzer.reading.dialects.step_windows import ended_last
from analyzer.reading.dialects.system import COPY_CATS, DEVICE_CATS, RUNTIME_CATS
from analyzer.reading.formats.columns import Trace

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
    streams, number = numbered(
        (track.pid, stream if stream >= 0 else track.tid)
        for track, stream in zip(tracks, integers(trace, "stream", rows).tolist(), strict=True)
    )
    order = np.lexsort((rows, end_ns[rows], trace.ts_ns[rows], number))
    rows, number = rows[order], number[order].astype(np.int64)
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
