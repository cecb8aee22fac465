"""The recorded timeline with the critical path marked: a track of its own, and arrows along the path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dag_utils import MEETING, Dag, LongestPath
from formats.columns import Trace
from opname import QUEUES, OpName
from trace_utils import Source

#: Name of the process and category of the arrows that mark the path.
PATH = "critical path"
_PATH_PID = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """One operation of the path as it was recorded: when, and the event that it is (trace, row) if any."""

    name: str
    cat: str
    start_ns: int
    dur_ns: int
    event: tuple[int, int] | None


@dataclass(slots=True)
class _Places:
    """Integers for the processes and threads of all traces, and the names that go with them."""

    pids: dict[tuple[int, Any], int] = field(default_factory=dict)
    tids: dict[tuple[int, Any], int] = field(default_factory=dict)

    def of(self, trace: int, pid: Any, tid: Any) -> tuple[int, int]:
        number = self.pids.setdefault((trace, pid), len(self.pids) + 1)
        return number, self.tids.setdefault((number, tid), len(self.tids) + 1)


def stops(
    dag: Dag, path: LongestPath, sources: Sequence[Source], traces: Sequence[Trace]
) -> list[list[Stop]]:
    """Return the path as recorded in each step that `dag` has times of.

    `traces` are those of `sources`. Operations that were not recorded in a step are left out of it.
    """
    rows = dag.attrs.get("row")
    events = None if rows is not None else _event_index(sources, traces)
    found = []
    for start_ns, dur_ns in zip(dag.step_start_ns, dag.step_dur_ns, strict=True):
        steps: list[Stop] = []
        for node in path.nodes:
            if dag.cats[node] == MEETING or dur_ns[node] < 0:
                continue
            start = int(start_ns[node])
            event = rows.get(node) if rows is not None else _event(events or {}, dag.names[node], start)
            steps.append(Stop(dag.names[node], dag.cats[node], start, int(dur_ns[node]), event))
        found.append(steps)
    return found


def marked_events(
    traces: Sequence[Trace], labels: Sequence[str], paths: Sequence[Sequence[Stop]]
) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a Chrome trace, and the nanosecond of its time 0 (the first event).

    Parameters
    ----------
    traces : what was recorded; `labels` begin the names of their processes (``rank0.``)
    paths : per step the operations of the path, in order
    """
    times = [int(trace.ts_ns.min()) for trace in traces if len(trace)]
    times += [stop.start_ns for path in paths for stop in path]
    zero = min(times, default=0)
    places = _Places()
    marked = {stop.event for path in paths for stop in path if stop.event is not None}
    slices = [
        event for number, trace in enumerate(traces) for event in _slices(number, trace, places, marked, zero)
    ]
    track = [event for path in paths for event in _track(path, zero)]
    arrows = list(_arrows(traces, paths, places, zero))
    names = _names(traces, labels, places)
    return [*names, *sorted([*slices, *track, *arrows], key=lambda event: float(event["ts"]))], zero


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


def _track(path: Sequence[Stop], zero: int) -> Iterator[dict[str, Any]]:
    """Yield the path as slices of one track; one that began before the last ended is cut to nest nowhere."""
    free = 0
    for stop in path:
        start = max(stop.start_ns, free)
        end = stop.start_ns + stop.dur_ns
        if end <= start:
            continue
        free = end
        yield {
            "ph": "X", "name": stop.name, "cat": stop.cat, "pid": _PATH_PID, "tid": 1,
            "ts": (start - zero) / 1e3, "dur": (end - start) / 1e3,
        }  # fmt: skip


def _arrows(
    traces: Sequence[Trace], paths: Sequence[Sequence[Stop]], places: _Places, zero: int
) -> Iterator[dict[str, Any]]:
    """Yield a flow from each event of the path to the next."""
    number = 0
    for path in paths:
        known = [(stop, stop.event) for stop in path if stop.event is not None]
        for (a, event_a), (b, event_b) in itertools.pairwise(known):
            here, there = _track_of(traces, event_a, places), _track_of(traces, event_b, places)
            if event_a == event_b:
                continue
            number += 1
            leave = max(a.start_ns, min(a.start_ns + a.dur_ns - 1, b.start_ns))
            arrive = max(b.start_ns, leave)
            common = {"name": PATH, "cat": "critical_path", "id": number}
            yield {**common, "ph": "s", "pid": here[0], "tid": here[1], "ts": (leave - zero) / 1e3}
            yield {
                **common,
                "ph": "f",
                "bp": "e",
                "pid": there[0],
                "tid": there[1],
                "ts": (arrive - zero) / 1e3,
            }


def _track_of(traces: Sequence[Trace], event: tuple[int, int], places: _Places) -> tuple[int, int]:
    number, row = event
    track = traces[number].tracks[traces[number].track_id[row]]
    return places.of(number, track.pid, track.tid)


def _names(traces: Sequence[Trace], labels: Sequence[str], places: _Places) -> list[dict[str, Any]]:
    """Return the metadata that names and orders processes and threads, the path's first."""
    said = [_said(trace) for trace in traces]
    events = [
        _meta("process_name", _PATH_PID, 0, name=PATH),
        _meta("process_sort_index", _PATH_PID, 0, sort_index=-1),
    ]
    events.append(_meta("thread_name", _PATH_PID, 1, name=PATH))
    keys = {}
    for (number, pid), to in places.pids.items():
        own = said[number].get(("process_name", pid, None), "" if pid is None else str(pid))
        events.append(_meta("process_name", to, 0, name=f"{labels[number]}{own}"))
        events.append(_meta("process_sort_index", to, 0, sort_index=to))
        keys[to] = (number, pid)
    for (pid_to, tid), to in places.tids.items():
        number, pid = keys[pid_to]
        own = said[number].get(("thread_name", pid, tid), "" if tid is None else str(tid))
        events.append(_meta("thread_name", pid_to, to, name=own or "events"))
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


def _meta(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


_Key = tuple[int, int | None, str, int]


def _event_index(sources: Sequence[Source], traces: Sequence[Trace]) -> dict[_Key, tuple[int, int]]:
    """Return (worker, rank, operation, start) -> the event that it is."""
    index: dict[_Key, tuple[int, int]] = {}
    alone = len(traces) == 1
    for number, (source, trace) in enumerate(zip(sources, traces, strict=True)):
        worker, rank = (0, None) if alone else (source.worker or 0, source.rank)
        bare = [str(OpName.parse(name).bare()) for name in trace.names]
        tids = [str(track.tid) for track in trace.tracks]
        columns = zip(trace.name_id.tolist(), trace.track_id.tolist(), trace.ts_ns.tolist(), strict=True)
        for row, (name, track, ts) in enumerate(columns):
            text = bare[name]
            if text.rpartition(".")[2] in QUEUES and tids[track].isdecimal():
                text = f"{text}.{tids[track]}"
            index.setdefault((worker, rank, text, ts), (number, row))
    return index


def _event(index: dict[_Key, tuple[int, int]], name: str, start_ns: int) -> tuple[int, int] | None:
    op = OpName.parse(name)
    return index.get((op.worker or 0, op.rank, str(op.bare()), start_ns))
