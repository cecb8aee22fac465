"""MosaicML Composer: events of the trainer, with PyTorch's profiler also Kineto's.

From PyTorch 2.4 on the profiler counts from a base in its file's header. Composer copies the events without
the header, so that they lie decades before its own. Both mark the steps: ``ProfilerStep#k`` begins as
Composer's callback for PyTorch's profiler returns, at the end of the batch before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Mask, NDArray
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
from analyzer.reading.formats.event import EndRule

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
_CALLER = "c10d::"  # the operator that enqueues a collective
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
        return any(event["name"] == _SYNC for event in metadata)

    def rank(self, trace: Trace) -> tuple[int | None, int | None]:
        ranks = {integer(e["args"].get("value")) for e in trace.metadata if e["name"] == "global_rank"}
        return (ranks.pop() if len(ranks) == 1 else None), None

    def finished(self, trace: Trace) -> Trace:
        """Put the trace on one time axis, without spans such as ``PyTorch Profiler (0)``."""
        return tie_axes(without_recording(trace))

    def is_left_out(self, tid: object) -> bool:
        """Leave out PyTorch's spans for its own recording, as Composer's merger does."""
        return is_of_recording(tid)

    def second_axis(self, read: Callable[[], Trace]) -> SecondAxis | None:
        """Find the axis of PyTorch's profiler, whose base is lost."""
        trace = read()
        return second_axis(trace, np.ones(len(trace), np.bool_))

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        comm = super().recorded_roles(trace) == Role.COMM
        roles = framed(trace)
        roles[by_name(trace, _COMPUTE.__contains__)] = Role.COMPUTE
        roles[by_name(trace, _LOADER.__eq__)] = Role.INPUT
        roles[by_name(trace, _is_callback)] = Role.HOST
        roles[comm] = Role.COMM
        return roles

    def marked_steps(self, trace: Trace) -> Steps:
        """Take ``event/batch``, numbered by the argument ``batch`` where it is recorded."""
        rows = in_first_process(trace, np.flatnonzero(by_name(trace, _BATCH.__eq__)))
        if not len(rows):
            return NO_STEPS
        known = trace.args["batch"].as_dict() if "batch" in trace.args else {}
        labels = [known.get(row, i) for i, row in enumerate(rows.tolist(), 1)]
        if not all(isinstance(label, int) for label in labels):
            labels = list(range(1, len(rows) + 1))
        return Steps(tuple(spans(trace, rows, labels)), (), "event/batch spans")

    def find_steps(self, trace: Trace, by: str | None = None) -> Steps:
        """Take the batches, each from the end of the one before, so that it includes the loading."""
        steps = super().find_steps(trace, by)
        return steps._replace(whole=_with_loading(trace, steps.whole))

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Make the batches' graphs.

        Without PyTorch's profiler no communication is recorded. Then ranks meet in the backward pass, and
        where they load, as Composer checks there that each rank has a batch left.
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
        is_call = is_library_call(name) or name.startswith(_CALLER)
        return (name,) if is_call else super().filter_names(name, cat, tid, process)

    def passes(self, trace: Trace) -> tuple[Mask, Mask]:
        return by_name(trace, "event/forward".__eq__), by_name(trace, "event/backward".__eq__)

    def sync_points(self, trace: Trace) -> SyncPoints:
        """Read the rank's time at an instant that all ranks have in common."""
        known = {event["name"]: event["args"].get("value") for event in trace.metadata}
        index, error = integer(known.get(_SYNC)), integer(known.get("clock_sync_error_bound")) or 0
        if index is None or max(abs(index), abs(error)) > _LATEST_US:
            return {}
        instant = np.array([1000 * index], np.int64)
        return {_SYNC: SyncPoint(instant, instant, error_ns=1000 * abs(error))}

    def common_clock(self, trace: Trace) -> str:
        return _SYNC if self.sync_points(trace) else ""

    def category(self, name: str, cat: str) -> str:
        return name if "," in cat or not cat else cat


