"""PyTorch jobs as recordings: threads, streams, and collectives that wait for all ranks.

Per step and rank: the outermost operations of a thread run one after the other; a kernel follows the
one before it on its stream and starts after the operation that launched it; an operation that waits for
the device ends after the kernels it waits for. A collective begins its transfer when the last rank has
reached it. Threads wait for each other, and for collectives, without saying so: an operation that starts
after a pause of its thread, just when something elsewhere has ended, is taken to have waited for that;
and what the backward pass sends is waited for at its end.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from errors import TraceError
from formats.columns import Trace, Track
from replay.recording import EdgeList, Operation, RecordedStep, Recording, chain

#: A pause of a thread from which on it may have waited for something elsewhere …
PAUSE_NS = 300_000
#: … which must then have ended in this last part of the pause.
SOON = 0.2

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


@dataclass(frozen=True, slots=True)
class _Event:
    """One event of one rank in one step."""

    row: int  # of the trace; a handle for launches
    name: str
    cat: str
    phase: str
    track: Track
    start_ns: int
    end_ns: int
    on_device: bool
    is_collective: bool


@dataclass(frozen=True, slots=True)
class _RankSteps:
    """One rank's events by step number, and the bounds of its steps."""

    rank: RankTrace
    bounds: dict[int, tuple[int, int]]  # step number -> begin, begin of the next
    events: dict[int, list[_Event]]
    launched_by: dict[int, int]  # row of a device event -> row of the outermost operation
    waits: list[tuple[int, int]]  # row of an outermost operation, when a call inside stops waiting


def record(ranks: Sequence[RankTrace]) -> Recording:
    """Return the recording of a PyTorch job from the traces of its ranks.

    Raises
    ------
    TraceError
        No step (``ProfilerStep#N``) is in all of the traces.
    """
    split = [_split(rank) for rank in ranks]
    common = sorted(set.intersection(*(set(one.bounds) for one in split)))
    common = [number for number in common if all(one.events[number] for one in split)]
    if not common:
        raise TraceError(f"{ranks[0].trace.path}: no step (ProfilerStep#N) with operations in every rank")
    numbers: dict[tuple[int, str, Track, int], int] = {}
    operations: list[Operation] = []
    steps = [_record_step(split, number, numbers, operations) for number in common]
    return Recording(owners=[rank.name for rank in ranks], devices=[], operations=operations, steps=steps)


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
        _connect_rank(edges, mine, first, one)
        first += len(mine)
    _connect_collectives(edges, events)
    return RecordedStep(
        operation=np.array(operation, np.int64),
        start_ns=np.array([event.start_ns for _, event in events], np.int64),
        end_ns=np.array([event.end_ns for _, event in events], np.int64),
        edges=edges.freeze(),
        begin_ns=np.array([one.bounds[number][0] for one in split], np.int64),
        next_ns=np.array([one.bounds[number][1] for one in split], np.int64),
    )


def _operation(owner: int, event: _Event) -> Operation:
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
    bounds = _steps(trace)
    outer = _outermost(trace)
    begins = sorted((begin, number) for number, (begin, _) in bounds.items())
    starts = [begin for begin, _ in begins]
    events: dict[int, list[_Event]] = {number: [] for number in bounds}
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
        events[number].append(_event(trace, row, "" if on_device else outer[row], on_device))
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


def _step_at(
    at: int, starts: Sequence[int], begins: Sequence[tuple[int, int]], bounds: dict[int, tuple[int, int]]
) -> int | None:
    i = int(np.searchsorted(starts, at, side="right")) - 1
    if i < 0:
        return None
    number = begins[i][1]
    return number if at < bounds[number][1] else None


