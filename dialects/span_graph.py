"""Spans of threads as steps: what each thread did at every moment, and what it waited for.

For systems whose traces do not say what launches what. An operation is what a thread did without its
children. It waits for the one before it on its thread; where the thread was idle, for the operation of its
rank that ended last before it started. A collective ends only after its last member has started.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dialects.step_parts import Edge, Joint, Kind, Meet, Operation, RankStep, RankSteps, edge_table
from dialects.steps import Mask, Step
from errors import TraceError
from formats.columns import Int64, Trace
from innermost import innermost, lies_inside

Category = Callable[[str, str], str]

_WAITING = re.compile(r"wait|synchronize|thread.*join|acquire", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a system knows of its spans, per slice of the trace (n,).

    Attributes
    ----------
    left_out : marks of the recording, which stand for no work
    communication : moves data between ranks, with all that it contains
    collective : the n-th of its name in a step is the same operation on every rank
    phases : what operations are for, by name: FW BW Comm I/O STEP
    category : of an operation, from its name and the category in the trace
    """

    left_out: Mask
    communication: Mask
    collective: Mask
    phases: Mapping[str, str]
    category: Category


@dataclass(frozen=True, slots=True)
class _Segments:
    """What threads did (m,), by start: rows of the trace and times; `is_frame`: the slice has children."""

    row: Int64
    start_ns: Int64
    end_ns: Int64
    is_frame: Mask

    def between(self, begin_ns: int, end_ns: int) -> Int64:
        """Return the numbers of those that lie in a step, in part."""
        return np.flatnonzero((self.start_ns < end_ns) & (self.end_ns > begin_ns))


def record_spans(name: str, trace: Trace, steps: Sequence[Step], meaning: Meaning) -> RankSteps:
    """Return the steps of one rank from its spans; without `steps` the whole recording is step 1.

    Raises
    ------
    TraceError
        No slice lasts any time.
    """
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    steps = steps or (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
    segments = _segments(trace, meaning)
    numbers, operations = _operations(trace, segments, meaning)
    parts: list[RankStep] = []
    before = np.empty(0, np.int64)
    for step in steps:
        own = segments.between(step.start_ns, step.end_ns)
        part = _step(trace, step, segments, own, numbers, operations, meaning)
        both, then, now = np.intersect1d(before, own, assume_unique=True, return_indices=True)
        follows = bool(parts) and parts[-1].next_ns == step.start_ns and len(both) > 0
        parts.append(replace(part, continued=np.stack([then, now], axis=1)) if follows else part)
        before = own
    return RankSteps(name, operations, parts)


def _segments(trace: Trace, meaning: Meaning) -> _Segments:
    rows = np.flatnonzero(~meaning.left_out)
    start, end, track = trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows]
    rows = rows[~lies_inside(start, end, track, meaning.communication[rows])]
    owner, start, end = innermost(trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows])
    by_start = np.lexsort((end, start))
    row, start, end = rows[owner][by_start], start[by_start], end[by_start]
    own_ns = np.bincount(row, end - start, len(trace))
    return _Segments(row, start, end, (own_ns < trace.dur_ns)[row])


def _operations(trace: Trace, segments: _Segments, meaning: Meaning) -> tuple[Int64, list[Operation]]:
    """Return the number of each segment's operation (m,), and the operations."""
    row = segments.row
    keys = np.stack([trace.name_id[row], trace.cat_id[row], trace.track_id[row]], axis=1).astype(np.int64)
    _, first, numbers = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    operations = []
    for at in row[first].tolist():
        name, communicates = trace.names[trace.name_id[at]], bool(meaning.communication[at])
        operations.append(
            Operation(
                name=name,
                cat=meaning.category(name, trace.cats[trace.cat_id[at]]),
                track=trace.tracks[trace.track_id[at]],
                phase="Comm" if communicates else meaning.phases.get(name, ""),
                is_collective=bool(meaning.collective[at]),
                is_communication=communicates,
            )
        )
    return numbers.reshape(-1), operations


