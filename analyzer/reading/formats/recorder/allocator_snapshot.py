"""Snapshots of PyTorch's caching allocator, as columns.

``{"segments", "device_traces", "allocator_settings"}``: the blocks when the snapshot was taken, and what the
allocator of each device did before. An entry has the bytes that were requested; blocks are rounded up.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import ALLOCATOR, Trace, no_slices
from analyzer.reading.formats.recorder.plain_pickle import unpickled
from analyzer.reading.formats.recorder.recorder_dump import whole
from analyzer.reading.formats.stream import ByteStream

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_map", "segment_free",
           "segment_unmap", "oom")  # fmt: skip
_NUMBER = {action: number for number, action in enumerate(ACTIONS)}
_IN_USE = "active_allocated"
_MOST_BYTES = 4 << 30  # of a file
_LARGEST = 1 << 40  # bytes of a block
_MOST_DEVICES = 128  # of a process, in PyTorch


def read(path: Path) -> Trace:
    """Load a snapshot as a trace without slices; TraceError for any other file.

    The member `ALLOCATOR` of its header has the devices by number, the stacks, and the settings. A device is
    its history (5, n) of actions, addresses, bytes, microseconds and stacks, its blocks (4, m) of addresses,
    requested bytes (-1: free), stacks and whole bytes, and the reserved bytes. An unknown number is -1; the
    address of an "oom" is the number of bytes free on the device.
    """
    stream, data = ByteStream(path), bytearray()
    for piece in stream:
        data += piece
        if len(data) > _MOST_BYTES:
            raise TraceError(f"{path}: a snapshot of more than {_MOST_BYTES >> 30} GiB is not read")
    history, repairs = _History(), [*filter(None, [stream.damage])]
    document = unpickled(path, data, repairs, history.take)
    if not isinstance(document, dict) or not document.keys() & {"segments", "device_traces"}:
        raise TraceError(f"{path}: not a snapshot of an allocator: it has no segments")
    blocks: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
    reserved: defaultdict[int, int] = defaultdict(int)
    for segment in _dicts(document.get("segments")):
        number, address = max(whole(segment.get("device", 0)), 0), whole(segment.get("address"))
        reserved[number] += _size(segment.get("total_size"))
        for block in _dicts(segment.get("blocks")):
            size = _size(block.get("size"))
            used = _size(block.get("requested_size", size)) if block.get("state") == _IN_USE else -1
            blocks[number].append((address, used, history.stack(block.get("frames")), size))
            address += size
        _listed(segment.get("blocks")).clear()  # a small file may have one list in a million segments
    traces = enumerate(_listed(document.get("device_traces")))
    recorded = {number: columns for number, trace in traces if (columns := history.columns(trace)).size}
    devices = {}
    for number in sorted({*recorded, *blocks})[:_MOST_DEVICES]:
        of_device = np.array(blocks[number], np.int64).reshape(-1, 4).T
        devices[number] = recorded.get(number, np.empty((5, 0), np.int64)), of_device, reserved[number]
    if history.n_damaged:
        repairs.append(f"{history.n_damaged:,} damaged entries are left out")
    header = {ALLOCATOR: (devices, history.stacks, document.get("allocator_settings"))}
    return replace(no_slices(str(path), "", header, []), repairs=repairs)


class _History:
    """The entries of devices, taken from lists while these are loaded, and their stacks."""

    def __init__(self) -> None:
        self.stacks: list[Sequence[Any]] = []  # frames, the innermost first
        self.n_damaged = 0
        self._number: dict[tuple[int, ...], int] = {}  # by the identities of the frames
        self._parts: defaultdict[int, list[Int64]] = defaultdict(list)  # by the identity of the list

    def take(self, entries: list[Any]) -> None:
        """Move the entries of a list into columns; any other list stays."""
        if not (entries and type(entries[0]) is dict and "action" in entries[0]):
            return
        rows = _dicts(entries)
        actions = [row.get("action") for row in rows]
        columns = (
            [_NUMBER.get(action, -1) if type(action) is str else -1 for action in actions],
            [row.get("addr", row.get("device_free", -1)) for row in rows],
            *([row.get(key, -1) for row in rows] for key in ("size", "time_us")),
            [self.stack(row.get("frames")) for row in rows],
        )
        self._parts[id(entries)].append(np.array(list(map(_integers, columns))))
        self.n_damaged += len(entries) - len(rows)
        for row in rows:
            row.clear()
        entries.clear()

    def columns(self, entries: Any) -> Int64:
        """Join the columns (5, n) of a device's list, in which entries may be left."""
        self.take(_listed(entries))
        columns = np.concatenate([np.empty((5, 0), np.int64), *self._parts.pop(id(entries), [])], axis=1)
        columns[2] = np.where(columns[2] < _LARGEST, np.maximum(columns[2], 0), 0)
        return columns

    def stack(self, frames: Any) -> int:
        """Replace a list of frames by its number, in place, and return it; -1 for anything else."""
        if type(frames) is not list or not frames:
            return -1
        if type(frames[0]) is int:
            return frames[0] if 0 <= frames[0] < len(self.stacks) else -1
        number = self._number.setdefault(tuple(map(id, frames)), len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(tuple(frames))
        frames[:] = [number]
        return number


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _listed(value) if type(item) is dict]


def _size(value: Any) -> int:
    return size if 0 <= (size := whole(value)) < _LARGEST else 0


def _integers(values: Sequence[Any]) -> array[int]:
    """Convert numbers (n,); -1 for damaged ones."""
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return array("q", map(whole, values))
