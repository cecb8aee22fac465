"""Where the time of a step goes: computation, communication, both at once, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

import dialects
from arrays import Int64, Mask
from arrays.innermost import lies_inside
from arrays.intervals import clip, length, union, without
from arrays.numbering import unique
from dialects import Role
from formats.columns import Trace

Intervals = tuple[Int64, Int64]


class Breakdown(Struct, frozen=True):
    """How long each kind of work ran in one step of a rank; `step` is None for the whole trace.

    A model update that waits for communication (BytePS's STEP) is computation while none runs.
    ``idle`` is when nothing ran at all; copies and fills of a device's memory are neither computation
    nor communication, but not idle either.
    """

    rank: str
    step: int | None
    start_ns: int
    wall_ns: int
    compute_ns: int
    comm_ns: int
    overlap_ns: int  # computation and communication at once
    idle_ns: int

    @property
    def exposed_comm_ns(self) -> int:
        """Communication that no computation hid."""
        return self.comm_ns - self.overlap_ns


def breakdown(
    rank: str, trace: Trace, step_by: str | None = None, *, most: int | None = None
) -> list[Breakdown]:
    """Return one `Breakdown` for each step of a rank; one for the whole trace where it marks no steps.

    Parameters
    ----------
    step_by : the annotation that marks a step, instead of what the trace itself marks
    most : of a trace with more slices than this, only so many steps from its middle, one at least; none
        where it marks no steps
    """
    if len(trace) == 0:
        return []
    steps = dialects.of(trace).find_steps(trace, step_by).whole
    if most is not None and len(trace) > most:
        n_kept = max(1, len(steps) * most // len(trace))
        steps = steps[(len(steps) - n_kept) // 2 :][:n_kept] if steps else ()
        if not steps:
            return []
        trace = trace.select((trace.ts_ns < steps[-1].end_ns) & (trace.end_ns > steps[0].start_ns))
    kinds = dialects.of(trace).roles(trace)
    is_comm = dialects.is_communication(kinds)
    comm = _busy(trace, is_comm)
    update = without(_busy(trace, kinds == Role.UPDATE), comm)
    compute = _joined(_computing(trace, kinds == Role.COMPUTE, is_comm | (kinds == Role.WAIT)), update)
    parts = (compute, comm, _busy(trace, kinds == Role.COPY))
    windows: list[tuple[int | None, int, int]] = [(s.label, s.start_ns, s.end_ns) for s in steps]
    windows = windows or [(None, int(trace.ts_ns.min()), int(trace.end_ns.max()))]
    return [_of_window(rank, *window, parts) for window in windows]


def _busy(trace: Trace, rows: Mask) -> Intervals:
    part = trace.select(rows)
    return union(part.ts_ns, part.end_ns)


def _computing(trace: Trace, compute: Mask, comm: Mask) -> Intervals:
    """Return when the rank computes: operations do not while another inside them communicates or waits."""
    either = np.flatnonzero(compute | comm)
    part = trace.select(either)
    within = lies_inside(part.ts_ns, part.end_ns, part.track_id, compute[either])
    within &= comm[either]
    mixed = unique(part.track_id[within])
    found = _busy(trace, compute & ~np.isin(trace.track_id, mixed))
    for track in mixed.tolist():
        communicating = _busy(part, within & (part.track_id == track))
        found = _joined(found, without(_busy(trace, compute & (trace.track_id == track)), communicating))
    return found


def _of_window(
    rank: str, step: int | None, start_ns: int, end_ns: int, parts: Sequence[Intervals]
) -> Breakdown:
    compute, comm, copies = (clip(part, start_ns, end_ns) for part in parts)
    either = _joined(compute, comm)
    wall_ns, overlap_ns = end_ns - start_ns, length(compute) + length(comm) - length(either)
    idle_ns = wall_ns - length(_joined(either, copies))
    return Breakdown(rank, step, start_ns, wall_ns, length(compute), length(comm), overlap_ns, idle_ns)


def _joined(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]]))
