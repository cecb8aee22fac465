"""Steps from the spans of threads, for systems whose traces do not record launches.

An operation is a span without its children. It waits for the operation before it on its thread; where the
thread was idle, for the source of an arrow, or for the operation of its rank that ended last before it
started. A collective ends only after its last member has started.

An arrow (flow events) leaves the slice in which it begins. The slice at whose begin it ends, or the next on
that thread, starts after it; a slice in whose middle it ends waited for it. A source that continues after the
arrow has left is cut there. The two ends of an arrow may be in different ranks of one file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.arrays.numbering import as_of, numbered, occurrence_number
from analyzer.base.errors import TraceError
from analyzer.reading.dialects import step_windows
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.name_rules import may_wait
from analyzer.reading.dialects.recorded_collectives import SyncPart
from analyzer.reading.dialects.roles import Phase, Role, by_name, is_communication
from analyzer.reading.dialects.step_parts import (
    UNMARKED,
    Joint,
    Meeting,
    Operation,
    RankSteps,
    RankTrace,
    edge_rows,
    meetings_table,
)
from analyzer.reading.dialects.steps import Step, step_table
from analyzer.reading.formats.columns import Trace

_LEAVES, _ENTERS = "st", "tf"


class _Arrows(NamedTuple):
    """The ends (k,) of arrows: those of one `flow` follow each other, by time."""

    path: str
    names: list[tuple[str, str, str]]  # of flows
    flow: Int64
    track: Int64
    at_ns: Int64
    leaves: Mask
    enters: Mask

    def cut(self, track: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
        """Cut events (m,) where arrows begin; return the event, start and end of each piece."""
        event = as_of(track, start, self.track, self.at_ns)
        inside = ~self.enters & (event >= 0) & (start[event] < self.at_ns) & (self.at_ns < end[event])
        pieces = np.unique(np.stack([event[inside], self.at_ns[inside]]), axis=1)
        event = np.append(np.arange(len(start)), pieces[0])
        start = np.append(start, pieces[1])
        order = np.lexsort((start, event))
        event, start = event[order], start[order]
        is_cut = np.append(event[1:] == event[:-1], False)
        return event, start, np.where(is_cut, np.roll(start, -1), end[event])

    def edges(self, track: Int64, start: Int64, end: Int64) -> tuple[Int64, list[Meeting]]:
        """Make the edges (e, 4) between events (m,), and the meetings with arrows of other ranks."""
        left = as_of(track, start, self.track, self.at_ns)
        following = as_of(track, -start, self.track, -self.at_ns)
        is_over = (left < 0) | ((end[left] <= self.at_ns) & (start[left] < self.at_ns))
        entered = np.where(is_over, following, left)
        left[end[left] < self.at_ns] = -1
        joint = np.where(self.at_ns > start[entered], Joint.END_TO_BODY, Joint.END_TO_HEAD)
        leads_on = self.leaves[:-1] & self.enters[1:] & (self.flow[1:] == self.flow[:-1])
        begins, ends = self.leaves & ~np.append(leads_on, False), self.enters & ~np.append(False, leads_on)
        meetings = [*self._meetings(begins, left, joint, True), *self._meetings(ends, entered, joint, False)]
        here = np.flatnonzero(leads_on & (left[:-1] >= 0) & (entered[1:] >= 0) & (left[:-1] != entered[1:]))
        source, target = left[here], entered[here + 1]
        goes_on = end[source] > self.at_ns[here + 1]
        return edge_rows(source, target, joint[here + 1] + goes_on, Rule.ARROW), meetings

    def _meetings(self, chosen: Mask, event: Int64, joint: Int64, enters: bool) -> Iterator[Meeting]:
        """Yield the `chosen` ends (k,), each at an `event` (k,), as meetings with another rank."""
        ends = np.flatnonzero(chosen & (event >= 0))
        for i, turn in zip(ends.tolist(), occurrence_number(self.flow[ends]).tolist(), strict=True):
            key = (self.path, *self.names[self.flow[i]])
            yield Meeting(key, int(event[i]), enters, not enters, Joint(joint[i]), Rule.ARROW, turn)


def arrows(trace: Trace) -> _Arrows | None:
    """Collect the ends of the arrows of a trace; None without any."""
    points, both = trace.points, zip(trace.points.phase, trace.points.ids, strict=True)
    rows = [i for i, (phase, id_) in enumerate(both) if phase in _LEAVES + _ENTERS and id_ is not None]
    if not rows or not len(trace):
        return None
    ends = points.select(np.array(rows))
    keys = zip(ends.cat_id.tolist(), ends.name_id.tolist(), ends.ids, strict=True)
    names, flow = numbered((trace.cats[cat], trace.names[name], id_) for cat, name, id_ in keys)
    order = np.lexsort((ends.ts_ns, flow))
    ends = ends.select(order)
    leaves, enters = (np.array([phase in of for phase in ends.phase]) for of in (_LEAVES, _ENTERS))
    track = ends.track_id.astype(np.int64)
    return _Arrows(trace.path, names, flow[order].astype(np.int64), track, ends.ts_ns, leaves, enters)


class Meaning(Struct, frozen=True):
    """Properties of a system's spans, per slice of the trace (n,)."""

    roles: NDArray[np.int8]  # ignored slices are no work; communication includes all slices inside
    collective: Mask  # the n-th of its name in a step is the same operation on every rank
    phases: Mapping[str, Phase]  # of operations, by name
    category: Callable[[str, str], str]  # of an operation, from its name and the category in the trace
    #: By row: the group of a collective, or that the slice only begins or ends it.
    parts: Mapping[int, SyncPart] = MappingProxyType({})
    messages: Mask | None = None  # collectives that pass data from one rank to another
    waits: Mask | None = None  # waits for other threads, beside those with the name of a wait
    #: A slice waited for what ended nearest to its start (`ended_nearest`), else for the last that had ended.
    jitters: bool = False
    on_device: Mask | None = None

    @property
    def communication(self) -> Mask:
        """Mask the slices (n,) that move data between ranks."""
        return is_communication(self.roles)


