"""BytePS steps as graphs: layers on threads, partitions through their stages, servers that wait.

The operations of a thread run one after the other; an operator starts after its sources in the DAG; a
communication is enqueued after the backward operation of its gradient, each of its partitions passes its
stages in order, and it ends with the last one. PUSH occupies the worker's link to the servers, PULL the
server's link to all workers: a key is answered once every worker has pushed it. The GPUs of a worker meet in
REDUCE and BROADCAST; the root GPU pushes and pulls for all of them.

Edges follow the recorded times: the source of an edge is the last event of its name that started before the
target. An edge of the DAG into the next step therefore holds only if the source still runs when that step
begins, and no edge closes a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import ranges, unique
from analyzer.base.errors import TraceError
from analyzer.reading.dialects.byteps.byteps_events import (
    GpuEvents,
    Spans,
    connect,
    edge_keys,
    edges_of,
    read_events,
    recorded_dependencies,
    with_untraced,
)
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import (
    Joint,
    Meeting,
    Meetings,
    RankSteps,
    RankTrace,
    from_start,
    meetings_table,
)
from analyzer.reading.dialects.step_windows import RecordedEvents, as_bounds, check_sizes, cut_into_steps
from analyzer.reading.dialects.steps import Steps, step_table, windows
from analyzer.reading.dialects.tolerances import MIN_RECORDED

#: In place of the begin of the step after the last.
NO_NEXT = -1

_NEVER = int(np.iinfo(np.int64).max)  # in place of `NO_NEXT` while steps are cut
_ALL = -1  # in place of the worker: all workers together


class _StageMeeting(NamedTuple):
    """Meeting of a stage with those of other GPUs, of its worker or of all workers."""

    what: str
    enters: bool = False
    leaves: bool = False
    joint: Joint = Joint.END_TO_HEAD
    rule: Rule = Rule.READY
    all_workers: bool = False


_STAGE_MEETINGS: Mapping[str, Sequence[_StageMeeting]] = {
    "REDUCE": [
        _StageMeeting("reduce", enters=True, leaves=True, joint=Joint.START_TO_BODY, rule=Rule.COLLECTIVE)
    ],
    "COORDINATE_PUSH": [_StageMeeting("ready to push", enters=True)],
    "PUSH": [
        _StageMeeting("ready to push", leaves=True),
        _StageMeeting("pushed", enters=True, joint=Joint.END_TO_BODY, rule=Rule.SERVER, all_workers=True),
    ],
    "PULL": [
        _StageMeeting("pushed", leaves=True, joint=Joint.END_TO_BODY, rule=Rule.SERVER, all_workers=True),
        _StageMeeting("pulled", enters=True),
    ],
    "COPYH2D": [_StageMeeting("pulled", leaves=True)],
    "COORDINATE_BROADCAST": [_StageMeeting("ready to broadcast", enters=True)],
    "BROADCAST": [
        _StageMeeting("ready to broadcast", leaves=True),
        _StageMeeting("broadcast", enters=True, leaves=True, joint=Joint.START_TO_BODY, rule=Rule.COLLECTIVE),
    ],
}


def record(gpu: RankTrace, steps: Steps) -> RankSteps:
    """Make the graphs of one GPU's steps."""
    end = steps.whole[-1].end_ns if steps.whole else -_NEVER
    partial = ((step.label, step.start_ns, _NEVER) for step in steps.partial if step.start_ns >= end)
    bounds = [*as_bounds(windows(step_table(steps.whole))), *partial]  # number, start, start of the next
    if not bounds:
        raise TraceError(f"{gpu.trace.path}: no training step is recorded in it")
    events = read_events(gpu)
    notes = []
    if not any(name.cat == "BW" for name in events.names):
        events = with_untraced(events, [(begin, end) for _, begin, end in bounds])
        notes.append("no forward and backward operations recorded; "
                     "the time before each gradient stands for them")  # fmt: skip
    check_sizes(gpu.trace.path, events.start_ns, events.end_ns, bounds)
    if bounds[-1][2] == _NEVER and not _is_recorded(events, bounds):
        bounds = bounds[:-1]
    spans = Spans(events, [(begin, end) for _, begin, end in bounds])
    edges = connect(spans, recorded_dependencies(gpu, events))
    source, target = spans.rows[edges[:, :2]].T
    over_all_steps = unique(edge_keys(source, target, edges[:, 2], edges[:, 3], len(events)))
    recorded = RecordedEvents(
        kinds=events.operations,
        kind=events.operation,
        start_ns=events.start_ns,
        end_ns=events.end_ns,
        issued_ns=events.start_ns,
        leads=np.zeros(len(events), np.bool_),
        edges=edges_of(over_all_steps, len(events)),
        meetings=_meetings_of(gpu, events),
    )
    lasts = _last(spans, edges, np.array([end for _, _, end in bounds], np.int64))
    del spans, edges, over_all_steps
    operations, cut = cut_into_steps(recorded, bounds)
    parts = [
        replace(step, next_ns=NO_NEXT)
        if step.next_ns == _NEVER
        else replace(step, end_ns=np.minimum(step.end_ns, step.next_ns), last=last)
        for step, last in zip(cut, lasts, strict=True)
    ]
    return RankSteps(gpu.name, operations, parts, notes, gpu.worker)


