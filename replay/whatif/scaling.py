"""Longer or shorter operations, categories, ranks and stages; operations and annotations left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.step_parts import Joint
from analyzer.reading.formats.columns import Trace, Track
from replay.edit import Edit, EditRequest, Job, Order
from replay.selection import Selection, as_ratio, named_owners, of_stage, select

#: The ratio by which `diagnose` removes the time of an operation.
GONE = "0.001"

_ADDED = re.compile(r"\+([0-9]+(?:\.[0-9]+)?)(s|ms|us)")
_UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_STAGE = re.compile(r"stage(\d{1,18})(?:\.(.+))?", re.DOTALL)
_MOST_ADDED_NS = 86_400e9


def parse(request: EditRequest, job: Job) -> Edit:
    """Parse `drop=` and what no other edit knows: the name of an operation, category, rank or stage."""
    if request.name == "drop":
        return _dropped(request, job)
    factor, added_ns = _change(request)
    _chosen(job.recording, request)  # refuse an unknown name before simulating

    def apply(recording: Recording) -> Recording:
        return changed(recording, _chosen(recording, request), factor, added_ns)

    return Edit(apply, order=Order.SUMS if added_ns else Order.FACTORS)


def _chosen(recording: Recording, request: EditRequest) -> Selection:
    if stage := _STAGE.fullmatch(request.name):
        return of_stage(recording, request, int(stage[1]), stage[2] or "")
    return select(recording, request, request.name)


def _change(request: EditRequest) -> tuple[float, int]:
    """Parse the factor and the addend (ns) of a duration: ``1.5``, ``+400ms``, ``+20us``, ``+1s``."""
    if not request.value.startswith("+"):
        return as_ratio(request), 0
    added = _ADDED.fullmatch(request.value)
    if added is None:
        raise request.refused(f"an added time has a unit: {request.value}ms")
    added_ns = float(added[1]) * _UNITS_NS[added[2]]
    if added_ns > _MOST_ADDED_NS:
        raise request.refused("more than a day")
    return 1.0, round(added_ns)


def changed(recording: Recording, chosen: Selection, factor: float, added_ns: int = 0) -> Recording:
    """Multiply the work of the `chosen` operations by `factor`, and add `added_ns`.

    The time is added once per step and owner, before the first chosen operation, not to each piece of an
    operation recorded in pieces.
    """

    def edited(step: StepGraph) -> StepGraph:
        events = chosen.events(step)
        work, tail = _times(step.work_ns, factor, events), _times(step.tail_ns, factor, chosen.tails)
        events[step.continued[:, 1]] = False  # these started in the step before
        candidates = np.flatnonzero(events)
        candidates = candidates[np.argsort(step.start_ns[candidates], kind="stable")]
        first = candidates[np.unique(step.owner[candidates], return_index=True)[1]]
        work[first] += added_ns
        in_tail = chosen.tails.copy()
        in_tail[step.owner[first]] = False
        tail[in_tail] += added_ns
        return replace(step, work_ns=work, tail_ns=tail)

    return recording.edited(edited)


def _times(time_ns: Int64, factor: float, chosen: Mask) -> Int64:
    return np.where(chosen, np.rint(time_ns * factor), time_ns).astype(np.int64)


# ---- drop


def _dropped(request: EditRequest, job: Job) -> Edit:
    """Parse `drop=`: remove the named events and the gaps inside."""
    spans = _spans_of(job.recording, job.load_traces(), request.value)
    if not spans:
        select(job.recording, request, request.value)

    def without(edited: Recording) -> Recording:
        chosen = select(edited, request, request.value, may_be_nothing=bool(spans))

        def left(step: StepGraph) -> StepGraph:
            recorded = edited.recorded_step(step)  # spans have recorded times
            gone = _contained(edited, chosen, spans, recorded)
            in_gap, in_tail = _in_gaps(edited, spans, recorded)
            in_gap = np.minimum(in_gap, step.gap_ns)
            work, gap = (np.where(gone, 0, column) for column in (step.work_ns, step.gap_ns - in_gap))
            tail = np.maximum(step.tail_ns - in_tail, 0)
            return replace(step, work_ns=work, gap_ns=gap, tail_ns=tail)

        return edited.edited(left)

    return Edit(without)


class _Spans(NamedTuple):
    """The k spans of a name on one track of an owner, in order."""

    owner: int
    track: Track
    start_ns: Int64
    end_ns: Int64


def _spans_of(recording: Recording, traces: Sequence[Trace], name: str) -> list[_Spans]:
    """Spans of the slices called `name` (with or without its rank) in the owners' traces."""
    owners, bare = named_owners(recording, name)
    spans = []
    for owner, trace in enumerate(traces):
        called = name if name in trace.names else bare if owners[owner] else ""
        if called not in trace.names:
            continue
        rows = np.flatnonzero(trace.name_id == trace.names.index(called))
        for track in np.unique(trace.track_id[rows]).tolist():
            named = rows[trace.track_id[rows] == track]
            start = trace.ts_ns[named]
            spans.append(_Spans(owner, trace.tracks[track], start, start + trace.dur_ns[named]))
    return spans


