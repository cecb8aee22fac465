"""One time axis for a Composer trace that holds the events of PyTorch's profiler.

From PyTorch 2.4 on the profiler counts from a base that stands in its own file's header. Composer copies
the events without the header, so that they lie decades before its own. Both mark the steps:
``ProfilerStep#k`` begins as Composer's callback for PyTorch's profiler, at the end of the batch before,
returns (25 µs before, where the base is known).
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from errors import counted
from formats.columns import Int64, Trace

Mask = NDArray[np.bool_]

_STEP = re.compile(r"ProfilerStep#\d+")
_CALLBACK = re.compile("callback/TorchProfiler/event/batch_end")
_BATCH = re.compile("event/batch")
_YEAR_NS = 365.25 * 24 * 3600 * 1e9
#: Two axes are at least this far apart.
_APART_NS = 24 * 3600 * 10**9


def tie_axes(trace: Trace) -> Trace:
    """Return the trace with the events of PyTorch's profiler on Composer's clock, process by process.

    The offset is the median, over the profiler's steps, from the begin of a step to the end of the callback
    in which it begins (without callbacks: to the end of the batch before). Which belong together is told by
    the smallest spread of the offsets; where several are alike, the last ones recorded do. A trace with one
    axis, or without steps, is returned as it is; what was moved is told in `Trace.repairs`.
    """
    ts_ns, points_ns = trace.ts_ns.copy(), trace.points.ts_ns.copy()
    remarks = []
    for pid in dict.fromkeys(track.pid for track in trace.tracks):
        own = np.array([track.pid == pid for track in trace.tracks], np.bool_)
        begins, ends = _marks(trace, own[trace.track_id])
        if not len(begins) or not len(ends) or abs(int(begins[0]) - int(ends[0])) < _APART_NS:
            continue
        offsets = _offsets(begins, ends)
        offset = int(np.median(offsets))
        for times, tracks in ((ts_ns, trace.track_id), (points_ns, trace.points.track_id)):
            far = own[tracks] & (np.abs(times - begins[0]) < np.abs(times - ends[0]))
            times[far] += offset
        remarks.append(
            f"process {pid}: the clock of PyTorch's profiler lay {abs(offset) / _YEAR_NS:.1f} years from "
            f"Composer's; tied by {counted(len(offsets), 'step')} (offsets agree to "
            f"{np.ptp(offsets) / 1e6:.3f} ms)"
        )
    if not remarks:
        return trace
    points = replace(trace.points, ts_ns=points_ns)
    return replace(trace, ts_ns=ts_ns, points=points, repairs=(*trace.repairs, *remarks))


def _marks(trace: Trace, own: Mask) -> tuple[Int64, Int64]:
    """Return when a process's profiler steps begin, and when that ends in which they begin; in order."""
    end_ns = trace.end_ns
    calls = end_ns[own & by_name(trace, _CALLBACK)]
    batches = end_ns[own & by_name(trace, _BATCH)]
    return np.sort(trace.ts_ns[own & by_name(trace, _STEP)]), np.sort(calls if len(calls) else batches)


def _offsets(begins: Int64, ends: Int64) -> Int64:
    """Return the offsets of all that belong together."""
    n = min(len(begins), len(ends))
    candidates = [
        ends[j : j + n] - begins[i : i + n]
        for i in range(len(begins) - n + 1)
        for j in range(len(ends) - n + 1)
    ]
    return min(reversed(candidates), key=lambda offsets: int(np.ptp(offsets)))


def by_name(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    """Return which slices (n,) have a name that the whole pattern fits."""
    table = np.array([bool(pattern.fullmatch(name)) for name in trace.names], np.bool_)
    return np.asarray(table[trace.name_id]) if len(table) else np.zeros(len(trace), np.bool_)
