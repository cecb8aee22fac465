"""Device work and the calls that launched it; what the profiler lost, or mistimed, of both."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import as_of, unique
from analyzer.reading.dialects.name_rules import is_capture_begin, is_capture_end, is_launch
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.system import DEVICE_CATS, RUNTIME_CATS
from analyzer.reading.dialects.tolerances import AGREE_NS, JITTER_NS, LOST_LAUNCHES, OVERLAP, TOLERANCE_NS
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.values import FARTHEST_NS

#: Calls that return only when work on the device is done.
CALLS_THAT_WAIT = re.compile(
    r"(?i:\w*synchronize\w*)|(cuda|hip)Memcpy(To|From)?(Symbol|2D|3D)?|(cuda|hip)Free"
    r"|(ur|pi)(QueueFinish|Events?Wait)|clFinish|clWaitForEvents|cn(rt)?(QueueSync|SyncDevice)"
)


def integers(trace: Trace, key: str, rows: Int64) -> Int64:
    """Read an integer argument of `rows`; -1 where it is missing or no number."""
    numbers = np.full(len(trace) + 1, -1, np.int64)
    if key in trace.args:
        column = trace.args[key]
        try:
            numbers[column.rows] = np.array(column.values, np.int64)
        except (TypeError, ValueError, OverflowError):
            numbers[column.rows] = [
                value if type(value) is int and value < 1 << 62 else -1 for value in column.values
            ]
    return numbers[rows]


def calls_of(trace: Trace, rows: Int64, key: str = "correlation") -> Int64:
    """Find the host's call with the correlation that each of `rows` (k,) has as `key`; -1 for none.

    Files of one rank may each count from the same number: the last call before the row's end is meant.
    """
    calls = np.flatnonzero(by_cat(trace, RUNTIME_CATS.__contains__))
    numbers, wanted = integers(trace, "correlation", calls), integers(trace, key, rows)
    last = as_of(numbers, trace.ts_ns[calls], wanted, trace.end_ns[rows] + TOLERANCE_NS)
    return np.where(wanted >= 0, np.append(calls, -1)[last], -1)


def launched(trace: Trace) -> tuple[Int64, Int64]:
    """List the work of devices by track and time (k rows), and the call that launched each; -1 for none.

    The trace was read for `Need.STEPS`.
    """
    rows = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__))
    rows = rows[np.lexsort((trace.ts_ns[rows], trace.track_id[rows]))]
    return rows, calls_of(trace, rows)


def are_recorded(calls: Int64) -> bool:
    """Check that most work (k,) has its launch, where `calls` are as of `launched`."""
    return 2 * int((calls >= 0).sum()) > len(calls)


def are_missing(trace: Trace) -> bool:
    """Check for device work without its launches."""
    rows, calls = launched(trace)
    return len(rows) > 0 and "correlation" in trace.args and not are_recorded(calls)


def launched_before(trace: Trace) -> Int64:
    """List the work of devices that was launched before the recording.

    It has no call, and comes before all work of its track that has one, as a stream is served in order.
    """
    rows, calls = launched(trace)
    track, has_call = trace.track_id[rows], calls >= 0
    is_first = np.zeros(len(rows), np.bool_)
    for stream in unique(track[has_call]).tolist():
        low, high = np.searchsorted(track, [stream, stream + 1])
        is_first[low : low + int(has_call[low:high].argmax())] = True
    return rows[is_first & (integers(trace, "correlation", rows) >= 0) & are_recorded(calls)]


# ---- launches without work


def lost_work(trace: Trace) -> str:
    """Say how many launches of a rank, read with correlations, have no work of the device; "" for few."""
    if "correlation" not in trace.args:
        return ""
    launches, is_lost = launches_of(trace)
    n_lost = int(is_lost.sum())
    if n_lost <= LOST_LAUNCHES * len(launches):
        return ""
    if not by_cat(trace, DEVICE_CATS.__contains__).any():
        return f"{n_lost:,} launches were recorded and none of their kernels"
    return (
        f"{n_lost:,} of {len(launches):,} launches have no work of the device: "
        "steps that lost work are left out if others are whole"
    )


def launches_of(trace: Trace) -> tuple[Int64, Mask]:
    """List the calls that launch a kernel (k rows), and mark those whose kernel is not in the trace (k,).

    Calls inside the capture of a graph launch nothing, and are left out. None is marked if most of the work
    has no call: then correlations are not recorded.
    """
    is_call = by_cat(trace, RUNTIME_CATS.__contains__)
    rows = np.flatnonzero(by_name(trace, is_launch, is_call))
    rows = rows[~_captured(trace, rows, is_call)]
    numbers = integers(trace, "correlation", rows)
    rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
    works = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__))
    calls = calls_of(trace, works)
    if 2 * int((calls >= 0).sum()) < len(works):
        return rows, np.zeros(len(rows), np.bool_)
    # A call of the runtime may hand its number on to a call of the driver, within it.
    calls = unique(calls[calls >= 0])
    last = as_of(integers(trace, "correlation", calls), trace.ts_ns[calls], numbers, trace.end_ns[rows])
    return rows, (last < 0) | (np.append(trace.ts_ns[calls], 0)[last] < trace.ts_ns[rows])


def _captured(trace: Trace, rows: Int64, is_call: Mask) -> Mask:
    """Mark the calls (k rows) between the begin and the end of a capture on their thread."""
    begins = np.flatnonzero(by_name(trace, is_capture_begin, is_call))
    ends = np.flatnonzero(by_name(trace, is_capture_end, is_call))
    thread, moments = trace.track_id[rows], trace.ts_ns[rows]
    begun = as_of(trace.track_id[begins], trace.ts_ns[begins], thread, moments)
    ended = as_of(trace.track_id[ends], trace.ts_ns[ends], thread, moments)
    begun_ns = np.append(trace.ts_ns[begins], -FARTHEST_NS)[begun]
    return np.asarray((begun >= 0) & (begun_ns > np.append(trace.ts_ns[ends], -FARTHEST_NS)[ended]))


# ---- durations that cannot be true


def with_sound_durations(trace: Trace, collectives: Mask) -> Trace:
    """Cut device work where the next one of its stream begins; leave out work that outlasts the recording.

    A stream runs one thing at a time. Overlaps stay if clocks jitter, or if branches of a graph share a
    stream: a lane in which most works overlap is no stream. `collectives` (n,) may wait for ranks that hang.
    """
    rows = np.flatnonzero(by_cat(trace, DEVICE_CATS.__contains__))
    rows = rows[np.lexsort((trace.ts_ns[rows], trace.track_id[rows]))]
    if len(rows) < 2:
        return trace
    following_ns = np.append(trace.ts_ns[rows[1:]], 0)
    has_next = np.append(trace.track_id[rows[1:]] == trace.track_id[rows[:-1]], False)
    jitter_ns = np.clip(trace.dur_ns[rows] * OVERLAP, AGREE_NS, JITTER_NS)
    too_long = has_next & (trace.end_ns[rows] - following_ns > jitter_ns)
    is_lane = 2 * np.bincount(trace.track_id[rows], too_long) > np.bincount(trace.track_id[rows])
    too_long &= ~is_lane[trace.track_id[rows]]
    dur_ns = trace.dur_ns.copy()
    dur_ns[rows[too_long]] = (following_ns - trace.ts_ns[rows])[too_long]
    cut = replace(trace, dur_ns=dur_ns)
    endless = _endless(cut, rows[~has_next & ~collectives[rows]])
    notes = []
    if n_cut := int(too_long.sum()):
        notes.append(f"{_works(n_cut, 'runs', 'run')} into the next one of the stream: cut there")
    if len(endless):
        cut = cut.select(~np.isin(np.arange(len(cut)), endless))
        notes.append(f"{_works(len(endless), 'takes', 'take')} longer than the recording: left out")
    return replace(cut, repairs=[*trace.repairs, *notes]) if notes else trace


def without_untimed(trace: Trace) -> Trace:
    """Leave out device work of no length before the recording: CUPTI writes 0 for unknown times."""
    works = by_cat(trace, DEVICE_CATS.__contains__)
    untimed = works & (trace.dur_ns == 0) & (trace.ts_ns < trace.ts_ns[~works].min(initial=FARTHEST_NS))
    if not untimed.any() or works.all():
        return trace
    note = f"{_works(int(untimed.sum()), 'has', 'have')} no time: left out"
    return replace(trace.select(~untimed), repairs=[*trace.repairs, note])


def _works(n: int, verb: str, verb_of_many: str) -> str:
    return f"1 kernel or copy {verb}" if n == 1 else f"{n:,} kernels or copies {verb_of_many}"


def _endless(trace: Trace, lasts: Int64) -> Int64:
    """List the one of the `lasts` of streams that takes longer than all other work of the trace, if any.

    Any work may if the host is not recorded.
    """
    longest = int(trace.end_ns.argmax())
    is_call = by_cat(trace, RUNTIME_CATS.__contains__)
    if longest not in lasts or not is_call.any():
        return lasts[:0]
    others = np.arange(len(trace)) != longest
    end_ns = trace.end_ns[others].max()
    is_endless = trace.dur_ns[longest] > end_ns - trace.ts_ns[others].min() and trace.end_ns[longest] > end_ns
    return np.array([longest] if is_endless else [], np.int64)
