"""PyTorch jobs as recordings: threads, streams, and collectives that wait for all ranks.

Per step and rank: the outermost operations of a thread run one after the other; a kernel follows the
one before it on its stream and starts after the operation that launched it; an operation that waits for
the device ends after the kernels it waits for. A collective begins its transfer when the last rank has
reached it. Threads wait for each other, and for collectives, without saying so: an operation that starts
after a pause of its thread, just when something elsewhere has ended, is taken to have waited for that;
and what the backward pass sends is waited for at its end.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from errors import TraceError
from formats.columns import Trace, Track
from replay.kineto_edges import Event, connect_collectives, connect_rank
from replay.plan import Int64
from replay.recording import EdgeList, Operation, RecordedStep, Recording

_WHOLE = -1  # the number of the step that is the whole recording
_STEP = re.compile(r"ProfilerStep#(\d+)")
_COLLECTIVE = re.compile(r"(gloo|mpi|ucc|nccl):\w+|(nccl|rccl)(Dev)?Kernel\w*", re.IGNORECASE)
_HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "Runtime"}
_WAITS = re.compile(r"(cuda|hip)\w*Synchronize|(cuda|hip)Memcpy", re.IGNORECASE)
_BACKWARD = "autograd::engine::"


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one rank."""

    name: str  # "rank0"
    trace: Trace
    only: Collection[str] = ()  # the only collectives to keep; () keeps all


@dataclass(frozen=True, slots=True)
class _RankSteps:
    """One rank's events by step number, and the bounds of its steps."""

    rank: RankTrace
    bounds: dict[int, tuple[int, int]]  # step number -> begin, begin of the next
    events: dict[int, list[Event]]
    launched_by: dict[int, int]  # row of a device event -> row of the outermost operation
    waits: list[tuple[int, int]]  # row of an outermost operation, when a call inside stops waiting


def record(ranks: Sequence[RankTrace]) -> Recording:
    """Return the recording of a PyTorch job from the traces of its ranks.

    Raises
    ------
    TraceError
        No step (``ProfilerStep#N``, else the whole recording) with operations is in all of the traces.
    """
    split = [_split(rank) for rank in ranks]
    common = sorted(set.intersection(*(set(one.bounds) for one in split)))
    common = [number for number in common if all(one.events[number] for one in split)]
    if not common:
        raise TraceError(f"{ranks[0].trace.path}: no step with operations in every rank: nothing to replay")
    numbers: dict[tuple[int, str, Track, int], int] = {}
    operations: list[Operation] = []
    steps = [_record_step(split, number, numbers, operations) for number in common]
    return Recording(
        owners=[rank.name for rank in ranks],
        devices=[],
        operations=operations,
        steps=_with_carried(steps, operations),
        notes=_notes(split),
    )


def _notes(split: Sequence[_RankSteps]) -> list[str]:
    if not all(_WHOLE in one.bounds for one in split):
        return []
    return ["no steps (ProfilerStep#N) are marked; the whole recording is taken for one"]


def _with_carried(steps: Sequence[RecordedStep], operations: Sequence[Operation]) -> list[RecordedStep]:
    """Return the steps with the first event of each stream waiting for what the step before left on it."""
    found = list(steps[:1])
    for step, following in itertools.pairwise(steps):
        last = _by_stream(step, operations, step.end_ns, latest=True)
        first = _by_stream(following, operations, following.start_ns, latest=False)
        pairs = [
            (event, first[stream])
            for stream, event in last.items()
            if stream in first
            and 0 <= step.next_ns[stream[0]] < step.end_ns[event] <= following.start_ns[first[stream]]
        ]
        found.append(replace(following, carried=np.array(pairs, np.int64).reshape(-1, 2)))
    return found


def _by_stream(
    step: RecordedStep, operations: Sequence[Operation], at_ns: Int64, *, latest: bool
) -> dict[tuple[int, Track], int]:
    """Return the event with the latest (or earliest) time of each track of each owner."""
    order = np.argsort(at_ns if latest else -at_ns, kind="stable")
    found = {}
    for event in order.tolist():
        one = operations[int(step.operation[event])]
        found[one.owner, one.track] = event
    return found


