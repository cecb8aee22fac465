"""MosaicML Composer: events of the trainer, with PyTorch's profiler also Kineto's.

From PyTorch 2.4 on the profiler counts from a base that stands in its own file's header. Composer copies the
events without the header, so that they lie decades before its own. Both mark the steps: ``ProfilerStep#k``
begins as Composer's callback for PyTorch's profiler, at the end of the batch before, returns (25 µs before,
where the base is known).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.errors import Note, NoteKind, counted
from analyzer.base.units import in_ms
from analyzer.reading.dialects.name_rules import is_library_call
from analyzer.reading.dialects.recorded_collectives import SyncPoint, SyncPoints
from analyzer.reading.dialects.roles import Phase, Role, by_name
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, in_first_process, spans
from analyzer.reading.dialects.system import (
    Metadata,
    Need,
    SecondAxis,
    System,
    framed,
    integer,
    is_of_recording,
    without_recording,
)
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.rows import EndRule

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace


_COMPUTE = frozenset({"event/forward", "event/loss", "event/backward", "event/optimizer"})
_LOADER = "event/dataloader"
_WHERE_RANKS_MEET = frozenset({"event/backward", _LOADER})
_PHASES = {
    _LOADER: Phase.INPUT,
    "event/forward": Phase.FORWARD,
    "event/loss": Phase.FORWARD,
    "event/backward": Phase.BACKWARD,
    "event/optimizer": Phase.UPDATE,
}
_FRAMES = ("event/fit", "event/epoch", "event/iteration", "event/batch", "event/train_batch")
_CALLBACK = "callback/"
_CALLER = "c10d::"  # the operator that asks for a collective
_SYNC = "clock_sync_timestamp_us"
_LATEST_US = 1 << 51  # the year 2041: a later instant is damage


class Composer(System):
    """The trainer marks its batches, and their forward and backward passes."""

    name = "composer"
    never_shows = System.never_shows - {"input"}
    counted_by = (
        "Communication: operations named after a collective (allreduce, broadcast, nccl, …); "
        "computation: event/forward, loss, backward and optimizer."
    )
    pid_is_rank = True
    front_operation = "MulBackward0"  # of the backward pass, as Composer's own merger has it
    pairing = EndRule.NESTED_BY_NAME
    args = MappingProxyType({Need.STEPS: ("batch",)})

    def recognises_metadata(self, metadata: Metadata) -> bool:
        """Whether Composer's profiler, or its merger, wrote the file."""
        return any(event["name"] == _SYNC for event in metadata)

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        """Return (global rank, None) where the file is of one rank."""
        ranks = {integer(e["args"].get("value")) for e in trace.metadata if e["name"] == "global_rank"}
        return (ranks.pop() if len(ranks) == 1 else None), None

    def finished(self, trace: Trace) -> Trace:
        """Return the trace on one time axis, without spans such as ``PyTorch Profiler (0)``."""
        return tie_axes(without_recording(trace))

    def is_left_out(self, tid: object) -> bool:
        """Whether the thread holds PyTorch's spans for its own recording, as Composer's merger does."""
        return is_of_recording(tid)

    def second_axis(self, read: Callable[[], Trace]) -> SecondAxis | None:
        """Find that of PyTorch's profiler, whose base is lost."""
        trace = read()
        return second_axis(trace, np.ones(len(trace), np.bool_))

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,); see `rule`."""
        comm = super().recorded_roles(trace) == Role.COMM
        found = framed(trace)
        found[by_name(trace, _COMPUTE.__contains__)] = Role.COMPUTE
        found[by_name(trace, _LOADER.__eq__)] = Role.INPUT
        found[by_name(trace, _is_callback)] = Role.HOST
        found[comm] = Role.COMM
        return found

    def marked_steps(self, trace: Trace) -> Steps:
        """Return ``event/batch``, numbered where `trace.args` has ``batch``."""
        if "event/batch" not in trace.names:
            return NO_STEPS
        rows = np.flatnonzero(trace.name_id == trace.names.index("event/batch"))
        rows = in_first_process(trace, rows)
        known = trace.args["batch"].as_dict() if "batch" in trace.args else {}
        labels = [known.get(row, i) for i, row in enumerate(rows.tolist(), 1)]
        if not all(isinstance(label, int) for label in labels):
            labels = list(range(1, len(rows) + 1))
        return Steps(tuple(spans(trace, rows, labels)), (), "event/batch spans")

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Return the batches, each from the end of the one before: its loading is a part of it."""
        found = super().find_steps(trace, by)
        return found._replace(whole=_with_loading(trace, found.whole))

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Return the batches with what ran in them.

        Without PyTorch's profiler no communication is recorded. Then ranks meet in the backward pass, and
        where they load (Composer asks there whether any rank has no batch left): none ends it before the
        last has begun it.
        """
        from analyzer.reading.dialects.span_graph import Meaning, record_spans

        trace = rank.trace
        calls = by_name(trace, is_library_call)
        roles = self.roles(trace)
        roles[roles == Role.FRAME] = Role.COMPUTE  # the profiler's annotations work, as operators do
        roles[by_name(trace, _FRAMES.__contains__)] = Role.FRAME
        meaning = Meaning(
            roles,
            collective=calls if calls.any() else by_name(trace, _WHERE_RANKS_MEET.__contains__),
            phases={**_PHASES, **dict.fromkeys(filter(_is_callback, trace.names), Phase.CALLBACK)},
            category=self.category,
        )
        return record_spans(rank, trace, self.find_steps(trace, by).whole, meaning)

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Return the name of a collective, PyTorch's barriers too."""
        is_call = is_library_call(name) or name.startswith(_CALLER)
        return (name,) if is_call else super().filter_names(name, cat, tid, process)

    def passes(self, trace: Trace) -> tuple[Mask, Mask]:
        """Mask the slices (n,) called ``event/forward``, and those called ``event/backward``."""
        return by_name(trace, "event/forward".__eq__), by_name(trace, "event/backward".__eq__)

    def sync_points(self, trace: Trace) -> SyncPoints:
        """Return the time on the rank's clock at an instant that is common to all ranks."""
        known = {event["name"]: event["args"].get("value") for event in trace.metadata}
        at, error = integer(known.get(_SYNC)), integer(known.get("clock_sync_error_bound")) or 0
        if at is None or max(abs(at), abs(error)) > _LATEST_US:
            return {}
        instant = np.array([1000 * at], np.int64)
        return {_SYNC: SyncPoint(instant, instant, error_ns=1000 * abs(error))}

    def common_clock(self, trace: Trace) -> str:
        """Return the metadata of the instant in `sync_points`."""
        return _SYNC if self.sync_points(trace) else ""

    def category(self, name: str, cat: str) -> str:
        """Return the event's own category, unless that lists the events and callbacks it belongs to."""
        return name if "," in cat or not cat else cat


