"""DASF's profiler databases (`*.msgpack`) as columns.

A file is a sequence of records: 8 bytes of length, big-endian, then one MessagePack map with `name`,
`timestamp` and `duration` in seconds of the host's monotonic clock, `phase`, `process_id` (the host),
`thread_id` (the worker) and `args`. All workers of a host append to one file, block by block.

Differences from the chrome format:

- The timestamp of a `Compute` record is its *end*: start = timestamp - duration. The slice is named after the
  task's function (`args.name`) and has the category ``Compute``.
- Task keys are texts (``"('sum-<hash>', 1, 2)"``) or, with newer dask, arrays; both become the text.
- Ends of durations have the phase ``B``, too: until a record has the phase ``E``, a begin of the same name as
  the innermost open begin of its track ends it.
- `Resource Usage` and `Managed Memory` are samples: they are `points`, and their `args` are, in the same
  order, in ``header["point_args"]``.
"""

from __future__ import annotations

import itertools
import mmap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.base.inputs import opened, unreadable
from analyzer.reading.formats.builder import Builder
from analyzer.reading.formats.chrome import columns
from analyzer.reading.formats.columns import COMPUTE, Trace, Track
from analyzer.reading.formats.event import ROLE, UNDECODABLE, EndRule, ExactEvent
from analyzer.reading.formats.file_kinds import is_dasf
from analyzer.reading.formats.stream import GZIP, ByteStream
from analyzer.reading.formats.values import FARTHEST_NS, cleaned, microseconds

_BATCH = 10_000  # records
_HEAD = 8  # bytes of length before each record
_MAX_SECONDS = FARTHEST_NS / 2e9  # of a time, and of a duration: their sum is within the border


def read(path: Path, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one database, with the keys `args` of slices; with `points`, samples, too.

    `ts_ns` is by the host's monotonic clock. An empty file (as the client's monitor may leave) is a trace
    without events; TraceError if a file cannot be read, or none of its records is an event.
    """
    builder = Builder(args, points)
    repairs: list[str] = []
    is_empty = True
    samples: list[dict[str, Any]] = []
    data = _content(path, repairs)
    records = _with_ends(_records(data, repairs))
    while batch := list(itertools.islice(records, _BATCH)):
        is_empty = False
        builder.add([_event(record, args) for record in batch])
        if points:
            samples += [cleaned(record.args or {}) for record in batch if record.phase not in ROLE]
    if is_empty and len(data):
        raise TraceError(f"{path}: not a DASF profile: none of its records is an event")
    trace = columns(builder, EndRule.NESTED_BY_NAME)
    header = {"point_args": samples} if points else {}
    return replace(trace, path=str(path), dialect="dasf", header=header, repairs=[*repairs, *trace.repairs])


def _key_text(key: object) -> str:
    """Write a task's key as dask prints it: tuples, which arrive as arrays, in parentheses."""
    return key if isinstance(key, str) else repr(_tuples(key))


def function_of(key: object) -> str:
    """Extract the function from a task's key: ``('sum-<hash>', 1, 2)`` -> ``sum``."""
    first = key[0] if isinstance(key, list | tuple) and key else key
    if first is None:
        return COMPUTE
    text = str(first).strip("()'\"").split("'")[0]
    return text.rpartition("-")[0] or text


def _tuples(value: object) -> object:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


class _Record(msgspec.Struct):
    """The fields of a record; the decoder skips all others."""

    name: str
    timestamp: float
    phase: str
    duration: float = 0.0
    process_id: str | int | None = None
    thread_id: str | int | None = None
    args: dict[str, Any] | None = None


def _content(path: Path, repairs: list[str]) -> bytes | mmap.mmap:
    """Return the content of a file, unpacked where it is gzip; that it is empty or cut goes to `repairs`."""
    stream = ByteStream(path)
    try:
        with opened(path) as file:
            is_plain = file.read(2) not in (b"", GZIP)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if is_plain else b"".join(stream)
    except OSError as error:
        raise unreadable(path, error) from error
    repairs += [] if len(data) else ["empty, no records"]
    repairs += [stream.damage] if stream.damage else []
    return data


def _records(data: bytes | mmap.mmap, repairs: list[str]) -> Iterator[_Record]:
    """Yield the whole records of a file; what is cut, damaged or foreign goes to `repairs`."""
    decoder = msgspec.msgpack.Decoder(_Record)
    skipped = damaged = position = 0
    size = len(data)
    while position < size:
        end = position + _HEAD + int.from_bytes(data[position : position + _HEAD], "big")
        if end > size or end <= position + _HEAD:
            if (after := _next_record(data, position + 1)) is None:
                repairs.append(f"cut off in its last record: {size - position} bytes left out")
                break
            damaged += after - position
            position = after
            continue
        try:
            record = decoder.decode(data[position + _HEAD : end])
        except UNDECODABLE:
            skipped += 1
        else:
            if abs(record.timestamp) < _MAX_SECONDS and abs(record.duration) < _MAX_SECONDS:
                yield record
            else:
                skipped += 1
        position = end
    if damaged:
        repairs.append(f"{damaged} bytes between whole records are damaged and were left out")
    if skipped:
        repairs.append(f"{skipped} records are not events and were left out")


def _next_record(data: bytes | mmap.mmap, position: int) -> int | None:
    mark = data.find(b"\xa4name", position + _HEAD + 1)
    while mark >= 0:
        start = mark - 1 - _HEAD
        length = int.from_bytes(data[start : start + _HEAD], "big")
        if start >= position and is_dasf(data[start:mark]) and length <= len(data) - start - _HEAD:
            return start
        mark = data.find(b"\xa4name", mark + 1)
    return None


def _with_ends(records: Iterable[_Record]) -> Iterator[_Record]:
    """Yield the records, with the phase E for a begin that ends a duration."""
    open_names: defaultdict[Track, list[str]] = defaultdict(list)
    has_ends = False
    for record in records:
        has_ends |= record.phase == "E"
        if record.phase == "B" and not has_ends:
            names = open_names[Track(record.process_id, record.thread_id)]
            if names and names[-1] == record.name:
                names.pop()
                record.phase = "E"
            else:
                names.append(record.name)
        yield record


def _event(record: _Record, wanted: Collection[str]) -> ExactEvent:
    """Make an event of a chrome trace from a record, with the wanted args."""
    args = record.args or {}
    start_ns, dur_ns = round(record.timestamp * 1e9), max(0, round(record.duration * 1e9))
    name, cat = record.name, None
    if record.phase == "X" and name == COMPUTE:
        cat, start_ns = COMPUTE, start_ns - dur_ns
        name = str(cleaned(args.get("name")) or function_of(cleaned(args.get("key"))))
    chosen = {key: _arg(key, cleaned(args[key])) for key in wanted if key in args}
    return ExactEvent(
        ph=record.phase,
        name=name,
        cat=cat,
        pid=record.process_id,
        tid=record.thread_id,
        ts=microseconds(start_ns),
        dur=microseconds(dur_ns),
        args=msgspec.Raw(msgspec.json.encode(chosen)),
    )


def _arg(key: str, value: Any) -> Any:
    if key == "key":
        return _key_text(value)
    if key in ("dependencies", "dependents"):
        return list(map(_key_text, value)) if isinstance(value, list) else []
    return value
