"""Spans of threads as steps: what each thread did at every moment, and what it waited for.

For systems whose traces do not say what launches what. An operation is what a thread did without its
children. It waits for the one before it on its thread; where the thread was idle, for what an arrow says, or
for the operation of its rank that ended last before it started. A collective ends only after its last member
has started.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from arrays import Int64, Mask
from arrays.innermost import innermost, lies_inside
from dialects.arrows import Arrows
from dialects.masks import by_name
from dialects.name_rules import may_wait
from dialects.roles import Phase, Role, is_communication
from dialects.step_parts import (
    UNMARKED,
    EdgeKind,
    Joint,
    Meeting,
    Operation,
    RankSteps,
    edge_rows,
    meetings_table,
)
from dialects.step_windows import RecordedEvents, check_sizes, cut_into_steps, ended_last, ended_nearest
from dialects.steps import Step
from dialects.sync_points import SyncPart
from errors import TraceError
from formats.columns import Trace

Category = Callable[[str, str], str]


class Meaning(Struct, frozen=True):
    """Properties of a system's spans, per slice of the trace (n,).

    Attributes
    ----------
    roles : those that are ignored stand for no work; communication with all that it contains
    collective : the n-th of its name in a step is the same operation on every rank
    phases : of operations, by name
    category : of an operation, from its name and the category in the trace
    parts : what a slice tells of a collective, by row, where that is more than its name: the group, or that
        it only begins or ends it
    messages : which of these pass data from one rank to one other
    waits : which wait for other threads, beside those whose names say so
    jitters : times are a device's: what ended nearest to a begin is waited for, see `ended_nearest`
    on_device : which run on an accelerator
    """

    roles: NDArray[np.int8]
    collective: Mask
    phases: Mapping[str, Phase]
    category: Category
    parts: Mapping[int, SyncPart] = MappingProxyType({})
    messages: Mask | None = None
    waits: Mask | None = None
    jitters: bool = False
    on_device: Mask | None = None

    @property
    def communication(self) -> Mask:
        """Which slices (n,) move data between ranks."""
        return is_communication(self.roles)


def record_spans(
    name: str, trace: Trace, steps: Sequence[Step], meaning: Meaning, arrows: Arrows | None = None
) -> RankSteps:
    """Return the steps of one rank from its spans; without `steps` the whole recording is step 1."""
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    notes = () if steps else (UNMARKED,)
    steps = steps or (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
    events = _events(trace, steps, meaning, arrows)
    check_sizes(trace.path, events.start_ns, events.end_ns, steps)
    return RankSteps(name, *cut_into_steps(events, steps), notes)


def _events(trace: Trace, steps: Sequence[Step], meaning: Meaning, arrows: Arrows | None) -> RecordedEvents:
    """Return the activity of the threads: each slice while none of its children ran."""
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
    told, meetings = edge_rows(*np.empty((4, 0), np.int64)), _meetings_of(trace, steps, row, meaning)
    if arrows is not None:
        told, others = arrows.edges(trace.track_id[row].astype(np.int64), start, end)
        meetings += others
    return RecordedEvents(
        kinds=kinds,
        kind=kind,
        start_ns=start,
        end_ns=end,
        issued_ns=start,
        leads=np.zeros(len(row), np.bool_),
        edges=np.concatenate(
            [
                _along_threads(trace, row, start, end, told, meaning.jitters),
                told,
                *_waits(trace, row, start, end, meaning),
            ]
        ),
        meetings=meetings_table(meetings),
    )


def _operations(trace: Trace, row: Int64, meaning: Meaning) -> tuple[list[Operation], Int64]:
    """Return the distinct operations, and which one each event (m,) is."""
    columns = (trace.name_id[row], trace.cat_id[row], trace.track_id[row])
    sizes = (len(trace.names), len(trace.cats), len(trace.tracks))
    _, first, numbers = np.unique(
        np.ravel_multi_index(columns, sizes), return_index=True, return_inverse=True
    )
    operations = []
    for at in row[first].tolist():
        name = trace.names[trace.name_id[at]]
        operations.append(
            Operation(
                name=name,
                cat=meaning.category(name, trace.cats[trace.cat_id[at]]),
                track=trace.tracks[trace.track_id[at]],
                role=Role(meaning.roles[at]),
                phase=meaning.phases.get(name, Phase.NONE),
                is_collective=bool(meaning.collective[at]),
                on_device=meaning.on_device is not None and bool(meaning.on_device[at]),
            )
        )
    return operations, numbers.reshape(-1)


def _along_threads(trace: Trace, row: Int64, start: Int64, end: Int64, told: Int64, jitters: bool) -> Int64:
    """Let each event wait for the one before it on its thread, and a thread that was idle for any other.

    Where it is not `told`, by edges (e, 4), what the event waited for. Where times `jitters`, it begins no
    earlier than what it waited for ended, which is set in `start`.
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
    is_idle = (other >= 0) & ((before < 0) | (end[other] > end[before]))
    is_idle[told[told[:, 2] < Joint.END_TO_BODY, 1]] = False
    idle = np.flatnonzero(is_idle)
    return np.concatenate(
        [
            edge_rows(before[follows], follows, Joint.END_TO_HEAD, EdgeKind.DEVICE),
            edge_rows(other[idle], idle, Joint.END_TO_HEAD, EdgeKind.HAND_OVER),
        ]
    )


def _waits(trace: Trace, row: Int64, start: Int64, end: Int64, meaning: Meaning) -> list[Int64]:
    """Let what waits wait for what ended last in it, on another thread.

    By its name it waits for anything; in its own time a span that has children waits for communication.
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
        edges.append(edge_rows(sources[inside], targets[inside], Joint.END_TO_BODY, EdgeKind.HAND_OVER))
    return edges


def _meetings_of(trace: Trace, steps: Sequence[Step], row: Int64, meaning: Meaning) -> list[Meeting]:
    """Return this rank's part in each collective: by its step, its key and its turn in that step."""
    events_of: dict[int, list[int]] = {}
    for event in np.flatnonzero(meaning.collective[row]).tolist():
        events_of.setdefault(int(row[event]), []).append(event)
    begins = [step.start_ns for step in steps]
    seen: Counter[Hashable] = Counter()
    meetings: list[Meeting] = []
    for slice_row, events in events_of.items():
        place = bisect_right(begins, trace.ts_ns[slice_row]) - 1
        part = meaning.parts.get(slice_row) or SyncPart(trace.names[trace.name_id[slice_row]])
        key = (steps[place].label if place >= 0 else None, part.key)
        turn, first, last = seen[key, part], events[0], events[-1]
        is_message = meaning.messages is not None and bool(meaning.messages[slice_row])
        meetings += [
            Meeting(
                key,
                event,
                enters=part.begins and event == first,
                leaves=part.ends and event == last,
                kind=EdgeKind.DATA if is_message else EdgeKind.GROUP,
                turn=turn,
            )
            for event in dict.fromkeys((first, last))
        ]
        seen[key, part] += 1
    return meetings
