"""Dumps of a collective library's flight recorder: pickles of plain values, or JSON -> columns.

A dump is what one rank knew at one moment: ``{"version", "pg_config", "pg_status", "entries"}``. An entry is
a call of a collective, a send or a receive; its `state` is ``scheduled``, ``started`` or ``completed``.

- In a dump that was cut off the entries that are whole are kept.
- Completed entries whose times are known are the slices; the document itself is ``header["recorder"]``.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from arrays import Int64
from arrays.numbering import numbered
from errors import TraceError
from formats.columns import ArgColumn, Trace, Track
from formats.event import UNDECODABLE
from formats.recorder import BYTES, NUMBER
from formats.recorder.plain_pickle import unpickled
from formats.stream import ByteStream
from formats.values import FARTHEST_NS, clean_text

_MOST_BYTES = 1 << 30  # a recorder of 100,000 entries writes 50 MB
_LONGEST_NAME = 300
_ITEM_BYTES = {
    "Double": 8, "Long": 8, "UInt64": 8, "ComplexFloat": 8, "ComplexDouble": 16, "Float": 4, "Int": 4,
    "UInt32": 4, "Half": 2, "BFloat16": 2, "Short": 2, "UInt16": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip
TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def read(path: Path, args: Collection[str] = ()) -> Trace:
    """Load one dump, with those of `NUMBER` and `BYTES` that are in `args`.

    TraceError for other files, and for a pickle that holds more than values.
    """
    repairs: list[str] = []
    document = _document(path, repairs)
    entries = document.get("entries", [])
    if not isinstance(entries, list | tuple) or not document.keys() & {"entries", "pg_config", "pg_status"}:
        raise TraceError(f"{path}: not a dump of a flight recorder: it has no entries")
    kept = [entry for entry in entries if isinstance(entry, dict) and "state" in entry]
    if len(kept) < len(entries):
        repairs.append(f"{len(entries) - len(kept):,} of {len(entries):,} entries are damaged and left out")
    return _trace(path, {**document, "entries": kept}, repairs, args)


def _document(path: Path, repairs: list[str]) -> Mapping[str, Any]:
    data = b""
    stream = ByteStream(path)
    for piece in stream:
        data += piece
        if len(data) > _MOST_BYTES:
            raise TraceError(f"{path}: a dump of more than {_MOST_BYTES >> 20} MiB is not read")
    if stream.damage:
        repairs.append(stream.damage)
    found = unpickled(path, data, repairs) if data[:1] == b"\x80" else _from_json(path, data, repairs)
    if not isinstance(found, dict):
        raise TraceError(f"{path}: not a dump of a flight recorder")
    return found


# ---- JSON

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def _from_json(path: Path, data: bytes, repairs: list[str]) -> Any:
    try:
        return msgspec.json.decode(data)
    except UNDECODABLE as error:
        closed = _closed_json(data)
        try:
            found = msgspec.json.decode(closed)
        except UNDECODABLE:
            raise TraceError(f"{path}: neither JSON nor a pickle ({error})") from error
    repairs.append("cut off: entries after the cut are missing")
    return found


def _closed_json(data: bytes) -> bytes:
    """Return the text up to the last bracket that closes, with what is open there closed."""
    opened: list[bytes] = []
    best, closers = 0, b""
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in (b"{", b"["):
            opened.append(b"}" if mark == b"{" else b"]")
        elif mark in (b"}", b"]"):
            if not opened or opened.pop() != mark:
                break
            best, closers = token.end(), b"".join(reversed(opened))
    return data[:best] + closers


# ---- columns


def _trace(path: Path, document: Mapping[str, Any], repairs: list[str], args: Collection[str] = ()) -> Trace:
    """Return the completed entries with their times as slices: named by kind, in the category of their group.

    A slice begins when the operation was found started, or else was created, and lasts for the duration that
    was measured, or else until it was found completed.
    """
    entries = document["entries"]
    groups = [group_of(entry) for entry in entries]
    times = np.array([_times(entries, key) for key in TIMES])
    is_done = [one["state"] == "completed" for one in entries]
    done, done_in = list(compress(entries, is_done)), list(compress(groups, is_done))
    created, started, completed = times[:, np.array(is_done, np.bool_)]
    measured_ms = [one.get("duration_ms") for one in done]
    dur_ns = np.array([ms * 1e6 if type(ms) is float and 0 <= ms < 1e9 else -1 for ms in measured_ms])
    begin = np.where(
        started > 0, started, np.where(dur_ns >= 0, completed - dur_ns.astype(np.int64), created)
    )
    begin = np.where(begin > 0, begin, created)
    dur = np.where(dur_ns >= 0, dur_ns.astype(np.int64), completed - begin)
    rows = np.flatnonzero((begin > 0) & (dur >= 0)).tolist()
    names, name_id = numbered(kind_of(done[i].get("profiling_name")) for i in rows)
    cats, cat_id = numbered(done_in[i][1] for i in rows)
    tracks, track_id = numbered(done_in[i][0] for i in rows)
    known = {**document, "groups": groups, "last_ns": int(times.max(initial=-1))}
    return Trace(
        str(path), "", names, cats, [Track(0, name) for name in tracks], name_id, cat_id, track_id,
        begin[rows], dur[rows], _args([done[i] for i in rows], args), header={"recorder": known},
        phases={"X": len(entries)}, repairs=repairs,
    )  # fmt: skip


def _args(entries: Sequence[Mapping[str, Any]], wanted: Collection[str]) -> dict[str, ArgColumn]:
    found: dict[str, list[int]] = {}
    if NUMBER in wanted:
        found[NUMBER] = [
            -1 if one.get("is_p2p") else whole(one.get(NUMBER, one.get("seq_id"))) for one in entries
        ]
    for key in BYTES:
        if key in wanted:
            found[key] = [_n_bytes(one.get(f"{key}_sizes"), one.get(f"{key}_dtypes")) for one in entries]
    return {key: ArgColumn(np.arange(len(entries)), array("q", values)) for key, values in found.items()}


def _n_bytes(sizes: Any, dtypes: Any) -> int:
    """Return the bytes of tensors; 0 where a size or a type is not known."""
    if (
        not isinstance(sizes, list | tuple)
        or not isinstance(dtypes, list | tuple)
        or len(sizes) != len(dtypes)
    ):
        return 0
    each = [
        math.prod(map(whole, size)) * _ITEM_BYTES.get(text_of(dtype), 0)
        for size, dtype in zip(sizes, dtypes, strict=True)
        if isinstance(size, list | tuple)
    ]
    total = sum(each)
    return total if all(n > 0 for n in each) and total < 1 << 62 else 0


def _times(entries: Sequence[Mapping[str, Any]], key: str) -> Int64:
    values = [entry.get(key) for entry in entries]
    try:
        found = np.array([value if type(value) is int else -1 for value in values], np.int64)
    except OverflowError:
        return np.array([whole(value) for value in values], np.int64)
    found[(found < 0) | (found > FARTHEST_NS)] = -1
    return found


def whole(value: Any) -> int:
    """Return an integer, or a text of one, in the range of times; -1 for any other value."""
    if type(value) is str and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value <= FARTHEST_NS else -1


def text_of(value: Any, longest: int | None = _LONGEST_NAME) -> str:
    """Return a text of usual length; "" for any other value."""
    return clean_text(value)[:longest] if isinstance(value, str) else ""


def kind_of(name: Any) -> str:
    """Return the kind of a call.

    >>> kind_of("nccl:all_reduce"), kind_of("nccl:send 0->3")
    ('all_reduce', 'send')
    """
    return _kind_of(name) if isinstance(name, str) else "unnamed"


@lru_cache(4096)
def _kind_of(name: str) -> str:
    return text_of(name).partition(":")[2].partition(" ")[0] or text_of(name) or "unnamed"


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the description of an entry's group."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and len(group) == 2:
        name, description = group
        if isinstance(name, str) and isinstance(description, str):
            return _cleaned(name), _cleaned(description)
    number = str(whole(entry.get("pg_id")))
    return number, number


@lru_cache(4096)
def _cleaned(text: str) -> str:
    return text_of(text)