def _record_step(
    split: Sequence[_RankSteps],
    number: int,
    numbers: dict[tuple[int, str, Track, int], int],
    operations: list[Operation],
) -> RecordedStep:
    events = [(owner, event) for owner, one in enumerate(split) for event in one.events[number]]
    count: Counter[tuple[int, str, Track]] = Counter()
    operation = []
    for owner, event in events:
        count[owner, event.name, event.track] += 1
        identity = (owner, event.name, event.track, count[owner, event.name, event.track])
        if identity not in numbers:
            numbers[identity] = len(operations)
            operations.append(_operation(owner, event))
        operation.append(numbers[identity])
    edges = EdgeList()
    first = 0
    for one in split:
        mine = one.events[number]
        connect_rank(edges, mine, first, one.launched_by, one.waits)
        first += len(mine)
    connect_collectives(edges, events)
    return RecordedStep(
        operation=np.array(operation, np.int64),
        start_ns=np.array([event.start_ns for _, event in events], np.int64),
        end_ns=np.array([event.end_ns for _, event in events], np.int64),
        edges=edges.freeze(),
        begin_ns=np.array([one.bounds[number][0] for one in split], np.int64),
        next_ns=np.array([one.bounds[number][1] for one in split], np.int64),
    )


def _operation(owner: int, event: Event) -> Operation:
    return Operation(
        name=event.name,
        cat=event.cat,
        track=event.track,
        owner=owner,
        trace_cat=event.cat,
        phase=event.phase,
        is_collective=event.is_collective,
    )


# ---- one rank's events, by step


def _split(rank: RankTrace) -> _RankSteps:
    trace = rank.trace
    outer = _outermost(trace)
    bounds = _steps(trace) or _whole(trace, outer)
    begins = sorted((begin, number) for number, (begin, _) in bounds.items())
    starts = [begin for begin, _ in begins]
    events: dict[int, list[Event]] = {number: [] for number in bounds}
    step_of: dict[int, int] = {}
    launched_by, waits = _runtime_calls(trace, outer)
    rows = sorted(outer, key=lambda row: int(trace.ts_ns[row]))
    device_rows = np.flatnonzero(np.isin(trace.cat_id, _ids(trace.cats, _DEVICE))).tolist()
    for row in [*rows, *sorted(device_rows, key=lambda row: int(trace.ts_ns[row]))]:
        on_device = row not in outer
        launcher = launched_by.get(row) if on_device else None
        at = int(trace.ts_ns[row])
        number = step_of.get(launcher) if launcher is not None else _step_at(at, starts, begins, bounds)
        if number is None:
            continue
        step_of[row] = number
        event = _event(trace, row, "" if on_device else outer[row], on_device)
        if not (rank.only and event.is_collective and event.name not in rank.only):
            events[number].append(event)
    return _RankSteps(rank, bounds, events, launched_by, waits)


