"""The recorded timeline with the critical path as a row of its own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from analyzer.model.graph.critical_path import CriticalPath
from analyzer.model.graph.path_summary import NamedPath
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.formats.chrome_writer import Slice, ThreadRow, recorded_row
from analyzer.reading.formats.columns import Trace

#: Name of the process and thread with the path.
_PATH = "critical path"
_WITH_ID = "stfbne"  # phases of arrows (start, step, finish) and of asynchronous spans
_WITHOUT_ID = "iIRC"  # phases of instants and counters


def marked_rows(
    traces: Sequence[Trace], recording: Recording, step: StepGraph, path: CriticalPath
) -> tuple[list[ThreadRow], int]:
    """Make the rows of a timeline, the critical path first, and the nanosecond of its time 0.

    `traces` are those of the recording's owners, on its clock, with all arguments and points; all is kept.
    """
    begins = [path.start_ns, *(times for trace in traces for times in (trace.ts_ns, trace.points.ts_ns))]
    zero = int(np.concatenate(begins).min()) if any(map(len, begins)) else 0
    named = NamedPath.of(recording, path, parts=True, merged=False)
    columns = (named.label, path.start_ns - zero, path.end_ns - zero)
    boxes = [
        Slice(named.labels[label].name, start, end, cat=named.labels[label].cat)
        for label, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]
    rows = [ThreadRow(_PATH, _PATH, _PATH, _PATH, sorted(boxes, key=lambda box: box.start_ns), nests=True)]
    ids = itertools.count(1)
    for owner, trace in enumerate(traces):
        slices, points, names = _slices(trace, zero), _points(trace, zero, ids), _recorded_names(trace)
        rows += [
            recorded_row(recording.owners, owner, track, slices[i], points[i], names)
            for i, track in enumerate(trace.tracks)
        ]
    return rows, zero


def _slices(trace: Trace, zero: int) -> defaultdict[int, list[Slice]]:
    """Collect the slices of each track, by start, of equal ones the longest first."""
    args: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for key, column in trace.args.items():
        for row, value in column.as_dict().items():
            args[row][key] = value
    order = np.lexsort((-trace.dur_ns, trace.ts_ns))
    columns = (trace.track_id, trace.name_id, trace.cat_id, trace.ts_ns - zero, trace.end_ns - zero)
    slices: defaultdict[int, list[Slice]] = defaultdict(list)
    for row, track, name, cat, start, end in zip(
        order.tolist(), *(column[order].tolist() for column in columns), strict=True
    ):
        box = Slice(trace.names[name], start, end, args.get(row, {}), cat=trace.cats[cat])
        slices[track].append(box)
    return slices


def _points(
    trace: Trace, zero: int, ids: Iterator[int]
) -> defaultdict[int, list[tuple[int, dict[str, Any]]]]:
    """Collect each track's arrows, asynchronous spans, instants and counters, with their arguments.

    The ids of arrows and spans become numbers that are unique in the timeline.
    """
    points = trace.points
    columns = (points.name_id, points.cat_id, points.track_id, points.ts_ns - zero)
    number: dict[str | None, int] = {}
    args = points.args or [{}] * len(points)
    by_track: defaultdict[int, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    rows = zip(points.phase, points.ids, args, *(column.tolist() for column in columns), strict=True)
    for phase, recorded_id, recorded_args, name, cat, track, ts in rows:
        if phase not in _WITH_ID + _WITHOUT_ID:
            continue
        event = {"ph": phase, "name": trace.names[name], "cat": trace.cats[cat]}
        if phase in _WITH_ID:
            if recorded_id not in number:
                number[recorded_id] = next(ids)
            event["id"] = number[recorded_id]
        elif recorded_id is not None:  # of counters of one name
            event["id"] = recorded_id
        if recorded_args:
            event["args"] = recorded_args
        if phase == "f":  # an arrow ends in the slice around it
            event["bp"] = "e"
        by_track[track].append((ts, event))
    return by_track


def _recorded_names(trace: Trace) -> dict[tuple[str, Any, Any], str]:
    names: dict[tuple[str, Any, Any], str] = {}
    for event in trace.metadata:
        kind, args = event.get("name"), event.get("args")
        if kind in ("process_name", "thread_name") and isinstance(args, dict) and "name" in args:
            tid = event.get("tid") if kind == "thread_name" else None
            pid = event.get("pid")
            if isinstance(pid, str | int | float | None) and isinstance(tid, str | int | float | None):
                names[str(kind), pid, tid] = str(args["name"])
    return names