def _last(spans: Spans, edges: Int64, next_ns: Int64) -> list[Int64]:
    """Find the events of each step that must be over before the next one begins, at `next_ns` (k,).

    They have no target, and do not run on beside the next step. STEP always runs on, until the next forward
    operation, but its part in this step counts.
    """
    is_over = (spans.end_ns <= next_ns[spans.step]) | spans.are(np.arange(len(spans)), "STEP")
    followed = edges[~from_start(edges) & is_over[edges[:, 1]], 0]
    is_over[followed] = False
    last = np.flatnonzero(is_over)
    in_step = last - spans.first[spans.step[last]]
    return np.split(in_step, np.searchsorted(last, spans.first[1:-1]))


def _is_recorded(events: GpuEvents, bounds: Sequence[tuple[int, int, int]]) -> bool:
    """Tell if the last step, whose end is not recorded, has about as many events as the steps before."""
    begin, end = np.array(bounds, np.int64)[:, 1:].T
    sizes = np.searchsorted(events.start_ns, end) - np.searchsorted(events.start_ns, begin)
    before, last = sizes[:-1], int(sizes[-1])
    usual = median(before) if len(before) else last
    return MIN_RECORDED * usual <= last <= usual / MIN_RECORDED


def _meetings_of(gpu: RankTrace, events: GpuEvents) -> Meetings:
    of_operations = meetings_table(_meetings_of_operations(gpu, events))
    bounds = (np.searchsorted(of_operations.event, events.operation, side) for side in ("left", "right"))
    meetings, event = ranges(*bounds)
    return replace(of_operations.select(meetings, event), turn=events.nth[event])


def _meetings_of_operations(gpu: RankTrace, events: GpuEvents) -> Iterator[Meeting]:
    """Yield the meetings of operations, instead of events, with other GPUs.

    Communications recorded without stages end once every GPU has begun its own.
    """
    worker = _ALL if gpu.worker is None else gpu.worker
    with_stages = {op.transfer.whole for op in events.operations if op.transfer.stage}
    for number, operation in enumerate(events.operations):
        if events.is_whole(number) and operation.name not in with_stages:
            yield Meeting((_ALL, "communicate", operation.name), number, enters=True, leaves=True)
        for meeting in _STAGE_MEETINGS.get(operation.transfer.stage, ()):
            key = (_ALL if meeting.all_workers else worker, meeting.what, operation.transfer.key)
            yield Meeting(key, number, meeting.enters, meeting.leaves, meeting.joint, meeting.rule)