def record_spans(
    rank: RankTrace, trace: Trace, steps: Sequence[Step], meaning: Meaning, arrows: _Arrows | None = None
) -> RankSteps:
    """Make the steps of a rank from the spans in `trace`; without `steps` the whole recording is one."""
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    notes = [] if steps else [UNMARKED]
    steps = steps or (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
    events = _events(trace, steps, meaning, arrows)
    step_windows.check_sizes(trace.path, events.start_ns, events.end_ns, steps)
    some, left = step_windows.sampled(step_table(steps), rank.most_steps)
    looked_at = [steps[i] for i in some.tolist()]
    return RankSteps(rank.name, *step_windows.cut_into_steps(events, looked_at), [*notes, *left])


def _events(
    trace: Trace, steps: Sequence[Step], meaning: Meaning, arrows: _Arrows | None
) -> step_windows.RecordedEvents:
    """Make events of slices, without the time of their children."""
    rows = np.flatnonzero(meaning.roles != Role.IGNORED)
    start, end, track = trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows]
    rows = rows[~lies_inside(start, end, track, meaning.communication[rows])]
    owner, start, end = innermost(trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows])
    if arrows is not None:
        event, start, end = arrows.cut(trace.track_id[rows[owner]].astype(np.int64), start, end)
        owner = owner[event]
    by_start = np.lexsort((end, start))
    row, start, end = rows[owner][by_start], start[by_start], end[by_start]
    kinds, kind = _operations(trace, row, meaning)
    drawn, meetings = edge_rows(*np.empty((4, 0), np.int64)), _meetings_of(trace, steps, row, meaning)
    if arrows is not None:
        drawn, others = arrows.edges(trace.track_id[row].astype(np.int64), start, end)
        meetings += others
    edges = [
        _along_threads(trace, row, start, end, drawn, meaning.jitters),
        drawn,
        *_waits(trace, row, start, end, meaning),
    ]
    return step_windows.RecordedEvents(
        kinds=kinds,
        kind=kind,
        start_ns=start,
        end_ns=end,
        issued_ns=start,
        leads=np.zeros(len(row), np.bool_),
        edges=np.concatenate(edges),
        meetings=meetings_table(meetings),
    )


