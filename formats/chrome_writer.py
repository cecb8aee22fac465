"""Small Chrome traces, for chrome://tracing and Perfetto: events, names of rows, tracks without overlap."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from errors import whole_number
from formats.times import microseconds
from formats.values import cleaned
from outputs.atomic import open_output
from outputs.marks import MEMBER, PROGRAM

_BATCH = 10_000
_LARGEST = 1 << 31  # Perfetto reads this and larger numbers of threads as 0


class Slice(Struct, frozen=True):
    """One box; `inner` lie within it. Without an end it is an instant."""

    name: str
    start_ns: int
    end_ns: int | None
    args: Mapping[str, Any] = field(default_factory=dict)
    inner: Sequence[Slice] = ()


class Process(Struct, frozen=True):
    """One row group: named tracks, the slices of each in order of their start."""

    name: str
    tracks: Mapping[str, Iterable[Slice]]


def write_events(path: Path, events: Iterable[Mapping[str, Any]], **members: Any) -> int:
    """Write `events` to `path`, one per line, and `members` before them; return how many are not metadata."""
    encode = msgspec.json.Encoder().encode
    remaining = iter(events)
    n_events = 0
    with open_output(path) as out:
        head = encode({MEMBER: PROGRAM, "displayTimeUnit": "ms", **members})
        out.write(head[:-1] + b',"traceEvents":[')
        separator = b"\n"
        while batch := list(itertools.islice(remaining, _BATCH)):
            try:
                written = b",\n".join(map(encode, batch))
            except UnicodeEncodeError:  # what is named after a file may have its undecodable bytes
                written = b",\n".join(encode(cleaned(event)) for event in batch)
            out.write(separator + written)
            separator = b",\n"
            n_events += sum(event["ph"] != "M" for event in batch)
        out.write(b"\n]}\n")
    return n_events


def write_timeline(path: Path, processes: Iterable[Process], category: str) -> int:
    """Write `processes` to `path`; return the number of events without metadata."""
    places = Places()
    numbered = enumerate(processes)
    events = (event for number, one in numbered for event in _process(places, number, one, category))
    return write_events(path, events)


def metadata(kind: str, pid: int, tid: int, value: str | float) -> dict[str, Any]:
    """Return the event that names a process or thread, or says where it is sorted in."""
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


class Thread(NamedTuple):
    """A thread of a written trace: its numbers, and the key and name under which it was asked for."""

    pid: int
    tid: int
    key: Hashable
    name: str


class Places:
    """The numbers of processes and threads in one file, and the events that name them and say their order.

    Processes are numbered from 1 in the order in which they are asked for, which is also that in which they
    are shown. Threads whose key is one of the numbers `kept` (BytePS's partitions, an operating system's
    threads) keep it; the others get the lowest that is free, because Perfetto shows threads in the order of
    their numbers. None is that of its process: Perfetto would show it first.
    """

    def __init__(self, kept: Iterable[object] = ()) -> None:
        numbers = (whole_number(str(key)) or 0 for key in kept)
        self._kept = {number for number in numbers if 0 < number < _LARGEST}
        self._pids: dict[Hashable, int] = {}
        self._tids: dict[tuple[int, Hashable], int] = {}
        self._next: dict[int, Iterator[int]] = {}  # of each process, numbers not yet tried
        self._new: list[dict[str, Any]] = []

    def process(self, key: Hashable, name: str) -> int:
        """Return the number of the process `key`; its name is that of the first call."""
        pid = self._pids.get(key)
        if pid is None:
            pid = self._pids[key] = len(self._pids) + 1
            self._name("process", pid, 0, name or "process", pid)
        return pid

    def thread(self, pid: int, key: Hashable, name: str) -> Thread:
        """Return the thread `key` of a process; `name` may be "" where the key is one of the numbers kept."""
        tid = self._tids.get((pid, key))
        if tid is None:
            own = whole_number(str(key)) or 0
            tid = self._tids[pid, key] = own if own in self._kept else self._free(pid)
            self._name("thread", pid, tid, name or ("" if own in self._kept else "events"), len(self._tids))
        return Thread(pid, tid, key, name)

    def nested(
        self, threads: Sequence[Thread], at: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int]
    ) -> list[Thread]:
        """Return where each slice (n,) goes: its thread, or one beside that in which it nests.

        The slices come by start, of equal ones the longest first; `at` is the place of theirs in `threads`.
        Viewers leave out a slice that begins within another of its thread and ends after it.
        """
        lanes: dict[Thread, _Lanes] = {}
        found = []
        for place, start, end in zip(at, start_ns, end_ns, strict=True):
            thread = threads[place]
            lane = lanes.setdefault(thread, _Lanes()).take(start, end, nest=True)
            name = f"{thread.name or thread.tid} ({lane + 1})"
            found.append(self.thread(thread.pid, (thread.key, lane), name) if lane else thread)
        return found

    def _free(self, pid: int) -> int:
        numbers = self._next.setdefault(pid, itertools.count(1))
        return next(number for number in numbers if number != pid and number not in self._kept)

    def _name(self, kind: str, pid: int, tid: int, name: str, order: int) -> None:
        if name:
            self._new.append(metadata(f"{kind}_name", pid, tid, name))
        self._new.append(metadata(f"{kind}_sort_index", pid, tid, order))

    def names(self) -> list[dict[str, Any]]:
        """Return the metadata events of processes and threads that are new; they go before their events."""
        new, self._new = self._new, []
        return new


class _Lanes:
    """The tracks of one thread, beside each other, for slices that overlap; these come in order of start."""

    def __init__(self) -> None:
        self._open_ends: list[list[int]] = []  # of each lane; the innermost slice's is last

    def take(self, start_ns: int, end_ns: int, *, nest: bool) -> int:
        """Return the first lane that is free at a slice's start or, with `nest`, open until its end."""
        for lane, ends in enumerate(self._open_ends):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return lane
        self._open_ends.append([end_ns])
        return len(self._open_ends) - 1


def _process(places: Places, number: int, process: Process, category: str) -> Iterator[dict[str, Any]]:
    pid = places.process(number, process.name)
    yield from places.names()
    for track, slices in process.tracks.items():
        lanes = _Lanes()
        for item in slices:
            end_ns = item.start_ns if item.end_ns is None else item.end_ns
            lane = lanes.take(item.start_ns, end_ns, nest=False)
            thread = places.thread(pid, (track, lane), f"{track} ({lane + 1})" if lane else track)
            yield from places.names()
            yield from _events(pid, thread.tid, item, category)


def _events(pid: int, tid: int, item: Slice, category: str) -> Iterator[dict[str, Any]]:
    event = {"name": item.name, "cat": category, "pid": pid, "tid": tid, "ts": microseconds(item.start_ns)}
    if item.end_ns is None:
        event |= {"ph": "i", "s": "t"}
    else:
        event |= {"ph": "X", "dur": microseconds(item.end_ns - item.start_ns)}
    yield event | {"args": item.args} if item.args else event
    for inner in item.inner:
        yield from _events(pid, tid, inner, _PART)


_PART = "part"  # category of what lies within a slice: not to be counted with it
