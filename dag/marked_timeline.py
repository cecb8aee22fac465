"""The recorded timeline with the critical path as a track of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dag.critical_path import CriticalPath
from dag.path_summary import named_path
from dag.step_graph import Recording, StepGraph
from formats.chrome_writer import Places, Thread
from formats.columns import Trace, Track
from formats.times import microseconds

#: Name of the process and thread with the path.
_PATH = "critical path"
_FLOWS = "stf"  # phases of arrows: start, step, finish
_WITH_ID = _FLOWS + "bne"  # … and of asynchronous spans
_INSTANTS = "iIR"
_COUNTER = "C"

Names = Mapping[tuple[str, Any, Any], str]  # (process_name or thread_name, pid, tid) -> as metadata say
_Event = tuple[int, int, dict[str, Any]]  # its time, what orders it among others of that time, and itself


def marked_events(
    traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath
) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a Chrome trace, and the nanosecond of its time 0 (the first event).

    What was recorded stays: slices, arrows, asynchronous spans, instants and counters, with their arguments.

    Parameters
    ----------
    traces : one for each owner of `recording`, on its clock, with all arguments and points
    path : the critical path of `step`, whose track comes first
    """
    named = named_path(recording, path, parts=True, merged=False)
    begins = [path.start_ns, *(times for trace in traces for times in (trace.ts_ns, trace.points.ts_ns))]
    zero = int(np.concatenate(begins).min()) if any(map(len, begins)) else 0
    places = Places(track.tid for trace in traces for track in trace.tracks)
    on_path = places.thread(places.process(_PATH, _PATH), _PATH, _PATH)
    columns = (named.label, path.start_ns - zero, path.end_ns - zero)
    events = [
        _box(start, end, on_path, named.labels[label].name, named.labels[label].cat)
        for label, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]
    threads = place_tracks(
        places, recording.owners, [trace.tracks for trace in traces], [_own_names(trace) for trace in traces]
    )
    ids = itertools.count(1)
    for owner, trace in enumerate(traces):
        own = [threads[owner][track] for track in trace.tracks]
        order = np.lexsort((-trace.dur_ns, trace.ts_ns))
        begin, until = (trace.ts_ns - zero)[order].tolist(), (trace.end_ns - zero)[order].tolist()
        args = _args(trace)
        where = places.nested(own, trace.track_id[order].tolist(), begin, until)
        numbers = (column[order].tolist() for column in (trace.name_id, trace.cat_id))
        for row, name, cat, start, end, thread in zip(
            order.tolist(), *numbers, begin, until, where, strict=True
        ):
            box = _box(start, end, thread, trace.names[name], trace.cats[cat])
            if row in args:
                box[-1]["args"] = args[row]
            events.append(box)
        events += _points(trace, own, zero, ids)
    events.sort(key=lambda event: event[:2])
    return [*places.names(), *(event for _, _, event in events)], zero


def place_tracks(
    places: Places, owners: Sequence[str], tracks: Sequence[Sequence[Track]], names: Sequence[Names]
) -> list[dict[Track, Thread]]:
    """Return the threads of each owner's tracks, in processes named as recorded."""
    found = []
    for owner, (own, name_of) in enumerate(zip(tracks, names, strict=True)):
        threads: dict[Track, Thread] = {}
        for track in own:
            process = name_of.get(("process_name", track.pid, None), _text(track.pid))
            name = f"{owners[owner]}.{process}".rstrip(".") if len(owners) > 1 else process
            thread = name_of.get(("thread_name", track.pid, track.tid), _text(track.tid))
            threads[track] = places.thread(places.process((owner, track.pid), name), track.tid, thread)
        found.append(threads)
    return found


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
    columns = (points.name_id, points.cat_id, points.track_id, points.ts_ns - zero)
    number: dict[str | None, int] = {}
    args = points.args or [{}] * len(points)
    rows = zip(points.phase, points.ids, args, *(column.tolist() for column in columns), strict=True)
    for phase, own_id, own_args, name, cat, track, ts in rows:
        if phase not in _WITH_ID and phase not in _INSTANTS and phase != _COUNTER:
            continue
        event = {"ph": phase, "name": trace.names[name], "cat": trace.cats[cat], **_at(threads[track])}
        if phase in _WITH_ID:
            event["id"] = number[own_id] if own_id in number else number.setdefault(own_id, next(ids))
        elif own_id is not None:  # of counters of one name
            event["id"] = own_id
        if own_args:
            event["args"] = own_args
        if phase == "f":  # an arrow ends in the slice around it
            event["bp"] = "e"
        yield ts, 1, event | {"ts": microseconds(ts)}


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