def _is_callback(name: str) -> bool:
    return name.startswith(_CALLBACK)


def _with_loading(trace: Trace, batches: Sequence[Step]) -> tuple[Step, ...]:
    """Return each batch from the end of the one before it; the first from when it began to be loaded."""
    loads = np.sort(trace.ts_ns[by_name(trace, _LOADER.__eq__)])
    steps = []
    ended = int(trace.ts_ns.min()) if len(trace) else 0
    for batch, before in zip(batches, (None, *batches), strict=False):
        begin = batch.start_ns
        if before is not None and before.label == batch.label - 1 and before.end_ns <= batch.start_ns:
            begin = before.end_ns
        elif len(own := loads[(loads >= ended) & (loads < begin)]):
            begin = int(own[-1])
        steps.append(batch._replace(start_ns=begin))
        ended = batch.end_ns
    return tuple(steps)


PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_PROFILER_CALLED, _BATCH = "callback/TorchProfiler/event/batch_end", "event/batch"
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
            times[rows] = axis.corrected(times[rows])
        remarks.append(Note(f"process {pid}: {axis.remark}", NoteKind.WHOLE))
    if not remarks:
        return trace
    points = replace(trace.points, ts_ns=points_ns)
    return replace(trace, ts_ns=ts_ns, points=points, repairs=(*trace.repairs, *remarks))


def second_axis(trace: Trace, own: Mask) -> SecondAxis | None:
    """Return the second axis that slices `own` (n,) of a process have; None if they have one or no steps.

    The offset is the median, over the profiler's steps, from the start of a step to the end of the callback
    in which it begins (without callbacks: to the end of the batch before). Which belong together follows from
    the smallest spread of the offsets; where several are alike, the last ones recorded do.
    """
    end_ns = trace.end_ns
    calls = end_ns[own & by_name(trace, _PROFILER_CALLED.__eq__)]
    ends = np.sort(calls if len(calls) else end_ns[own & by_name(trace, _BATCH.__eq__)])
    begins = np.sort(trace.ts_ns[own & by_name(trace, PROFILER_STEP.fullmatch)])
    if not len(begins) or not len(ends) or int(ends[0]) - int(begins[0]) < _APART_NS:
        return None
    offsets = _offsets(begins, ends)
    offset = int(np.median(offsets))
    remark = (
        f"the clock of PyTorch's profiler lay {offset / _YEAR_NS:.1f} years from Composer's; tied by "
        f"{counted(len(offsets), 'step')} (offsets agree to {in_ms(int(np.ptp(offsets)))})"
    )
    return SecondAxis(int(begins[0]) + (int(ends[0]) - int(begins[0])) // 2, offset, remark)


def _offsets(begins: Int64, ends: Int64) -> Int64:
    """Return the offsets of all that belong together."""
    n = min(len(begins), len(ends))
    firsts = [(i, j) for i in range(len(begins) - n + 1) for j in range(len(ends) - n + 1)]
    candidates = [ends[j : j + n] - begins[i : i + n] for i, j in firsts]
    return min(reversed(candidates), key=lambda offsets: int(np.ptp(offsets)))