def _operations(trace: Trace, row: Int64, meaning: Meaning) -> tuple[list[Operation], Int64]:
    """Find the distinct operations, and the operation of each event (m,)."""
    columns = (trace.name_id[row], trace.cat_id[row], trace.track_id[row])
    sizes = (len(trace.names), len(trace.cats), len(trace.tracks))
    _, first, numbers = np.unique(
        np.ravel_multi_index(columns, sizes), return_index=True, return_inverse=True
    )
    operations = []
    for i in row[first].tolist():
        name, role = trace.names[trace.name_id[i]], Role(meaning.roles[i])
        operations.append(
            Operation(
                name=name,
                cat=meaning.category(name, trace.cats[trace.cat_id[i]]),
                track=trace.tracks[trace.track_id[i]],
                role=role,
                phase=Phase.INPUT if role is Role.INPUT else meaning.phases.get(name, Phase.NONE),
                is_collective=bool(meaning.collective[i]),
                on_device=meaning.on_device is not None and bool(meaning.on_device[i]),
            )
        )
    return operations, numbers.reshape(-1)


def _along_threads(trace: Trace, row: Int64, start: Int64, end: Int64, drawn: Int64, jitters: bool) -> Int64:
    """Let each event wait for the one before it on its thread, and an idle thread for another thread.

    Edges `drawn` (e, 4) take precedence. If times jitter, `start` is raised to the end of the source.
    """
    track = trace.track_id[row]
    order = np.lexsort((start, track))
    before = np.full(len(row), -1)
    before[order[1:]] = np.where(track[order[1:]] == track[order[:-1]], order[:-1], -1)
    follows = np.flatnonzero(before >= 0)
    if jitters:
        other = step_windows.ended_nearest(start, end, track, np.arange(len(row)))
        np.maximum(start, np.where(other >= 0, end[other], start), out=start)
    else:
        other = step_windows.ended_last(end, track, start, track)
    is_idle = (other >= 0) & ((before < 0) | (end[other] > end[before]))
    is_idle[drawn[drawn[:, 2] < Joint.END_TO_BODY, 1]] = False
    idle = np.flatnonzero(is_idle)
    along = edge_rows(before[follows], follows, Joint.END_TO_HEAD, Rule.THREAD)
    return np.concatenate([along, edge_rows(other[idle], idle, Joint.END_TO_HEAD, Rule.IDLE_THREAD)])


def _waits(trace: Trace, row: Int64, start: Int64, end: Int64, meaning: Meaning) -> list[Int64]:
    """Let an event that waits wait for the last event of another thread that ended during it.

    A wait by its name waits for anything; a span with children waits, outside of these, for communication.
    """
    waits = by_name(trace, may_wait)[row]
    if meaning.waits is not None:
        waits |= meaning.waits[row]
    has_children = (np.bincount(row, end - start, len(trace)) < trace.dur_ns)[row]
    track, communicates = trace.track_id[row], meaning.communication[row]
    edges = []
    for is_source, is_target in ((np.ones(len(row), np.bool_), waits), (communicates, has_children)):
        sources, targets = np.flatnonzero(is_source), np.flatnonzero(is_target & ~communicates)
        last = step_windows.ended_last(end[sources], track[sources], end[targets], track[targets])
        sources, targets = sources[last[last >= 0]], targets[last >= 0]
        inside = start[targets] < end[sources]
        edges.append(edge_rows(sources[inside], targets[inside], Joint.END_TO_BODY, Rule.NAMED_WAIT))
    return edges


def _meetings_of(trace: Trace, steps: Sequence[Step], row: Int64, meaning: Meaning) -> list[Meeting]:
    """List this rank's part in each collective: by its step, its key and its turn in that step."""
    events_of: dict[int, list[int]] = {}
    for event in np.flatnonzero(meaning.collective[row]).tolist():
        events_of.setdefault(int(row[event]), []).append(event)
    begins = [step.start_ns for step in steps]
    seen: Counter[Hashable] = Counter()
    meetings: list[Meeting] = []
    for slice_row, events in events_of.items():
        step = bisect_right(begins, trace.ts_ns[slice_row]) - 1
        part = meaning.parts.get(slice_row) or SyncPart(trace.names[trace.name_id[slice_row]])
        key = (steps[step].label if step >= 0 else None, part.key)
        is_message = meaning.messages is not None and meaning.messages[slice_row]
        rule = Rule.TRANSFER if is_message else Rule.COLLECTIVE
        for event in dict.fromkeys((events[0], events[-1])):
            enters, leaves = part.begins and event == events[0], part.ends and event == events[-1]
            meetings.append(Meeting(key, event, enters, leaves, rule=rule, turn=seen[key, part]))
        seen[key, part] += 1
    return meetings
