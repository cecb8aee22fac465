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
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from errors import TraceError
from formats.columns import ArgColumn, Points, Trace, Track, no_points
from formats.values import FARTHEST_NS, cleaned

COMPUTE = "Compute"
RESOURCE_USAGE = "Resource Usage"
MANAGED_MEMORY = "Managed Memory"

_HEAD = 8  # bytes of length before each record
_MAX_RECORD = 1 << 32  # bytes; a length beyond it is no length
_MAX_SECONDS = FARTHEST_NS / 2e9  # of a time and of a duration: their sum is within the border


def is_dasf(first_bytes: bytes) -> bool:
    """Return whether a file that begins with `first_bytes` (9 or more) holds DASF's records."""
    if len(first_bytes) <= _HEAD:
        return False
    length = int.from_bytes(first_bytes[:_HEAD], "big")
    return 0 < length < _MAX_RECORD and _is_map(first_bytes[_HEAD])


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
        file of 0 bytes (the client's monitor may leave one) is a trace without events.

    Raises
    ------
    TraceError
        The file cannot be read, or none of its records is an event.
    """
    builder = _Builder(frozenset(args), points)
    try:
        with open(path, "rb") as file:
            for record in _records(file.fileno(), path.stat().st_size, builder.repairs):
                builder.add(record)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not builder.phases and path.stat().st_size:
        raise TraceError(f"{path}: no DASF profile: none of its records is an event")
    return builder.trace(path)


def key_text(key: object) -> str:
    """Return a task's key as dask prints it: tuples, which arrive as arrays, in parentheses."""
    return key if isinstance(key, str) else repr(_tuples(key))


def function_of(key: object) -> str:
    """Return the function that a task's key names: ``('sum-<hash>', 1, 2)`` -> ``sum``."""
    first = key[0] if isinstance(key, list | tuple) and key else key
    text = str(first).strip("()'\"").split("'")[0]
    return text.rpartition("-")[0] or text


def _key_texts(keys: object) -> list[str]:
    return [key_text(key) for key in keys] if isinstance(keys, list) else []


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
                after = _next_record(data, at + 1)
                if after is None:
                    repairs.append(f"cut off in its last record: {size - at} bytes left out")
                    break
                damaged += after - at
                at = after
                continue
            try:
                record = decoder.decode(data[at + _HEAD : end])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
    """Return where the next record that fits into the file begins, at or after `at`."""
    mark = data.find(b"\xa4name", at + _HEAD + 1)
    while mark >= 0:
        start = mark - 1 - _HEAD
        length = int.from_bytes(data[start : start + _HEAD], "big")
        if start >= at and _is_map(data[mark - 1]) and 0 < length <= len(data) - start - _HEAD:
            return start
        mark = data.find(b"\xa4name", mark + 1)
    return None


@dataclass(slots=True)
class _Rows:
    """Growing columns of slices or of points."""

    name: array[int] = field(default_factory=lambda: array("i"))
    cat: array[int] = field(default_factory=lambda: array("i"))
    track: array[int] = field(default_factory=lambda: array("i"))
    ts_ns: array[int] = field(default_factory=lambda: array("q"))
    dur_ns: array[int] = field(default_factory=lambda: array("q"))

    def add(self, name: int, cat: int, track: int, ts_ns: int, dur_ns: int) -> int:
        """Append a row; return its number."""
        self.name.append(name)
        self.cat.append(cat)
        self.track.append(track)
        self.ts_ns.append(ts_ns)
        self.dur_ns.append(dur_ns)
        return len(self.name) - 1


class _Builder:
    """Turns records into columns, one at a time."""

    def __init__(self, wanted: frozenset[str], points: bool) -> None:
        self.repairs: list[str] = []
        self.phases: Counter[str] = Counter()
        self._wanted = wanted
        self._keep_points = points
        self._names: dict[str, int] = {}
        self._cats: dict[str, int] = {}
        self._tracks: dict[Track, int] = {}
        self._slices = _Rows()
        self._points = _Rows()
        self._point_phases: list[str] = []
        self._point_args: list[dict[str, Any]] = []
        self._args: dict[str, tuple[list[int], list[Any]]] = {}
        self._marks: list[_Record] = []  # B and E: paired at the end, when it is known whether E occurs

    def add(self, record: _Record) -> None:
        """Take one record."""
        self.phases[record.phase] += 1
        if record.phase == "X":
            self._add_slice(record)
        elif record.phase in ("B", "E"):
            self._marks.append(record)
        elif self._keep_points:
            self._point_phases.append(record.phase)
            self._point_args.append(cleaned(record.args or {}))
            self._points.add(*self._ids(record.name, "", record), _nanoseconds(record.timestamp), 0)

    def trace(self, path: Path) -> Trace:
        """Return all that was added."""
        self._pair_marks()
        rows, points = self._slices, self._points
        return Trace(
            path=str(path),
            dialect="dasf",
            names=list(self._names),
            cats=list(self._cats),
            tracks=list(self._tracks),
            name_id=_int32(rows.name),
            cat_id=_int32(rows.cat),
            track_id=_int32(rows.track),
            ts_ns=_int64(rows.ts_ns),
            dur_ns=_int64(rows.dur_ns),
            args={key: ArgColumn(np.array(at, np.int64), values) for key, (at, values) in self._args.items()},
            points=Points(
                self._point_phases,
                _int32(points.name),
                _int32(points.cat),
                _int32(points.track),
                _int64(points.ts_ns),
                [None] * len(points.name),
            )
            if self._point_phases
            else no_points(),
            header={"point_args": self._point_args} if self._keep_points else {},
            phases=dict(self.phases),
            repairs=self.repairs,
        )

    def _ids(self, name: str, cat: str, record: _Record) -> tuple[int, int, int]:
        track = Track(record.process_id, record.thread_id)
        return (
            self._names.setdefault(name, len(self._names)),
            self._cats.setdefault(cat, len(self._cats)),
            self._tracks.setdefault(track, len(self._tracks)),
        )

    def _add_slice(self, record: _Record) -> None:
        end_or_start, dur_ns = _nanoseconds(record.timestamp), max(0, _nanoseconds(record.duration))
        args = record.args or {}
        if record.name == COMPUTE:
            name = str(args.get("name") or function_of(args.get("key", COMPUTE)))
            row = self._slices.add(*self._ids(name, COMPUTE, record), end_or_start - dur_ns, dur_ns)
        else:
            row = self._slices.add(*self._ids(record.name, "", record), end_or_start, dur_ns)
        self._add_args(row, args)

    def _add_args(self, row: int, args: dict[str, Any]) -> None:
        for key in self._wanted & args.keys():
            value = cleaned(args[key])
            if key == "key":
                value = key_text(value)
            elif key in ("dependencies", "dependents"):
                value = _key_texts(value)
            rows, values = self._args.setdefault(key, ([], []))
            rows.append(row)
            values.append(value)

    def _pair_marks(self) -> None:
        ends_are_begins = not self.phases["E"]
        open_: dict[Track, list[_Record]] = {}
        unpaired = 0
        for mark in self._marks:
            stack = open_.setdefault(Track(mark.process_id, mark.thread_id), [])
            same = bool(stack) and stack[-1].name == mark.name
            if mark.phase == "E" or (ends_are_begins and same):
                if not same:
                    unpaired += 1
                    continue
                begin = stack.pop()
                ts_ns = _nanoseconds(begin.timestamp)
                dur_ns = max(0, _nanoseconds(mark.timestamp) - ts_ns)
                row = self._slices.add(*self._ids(begin.name, "", begin), ts_ns, dur_ns)
                self._add_args(row, begin.args or {})
            else:
                stack.append(mark)
        unpaired += sum(map(len, open_.values()))
        if unpaired:
            self.repairs.append(f"{unpaired} begins or ends without their counterpart left out")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _int32(column: array[int]) -> NDArray[np.int32]:
    return np.array(column, np.int32)


def _int64(column: array[int]) -> NDArray[np.int64]:
    return np.array(column, np.int64)
