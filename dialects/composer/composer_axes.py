"""One time axis for a Composer trace that holds the events of PyTorch's profiler.

From PyTorch 2.4 on the profiler counts from a base that stands in its own file's header. Composer copies
the events without the header, so that they lie decades before its own. Both mark the steps:
``ProfilerStep#k`` begins as Composer's callback for PyTorch's profiler, at the end of the batch before,
returns (25 µs before, where the base is known).
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from arrays import Int64, Mask
from dialects.masks import by_name
from dialects.system import SecondAxis
from errors import Note, NoteKind, counted
from formats.columns import Trace

PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_CALLBACK, _BATCH = "callback/TorchProfiler/event/batch_end", "event/batch"
_YEAR_NS = 365.25 * 24 * 3600 * 1e9
#: Two axes are at least this far apart.
_APART_NS = 24 * 3600 * 10**9


def tie_axes(trace: Trace) -> Trace:
    """Return the trace with the events of PyTorch's profiler on Composer's clock, process by process.

    A trace with one axis, or without steps, is returned as it is; what was moved is told in `Trace.repairs`.
    """
    ts_ns, points_ns = trace.ts_ns.copy(), trace.points.ts_ns.copy()
    remarks = []
    for pid in dict.fromkeys(track.pid for track in trace.tracks):
        own = np.array([track.pid == pid for track in trace.tracks], np.bool_)
        axis = second_axis(trace, own[trace.track_id])
        if axis is None:
            continue
        for times, tracks in ((ts_ns, trace.track_id), (points_ns, trace.points.track_id)):
            rows = own[tracks]
            times[rows] = axis.moved(times[rows])
        remarks.append(Note(f"process {pid}: {axis.remark}", NoteKind.WHOLE))
    if not remarks:
        return trace
    points = replace(trace.points, ts_ns=points_ns)
    return replace(trace, ts_ns=ts_ns, points=points, repairs=(*trace.repairs, *remarks))


def second_axis(trace: Trace, own: Mask) -> SecondAxis | None:
    """Return the second axis that slices `own` (n,) of a process have; None if they have one or no steps.

    The offset is the median, over the profiler's steps, from the begin of a step to the end of the callback
    in which it begins (without callbacks: to the end of the batch before). Which belong together follows from
    the smallest spread of the offsets; where several are alike, the last ones recorded do.
    """
    begins, ends = _marks(trace, own)
    if not len(begins) or not len(ends) or int(ends[0]) - int(begins[0]) < _APART_NS:
        return None
    offsets = _offsets(begins, ends)
    offset = int(np.median(offsets))
    remark = (
        f"the clock of PyTorch's profiler lay {offset / _YEAR_NS:.1f} years from Composer's; tied by "
        f"{counted(len(offsets), 'step')} (offsets agree to {np.ptp(offsets) / 1e6:.3f} ms)"
    )
    return SecondAxis(int(begins[0]) + (int(ends[0]) - int(begins[0])) // 2, offset, remark)


def _marks(trace: Trace, own: Mask) -> tuple[Int64, Int64]:
    """Return when a process's profiler steps begin, and when that ends in which they begin; in order."""
    end_ns = trace.end_ns
    calls = end_ns[own & by_name(trace, _CALLBACK.__eq__)]
    batches = end_ns[own & by_name(trace, _BATCH.__eq__)]
    return np.sort(trace.ts_ns[own & by_name(trace, PROFILER_STEP.fullmatch)]), np.sort(
        calls if len(calls) else batches
    )


def _offsets(begins: Int64, ends: Int64) -> Int64:
    """Return the offsets of all that belong together."""
    n = min(len(begins), len(ends))
    candidates = [
        ends[j : j + n] - begins[i : i + n]
        for i in range(len(begins) - n + 1)
        for j in range(len(ends) - n + 1)
    ]
    return min(reversed(candidates), key=lambda offsets: int(np.ptp(offsets)))
