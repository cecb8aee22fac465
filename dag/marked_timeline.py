"""The recorded timeline with the critical path marked: a track of its own, and arrows along the path."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from arrays import Int64
from arrays.intervals import innermost
from arrays.numbering import unique
from dag.critical_path import NO_EVENT, CriticalPath
from dag.path_summary import named_path
from dag.step_graph import Bool, Recording, StepGraph
from dialects.step_parts import Operation
from formats.chrome_writer import Places, Thread
from formats.columns import Trace, Track
from formats.times import microseconds

#: Name of the process and category of the arrows that mark the path.
_PATH = "critical path"
_FLOWS = "stf"  # phases of arrows: start, step, finish
_WITH_ID = _FLOWS + "bne"  # … and of asynchronous spans
_INSTANTS = "iIR"
_COUNTER = "C"

Names = Mapping[tuple[str, Any, Any], str]  # (process_name or thread_name, pid, tid) -> as metadata say
_Event = tuple[int, int, dict[str, Any]]  # its time, what orders it among others of that time, and itself


class _Stop(NamedTuple):
    """One stretch of the path: when, and the recorded slice (trace, row) that it is a part of, if any."""

    name: str
    cat: str
    start_ns: int
    end_ns: int
    event: tuple[int, int] | None


def marked_events(
    traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath
) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a Chrome trace, and the nanosecond of its time 0 (the first event).

    What was recorded stays: slices, arrows, asynchronous spans, instants and counters, with their arguments.

    Parameters
    ----------
    traces : one for each owner of `recording`, on its clock, with all arguments and points
    path : the critical path of `step`
    """
    stops = _stops(traces, recording, step, path)
    starts = [times for trace in traces for times in (trace.ts_ns, trace.points.ts_ns) if len(times)]
    zero = min([*(int(times.min()) for times in starts), *(stop.start_ns for stop in stops)], default=0)
    places = Places(track.tid for trace in traces for track in trace.tracks)
    on_path = places.thread(places.process(_PATH, _PATH), _PATH, _PATH)
    events = [_box(stop.start_ns - zero, stop.end_ns - zero, on_path, stop.name, stop.cat) for stop in stops]
    threads = place_tracks(
        places, recording, [trace.tracks for trace in traces], [_own_names(trace) for trace in traces]
    )
    marked = {stop.event for stop in stops if stop.event is not None}
    placed: dict[tuple[int, int], Thread] = {}  # of the slices that are marked
    ids = itertools.count(1)
    for owner, trace in enumerate(traces):
        own = [threads[owner][track] for track in trace.tracks]
        order = np.lexsort((-trace.dur_ns, trace.ts_ns))
        start, end = (trace.ts_ns - zero)[order].tolist(), (trace.end_ns - zero)[order].tolist()
        columns = (order, trace.name_id[order], trace.cat_id[order])
        args = _args(trace)
        where = places.nested(own, trace.track_id[order].tolist(), start, end)
        rows = zip(*(column.tolist() for column in columns), start, end, where, strict=True)
        for row, name, cat, begin, until, thread in rows:
            if (owner, row) in marked:
                args[row] = {**args.get(row, {}), _PATH: True}
                placed[owner, row] = thread
            box = _box(begin, until, thread, trace.names[name], trace.cats[cat])
            if row in args:
                box[-1]["args"] = args[row]
            events.append(box)
        events += _points(trace, own, zero, ids)
    events += _arrows(traces, stops, placed, zero, ids)
    events.sort(key=lambda event: event[:2])
    return [*places.names(), *(event for _, _, event in events)], zero


