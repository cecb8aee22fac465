"""Dumps of a collective library's flight recorder (pickles of plain values, or JSON) as columns.

A dump is the state of one rank at one moment: ``{"version", "pg_config", "pg_status", "entries"}``. An entry
is a call of a collective, a send or a receive; its `state` is ``scheduled``, ``started`` or ``completed``.
Completed entries with known times become slices; ``header["recorder"]`` is the `Dump`.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import numbered
from analyzer.base.errors import TraceError, counted
from analyzer.reading.formats.columns import BYTES, NUMBER, ArgColumn, Trace, Track
from analyzer.reading.formats.event import UNDECODABLE
from analyzer.reading.formats.recorder.plain_pickle import unpickled
from analyzer.reading.formats.stream import PIECE, ByteStream
from analyzer.reading.formats.values import FARTHEST_NS, clean_text

_MOST_BYTES = 1 << 30  # a recorder of 100,000 entries writes 50 MB
_LONGEST_NAME = 300
_MESSAGES = ("send", "recv")
STARTED, COMPLETED = 1, 2  # states of a call
_MOST_AXES = 64  # of a tensor, in PyTorch
_ITEM_BYTES = {
    "Double": 8, "Long": 8, "UInt64": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4,
    "UInt32": 4, "Half": 2, "BFloat16": 2, "Short": 2, "UInt16": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip
_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
_STATES = {"scheduled": 0, "started": STARTED, "completed": COMPLETED}


class Dump(NamedTuple):
    """A dump: `entries` are its calls (n); fields of all calls are columns (n,)."""

    entries: Sequence[Mapping[str, Any]]
    kind: Sequence[str]
    groups: Sequence[tuple[str, str]]  # name and description of each distinct group
    group_id: Int64
    number: Int64  # among the collectives of the group; -1 where unknown
    is_message: Mask
    state: Int64  # STARTED, COMPLETED, or 0
    times: Int64  # (3, n): created, found started, found completed; -1 where unknown
    config: Mapping[str, Any]
    status: Mapping[str, Any]
    written_ns: int


def read(path: Path, args: Collection[str] = ()) -> Trace:
    """Load one dump, with `NUMBER` and `BYTES` if they are in `args`.

    TraceError for other files, and for a pickle of more than plain values.
    """
    repairs: list[str] = []
    document = _document(path, repairs)
    recorded = document.get("entries", [])
    if not isinstance(recorded, list | tuple) or not document.keys() & {"entries", "pg_config", "pg_status"}:
        raise TraceError(f"{path}: not a dump of a flight recorder: it has no entries")
    if "entries" not in document:
        repairs.append("no list of entries: no call is recorded")
    entries = [entry for entry in recorded if isinstance(entry, dict) and isinstance(entry.get("state"), str)]
    if n := len(recorded) - len(entries):
        repairs.append(f"{n:,} of {len(recorded):,} entries are damaged and left out")
    names, states, of_groups = (
        _hashed(column(entries, key)) for key in ("profiling_name", "state", "process_group")
    )
    kind_by_name = {name: kind_of(name) for name in {*names}}
    kinds = list(map(kind_by_name.__getitem__, names))
    distinct, group_id = numbered(of_groups)
    groups = [_group_of(group) for group in distinct]
    if None in groups:  # numbered by each process for itself
        pairs = zip(group_id.tolist(), column(entries, "pg_id"), strict=True)
        groups, group_id = numbered(groups[i] or (f"#{whole(number)}",) * 2 for i, number in pairs)
    is_message = [
        kind in _MESSAGES if is_p2p is None else bool(is_p2p)
        for is_p2p, kind in zip(column(entries, "is_p2p"), kinds, strict=True)
    ]
    number = _integers(column(entries, NUMBER))
    if n := len(states) - sum(map(_STATES.__contains__, states)):
        repairs.append(f"{counted(n, 'call')} in states that are not known: taken as open")
    recorded_times = [column(entries, key) for key in _TIMES]
    times = np.array(list(map(_integers, recorded_times)))
    if n := int((times < 0).sum()) - sum(values.count(None) for values in recorded_times):
        repairs.append(f"{counted(n, 'time')} of calls cannot be: taken as unknown")
    config, status = (
        value if isinstance(value, dict) else {} for value in map(document.get, ("pg_config", "pg_status"))
    )
    dump = Dump(
        entries,
        kinds,
        [(text_of(name), text_of(description)) for name, description in filter(None, groups)],
        group_id.astype(np.int64),
        number if (number >= 0).any() else _integers(column(entries, "seq_id")),
        np.array(is_message, np.bool_),
        np.fromiter(map(_STATES.get, states, repeat(0)), np.int64, len(entries)),
        times,
        config,
        status,
        path.stat().st_mtime_ns,
    )
    return _trace(path, dump, repairs, args)


def _hashed(values: Sequence[Any]) -> Sequence[Any]:
    """Replace values that have no hash."""
    try:
        hash(frozenset(values))
    except TypeError:
        return list(map(_plain, values))
    return values


def _plain(value: Any) -> Any:
    """Keep a number or a text, and a list of two texts as a pair; None for any other value."""
    if isinstance(value, list | tuple):
        return tuple(value) if len(value) == 2 and type(value[0]) is type(value[1]) is str else None
    return value if isinstance(value, str | int | float) else None


def column(entries: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """Get a field of all entries (n,); None where it is missing."""
    return [entry.get(key) for entry in entries]


def _document(path: Path, repairs: list[str]) -> Mapping[str, Any]:
    pieces: list[bytes] = []
    stream = ByteStream(path)
    for piece in stream:
        pieces.append(piece)
        if len(pieces) * PIECE > _MOST_BYTES:
            raise TraceError(f"{path}: a dump of more than {_MOST_BYTES >> 20} MiB is not read")
    if stream.damage:
        repairs.append(stream.damage)
    data = bytearray().join(pieces)
    is_pickle = data[:1] == b"\x80"
    document = unpickled(path, data, repairs) if is_pickle else _from_json(path, data, repairs)
    if isinstance(document, list) and any(
        isinstance(entry, dict) and "state" in entry for entry in document
    ):  # the format of PyTorch's first recorder
        document = {"entries": document}
    if not isinstance(document, dict):
        raise TraceError(f"{path}: not a dump of a flight recorder")
    return document


# ---- JSON

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)  # the last text may be cut


def _from_json(path: Path, data: bytearray, repairs: list[str]) -> Any:
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE as error:
        try:
            document = msgspec.json.decode(_closed_json(data))
        except UNDECODABLE:
            raise TraceError(f"{path}: neither JSON nor a pickle ({error})") from error
    repairs.append("cut off: entries after the cut are missing")
    return document


def _closed_json(data: bytearray) -> bytearray:
    """Cut a text after its last closing bracket, and close the open ones."""
    opened: list[bytes] = []
    best = depth = 0
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"{", b"["):
            opened.append(b"}" if mark == b"{" else b"]")
        elif mark in (b"}", b"]"):
            if opened[-1:] != [mark]:
                break
            best, _, depth = token.end(), opened.pop(), len(opened)
    return data[:best] + b"".join(reversed(opened[:depth]))


# ---- columns


def _trace(path: Path, dump: Dump, repairs: list[str], args: Collection[str]) -> Trace:
    """Make slices of the completed entries with times: named by kind, in the category of their group.

    A slice begins when the operation was found started, or else was created, and lasts for the measured
    duration, or else until it was found completed.
    """
    done = np.flatnonzero(dump.state == COMPLETED)
    created, started, completed = dump.times[:, done]
    measured_ms = column(dump.entries, "duration_ms")
    dur_ns = np.full(len(dump.entries), -1)
    for i, ms in enumerate(measured_ms):
        if type(ms) in (float, int) and 0 <= ms < 1e9:
            dur_ns[i] = int(ms * 1e6)
    dur_ns = dur_ns[done]
    begin = np.where(started > 0, started, np.where(dur_ns >= 0, completed - dur_ns, created))
    begin = np.where(begin > 0, begin, created)
    dur_ns = np.where(dur_ns >= 0, dur_ns, completed - begin)
    kept = np.flatnonzero((begin > 0) & (dur_ns >= 0))
    if n := int(((begin > 0) & (completed > 0) & (dur_ns < 0)).sum()):
        repairs.append(f"{counted(n, 'call')} left out: the end is before the beginning")
    rows = done[kept]
    names, name_id = numbered([dump.kind[i] for i in rows.tolist()])
    used, group_id = numbered(dump.group_id[rows].tolist())
    cats, cat_of = numbered(dump.groups[i][1] for i in used)
    tracks, track_of = numbered(Track(0, dump.groups[i][0]) for i in used)
    return Trace(
        str(path), "", names, cats, tracks, name_id, cat_of[group_id], track_of[group_id], begin[kept],
        dur_ns[kept], _args(dump, rows, args), header={"recorder": dump}, phases={"X": len(dump.entries)},
        repairs=repairs,
    )  # fmt: skip


def _args(dump: Dump, rows: Int64, wanted: Collection[str]) -> dict[str, ArgColumn]:
    values: dict[str, list[int]] = {}
    if NUMBER in wanted:
        values[NUMBER] = np.where(dump.is_message, -1, dump.number)[rows].tolist()
    for key in BYTES:
        if key in wanted:
            sizes, dtypes = (column(dump.entries, f"{key}_{what}") for what in ("sizes", "dtypes"))
            values[key] = _n_bytes([(sizes[i], dtypes[i]) for i in rows.tolist()])
    return {key: ArgColumn(np.arange(len(rows)), array("q", column)) for key, column in values.items()}


def _n_bytes(tensors: Sequence[Sequence[Any]]) -> list[int]:
    """Bytes of the tensors of calls (n,), from sizes and types; 0 where one is unknown."""
    known: dict[tuple[int, int], int] = {}  # by identity: a file may repeat one list a million times
    counts_of: dict[int, list[int]] = {}
    totals = []
    for sizes, dtypes in tensors:
        key = (id(sizes), id(dtypes))
        if key not in known:
            if (counts := counts_of.get(id(sizes))) is None:
                counts = counts_of[id(sizes)] = list(map(math.prod, shapes_of(sizes, None)))
            is_even = isinstance(dtypes, list | tuple) and len(counts) == len(dtypes)
            types = map(text_of, dtypes if is_even else ())
            n_bytes = [n * _ITEM_BYTES.get(dtype, 0) for n, dtype in zip(counts, types, strict=False)]
            known[key] = sum(n_bytes) if min(n_bytes, default=0) > 0 and sum(n_bytes) < 1 << 62 else 0
        totals.append(known[key])
    return totals


def shapes_of(value: Any, most: int | None) -> list[list[int]]:
    """List the shapes of up to `most` tensors, with -1 for damaged numbers."""
    tensors = value[:most] if isinstance(value, list | tuple) else ()
    return [[whole(n) for n in shape[:_MOST_AXES]] for shape in tensors if isinstance(shape, list | tuple)]


def _integers(values: Sequence[Any]) -> Int64:
    return np.fromiter(map(whole, values), np.int64, len(values))


def whole(value: Any) -> int:
    """Read an integer, or a text of one, in the range of times; -1 for any other value."""
    if type(value) is str and len(value) < 19 and value.isdecimal():
        value = int(value)
    return value if type(value) is int and 0 <= value <= FARTHEST_NS else -1


def text_of(value: Any, longest: int | None = _LONGEST_NAME) -> str:
    """Cut a text to usual length; "" for any other value."""
    return clean_text(value[:longest]) if isinstance(value, str) else ""


def kind_of(name: Any) -> str:
    """Read the kind of a call in its name.

    >>> kind_of("nccl:all_reduce"), kind_of("nccl:send 0->3")
    ('all_reduce', 'send')
    """
    return _kind_of(name) if isinstance(name, str) else "unnamed"


@lru_cache(4096)
def _kind_of(name: str) -> str:
    return text_of(name).partition(":")[2].partition(" ")[0] or text_of(name) or "unnamed"


def _group_of(group: Any) -> tuple[str, str] | None:
    """Check that a value is a group's name and description; None for any other value."""
    is_group = isinstance(group, tuple) and len(group) == 2 and type(group[0]) is type(group[1]) is str
    return group if is_group else None
