"""Small Chrome traces, for chrome://tracing and Perfetto: events, names of rows, tracks without overlap."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from atomic_output import open_output
from output_marks import MEMBER, PROGRAM

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Slice:
    """One box; `inner` lie within it. Without an end it is an instant."""

    name: str
    start_ns: int
    end_ns: int | None
    args: Mapping[str, Any] = field(default_factory=dict)
    inner: Sequence[Slice] = ()


@dataclass(frozen=True, slots=True)
class Process:
    """One row group: named tracks, the slices of each in order of their start."""

    name: str
    tracks: Mapping[str, Iterable[Slice]]


def write_events(path: Path, events: Iterable[Mapping[str, Any]], **members: Any) -> int:
    """Write `events` to `path`, one per line, and `members` before them; return how many are no metadata."""
    encode = msgspec.json.Encoder().encode
    remaining = iter(events)
    n_events = 0
    with open_output(path) as out:
        head = encode({MEMBER: PROGRAM, "displayTimeUnit": "ms", **members})
        out.write(head[:-1] + b',"traceEvents":[')
        separator = b"\n"
        while batch := list(itertools.islice(remaining, _BATCH)):
            out.write(separator + b",\n".join(map(encode, batch)))
            separator = b",\n"
            n_events += sum(event["ph"] != "M" for event in batch)
        out.write(b"\n]}\n")
    return n_events


def write_timeline(path: Path, processes: Iterable[Process], category: str) -> int:
    """Write `processes` to `path`; return the number of events without metadata."""
    numbered = enumerate(processes, 1)
    events = (event for pid, process in numbered for event in _process(pid, process, category))
    return write_events(path, events)


def metadata(kind: str, pid: int, tid: int, value: str | int) -> dict[str, Any]:
    """Return the event that names a process or thread, or says where it is sorted in."""
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


def _process(pid: int, process: Process, category: str) -> Iterator[dict[str, Any]]:
    yield metadata("process_name", pid, 0, process.name)
    yield metadata("process_sort_index", pid, 0, pid)
    tids = itertools.count(1)
    for track, slices in process.tracks.items():
        tid_of_lane: list[int] = []
        for lane, item in _lanes(slices):
            if lane == len(tid_of_lane):
                tid = next(tids)
                tid_of_lane.append(tid)
                yield metadata("thread_name", pid, tid, f"{track} ({lane + 1})" if lane else track)
                yield metadata("thread_sort_index", pid, tid, tid)
            yield from _events(pid, tid_of_lane[lane], item, category)


def _lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """Give each slice the lowest lane that is free at its start."""
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    for item in slices:
        while busy and busy[0][0] <= item.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (item.start_ns if item.end_ns is None else item.end_ns, lane))
        yield lane, item


def _events(pid: int, tid: int, item: Slice, category: str) -> Iterator[dict[str, Any]]:
    event = {"name": item.name, "cat": category, "pid": pid, "tid": tid, "ts": _us(item.start_ns)}
    if item.end_ns is None:
        event |= {"ph": "i", "s": "t"}
    else:
        event |= {"ph": "X", "dur": _us(item.end_ns - item.start_ns)}
    yield event | {"args": item.args} if item.args else event
    for inner in item.inner:
        yield from _events(pid, tid, inner, _PART)


_PART = "part"  # category of what lies within a slice: not to be counted with it


def _us(ns: int) -> msgspec.Raw:
    """Return microseconds as the format wants them, exact."""
    whole, rest = divmod(ns, 1000)
    return msgspec.Raw(f"{whole}.{rest:03d}".rstrip("0").encode() if rest else str(whole).encode())