def place_tracks(
    places: Places, recording: Recording, tracks: Sequence[Sequence[Track]], names: Sequence[Names]
) -> list[dict[Track, Thread]]:
    """Return the threads of each owner's tracks: a process for each process of an owner, named as recorded.

    Where the processes are tensors (BytePS, Horovod), all of an owner are one: a ResNet's would be hundreds.
    """
    several = len(recording.owners) > 1
    found = []
    for owner, (own, name_of, on) in enumerate(zip(tracks, names, _operations(recording), strict=True)):
        threads: dict[Track, Thread] = {}
        name = recording.owners[owner]
        is_one = _processes_are_tensors(on)
        for track in sorted(own, key=lambda track: _order(on.get(track, ()))) if is_one else own:
            process = name_of.get(("process_name", track.pid, None), _text(track.pid))
            thread = name_of.get(("thread_name", track.pid, track.tid), _text(track.tid))
            if is_one:
                pid = places.process(owner, name)
                key = track.tid if _text(track.tid).isdecimal() and _is_tensor(on.get(track, ())) else track
                threads[track] = places.thread(pid, key, _thread_name(on.get(track, ()), process, thread))
            else:
                pid = places.process(
                    (owner, track.pid), f"{name}.{process}".rstrip(".") if several else process
                )
                threads[track] = places.thread(pid, track.tid, thread)
        found.append(threads)
    return found


def _operations(recording: Recording) -> list[dict[Track, list[Operation]]]:
    on: list[dict[Track, list[Operation]]] = [defaultdict(list) for _ in recording.owners]
    for one in recording.table.kinds:
        on[one.owner][one.track].append(one)
    return on


def _processes_are_tensors(on: Mapping[Track, Sequence[Operation]]) -> bool:
    """Whether an owner has several processes of one communication each."""
    of_process: dict[Any, list[Operation]] = defaultdict(list)
    for track, operations in on.items():
        of_process[track.pid] += operations
    return sum(map(_is_tensor, of_process.values())) > 1


def _is_tensor(operations: Sequence[Operation]) -> bool:
    return any(one.is_communication for one in operations) and len({one.main for one in operations}) == 1


def _order(operations: Sequence[Operation]) -> int:
    """Return where a track of an owner comes: input, computation, whole communications, their parts."""
    if not operations:
        return 2
    if not operations[0].is_communication:
        return int(operations[0].is_compute)
    return 3 + any(one.transfer.whole for one in operations)


def _thread_name(operations: Sequence[Operation], process: str, thread: str) -> str:
    """Return the name of a track whose process is one of many of its owner."""
    if _is_tensor(operations):
        main = operations[0].main
        return f"{main} {thread}" if any(one.transfer.key is not None for one in operations) else main
    return (
        "/".join(dict.fromkeys(one.purpose or one.cat for one in operations)) or f"{process} {thread}".strip()
    )


def _stops(traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath) -> list[_Stop]:
    """Return the stretches of the path with the slices that they lie in."""
    found = []
    named = named_path(recording, path, parts=True, merged=False)
    slices = [_InnermostSlices(trace) for trace in traces]
    for stretch, label in zip(path.stretches, named.label.tolist(), strict=True):
        where = None
        if stretch.event != NO_EVENT and stretch.cat == "":
            operation = recording.operations[int(step.operation[stretch.event])]
            row = slices[operation.owner].at(operation, stretch.end_ns)
            where = None if row is None else (stretch.owner, row)
        name, cat, *_ = named.labels[label]
        found.append(_Stop(name, cat, stretch.start_ns, stretch.end_ns, where))
    return found


