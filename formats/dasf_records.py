"""DASF's profiler databases (`*.msgpack`): bytes -> columns.

A file is a sequence of records: 8 bytes of length, big-endian, then one MessagePack map with `name`,
`timestamp` and `duration` in seconds of the host's monotonic clock, `phase`, `process_id` (the host),
`thread_id` (the worker) and `args`. All workers of a host append to one file, block by block.

What differs from the Chrome format:

- A `Compute` record is stamped when the task had *finished*: start = timestamp - duration. The slice is
  named after the task's function (`args.name`) and has the category ``Compute``.
- Task keys are text (``"('sum-<hash>', 1, 2)"``) or, with newer dask, arrays; both become the text.
- The writer gives the end of a duration the phase ``B`` as well: where no record has the phase ``E``, a
  begin whose name is the innermost open one of its track ends it.
- `Resource Usage` and `Managed Memory` are samples with values: they are `points`, and their `args`
  stand, in the same order, under ``header["point_args"]``.
"""

from __future__ import annotations

import mmap
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from errors import TraceError
from formats.columns import Trace, Track
from formats.event import UNDECODABLE
from formats.rows import Rows, columns, numbers, odd_phases
from formats.values import FARTHEST_NS, cleaned
from inputs import opened, unreadable

COMPUTE = "Compute"
RESOURCE_USAGE = "Resource Usage"
MANAGED_MEMORY = "Managed Memory"

