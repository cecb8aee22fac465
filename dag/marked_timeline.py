"""The recorded timeline with the critical path marked: a track of its own, and arrows along the path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dag.critical_path import NO_EVENT, CriticalPath
from dag.path_summary import path_item
from dag.step_graph import Recording, StepGraph
from dialects.step_parts import Operation
from formats.chrome_writer import metadata
from formats.columns import Int64, Trace, Track

#: Name of the process and category of the arrows that mark the path.
PATH = "critical path"
_PATH_PID = 0


@dataclass(frozen=True, slots=True)
class _Stop:
    """One stretch of the path: when, and the recorded slice (trace, row) that it is a part of, if any."""

    name: str
    cat: str
    start_ns: int
    end_ns: int
    event: tuple[int, int] | None


@dataclass(slots=True)
class _Places:
    """Integers for the processes and threads of all traces, and the names that go with them."""

    pids: dict[tuple[int, Any], int] = field(default_factory=dict)
    tids: dict[tuple[int, Any], int] = field(default_factory=dict)

    def of(self, trace: int, pid: Any, tid: Any) -> tuple[int, int]:
        number = self.pids.setdefault((trace, pid), len(self.pids) + 1)
        return number, self.tids.setdefault((number, tid), len(self.tids) + 1)


def marked_events(
    traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath
) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a Chrome trace, and the nanosecond of its time 0 (the first event).

    Parameters
    ----------
    traces : what was recorded, one for each owner of `recording`, on its clock
    path : the critical path of `step`
    """
    labels = [f"{owner}." if len(traces) > 1 else "" for owner in recording.owners]
    stops = _stops(traces, recording, step, path)
    times = [int(trace.ts_ns.min()) for trace in traces if len(trace)]
    zero = min([*times, *(stop.start_ns for stop in stops)], default=0)
    places = _Places()
    marked = {stop.event for stop in stops if stop.event is not None}
    slices = [
        event for number, trace in enumerate(traces) for event in _slices(number, trace, places, marked, zero)
    ]
    track = list(_track(stops, zero))
    arrows = list(_arrows(traces, stops, places, zero))
    names = _names(traces, labels, places)
    return [*names, *sorted([*slices, *track, *arrows], key=lambda event: float(event["ts"]))], zero


def _stops(traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath) -> list[_Stop]:
    """Return the stretches of the path with the slices that they lie in."""
    found = []
    begin = int(step.begin_ns[path.owner])
    on_track: dict[tuple[int, Track], tuple[Int64, Int64, Int64]] = {}
    for stretch in path.stretches:
        item = path_item(recording, step, stretch, begin, parts=True)
        event = None
        if stretch.event != NO_EVENT and stretch.cat == "":
            operation = recording.operations[int(step.operation[stretch.event])]
            trace, place = traces[operation.owner], (operation.owner, operation.track)
            if place not in on_track:
                on_track[place] = _rows_of(trace, operation.track)
            event = _slice_of(trace, on_track[place], operation, stretch.end_ns)
        where = None if event is None else (stretch.owner, event)
        found.append(_Stop(item.name, item.cat, stretch.start_ns, stretch.end_ns, where))
    return found


def _rows_of(trace: Trace, track: Track) -> tuple[Int64, Int64, Int64]:
    """Return the rows of a track's slices, and when they start and end."""
    is_track = np.array([own == track for own in trace.tracks], np.bool_)
    rows = np.flatnonzero(is_track[trace.track_id])
    start = trace.ts_ns[rows]
    return rows, start, start + trace.dur_ns[rows]


def _slice_of(
    trace: Trace, on_track: tuple[Int64, Int64, Int64], operation: Operation, moment_ns: int
) -> int | None:
    """Return the row of the slice on the operation's track that covers the time just before `moment_ns`."""
    rows, start, end = on_track
    rows = rows[(start < moment_ns) & (end >= moment_ns)]
    named = [row for row in rows.tolist() if trace.names[trace.name_id[row]].endswith(operation.name)]
    return max(named or rows.tolist(), key=lambda row: int(trace.ts_ns[row]), default=None)


