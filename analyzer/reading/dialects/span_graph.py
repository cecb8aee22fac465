"""Steps from the spans of threads, for systems whose traces do not record launches.

An operation is a span without its children. It waits for the operation before it on its thread; where the
thread was idle, for the operation of its rank that ended last before it started. A collective ends only
after its last member has started.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import innermost, lies_inside
from analyzer.base.errors import TraceError
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
from analyzer.reading.dialects.step_windows import (
    RecordedEvents,
    check_sizes,
    cut_into_steps,
    ended_last,
    ended_nearest,
    sampled,
)
from analyzer.reading.dialects.steps import Step, step_table
from analyzer.reading.formats.columns import Trace


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


def record_spans(rank: RankTrace, trace: Trace, steps: Sequence[Step], meaning: Meaning) -> RankSteps:
    """Make the steps of a rank from the spans in `trace`; without `steps` the whole recording is one."""
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    notes = [] if steps else [UNMARKED]
    steps = steps or (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
    events = _events(trace, steps, meaning)
    check_sizes(trace.path, events.start_ns, events.end_ns, steps)
    some, left = sampled(step_table(steps), rank.most_steps)
    looked_at = [steps[i] for i in some.tolist()]
    return RankSteps(rank.name, *cut_into_steps(events, looked_at), [*notes, *left])


def _events(trace: Trace, steps: Sequence[Step], meaning: Meaning) -> RecordedEvents:
    """Make events of slices, without the time of their children."""
    rows = np.flatnonzero(meaning.roles != Role.IGNORED)
    start, end, track = trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows]
    rows = rows[~lies_inside(start, end, track, meaning.communication[rows])]
    owner, start, end = innermost(trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows])
    by_start = np.lexsort((end, start))
    row, start, end = rows[owner][by_start], start[by_start], end[by_start]
    kinds, kind = _operations(trace, row, meaning)
    edges = [
        _along_threads(trace, row, start, end, meaning.jitters),
        *_waits(trace, row, start, end, meaning),
    ]
    return RecordedEvents(
        kinds=kinds,
        kind=kind,
        start_ns=start,
        end_ns=end,
        issued_ns=start,
        leads=np.zeros(len(row), np.bool_),
        edges=np.concatenate(edges),
        meetings=meetings_table(_meetings_of(trace, steps, row, meaning)),
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


def _along_threads(trace: Trace, row: Int64, start: Int64, end: Int64, jitters: bool) -> Int64:
    """Let each event wait for the one before it on its thread, and an idle thread for another thread.

    If times jitter, `start` is raised to the end of the source.
    """
    track = trace.track_id[row]
    order = np.lexsort((start, track))
    before = np.full(len(row), -1)
    before[order[1:]] = np.where(track[order[1:]] == track[order[:-1]], order[:-1], -1)
    follows = np.flatnonzero(before >= 0)
    if jitters:
        other = ended_nearest(start, end, track, np.arange(len(row)))
        np.maximum(start, np.where(other >= 0, end[other], start), out=start)
    else:
        other = ended_last(end, track, start, track)
    idle = np.flatnonzero((other >= 0) & ((before < 0) | (end[other] > end[before])))
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
        last = ended_last(end[sources], track[sources], end[targets], track[targets])
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
