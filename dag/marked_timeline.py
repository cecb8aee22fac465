"""The recorded timeline with the critical path marked: a track of its own, and arrows along the path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dag.critical_path import NO_EVENT, CriticalPath
from dag.path_summary import named_path
from dag.step_graph import Recording, StepGraph
from dialects.step_parts import Operation
from formats.chrome_writer import Places
from formats.columns import Int64, Trace, Track

#: Name of the process and category of the arrows that mark the path.
PATH = "critical path"

_Places = Sequence[Sequence[tuple[int, int]]]  # of each trace, the (pid, tid) of each of its tracks


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

    Parameters
    ----------
    traces : what was recorded, one for each owner of `recording`, on its clock
    path : the critical path of `step`
    """
    stops = _stops(traces, recording, step, path)
    times = [int(trace.ts_ns.min()) for trace in traces if len(trace)]
    zero = min([*times, *(stop.start_ns for stop in stops)], default=0)
    names, places, on_path = _named_tracks(traces, recording.owners)
    events = [_box(stop.name, stop.cat, on_path, stop.start_ns - zero, stop.end_ns - zero) for stop in stops]
    events += _arrows(traces, stops, places, zero)
    marked = {stop.event for stop in stops}
    for number, trace in enumerate(traces):
        columns = (trace.name_id, trace.cat_id, trace.track_id, trace.ts_ns - zero, trace.end_ns - zero)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (name, cat, track, start, end) in enumerate(rows):
            event = _box(trace.names[name], trace.cats[cat], places[number][track], start, end)
            if (number, row) in marked:
                event["args"] = {PATH: True}
            events.append(event)
    return [*names, *sorted(events, key=lambda event: float(event["ts"]))], zero


def _stops(traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath) -> list[_Stop]:
    """Return the stretches of the path with the slices that they lie in."""
    found = []
    named = named_path(recording, path, parts=True, merged=False)
    on_track: dict[tuple[int, Track], tuple[Int64, Int64, Int64]] = {}
    for stretch, label in zip(path.stretches, named.label.tolist(), strict=True):
        event = None
        if stretch.event != NO_EVENT and stretch.cat == "":
            operation = recording.operations[int(step.operation[stretch.event])]
            trace, place = traces[operation.owner], (operation.owner, operation.track)
            if place not in on_track:
                on_track[place] = _rows_of(trace, operation.track)
            event = _slice_of(trace, on_track[place], operation, stretch.end_ns)
        where = None if event is None else (stretch.owner, event)
        name, cat, _ = named.labels[label]
        found.append(_Stop(name, cat, stretch.start_ns, stretch.end_ns, where))
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


def _box(name: str, cat: str, place: tuple[int, int], start_ns: int, end_ns: int) -> dict[str, Any]:
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", "name": name, "cat": cat, "pid": place[0], "tid": place[1], **times}


def _arrows(
    traces: Sequence[Trace], stops: Sequence[_Stop], places: _Places, zero: int
) -> Iterator[dict[str, Any]]:
    """Yield a flow from each slice of the path to the next."""
    known = [(stop, stop.event) for stop in stops if stop.event is not None]
    for number, ((a, event_a), (b, event_b)) in enumerate(itertools.pairwise(known), 1):
        if event_a == event_b:
            continue
        for phase, stop, event in (("s", a, event_a), ("f", b, event_b)):
            pid, tid = places[event[0]][traces[event[0]].track_id[event[1]]]
            bound = {"bp": "e"} if phase == "f" else {}
            ts = (max(stop.start_ns, a.end_ns - 1) - zero) / 1e3
            yield {"name": PATH, "cat": "critical_path", "id": number, "ph": phase, **bound,
                   "pid": pid, "tid": tid, "ts": ts}  # fmt: skip


def _named_tracks(
    traces: Sequence[Trace], owners: Sequence[str]
) -> tuple[list[dict[str, Any]], _Places, tuple[int, int]]:
    """Return the metadata that names and orders processes and threads, their numbers, and the path's place.

    Names are those of the recording's own metadata, processes with their owner where there are several.
    """
    numbers = Places()
    pid = numbers.process(PATH, PATH)
    on_path = pid, numbers.thread(pid, PATH, PATH)
    places = []
    for number, (trace, owner) in enumerate(zip(traces, owners, strict=True)):
        own = _own_names(trace)
        place_of: dict[Track, tuple[int, int]] = {}
        for track in trace.tracks:
            process = own.get(("process_name", track.pid, None), _text(track.pid))
            name = f"{owner}.{process}" if len(traces) > 1 else process
            pid = numbers.process((number, track.pid), name)
            thread = own.get(("thread_name", track.pid, track.tid), _text(track.tid))
            place_of[track] = pid, numbers.thread(pid, track.tid, thread)
        places.append([place_of[track] for track in trace.tracks])
    return numbers.names(), places, on_path


def _text(number: Any) -> str:
    return "" if number is None else str(number)


def _own_names(trace: Trace) -> dict[tuple[str, Any, Any], str]:
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
