"""A writer of small chrome traces: events, names of rows, and tracks without overlap."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from analyzer.base.errors import PROGRAM, whole_number
from analyzer.base.inputs import MEMBER
from analyzer.base.outputs.atomic import open_output
from analyzer.reading.formats.columns import Track
from analyzer.reading.formats.values import cleaned, microseconds

_BATCH = 10_000
_LARGEST = 1 << 31  # Perfetto reads thread numbers from this on as 0


class Slice(Struct, frozen=True):
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
    slices: Iterable[Slice],
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

    The file has `members` first, then the events, one per line: each row's names, then its slices in order.
    """
    shown = list(rows)
    places = Places(row.key for row in shown)
    events = itertools.chain.from_iterable(_events(places, row) for row in shown)
    encode = msgspec.json.Encoder().encode
    n_events = 0
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
            n_events += len(batch)
        out.write(b"\n]}\n")
    return n_events - len(places.names)


def _events(places: Places, row: ThreadRow) -> Iterator[dict[str, Any]]:
    n_named = len(places.names)
    pid = places.process(row.process, row.process_name)
    threads = [places.thread(pid, row.key, row.name)]
    yield from places.names[n_named:]
    lanes = _Lanes()
    for item in row.slices:
        end_ns = item.start_ns if item.end_ns is None else item.end_ns
        lane = lanes.take(item.start_ns, end_ns, nest=row.nests)
        if lane == len(threads):
            n_named = len(places.names)
            threads.append(places.thread(pid, (row.key, lane), f"{row.name or threads[0]} ({lane + 1})"))
            yield from places.names[n_named:]
        for box in (item, *item.inner):
            yield _box(box, pid, threads[lane])
    for time_ns, point in row.points:
        yield {**point, "pid": pid, "tid": threads[0], "ts": microseconds(time_ns)}


def _box(box: Slice, pid: int, tid: int) -> dict[str, Any]:
    event: dict[str, Any] = {"name": box.name, "pid": pid, "tid": tid, "ts": microseconds(box.start_ns)}
    if box.end_ns is None:
        event |= {"ph": "i", "s": "t"}
    else:
        event["ph"] = "X"
        event["dur"] = microseconds(box.end_ns - box.start_ns)
    if box.cat is not None:
        event["cat"] = box.cat
    if box.args:
        event["args"] = box.args
    return event


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
