"""Annotations: recorded spans around other events, which need not be events of a step themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dag.step_graph import Bool, Recording, StepGraph
from dialects.step_parts import Kind
from formats.columns import Int64, Trace, Track
from replay.whatif.selection import Selection, named_owners


class Spans(NamedTuple):
    """When a name was open on one track of an owner: k spans, in order."""

    owner: int
    track: Track
    start_ns: Int64
    end_ns: Int64


def spans_of(recording: Recording, traces: Sequence[Trace], name: str) -> list[Spans]:
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
            found.append(Spans(owner, trace.tracks[track], start, start + trace.dur_ns[mine]))
    return found


def contained(recording: Recording, chosen: Selection, spans: Sequence[Spans], step: StepGraph) -> Bool:
    """Return the events of a step (n,) that are `chosen`, run inside one or inside a span, or follow.

    What is launched from inside, or is a part of what is inside, follows. Inside is on the same track or
    thread. (A span of the trace may begin a little later than the step graph has its first event.)
    """
    tracks = [(one.owner, one.track) for one in recording.operations]
    number = {track: i for i, track in enumerate(dict.fromkeys(tracks))}
    track = np.array([number[one] for one in tracks], np.int64)[step.operation]
    found = chosen.events(step)
    for here in np.unique(track[found]).tolist():
        outer, events = np.flatnonzero(found & (track == here)), np.flatnonzero(track == here)
        inside = _within(step.start_ns[outer], step.end_ns[outer], step.start_ns[events], step.end_ns[events])
        found[events[inside]] = True
    middle = (step.start_ns + step.end_ns) // 2
    for one in spans:
        events = np.flatnonzero(track == number.get((one.owner, one.track), -1))
        found[events[_within(one.start_ns, one.end_ns, middle[events], middle[events] + 1)]] = True
    follow = step.edges[np.isin(step.edges[:, 3], (Kind.LAUNCH, Kind.PART))]
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
    inside: Bool = (before >= 0) & (end <= latest_end[np.maximum(before, 0)])
    return inside