_HEAD = 8  # bytes of length before each record
_MAX_RECORD = 1 << 32  # bytes; a length beyond it is not a length
_MAX_SECONDS = FARTHEST_NS / 2e9  # of a time and of a duration: their sum is within the border


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` (9 bytes or more) holds DASF's records."""
    if len(head) <= _HEAD:
        return False
    length = int.from_bytes(head[:_HEAD], "big")
    return 0 < length < _MAX_RECORD and _is_map(head[_HEAD])


def read(path: Path, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one database.

    Parameters
    ----------
    args : keys of the records' `args` to keep in `Trace.args`, for slices only
    points : also keep the samples, in `Trace.points`; their values in ``header["point_args"]``

    Returns
    -------
    Trace
        `ts_ns` counts from the start of the host's monotonic clock, which no other host shares. A
        file of 0 bytes (the client's monitor may leave one) is a trace without events; TraceError where
        a file cannot be read, or none of its records is an event.
    """
    builder = _Builder(frozenset(args), points)
    try:
        with opened(path) as file:
            for record in _records(file.fileno(), path.stat().st_size, builder.repairs):
                builder.add(record)
    except OSError as error:
        raise unreadable(path, error) from error
    if not builder.phases and path.stat().st_size:
        raise TraceError(f"{path}: not a DASF profile: none of its records is an event")
    return builder.trace(path)


def key_text(key: object) -> str:
    """Return a task's key as dask prints it: tuples, which arrive as arrays, in parentheses."""
    return key if isinstance(key, str) else repr(_tuples(key))


def function_of(key: object) -> str:
    """Return the function that a task's key names: ``('sum-<hash>', 1, 2)`` -> ``sum``."""
    first = key[0] if isinstance(key, list | tuple) and key else key
    if first is None:
        return COMPUTE
    text = str(first).strip("()'\"").split("'")[0]
    return text.rpartition("-")[0] or text


def _tuples(value: object) -> object:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def _is_map(first: int) -> bool:
    return first >> 4 == 0x8 or first in (0xDE, 0xDF)


class _Record(msgspec.Struct):
    """The fields of a record that are used; the decoder skips the others."""

    name: str
    timestamp: float
    phase: str
    duration: float = 0.0
    process_id: str | int | None = None
    thread_id: str | int | None = None
    args: dict[str, Any] | None = None


def _records(fileno: int, size: int, repairs: list[str]) -> Iterator[_Record]:
    """Yield the whole records of a file; what is cut, damaged or foreign goes to `repairs`."""
    if size == 0:
        repairs.append("empty, no records")
        return
    decoder = msgspec.msgpack.Decoder(_Record)
    skipped = damaged = at = 0
    with mmap.mmap(fileno, 0, access=mmap.ACCESS_READ) as data:
        while at < size:
            end = at + _HEAD + int.from_bytes(data[at : at + _HEAD], "big")
            if end > size or end <= at + _HEAD:
                if (after := _next_record(data, at + 1)) is None:
                    repairs.append(f"cut off in its last record: {size - at} bytes left out")
                    break
                damaged += after - at
                at = after
                continue
            try:
                record = decoder.decode(data[at + _HEAD : end])
            except UNDECODABLE:
                skipped += 1
            else:
                if abs(record.timestamp) < _MAX_SECONDS and abs(record.duration) < _MAX_SECONDS:
                    yield record
                else:
                    skipped += 1
            at = end
    if damaged:
        repairs.append(f"{damaged} bytes between whole records are damaged and were left out")
    if skipped:
        repairs.append(f"{skipped} records are not events and were left out")


def _next_record(data: mmap.mmap, at: int) -> int | None:
    mark = data.find(b"\xa4name", at + _HEAD + 1)
    while mark >= 0:
        start = mark - 1 - _HEAD
        length = int.from_bytes(data[start : start + _HEAD], "big")
        if start >= at and _is_map(data[mark - 1]) and 0 < length <= len(data) - start - _HEAD:
            return start
        mark = data.find(b"\xa4name", mark + 1)
    return None


class _Builder:
    """Turns records into columns, one at a time."""

    def __init__(self, wanted: frozenset[str], points: bool) -> None:
        self.repairs: list[str] = []
        self.phases: Counter[str] = Counter()
        self._wanted = wanted
        self._keep_points = points
        self._ids = numbers()
        self._key, self._ts_ns, self._dur_ns = array("i"), array("q"), array("q")
        self._args: defaultdict[str, tuple[array[int], list[Any]]] = defaultdict(lambda: (array("q"), []))
        self._point_key, self._point_ts_ns = array("i"), array("q")
        self._point_args: list[dict[str, Any]] = []
        self._marks: list[_Record] = []  # B and E: paired at the end, when it is known whether E occurs

    def add(self, record: _Record) -> None:
        """Take one record."""
        self.phases[record.phase] += 1
        at_ns, dur_ns = _nanoseconds(record.timestamp), max(0, _nanoseconds(record.duration))
        if record.phase in ("B", "E"):
            self._marks.append(record)
        elif record.phase != "X":
            if self._keep_points:
                self._point_key.append(self._id(record, record.phase, record.name))
                self._point_ts_ns.append(at_ns)
                self._point_args.append(cleaned(record.args or {}))
        elif record.name == COMPUTE:
            args = record.args or {}
            name, key = (cleaned(args.get(what)) for what in ("name", "key"))
            name = str(name or function_of(key))
            self._add_slice(record, at_ns - dur_ns, dur_ns, name, COMPUTE)
        else:
            self._add_slice(record, at_ns, dur_ns, record.name)

    def trace(self, path: Path) -> Trace:
        """Return all that was added."""
        self._pair_marks()
        rows = Rows(
            keys=list(self._ids),
            counts=np.zeros(len(self._ids), np.int64),  # `phases` are those of the file's records
            key=np.frombuffer(self._key, np.int32),
            ts_ns=np.frombuffer(self._ts_ns, np.int64),
            dur_ns=np.frombuffer(self._dur_ns, np.int64),
            args={key: (np.frombuffer(at, np.int64), values) for key, (at, values) in self._args.items()},
            points=(
                np.frombuffer(self._point_key, np.int32),
                np.frombuffer(self._point_ts_ns, np.int64),
                [None] * len(self._point_key),
                [],
            ),
            metadata=[],
        )
        header = {"point_args": self._point_args} if self._keep_points else {}
        return replace(columns(rows), path=str(path), dialect="dasf", header=header, phases=dict(self.phases),
                       repairs=[*self.repairs, *odd_phases(self.phases)])  # fmt: skip

    def _id(self, record: _Record, phase: str, name: str, cat: str | None = None) -> int:
        return self._ids[phase, name, cat, record.process_id, record.thread_id]

    def _add_slice(
        self, record: _Record, start_ns: int, dur_ns: int, name: str, cat: str | None = None
    ) -> None:
        args = record.args or {}
        for key in self._wanted & args.keys():
            value = cleaned(args[key])
            if key == "key":
                value = key_text(value)
            elif key in ("dependencies", "dependents"):
                value = [key_text(each) for each in value] if isinstance(value, list) else []
            rows, values = self._args[key]
            rows.append(len(self._key))
            values.append(value)
        self._key.append(self._id(record, "X", name, cat))
        self._ts_ns.append(start_ns)
        self._dur_ns.append(dur_ns)

    def _pair_marks(self) -> None:
        ends_are_begins = not self.phases["E"]
        open_marks: defaultdict[Track, list[_Record]] = defaultdict(list)
        unpaired = 0
        for mark in self._marks:
            stack = open_marks[Track(mark.process_id, mark.thread_id)]
            same = bool(stack) and stack[-1].name == mark.name
            if same and (mark.phase == "E" or ends_are_begins):
                begin = stack.pop()
                start_ns, end_ns = _nanoseconds(begin.timestamp), _nanoseconds(mark.timestamp)
                self._add_slice(begin, start_ns, max(0, end_ns - start_ns), begin.name)
            elif mark.phase == "B":
                stack.append(mark)
            else:
                unpaired += 1
        unpaired += sum(map(len, open_marks.values()))
        if unpaired:
            self.repairs.append(f"{unpaired} begins or ends without their counterpart left out")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