class _InnermostSlices:
    """Which slice of a trace is the innermost at a moment on an operation's track, of its name or any."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._number = {track: i for i, track in enumerate(trace.tracks)}
        self._id = {name: i for i, name in enumerate(trace.names)}
        self._rows: dict[Track, Int64] = {}
        self._segments: dict[tuple[Track, str], tuple[Int64, Int64, Int64]] = {}

    def at(self, operation: Operation, moment_ns: int) -> int | None:
        """Return the row of the slice just before a moment; None if there is none."""
        for name in (operation.name, ""):
            key = operation.track, name
            if key not in self._segments:
                rows = self._rows_of(*key)
                owner, start, end = innermost(self._trace.ts_ns[rows], self._trace.end_ns[rows])
                self._segments[key] = rows[owner], start, end
            row, start, end = self._segments[key]
            place = int(np.searchsorted(end, moment_ns))
            if place < len(row) and start[place] < moment_ns:
                return int(row[place])
        return None

    def _rows_of(self, track: Track, name: str) -> Int64:
        """Return the slices of a track that have a name, before which theirs may have worker and rank."""
        if track not in self._rows:
            self._rows[track] = np.flatnonzero(self._trace.track_id == self._number.get(track, -1))
        rows: Int64 = self._rows[track]
        if name:
            ids = self._trace.name_id[rows]
            if name in self._id:
                rows = rows[ids == self._id[name]]
            else:
                rows = rows[np.array([own.endswith(name) for own in self._trace.names], np.bool_)[ids]]
        return rows


def _box(start_ns: int, end_ns: int, thread: Thread, name: str, cat: str) -> _Event:
    times = {"ts": microseconds(start_ns), "dur": microseconds(end_ns - start_ns)}
    return start_ns, start_ns - end_ns, {"ph": "X", "name": name, "cat": cat, **_at(thread), **times}


def _at(thread: Thread) -> dict[str, int]:
    return {"pid": thread.pid, "tid": thread.tid}


def _args(trace: Trace) -> dict[int, dict[str, Any]]:
    """Return the arguments of the slices that have some, by row."""
    args: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, column in trace.args.items():
        for row, value in column.as_dict().items():
            args[row][key] = value
    return args


def _points(trace: Trace, threads: Sequence[Thread], zero: int, ids: Iterator[int]) -> Iterator[_Event]:
    """Yield the recorded arrows, asynchronous spans, instants and counters, with their arguments.

    The ids of the first two get numbers that no other trace has.
    """
    points = trace.points
    columns = (points.name_id, points.cat_id, points.track_id, points.ts_ns - zero, _within(trace))
    number: dict[str | None, int] = {}
    args = points.args or [{}] * len(points)
    rows = zip(points.phase, points.ids, args, *(column.tolist() for column in columns), strict=True)
    for phase, own_id, own_args, name, cat, track, ts, is_within in rows:
        if phase not in _WITH_ID and phase not in _INSTANTS and phase != _COUNTER:
            continue
        event = {"ph": phase, "name": trace.names[name], "cat": trace.cats[cat], **_at(threads[track])}
        if phase in _WITH_ID:
            event["id"] = number[own_id] if own_id in number else number.setdefault(own_id, next(ids))
        elif own_id is not None:  # of counters of one name
            event["id"] = own_id
        if own_args:
            event["args"] = own_args
        if phase == "f" and is_within:
            event["bp"] = "e"
        yield ts, 1, event | {"ts": microseconds(ts)}


def _within(trace: Trace) -> Bool:
    """Return which points (k,) lie within a slice of their track: an arrow that ends there ends in it."""
    points = trace.points
    found = np.zeros(len(points), np.bool_)
    for track in unique(points.track_id).tolist():
        rows = np.flatnonzero(trace.track_id == track)
        rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
        latest = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(trace.end_ns[rows]))
        here = points.track_id == track
        ts = points.ts_ns[here]
        found[here] = latest[np.searchsorted(trace.ts_ns[rows], ts, side="right")] >= ts
    return found


def _arrows(
    traces: Sequence[Trace],
    stops: Sequence[_Stop],
    placed: Mapping[tuple[int, int], Thread],
    zero: int,
    ids: Iterator[int],
) -> Iterator[_Event]:
    """Yield a flow from each slice of the path to the next."""
    known = [(stop, stop.event) for stop in stops if stop.event is not None]
    for (a, event_a), (b, event_b) in itertools.pairwise(known):
        if event_a == event_b:
            continue
        number = next(ids)
        for phase, stop, event in (("s", a, event_a), ("f", b, event_b)):
            bound = {"bp": "e"} if phase == "f" else {}
            ts = max(stop.start_ns, a.end_ns - 1) - zero
            yield ts, 1, {"name": _PATH, "cat": "critical_path", "id": number, "ph": phase, **bound,
                          **_at(placed[event]), "ts": microseconds(ts)}  # fmt: skip


def _text(number: Any) -> str:
    return "" if number is None else str(number)


def _own_names(trace: Trace) -> dict[tuple[str, Any, Any], str]:
    names: dict[tuple[str, Any, Any], str] = {}
    for event in trace.metadata:
        kind, args = event.get("name"), event.get("args")
        if kind in ("process_name", "thread_name") and isinstance(args, dict) and "name" in args:
            tid = event.get("tid") if kind == "thread_name" else None
            pid = event.get("pid")
            if isinstance(pid, str | int | float | None) and isinstance(tid, str | int | float | None):
                names[str(kind), pid, tid] = str(args["name"])
    return names