def _tracks(recording: Recording, step: StepGraph) -> tuple[dict[tuple[int, Track], int], Int64]:
    """Assign numbers to the owners' tracks, and find the track of each event of a step (n,)."""
    tracks, of_operation = recording.numbered(lambda op: (op.owner, op.track))
    return {track: i for i, track in enumerate(tracks)}, of_operation[step.operation]


def _in_gaps(recording: Recording, spans: Sequence[_Spans], step: StepGraph) -> tuple[Int64, Int64]:
    """Time of spans in the gap before each event (n,) and in each owner's tail (m,).

    Only gaps that start or end on the span's own thread count, not those of other threads or devices.
    """
    in_gap, in_tail = np.zeros(len(step), np.int64), np.zeros(len(step.tail_ns), np.int64)
    on_host = ~recording.which(lambda op: op.on_device)[step.operation]
    to_head = step.edges[step.edges[:, 2] < Joint.END_TO_BODY]
    number, track = _tracks(recording, step)
    for span in spans:
        is_here = track == number.get((span.owner, span.track), -1)
        begins_here = np.zeros(len(step), np.bool_)
        begins_here[to_head[is_here[to_head[:, 0]], 1]] = True
        events = np.flatnonzero(is_here | (begins_here & on_host & (step.owner == span.owner)))
        start, open_ns = step.start_ns[events], union(span.start_ns, span.end_ns)
        in_gap[events] += clipped_lengths(open_ns, start - step.gap_ns[events], start)
        end = step.last_end_ns[span.owner, None]
        in_tail[span.owner] += int(clipped_lengths(open_ns, end, end + step.tail_ns[span.owner])[0])
    return in_gap, in_tail


def _contained(recording: Recording, chosen: Selection, spans: Sequence[_Spans], step: StepGraph) -> Mask:
    """Select events of a step (n,) that are `chosen`, inside a chosen event or span, or follow from these.

    Events inside are on the same track; events launched from inside, or parts of events inside, follow. (A
    span may start a little later than its first event in the step graph.)
    """
    number, track = _tracks(recording, step)
    inside_all = chosen.events(step)
    for number_of_track in np.unique(track[inside_all]).tolist():
        events = np.flatnonzero(track == number_of_track)
        outer = events[inside_all[events]]
        inside = _within(step.start_ns[outer], step.end_ns[outer], step.start_ns[events], step.end_ns[events])
        inside_all[events[inside]] = True
    middle = (step.start_ns + step.end_ns) // 2
    for span in spans:
        events = np.flatnonzero(track == number.get((span.owner, span.track), -1))
        inside_all[events[_within(span.start_ns, span.end_ns, middle[events], middle[events] + 1)]] = True
    follow = step.edges[np.isin(kinds_of(step.edges), (EdgeKind.LAUNCH, EdgeKind.PART))]
    while True:
        more = follow[inside_all[follow[:, 0]] & ~inside_all[follow[:, 1]], 1]
        if len(more) == 0:
            return inside_all
        inside_all[more] = True


def _within(outer_start: Int64, outer_end: Int64, start: Int64, end: Int64) -> Mask:
    """Mask of the intervals (n,) inside any outer interval (k,)."""
    order = np.argsort(outer_start, kind="stable")
    latest_end = np.maximum.accumulate(outer_end[order])
    before = np.searchsorted(outer_start[order], start, side="right") - 1
    return (before >= 0) & (end <= latest_end[np.maximum(before, 0)])
