"""Operations, and annotations with all that they contain, taken away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.model.graph.step_graph import Bool, Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.step_parts import Joint
from analyzer.reading.formats.columns import Trace, Track
from replay.edit import Edit, EditRequest, Job
from replay.selection import Selection, named_owners, select

NAME = "drop=NAME"
HELP = "an operation costs nothing; an annotation goes with all that it contains, idle time, too"


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that takes away what is named, and gaps before and in it; None for other requests."""
    if request.name != "drop":
        return None
    spans = _spans_of(job.recording, job.traces, request.value)
    if not spans:
        select(job.recording, request, request.value)

    def without(edited: Recording) -> Recording:
        chosen = select(edited, request, request.value, may_be_nothing=bool(spans))

        def left(step: StepGraph) -> StepGraph:
            gone = _contained(edited, chosen, spans, step)
            in_gap, in_tail = _in_gaps(edited, spans, step)
            work, gap = (np.where(gone, 0, column) for column in (step.work_ns, step.gap_ns - in_gap))
            tail = np.maximum(step.tail_ns - in_tail, 0)
            return replace(step, work_ns=work, gap_ns=gap, tail_ns=tail)

        return edited.edited(left)

    return Edit(without)


class _Spans(NamedTuple):
    """When a name was open on one track of an owner: k spans, in order."""

    owner: int
    track: Track
    start_ns: Int64
    end_ns: Int64

    def open_ns(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return for how long of each interval (n,) the name was open."""
        return clipped_lengths(union(self.start_ns, self.end_ns), start_ns, end_ns)


def _spans_of(recording: Recording, traces: Sequence[Trace], name: str) -> list[_Spans]:
    """Return the spans of the slices called `name` (with or without its rank) in the owners' traces."""
    owners, bare = named_owners(recording, name)
    found = []
    for owner, trace in enumerate(traces):
        called = name if name in trace.names else bare if owners[owner] else ""
        if called not in trace.names:
            continue
        rows = np.flatnonzero(trace.name_id == trace.names.index(called))
        for track in np.unique(trace.track_id[rows]).tolist():
            mine = rows[trace.track_id[rows] == track]
            start = trace.ts_ns[mine]
            found.append(_Spans(owner, trace.tracks[track], start, start + trace.dur_ns[mine]))
    return found


def _tracks(recording: Recording, step: StepGraph) -> tuple[dict[tuple[int, Track], int], Int64]:
    """Return the numbers of the owners' tracks, and on which of them each event of a step (n,) ran."""
    tracks, of_operation = recording.numbered(lambda one: (one.owner, one.track))
    return {track: i for i, track in enumerate(tracks)}, of_operation[step.operation]


def _in_gaps(recording: Recording, spans: Sequence[_Spans], step: StepGraph) -> tuple[Int64, Int64]:
    """Return for how long spans were open in the gap before each event (n,) and in each owner's tail (m,).

    In a gap that begins or ends on the span's own thread; what another thread, or a device, does meanwhile
    is not a part of it.
    """
    in_gap, in_tail = np.zeros(len(step), np.int64), np.zeros(len(step.tail_ns), np.int64)
    on_host = ~recording.which(lambda one: one.on_device)[step.operation]
    to_head = step.edges[step.edges[:, 2] < Joint.END_TO_BODY]
    number, track = _tracks(recording, step)
    for one in spans:
        is_here = track == number.get((one.owner, one.track), -1)
        begins_here = np.zeros(len(step), np.bool_)
        begins_here[to_head[is_here[to_head[:, 0]], 1]] = True
        events = np.flatnonzero(is_here | (begins_here & on_host & (step.owner == one.owner)))
        start = step.start_ns[events]
        in_gap[events] += one.open_ns(start - step.gap_ns[events], start)
        end = step.last_end_ns[one.owner, None]
        in_tail[one.owner] += int(one.open_ns(end, end + step.tail_ns[one.owner])[0])
    return np.minimum(in_gap, step.gap_ns), in_tail


def _contained(recording: Recording, chosen: Selection, spans: Sequence[_Spans], step: StepGraph) -> Bool:
    """Return the events of a step (n,) that are `chosen`, run inside one or inside a span, or follow.

    What is launched from inside, or is a part of what is inside, follows. Inside is on the same track or
    thread. (A span of the trace may begin a little later than the step graph has its first event.)
    """
    number, track = _tracks(recording, step)
    found = chosen.events(step)
    for here in np.unique(track[found]).tolist():
        outer, events = np.flatnonzero(found & (track == here)), np.flatnonzero(track == here)
        inside = _within(step.start_ns[outer], step.end_ns[outer], step.start_ns[events], step.end_ns[events])
        found[events[inside]] = True
    middle = (step.start_ns + step.end_ns) // 2
    for one in spans:
        events = np.flatnonzero(track == number.get((one.owner, one.track), -1))
        found[events[_within(one.start_ns, one.end_ns, middle[events], middle[events] + 1)]] = True
    follow = step.edges[np.isin(kinds_of(step.edges), (EdgeKind.LAUNCH, EdgeKind.PART))]
    while True:
        more = follow[found[follow[:, 0]] & ~found[follow[:, 1]], 1]
        if len(more) == 0:
            return found
        found[more] = True


def _within(outer_start: Int64, outer_end: Int64, start: Int64, end: Int64) -> Bool:
    """Return which intervals (n,) lie within one of the outer intervals (k,)."""
    order = np.argsort(outer_start, kind="stable")
    latest_end = np.maximum.accumulate(outer_end[order])
    before = np.searchsorted(outer_start[order], start, side="right") - 1
    return (before >= 0) & (end <= latest_end[np.maximum(before, 0)])