def _event(trace: Trace, row: int, phase: str, on_device: bool) -> _Event:
    name = trace.names[trace.name_id[row]]
    is_collective = _COLLECTIVE.match(name) is not None and (on_device or "nccl" not in name.lower())
    start = int(trace.ts_ns[row])
    return _Event(
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


# ---- what connects them


def _connect_rank(edges: EdgeList, events: Sequence[_Event], first: int, one: _RankSteps) -> None:
    """Add the edges within one rank; its events have the numbers from `first` on."""
    by_track: dict[Track, list[int]] = defaultdict(list)
    by_row = {event.row: i for i, event in enumerate(events)}
    for i in sorted(range(len(events)), key=lambda i: (events[i].start_ns, events[i].end_ns)):
        by_track[events[i].track].append(i)
    pairs: list[tuple[int, int]] = []
    for mine in by_track.values():
        chain(pairs, mine)
    pairs = [(a, b) for a, b in pairs if events[a].end_ns <= events[b].start_ns]
    host = [mine for mine in by_track.values() if not events[mine[0]].on_device]
    pairs += _handed_over(events, host)
    pairs += _awaited_after_backward(events, host)
    edges.after_end.extend((first + a, first + b) for a, b in pairs)
    launches = [(by_row[by], i) for i, event in enumerate(events)
                if event.on_device and (by := one.launched_by.get(event.row)) in by_row]  # fmt: skip
    launches += _started_by(events, host)
    edges.after_start.extend((first + a, first + b) for a, b in launches)
    edges.body_after_end.extend((first + a, first + by_row[b]) for a, b in _device_waits(events, one, by_row))


def _main_thread(events: Sequence[_Event], host: Sequence[list[int]]) -> list[int]:
    """Return the thread with the most operations."""
    return max(host, key=len, default=[])


def _handed_over(events: Sequence[_Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (what ended, what then went on) for each pause of a thread that ends with such an end."""
    by_end = sorted((i for mine in host for i in mine), key=lambda i: events[i].end_ns)
    ends = np.array([events[i].end_ns for i in by_end], np.int64)
    found = []
    for mine in host:
        for before, after in zip([None, *mine[:-1]], mine, strict=True):
            if before is None or events[after].is_collective:
                continue
            begin, end = events[before].end_ns, events[after].start_ns
            if end - begin < PAUSE_NS:
                continue
            i = int(np.searchsorted(ends, end, side="right")) - 1
            while i >= 0 and (by_end[i] in (before, after) or events[by_end[i]].track == events[after].track):
                i -= 1
            if i >= 0 and end - ends[i] <= SOON * (end - begin):
                found.append((by_end[i], after))
    return found


def _awaited_after_backward(events: Sequence[_Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (collective, first operation after the backward pass), for those that have ended by then."""
    main = _main_thread(events, host)
    backward = [i for i, event in enumerate(main) if events[event].phase == "BW"]
    if not backward or backward[-1] + 1 == len(main):
        return []
    after = main[backward[-1] + 1]
    collectives = [i for mine in host for i in mine if events[i].is_collective]
    return [(i, after) for i in collectives if events[i].end_ns <= events[after].start_ns]


def _started_by(events: Sequence[_Event], host: Sequence[list[int]]) -> list[tuple[int, int]]:
    """Return (operation of the main thread, what another thread started while or after it ran)."""
    main = _main_thread(events, host)
    starts = np.array([events[i].start_ns for i in main], np.int64)
    found = []
    for mine in host:
        if mine is main:
            continue
        for i in mine:
            at = int(np.searchsorted(starts, events[i].start_ns, side="right")) - 1
            if at >= 0 and (events[i].is_collective or i == mine[0]):
                found.append((main[at], i))
    return found


def _device_waits(events: Sequence[_Event], one: _RankSteps, by_row: dict[int, int]) -> list[tuple[int, int]]:
    """Return (last device event that ended by then, row of the operation that waited for it)."""
    on_device = sorted(
        (i for i, event in enumerate(events) if event.on_device), key=lambda i: events[i].end_ns
    )
    ends = np.array([events[i].end_ns for i in on_device], np.int64)
    found = []
    for row, until in one.waits:
        if row in by_row:
            i = int(np.searchsorted(ends, until, side="right")) - 1
            if i >= 0:
                found.append((on_device[i], row))
    return found


def _connect_collectives(edges: EdgeList, events: Sequence[tuple[int, _Event]]) -> None:
    """Let the n-th collective of a name wait, in each rank, for the starts of the others."""
    groups: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    count: Counter[tuple[int, str]] = Counter()
    order = sorted(range(len(events)), key=lambda i: (events[i][1].start_ns, i))
    for i in order:
        owner, event = events[i]
        if event.is_collective:
            count[owner, event.name] += 1
            groups[event.name, count[owner, event.name]].append((owner, i))
    for members in groups.values():
        edges.body_after_start.extend(
            (b, a) for owner, a in members for other, b in members if other != owner
        )