def _steps(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return begin and end of each ``ProfilerStep#N``; it ends where the next one begins."""
    host = _ids(trace.cats, {"user_annotation", "Operator", "cpu_op"})
    named = {i: int(match[1]) for i, name in enumerate(trace.names) if (match := _STEP.fullmatch(name))}
    rows = np.flatnonzero(np.isin(trace.name_id, list(named)) & np.isin(trace.cat_id, host))
    spans = sorted(
        (int(trace.ts_ns[row]), int(trace.end_ns[row]), named[int(trace.name_id[row])]) for row in rows
    )
    found = {}
    for i, (begin, end, number) in enumerate(spans):
        following = spans[i + 1][0] if i + 1 < len(spans) else end
        is_next = i + 1 < len(spans) and spans[i + 1][2] == number + 1
        found[number] = (begin, following if is_next else end)
    return found


def _whole(trace: Trace, outer: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return the whole recording as one step; none where there is nothing in it."""
    rows = [*outer, *np.flatnonzero(np.isin(trace.cat_id, _ids(trace.cats, _DEVICE))).tolist()]
    return {_WHOLE: (int(trace.ts_ns[rows].min()), int(trace.end_ns[rows].max()))} if rows else {}


def _step_at(
    at: int, starts: Sequence[int], begins: Sequence[tuple[int, int]], bounds: dict[int, tuple[int, int]]
) -> int | None:
    i = int(np.searchsorted(starts, at, side="right")) - 1
    if i < 0:
        return None
    number = begins[i][1]
    return number if at < bounds[number][1] else None


def _event(trace: Trace, row: int, phase: str, on_device: bool) -> Event:
    name = trace.names[trace.name_id[row]]
    is_collective = _COLLECTIVE.match(name) is not None and (on_device or "nccl" not in name.lower())
    start = int(trace.ts_ns[row])
    return Event(
        row=row,
        name=name,
        cat=trace.cats[trace.cat_id[row]],
        phase="Comm" if is_collective else phase,
        track=trace.tracks[trace.track_id[row]],
        start_ns=start,
        end_ns=start + int(trace.dur_ns[row]),
        on_device=on_device,
        is_collective=is_collective,
    )


def _ids(words: Sequence[str], wanted: set[str]) -> list[int]:
    return [i for i, word in enumerate(words) if word in wanted]


def _outermost(trace: Trace) -> dict[int, str]:
    """Return the rows of the outermost operations of all threads, with their phase.

    Annotations around operations (``ProfilerStep#N``, ``Optimizer.step``) and Python frames are no
    operations; an annotation without anything inside is one, and so is the loading of input.
    """
    rows = np.flatnonzero(np.isin(trace.cat_id, _ids(trace.cats, _HOST)))
    rows = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows], trace.track_id[rows]))]
    found: dict[int, str] = {}
    open_wrappers: list[tuple[int, int]] = []  # end, row
    until, thread = -1, -1
    for row in rows.tolist():
        start, end = int(trace.ts_ns[row]), int(trace.end_ns[row])
        if trace.track_id[row] != thread:
            thread, until, open_wrappers = int(trace.track_id[row]), -1, []
        if start < until:
            continue  # inside an operation
        open_wrappers = [wrapper for wrapper in open_wrappers if wrapper[0] > start]
        for _, wrapper in open_wrappers:
            found.pop(wrapper, None)  # it has something inside
        name, cat = trace.names[trace.name_id[row]], trace.cats[trace.cat_id[row]]
        found[row] = _phase(name, [trace.names[trace.name_id[w]] for _, w in open_wrappers])
        if cat == "user_annotation" and not name.startswith("enumerate(DataLoader)"):
            open_wrappers.append((end, row))
            if _STEP.fullmatch(name):
                del found[row]
        else:
            until = end
    return found


def _phase(name: str, around: Sequence[str]) -> str:
    if name.startswith("enumerate(DataLoader)"):
        return "I/O"
    if name.startswith(_BACKWARD):
        return "BW"
    return "STEP" if any(word.startswith("Optimizer.") for word in [*around, name]) else "FW"


def _runtime_calls(trace: Trace, outer: dict[int, str]) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return which outermost operation launched each device event, and which ones wait for the device."""
    correlation = trace.args.get("correlation")
    if correlation is None:
        return {}, []
    of_row = correlation.as_dict()
    runtime = set(_ids(trace.cats, _RUNTIME))
    calls = [row for row in of_row if int(trace.cat_id[row]) in runtime]
    containing = _containing(trace, outer, calls)
    by_id = {of_row[row]: containing[row] for row in calls if row in containing}
    device = set(_ids(trace.cats, _DEVICE))
    launched = {
        row: by_id[value]
        for row, value in of_row.items()
        if int(trace.cat_id[row]) in device and value in by_id
    }
    waits = [
        (containing[row], int(trace.end_ns[row]))
        for row in calls
        if row in containing and _WAITS.match(trace.names[trace.name_id[row]])
        and "async" not in trace.names[trace.name_id[row]].lower()
    ]  # fmt: skip
    return launched, waits


def _containing(trace: Trace, outer: dict[int, str], rows: Sequence[int]) -> dict[int, int]:
    """Return the outermost operation in which each of `rows` lies on its thread."""
    by_thread: dict[int, list[int]] = defaultdict(list)
    for row in sorted(outer, key=lambda row: int(trace.ts_ns[row])):
        by_thread[int(trace.track_id[row])].append(row)
    starts = {thread: trace.ts_ns[mine] for thread, mine in by_thread.items()}
    found = {}
    for row in rows:
        thread = int(trace.track_id[row])
        if thread in by_thread:
            i = int(np.searchsorted(starts[thread], trace.ts_ns[row], side="right")) - 1
            if i >= 0 and trace.ts_ns[row] <= trace.end_ns[by_thread[thread][i]]:
                found[row] = by_thread[thread][i]
    return found