def _is_callback(name: str) -> bool:
    return name.startswith(_CALLBACK)


def _with_loading(trace: Trace, batches: Sequence[Step]) -> tuple[Step, ...]:
    """Begin each batch at the end of the one before it, or at the begin of its loading."""
    loads = np.sort(trace.ts_ns[by_name(trace, _LOADER.__eq__)])
    steps = []
    ended = int(trace.ts_ns.min()) if len(trace) else 0
    for batch, before in zip(batches, (None, *batches), strict=False):
        begin = batch.start_ns
        if before is not None and before.label == batch.label - 1 and before.end_ns <= batch.start_ns:
            begin = before.end_ns
        elif len(before_batch := loads[(loads >= ended) & (loads < begin)]):
            begin = int(before_batch[-1])
        steps.append(batch._replace(start_ns=begin))
        ended = batch.end_ns
    return tuple(steps)


PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_PROFILER_CALLED, _BATCH = "callback/TorchProfiler/event/batch_end", "event/batch"
_YEAR_NS = 365.25 * 24 * 3600 * 1e9
#: Two axes are at least this far apart.
_APART_NS = 24 * 3600 * 10**9


def tie_axes(trace: Trace) -> Trace:
    """Move events of PyTorch's profiler to Composer's clock, process by process, with notes in `repairs`."""
    ts_ns, points_ns = trace.ts_ns.copy(), trace.points.ts_ns.copy()
    remarks = []
    for pid in dict.fromkeys(track.pid for track in trace.tracks):
        of_process = np.array([track.pid == pid for track in trace.tracks], np.bool_)
        axis = second_axis(trace, of_process[trace.track_id])
        if axis is None:
            continue
        for times, tracks in ((ts_ns, trace.track_id), (points_ns, trace.points.track_id)):
            rows = of_process[tracks]
            times[rows] = axis.corrected(times[rows])
        remarks.append(Note(f"process {pid}: {axis.remark}", NoteKind.WHOLE))
    if not remarks:
        return trace
    points = replace(trace.points, ts_ns=points_ns)
    return replace(trace, ts_ns=ts_ns, points=points, repairs=(*trace.repairs, *remarks))


def second_axis(trace: Trace, rows: Mask) -> SecondAxis | None:
    """Find the second axis of the slices `rows` (n,) of a process; None if they have one axis or no steps.

    The offset is the median, over the profiler's steps, from the start of a step to the end of the callback
    in which it begins (without callbacks: to the end of the batch before). The pairs with the smallest spread
    of offsets are taken; of equal ones, the last.
    """
    end_ns = trace.end_ns
    calls = end_ns[rows & by_name(trace, _PROFILER_CALLED.__eq__)]
    ends = np.sort(calls if len(calls) else end_ns[rows & by_name(trace, _BATCH.__eq__)])
    begins = np.sort(trace.ts_ns[rows & by_name(trace, PROFILER_STEP.fullmatch)])
    if not len(begins) or not len(ends) or int(ends[0]) - int(begins[0]) < _APART_NS:
        return None
    n = min(len(begins), len(ends))
    firsts = [(i, j) for i in range(len(begins) - n + 1) for j in range(len(ends) - n + 1)]
    candidates = [ends[j : j + n] - begins[i : i + n] for i, j in firsts]
    offsets = min(reversed(candidates), key=lambda offsets: int(np.ptp(offsets)))
    offset = int(np.median(offsets))
    remark = (
        f"the clock of PyTorch's profiler lay {offset / _YEAR_NS:.1f} years from Composer's; tied by "
        f"{counted(len(offsets), 'step')} (offsets agree to {in_ms(int(np.ptp(offsets)))})"
    )
    return SecondAxis(int(begins[0]) + (int(ends[0]) - int(begins[0])) // 2, offset, remark)