def _step(
    trace: Trace,
    step: Step,
    segments: _Segments,
    own: Int64,
    numbers: Int64,
    operations: Sequence[Operation],
    meaning: Meaning,
) -> RankStep:
    """Return one step, of the segments `own`."""
    start = np.maximum(segments.start_ns[own], step.start_ns)
    row = segments.row[own]
    inside = replace(
        segments, row=row, start_ns=start, end_ns=segments.end_ns[own], is_frame=segments.is_frame[own]
    )
    edges = [*_along_threads(trace, inside), *_waits(trace, inside, meaning)]
    return RankStep(
        number=step.label,
        begin_ns=step.start_ns,
        next_ns=step.end_ns,
        operation=numbers[own],
        start_ns=start,
        end_ns=inside.end_ns,
        edges=edge_table(edges),
        meets=_meets(step, row, [operations[i] for i in numbers[own].tolist()]),
    )


def _along_threads(trace: Trace, inside: _Segments) -> list[Edge]:
    """Let each segment wait for the one before it on its thread, and a thread that was idle for any other."""
    edges = []
    last_of: dict[int, int] = {}
    by_end = np.argsort(inside.end_ns, kind="stable")
    n_over = np.searchsorted(inside.end_ns[by_end], inside.start_ns, side="right")
    track = trace.track_id[inside.row].tolist()
    start, end = inside.start_ns.tolist(), inside.end_ns.tolist()
    for event in range(len(start)):
        before = last_of.get(track[event])
        if before is not None:
            edges.append(Edge(before, event, Joint.END_TO_HEAD, Kind.DEVICE))
        if (before is None or end[before] < start[event]) and n_over[event]:
            other = int(by_end[n_over[event] - 1])
            if track[other] != track[event] and (before is None or end[other] > end[before]):
                edges.append(Edge(other, event, Joint.END_TO_HEAD, Kind.HAND_OVER))
        last_of[track[event]] = event
    return edges


def _waits(trace: Trace, inside: _Segments, meaning: Meaning) -> list[Edge]:
    """Let what waits wait for what ended last in it, on another thread.

    By its name it waits for anything; in its own time a span that has children waits for communication.
    """
    is_wait = np.array([bool(_WAITING.search(name)) for name in trace.names], np.bool_)[
        trace.name_id[inside.row]
    ]
    track, communicates = trace.track_id[inside.row], meaning.communication[inside.row]
    edges = []
    for sources, targets in ((np.ones(len(track), np.bool_), is_wait), (communicates, inside.is_frame)):
        by_end = np.flatnonzero(sources)[np.argsort(inside.end_ns[sources], kind="stable")]
        last = np.searchsorted(inside.end_ns[by_end], inside.end_ns, side="right") - 1
        for event in np.flatnonzero(targets & ~communicates & (last >= 0)).tolist():
            other = _of_another_thread(by_end, int(last[event]), track, event)
            if other is not None and inside.start_ns[event] < inside.end_ns[other]:
                edges.append(Edge(other, event, Joint.END_TO_BODY, Kind.HAND_OVER))
    return edges


def _of_another_thread(by_end: Int64, last: int, track: NDArray[np.integer], event: int) -> int | None:
    """Return the last of `by_end[: last + 1]` that is not of the event's thread."""
    for at in range(last, max(last - 50, -1), -1):
        if track[by_end[at]] != track[event]:
            return int(by_end[at])
    return None


def _meets(step: Step, row: Int64, operations: Sequence[Operation]) -> list[Meet]:
    """Return this rank's part in each collective: by its name and its place among those of the name."""
    of_row: dict[int, list[int]] = {}
    for event, (operation, at) in enumerate(zip(operations, row.tolist(), strict=True)):
        if operation.is_collective:
            of_row.setdefault(at, []).append(event)
    meets = []
    seen: Counter[str] = Counter()
    for events in of_row.values():
        name = operations[events[0]].name
        key = (step.label, name, seen[name])
        seen[name] += 1
        if len(events) == 1:
            meets.append(Meet(key, events[0], enters=True, leaves=True))
        else:
            meets += [Meet(key, events[0], enters=True, leaves=False), Meet(key, events[-1], False, True)]
    return meets
