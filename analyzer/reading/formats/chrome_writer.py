"""A writer of small chrome traces: events, names of rows, and tracks without overlap."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from analyzer.base.errors import PROGRAM, whole_number
from analyzer.base.inputs import MEMBER
from analyzer.base.outputs.atomic import open_output
from analyzer.reading.formats.columns import Track
from analyzer.reading.formats.values import cleaned, microseconds

_BATCH = 10_000
_LARGEST = 1 << 31  # Perfetto reads thread numbers from this on as 0


class Slice(Struct, frozen=True, gc=False):
    """One box, or without an end an instant; `inner` has the boxes within it."""

    name: str
    start_ns: int
    end_ns: int | None
    args: Mapping[str, Any] = field(default_factory=dict)
    inner: Sequence[Slice] = ()
    cat: str | None = None


class ThreadRow(Struct, frozen=True):
    """The slices of one thread, in order of start, at one start the longest first.

    Viewers omit a slice that begins within another of its thread and ends after it: overlapping slices go to
    further threads; with `nests`, slices within another stay.
    """

    process: Hashable  # rows of one process are shown together, under the first name
    process_name: str
    key: Hashable  # a number of a thread or a partition is kept
    name: str
    slices: Iterable[Slice]
    points: Iterable[tuple[int, Mapping[str, Any]]] = ()  # other events: time, and members but pid and tid
    nests: bool = False


Names = Mapping[tuple[str, Any, Any], str]  # recorded names by (process_name or thread_name, pid, tid)


def recorded_row(
    owners: Sequence[str],
    owner: int,
    track: Track,
    slices: Sequence[Slice],
    points: Sequence[tuple[int, Mapping[str, Any]]] = (),
    names: Names = MappingProxyType({}),
) -> ThreadRow:
    """Make the row of an owner's track, in a process named as recorded."""
    pid, tid = ("" if number is None else str(number) for number in track)
    process = names.get(("process_name", track.pid, None), pid)
    shown = f"{owners[owner]}.{process}".rstrip(".") if len(owners) > 1 else process
    thread = names.get(("thread_name", track.pid, track.tid), tid)
    return ThreadRow((owner, track.pid), shown, track.tid, thread, slices, points, nests=True)


def write_timeline(path: Path, rows: Iterable[ThreadRow], **members: Any) -> int:
    """Write rows in their order on the screen; return the number of events without metadata.

    The file has `members` first, then the events in order of time, one per line.
    """
    timeline = _Timeline(rows)
    events = itertools.chain(timeline.places.names, timeline.events())
    encode = msgspec.json.Encoder().encode
    with open_output(path) as out:
        head = encode({MEMBER: PROGRAM, "displayTimeUnit": "ms", **members})
        out.write(head[:-1] + b',"traceEvents":[')
        separator = b"\n"
        while batch := list(itertools.islice(events, _BATCH)):
            try:
                written = b",\n".join(map(encode, batch))
            except UnicodeEncodeError:  # a file's name may have undecodable bytes
                written = b",\n".join(encode(cleaned(event)) for event in batch)
            out.write(separator + written)
            separator = b",\n"
        out.write(b"\n]}\n")
    return len(timeline.items)


