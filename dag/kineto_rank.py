"""What one rank's Kineto trace tells: host calls, device work, and how they are linked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.columns import Trace

#: Keys of the events' args that link events.
LINK_ARGS = (
    "correlation", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Collective name",
    "Process Group Name", "Process Group Ranks", "Seq",
)  # fmt: skip

_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"))
_RUNTIME = frozenset(("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "privateuse1_runtime"))
_HOST = frozenset(("cpu_op", "Operator", "user_annotation", "python_function", "overhead")) | _RUNTIME
_ASIDE = frozenset(("user_annotation", "python_function"))  # frames: no work of their own
_SYNC_CALLS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "CtxSynchronize")

Int64 = NDArray[np.int64]


@dataclass(slots=True)
class Rank:
    """One rank's rows of a window (a step), by what they are.

    Attributes
    ----------
    first_ns : where the window begins
    threads : per host thread its rows; the first is the main one (where the window's steps are marked)
    streams : per device stream its rows, by start
    stream_of : device row -> stream
    launch_of : device row -> the host row that launched it
    syncs : host rows that block until device work is done -> the streams they wait for (() = all)
    stream_waits : (source row, target row) of device work that waits for an event of another stream
    gloo : rows of communications that run beside the threads
    before : first device row of a stream -> name of the work before it, which is not in the window
    backward : (forward operation, its backward operation) of the ``fwdbwd`` flows
    frames : rows that only enclose others (annotations, Python functions)
    """

    trace: Trace
    prefix: str
    first_ns: int
    start_ns: list[int]
    end_ns: list[int]
    threads: list[tuple[str, list[int]]] = field(default_factory=list)
    streams: dict[tuple[Any, Any], list[int]] = field(default_factory=dict)
    stream_of: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    launch_of: dict[int, int] = field(default_factory=dict)
    syncs: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    stream_waits: list[tuple[int, int]] = field(default_factory=list)
    gloo: list[int] = field(default_factory=list)
    frames: set[int] = field(default_factory=set)
    before: dict[int, str] = field(default_factory=dict)
    backward: list[tuple[int, int]] = field(default_factory=list)

    def name(self, row: int) -> str:
        """Return the event's name."""
        return str(self.trace.names[self.trace.name_id[row]])

    def cat(self, row: int) -> str:
        """Return the event's category."""
        return str(self.trace.cats[self.trace.cat_id[row]])


def read_rank(trace: Trace, prefix: str, window: tuple[int, int] | None) -> Rank:
    """Return the rows of `trace` that belong to `window`, linked.

    Host calls belong to it by their start, device work by that of the call that launched it. The
    window None is the whole trace.
    """
    kinds = np.array([*map(_kind, trace.cats), _NO_KIND], np.int8)[trace.cat_id]
    first, last = window or _extent(trace, kinds != _NO_KIND)
    inside = (trace.ts_ns >= first) & (trace.ts_ns < last)
    gloo = np.array([*(name.startswith("gloo:") for name in trace.names), False], np.bool_)[trace.name_id]
    gloo &= kinds == _HOST_KIND
    rank = Rank(trace, prefix, first, trace.ts_ns.tolist(), trace.end_ns.tolist())
    rank.gloo = np.flatnonzero(gloo & inside).tolist()
    host = np.flatnonzero((kinds == _HOST_KIND) & ~gloo & inside)
    _add_threads(rank, host)
    correlation = _column(trace, "correlation")
    call_of = _calls(rank, np.flatnonzero(kinds == _HOST_KIND), correlation)
    _add_device(rank, np.flatnonzero(kinds == _DEVICE_KIND), correlation, call_of, first, last)
    _add_syncs(rank, host.tolist(), np.flatnonzero(kinds == _SYNC_KIND).tolist(), correlation, call_of)
    _add_backward(rank, host)
    return rank


def _add_backward(rank: Rank, host: Int64) -> None:
    """Link each forward operation to its backward one, by the flows of category ``fwdbwd``."""
    trace, points = rank.trace, rank.trace.points
    row_at = {
        (track, at): row
        for row, track, at in zip(
            host.tolist(), trace.track_id[host].tolist(), trace.ts_ns[host].tolist(), strict=True
        )
    }
    forward: dict[object, int] = {}
    backward: list[tuple[object, int]] = []
    columns = (
        points.phase,
        points.cat_id.tolist(),
        points.track_id.tolist(),
        points.ts_ns.tolist(),
        points.ids,
    )
    for phase, cat, track, at, flow in zip(*columns, strict=True):
        if trace.cats[cat] != "fwdbwd" or (track, at) not in row_at:
            continue
        if phase == "s":
            forward[flow] = row_at[track, at]
        elif phase == "f":
            backward.append((flow, row_at[track, at]))
    rank.backward = [(forward[flow], row) for flow, row in backward if flow in forward]


def _extent(trace: Trace, rows: NDArray[np.bool_]) -> tuple[int, int]:
    if not rows.any():
        return 0, 0
    return int(trace.ts_ns[rows].min()), int(trace.end_ns[rows].max()) + 1


_DEVICE_KIND, _HOST_KIND, _SYNC_KIND, _NO_KIND = 1, 2, 3, 0


def _kind(cat: str) -> int:
    if cat in _DEVICE:
        return _DEVICE_KIND
    if cat in _HOST:
        return _HOST_KIND
    return _SYNC_KIND if cat == "cuda_sync" else _NO_KIND


def _column(trace: Trace, key: str) -> dict[int, Any]:
    return trace.args[key].as_dict() if key in trace.args else {}


def _add_threads(rank: Rank, host: Int64) -> None:
    """Group the host rows by thread; the main thread (which has the steps, or most slices) comes first."""
    trace = rank.trace
    by_track: dict[int, list[int]] = {}
    for row, track in zip(host.tolist(), trace.track_id[host].tolist(), strict=True):
        by_track.setdefault(track, []).append(row)
    steps = {
        track: sum(rank.name(row).startswith("ProfilerStep") for row in rows)
        for track, rows in by_track.items()
    }
    rank.threads = [
        (f"thread {trace.tracks[track].tid}", by_track[track])
        for track in sorted(by_track, key=lambda track: (steps[track], len(by_track[track])), reverse=True)
    ]
    rank.frames = {row for rows in by_track.values() for row in rows if rank.cat(row) in _ASIDE}


def _calls(rank: Rank, host: Int64, correlation: dict[int, Any]) -> dict[Any, int]:
    """Return correlation -> the runtime or driver call that has it."""
    return {
        correlation[row]: row for row in host.tolist() if row in correlation and rank.cat(row) in _RUNTIME
    }


def _add_device(
    rank: Rank, device: Int64, correlation: dict[int, Any], call_of: dict[Any, int], first: int, last: int
) -> None:
    stream = _column(rank.trace, "stream")
    previous: dict[tuple[Any, Any], int] = {}
    order = device[np.argsort(rank.trace.ts_ns[device], kind="stable")]
    for row in order.tolist():
        track = rank.trace.tracks[rank.trace.track_id[row]]
        where = (track.pid, stream.get(row, track.tid))
        call = call_of.get(correlation.get(row))
        at = rank.start_ns[row if call is None else call]
        if first <= at < last:
            rank.streams.setdefault(where, []).append(row)
            rank.stream_of[row] = where
            if call is not None:
                rank.launch_of[row] = call
            if where in previous and len(rank.streams[where]) == 1:
                rank.before[row] = rank.name(previous[where])
        previous[where] = row


def _add_syncs(
    rank: Rank,
    host: Sequence[int],
    syncs: Sequence[int],
    correlation: dict[int, Any],
    call_of: dict[Any, int],
) -> None:
    """Tell which streams a blocking call waits for, and which device work waits for another stream's."""
    stream, waits_on = _column(rank.trace, "stream"), _column(rank.trace, "wait_on_stream")
    recorded = _column(rank.trace, "wait_on_cuda_event_record_corr_id")
    streams_of_call: dict[int, tuple[Any, ...]] = {}
    launched = {where: [_launch_ns(rank, row) for row in rows] for where, rows in rank.streams.items()}
    for row in syncs:
        call = call_of.get(correlation.get(row))
        pid = rank.trace.tracks[rank.trace.track_id[row]].pid
        if call is None:
            continue
        if row in waits_on:
            record = call_of.get(recorded.get(row), call)
            _add_stream_wait(rank, launched, (pid, waits_on[row]), (pid, stream.get(row)), record, call)
        elif (pid, stream.get(row)) in rank.streams:
            streams_of_call[call] = ((pid, stream[row]),)
    for row in host:
        if rank.cat(row) in _RUNTIME and (
            rank.name(row).endswith(_SYNC_CALLS) or rank.name(row) in ("cudaMemcpy", "hipMemcpy")
        ):
            rank.syncs[row] = streams_of_call.get(row, ())


def _add_stream_wait(
    rank: Rank,
    launched: dict[tuple[Any, Any], list[int]],
    source: tuple[Any, Any],
    target: tuple[Any, Any],
    record: int,
    call: int,
) -> None:
    """Link the last work on `source` before the event was recorded to the next on `target` after `call`."""
    if source not in launched or target not in launched:
        return
    before = bisect_left(launched[source], rank.start_ns[record]) - 1  # work is launched in stream order
    after = bisect_right(launched[target], rank.start_ns[call])
    if before >= 0 and after < len(launched[target]):
        rank.stream_waits.append((rank.streams[source][before], rank.streams[target][after]))


def _launch_ns(rank: Rank, row: int) -> int:
    return rank.start_ns[rank.launch_of.get(row, row)]
