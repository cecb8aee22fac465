"""Snapshots of PyTorch's caching allocator, as columns.

``{"segments", "device_traces", "allocator_settings"}``: the blocks when the snapshot was taken, and what the
allocator of each device did before. An entry has the bytes that were requested; blocks are rounded up.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import ALLOCATOR, Trace, no_slices
from analyzer.reading.formats.recorder.plain_pickle import unpickled
from analyzer.reading.formats.recorder.recorder_dump import text_of, whole
from analyzer.reading.formats.stream import ByteStream
from analyzer.reading.formats.values import FARTHEST_NS

ACTIONS = (
    "", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom",
)  # fmt: skip
_IN_USE = "active_allocated"
_CODES = {action: code for code, action in enumerate(ACTIONS)}
_MOST_BYTES = 4 << 30  # of a file
LARGEST = 1 << 40  # bytes of a block


class _Device(NamedTuple):
    """The history of a device (n,), and its blocks when the snapshot was taken (m,); -1 where unknown."""

    action: Int64  # index into `ACTIONS`
    address: Int64  # of an "oom": the bytes free on the device
    n_bytes: Int64
    time_us: Int64
    stack: Int64  # index into the stacks
    category: Sequence[str]  # as PyTorch's profiler names it; "" without
    blocks: Int64  # (m, 5): address, bytes, requested bytes, stack, 1 if in use
    reserved: int  # bytes


def read(path: Path) -> Trace:
    """Load a snapshot as a trace without slices; TraceError for any other file."""
    repairs: list[str] = []
    stream, data = ByteStream(path), bytearray()
    for piece in stream:
        data += piece
        if len(data) > _MOST_BYTES:
            raise TraceError(f"{path}: a snapshot of more than {_MOST_BYTES >> 30} GiB is not read")
    repairs += filter(None, [stream.damage])
    history = _History()
    document = unpickled(path, data, repairs, history.take)
    if not isinstance(document, dict) or not document.keys() & {"segments", "device_traces"}:
        raise TraceError(f"{path}: not a snapshot of an allocator: it has no segments")
    blocks = _blocks(_dicts(document.get("segments")), history)
    traces = enumerate(_listed(document.get("device_traces")))
    histories = {number: columns for number, trace in traces if len((columns := history.columns(trace))[0])}
    none = history.columns([]), (np.empty((0, 5), np.int64), 0)
    devices = {
        number: _Device(*(*histories.get(number, none[0]), *blocks.get(number, none[1])))
        for number in sorted({*histories, *blocks})
    }
    if history.n_damaged:
        repairs.append(f"{history.n_damaged:,} damaged entries are left out")
    settings = document.get("allocator_settings")
    header = {ALLOCATOR: (devices, history.stacks, settings if isinstance(settings, dict) else {})}
    return replace(no_slices(str(path), "", header, []), repairs=repairs)


class _History:
    """The entries of devices, taken from lists while they are loaded, and their stacks."""

    def __init__(self) -> None:
        self.stacks: list[Sequence[Any]] = []  # frames, the innermost first
        self.n_damaged = 0
        self._number: dict[tuple[int, ...], int] = {}  # by the identities of the frames
        self._parts: dict[int, list[Sequence[Any]]] = {}  # by the identity of the list

    def take(self, entries: list[Any]) -> None:
        """Move the entries of a list into columns; any other list stays."""
        if not (entries and type(entries[0]) is dict and "action" in entries[0]):
            return
        rows = _dicts(entries)
        values = [[row.get(key, -1) for row in rows] for key in ("size", "time_us")]
        actions = [row.get("action") for row in rows]
        codes = [_CODES.get(action, 0) if type(action) is str else 0 for action in actions]
        addresses = [row.get("addr", row.get("device_free", -1)) for row in rows]
        stacks = [self.stack(row.get("frames")) for row in rows]
        numbers = map(_integers, (codes, addresses, *values, stacks))
        names = [row.get("category") for row in rows]
        categories = list(map(text_of, names)) if any(names) else [""] * len(rows)
        self._parts.setdefault(id(entries), []).append([*numbers, categories])
        self.n_damaged += len(entries) - len(rows)
        for row in rows:
            row.clear()
        entries.clear()

    def columns(self, entries: Any) -> tuple[Any, ...]:
        """Join the columns of a device's list, in which entries may be left."""
        entries = _listed(entries)
        self.take(entries)
        parts = [*self._parts.get(id(entries), ()), [np.empty(0, np.int64)] * 5 + [[]]]
        *numbers, categories = zip(*parts, strict=True)
        return (*map(np.concatenate, numbers), [name for part in categories for name in part])

    def stack(self, frames: Any) -> int:
        """Replace a list of frames by its number, in place, and return it; -1 for anything else."""
        if type(frames) is not list or not frames:
            return -1
        if type(frames[0]) is int:
            return frames[0] if 0 <= frames[0] < len(self.stacks) else -1
        key = tuple(map(id, frames))
        number = self._number.setdefault(key, len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(tuple(frames))
        frames[:] = [number]
        return number


def _blocks(segments: Sequence[Mapping[str, Any]], history: _History) -> dict[int, tuple[Int64, int]]:
    """List the blocks (m, 5) of each device, and the bytes that it has reserved."""
    rows: dict[int, array[int]] = {}
    reserved: Counter[int] = Counter()
    for segment in segments:
        device = max(whole(segment.get("device", 0)), 0)
        reserved[device] += _size(segment.get("total_size"))
        address = whole(segment.get("address"))
        for block in _dicts(segment.get("blocks")):
            size = _size(block.get("size"))
            requested = _size(block.get("requested_size", size))
            row = (
                address,
                size,
                requested,
                history.stack(block.get("frames")),
                block.get("state") == _IN_USE,
            )
            rows.setdefault(device, array("q")).extend(row)
            address += size
    return {
        device: (np.array(rows.get(device, ()), np.int64).reshape(-1, 5), n_bytes)
        for device, n_bytes in reserved.items()
    }


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _listed(value) if type(item) is dict]


def _size(value: Any) -> int:
    return size if 0 <= (size := whole(value)) < LARGEST else 0


def _integers(values: Sequence[Any]) -> Int64:
    """Convert numbers (n,); -1 for damaged ones."""
    try:
        numbers = np.array(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return np.array(list(map(whole, values)), np.int64)
    return np.where(numbers > FARTHEST_NS, -1, np.maximum(numbers, -1))
