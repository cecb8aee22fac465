"""Timelines for chrome://tracing and Perfetto: integer pids and tids with names, no overlap on a track."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

from atomic_output import open_output
from output_marks import JSON_START


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


def write_timeline(path: Path, processes: Iterable[Process], category: str) -> int:
    """Write a chrome trace of `processes` to `path`; return the number of events without metadata."""
    written = 0
    with open_output(path) as out:
        out.write(JSON_START + b'"displayTimeUnit":"ms","traceEvents":[')
        comma = b"\n"
        for pid, process in enumerate(processes, 1):
            for is_meta, line in _process(pid, process, json.dumps(category)):
                out.write(comma + line)
                comma = b",\n"
                written += not is_meta
        _end(out)
    return written


def _end(out: IO[bytes]) -> None:
    out.write(b"\n]}\n")


def _process(pid: int, process: Process, category: str) -> Iterator[tuple[bool, bytes]]:
    yield True, _meta(pid, 0, "process_name", "name", process.name)
    yield True, _meta(pid, 0, "process_sort_index", "sort_index", pid)
    tids = count(1)
    for track, slices in process.tracks.items():
        lanes: list[int] = []
        for lane, item in _lanes(slices):
            if lane == len(lanes):
                lanes.append(next(tids))
                name = track if lane == 0 else f"{track} ({lane + 1})"
                yield True, _meta(pid, lanes[lane], "thread_name", "name", name)
                yield True, _meta(pid, lanes[lane], "thread_sort_index", "sort_index", lanes[lane])
            for event in _events(pid, lanes[lane], item, category):
                yield False, event


def _lanes(slices: Iterable[Slice]) -> Iterator[tuple[int, Slice]]:
    """Give each slice the lowest lane that is free at its start."""
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    n_lanes = 0
    for item in slices:
        while busy and busy[0][0] <= item.start_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, n_lanes)
            n_lanes += 1
        lane = heapq.heappop(free)
        heapq.heappush(busy, (item.start_ns if item.end_ns is None else item.end_ns, lane))
        yield lane, item


def _events(pid: int, tid: int, item: Slice, category: str) -> Iterator[bytes]:
    head = (
        f'{{"name":{json.dumps(item.name)},"cat":{category},"pid":{pid},"tid":{tid},"ts":{_us(item.start_ns)}'
    )
    tail = f',"args":{json.dumps(dict(item.args))}}}' if item.args else "}"
    if item.end_ns is None:
        yield f'{head},"ph":"i","s":"t"{tail}'.encode()
    else:
        yield f'{head},"ph":"X","dur":{_us(item.end_ns - item.start_ns)}{tail}'.encode()
    for inner in item.inner:
        yield from _events(pid, tid, inner, _PART)


_PART = '"part"'  # category of what lies within a slice: not to be counted with it


def _us(ns: int) -> str:
    """Microseconds as the format wants them, exact."""
    whole, rest = divmod(ns, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def _meta(pid: int, tid: int, name: str, key: str, value: str | int) -> bytes:
    event = {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}
    return json.dumps(event).encode()