def _slices(
    number: int, trace: Trace, places: _Places, marked: set[tuple[int, int]], zero: int
) -> Iterator[dict[str, Any]]:
    where = [places.of(number, track.pid, track.tid) for track in trace.tracks]
    columns = (trace.name_id, trace.cat_id, trace.track_id, trace.ts_ns, trace.dur_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for row, (name, cat, track, ts, dur) in enumerate(rows):
        pid, tid = where[track]
        event = {
            "ph": "X", "name": trace.names[name], "cat": trace.cats[cat], "pid": pid, "tid": tid,
            "ts": (ts - zero) / 1e3, "dur": dur / 1e3,
        }  # fmt: skip
        if (number, row) in marked:
            event["args"] = {PATH: True}
        yield event


def _track(stops: Sequence[_Stop], zero: int) -> Iterator[dict[str, Any]]:
    """Yield the path as slices of one track, one after the other."""
    for stop in stops:
        yield {
            "ph": "X", "name": stop.name, "cat": stop.cat, "pid": _PATH_PID, "tid": 1,
            "ts": (stop.start_ns - zero) / 1e3, "dur": (stop.end_ns - stop.start_ns) / 1e3,
        }  # fmt: skip


def _arrows(
    traces: Sequence[Trace], stops: Sequence[_Stop], places: _Places, zero: int
) -> Iterator[dict[str, Any]]:
    """Yield a flow from each slice of the path to the next."""
    known = [(stop, stop.event) for stop in stops if stop.event is not None]
    for number, ((a, event_a), (b, event_b)) in enumerate(itertools.pairwise(known), 1):
        if event_a == event_b:
            continue
        here, there = _track_of(traces, event_a, places), _track_of(traces, event_b, places)
        common = {"name": PATH, "cat": "critical_path", "id": number}
        leave = (max(a.start_ns, a.end_ns - 1) - zero) / 1e3
        arrive = (max(b.start_ns, a.end_ns - 1) - zero) / 1e3
        yield {**common, "ph": "s", "pid": here[0], "tid": here[1], "ts": leave}
        yield {**common, "ph": "f", "bp": "e", "pid": there[0], "tid": there[1], "ts": arrive}


def _track_of(traces: Sequence[Trace], event: tuple[int, int], places: _Places) -> tuple[int, int]:
    number, row = event
    track = traces[number].tracks[traces[number].track_id[row]]
    return places.of(number, track.pid, track.tid)


def _names(traces: Sequence[Trace], labels: Sequence[str], places: _Places) -> list[dict[str, Any]]:
    """Return the metadata that names and orders processes and threads, the path's first."""
    said = [_said(trace) for trace in traces]
    events = [
        metadata("process_name", _PATH_PID, 0, PATH),
        metadata("process_sort_index", _PATH_PID, 0, -1),
    ]
    events.append(metadata("thread_name", _PATH_PID, 1, PATH))
    keys = {}
    for (number, pid), to in places.pids.items():
        own = said[number].get(("process_name", pid, None), "" if pid is None else str(pid))
        events.append(metadata("process_name", to, 0, f"{labels[number]}{own}"))
        events.append(metadata("process_sort_index", to, 0, to))
        keys[to] = (number, pid)
    for (pid_to, tid), to in places.tids.items():
        number, pid = keys[pid_to]
        own = said[number].get(("thread_name", pid, tid), "" if tid is None else str(tid))
        events.append(metadata("thread_name", pid_to, to, own or "events"))
    return events


def _said(trace: Trace) -> dict[tuple[str, Any, Any], str]:
    """Return what the trace's own metadata call processes and threads."""
    names: dict[tuple[str, Any, Any], str] = {}
    for event in trace.metadata:
        kind, args = event.get("name"), event.get("args")
        if kind in ("process_name", "thread_name") and isinstance(args, dict) and "name" in args:
            tid = event.get("tid") if kind == "thread_name" else None
            pid = event.get("pid")
            if isinstance(pid, str | int | float | None) and isinstance(tid, str | int | float | None):
                names[str(kind), pid, tid] = str(args["name"])
    return names