class _Timeline:
    """The events of some rows: slices and the members of others, with their times and threads."""

    def __init__(self, rows: Iterable[ThreadRow]) -> None:
        shown = list(rows)
        self.places = Places(row.key for row in shown)
        self.items: list[Slice | Mapping[str, Any]] = []
        self._threads: list[tuple[int, int]] = []  # process and thread
        self._thread, self._ts, self._dur = array("q"), array("q"), array("q")
        for row in shown:
            self._add(row)

    def _add(self, row: ThreadRow) -> None:
        pid, first = self.places.process(row.process, row.process_name), len(self._threads)
        self._threads.append((pid, self.places.thread(pid, row.key, row.name)))
        lanes = _Lanes()
        for item in row.slices:
            end_ns = item.start_ns if item.end_ns is None else item.end_ns
            thread = first + lanes.take(item.start_ns, end_ns, nest=row.nests)
            if thread == len(self._threads):
                lane = thread - first
                name = f"{row.name or self._threads[first][1]} ({lane + 1})"
                self._threads.append((pid, self.places.thread(pid, (row.key, lane), name)))
            for box in (item, *item.inner):
                self._put(box, thread, box.start_ns, 0 if box.end_ns is None else box.end_ns - box.start_ns)
        for time_ns, point in row.points:
            self._put(point, first, time_ns, -1)  # after the slices of that time

    def _put(self, item: Slice | Mapping[str, Any], thread: int, ts_ns: int, dur_ns: int) -> None:
        self.items.append(item)
        self._thread.append(thread)
        self._ts.append(ts_ns)
        self._dur.append(dur_ns)

    def events(self) -> Iterator[dict[str, Any]]:
        """Make the events in order of time, of equal times the longest first."""
        ts_ns, dur_ns = (np.frombuffer(column, np.int64) for column in (self._ts, self._dur))
        for i in np.lexsort((-dur_ns, ts_ns)).tolist():
            pid, tid = self._threads[self._thread[i]]
            item = self.items[i]
            track = {"pid": pid, "tid": tid, "ts": microseconds(self._ts[i])}
            if not isinstance(item, Slice):
                yield {**item, **track}
                continue
            event: dict[str, Any] = {"name": item.name, **track}
            event |= (
                {"ph": "i", "s": "t"}
                if item.end_ns is None
                else {"ph": "X", "dur": microseconds(self._dur[i])}
            )
            if item.cat is not None:
                event["cat"] = item.cat
            if item.args:
                event["args"] = item.args
            yield event


def metadata(kind: str, pid: int, tid: int, value: str | float) -> dict[str, Any]:
    """Make the event that names or orders a process or thread."""
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


class Places:
    """The numbers of processes and threads in one file, and the events that name and order them.

    Processes are numbered from 1 in the order of their first use, and shown in this order. Threads whose key
    is one of the numbers `kept` (BytePS's partitions, an operating system's threads) keep it; others get the
    lowest free number, because Perfetto shows threads in the order of their numbers. No thread has the number
    of its process: Perfetto would show it first.
    """

    def __init__(self, kept: Iterable[object] = ()) -> None:
        numbers = (whole_number(str(key)) or 0 for key in kept)
        self._kept = {number for number in numbers if 0 < number < _LARGEST}
        self._pids: dict[Hashable, int] = {}
        self._tids: dict[tuple[int, Hashable], int] = {}
        self._next: dict[int, Iterator[int]] = {}  # of each process, numbers not yet tried
        self.names: list[dict[str, Any]] = []  # metadata events

    def process(self, key: Hashable, name: str) -> int:
        """Assign a number to the process `key`; the first call names it."""
        pid = self._pids.get(key)
        if pid is None:
            pid = self._pids[key] = len(self._pids) + 1
            self._name("process", pid, 0, name or "process", pid)
        return pid

    def thread(self, pid: int, key: Hashable, name: str) -> int:
        """Assign a number to the thread `key` of a process; `name` may be "" if the key is `kept`."""
        tid = self._tids.get((pid, key))
        if tid is None:
            tid = whole_number(str(key)) or 0
            is_kept = tid in self._kept
            if not is_kept:
                free = self._next.setdefault(pid, itertools.count(1))
                tid = next(number for number in free if number != pid and number not in self._kept)
            self._tids[pid, key] = tid
            self._name("thread", pid, tid, name or ("" if is_kept else "events"), len(self._tids))
        return tid

    def _name(self, kind: str, pid: int, tid: int, name: str, order: int) -> None:
        if name:
            self.names.append(metadata(f"{kind}_name", pid, tid, name))
        self.names.append(metadata(f"{kind}_sort_index", pid, tid, order))


class _Lanes:
    """Parallel tracks of one thread for overlapping slices, which come in order of start."""

    def __init__(self) -> None:
        self._open_ends: list[list[int]] = []  # of each lane, the innermost slice last

    def take(self, start_ns: int, end_ns: int, *, nest: bool) -> int:
        """Take the first lane that is free at a slice's start or, with `nest`, open until its end."""
        for lane, ends in enumerate(self._open_ends):
            while ends and ends[-1] <= start_ns:
                ends.pop()
            if not ends or (nest and end_ns <= ends[-1]):
                ends.append(end_ns)
                return lane
        self._open_ends.append([end_ns])
        return len(self._open_ends) - 1
