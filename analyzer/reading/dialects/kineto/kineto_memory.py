"""Events of PyTorch's allocator, from instants or a snapshot: the time, the phase and the owner of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.reading.dialects.kineto.attribution import origins
from analyzer.reading.dialects.system import MEMORY_PHASES, MemorySamples
from analyzer.reading.formats.columns import ADDRESS, ALLOCATOR, Trace
from analyzer.reading.formats.recorder.allocator_snapshot import ACTIONS
from analyzer.reading.formats.recorder.recorder_dump import text_of, whole
from analyzer.reading.formats.values import FARTHEST_NS

#: PyTorch's numbers of kinds of devices.
_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"}
_ARGS = ("Device Type", "Device Id", ADDRESS, "Bytes", "Total Allocated", "Total Reserved")
_ALLOC, _FREE, *_, _OOM = range(len(ACTIONS))
_SIGNS = np.array([0, 0, 0, 1, 1, -1, -1, 0, 0])  # of the change of the reserved bytes; the last is unknown
#: What a frame tells of the phase, by ``file:name``; the innermost frame that tells counts.
_PHASES = tuple(
    (MEMORY_PHASES.index(phase), re.compile(rule))
    for phase, rule in {
        "update": r"[/\\]torch[/\\]optim[/\\]|:zero_grad$",
        "backward": r"autograd::(?:\w+::)?\w*Engine\b|Backward\d*::apply\b|_run_backward$",
        "setup": r"nn[/\\]modules[/\\]\S+:(?:_apply|__init__|reset_parameters)$|:load_state_dict$",
        "forward": r"nn[/\\]modules[/\\]module\.py:_(?:wrapped_)?call_impl$",
    }.items()
)


def of_events(
    trace: Trace, samples: Sequence[Mapping[str, Any]], event: str, steps: Int64
) -> Sequence[MemorySamples]:
    """List the allocations of each device, from the args of all instants called `event`.

    `steps` are rows of number, begin and end. () if the number of instants differs: of several files of a
    rank only one is read.
    """
    rows = np.flatnonzero(trace.points.name_id == trace.names.index(event))
    if len(rows) != len(samples):
        return ()
    rows = rows[order := np.argsort(trace.points.ts_ns[rows], kind="stable")]
    values = [[_integer(samples[i].get(key)) for key in _ARGS] for i in order.tolist()]
    columns, at_ns = np.array(values, np.int64), trace.points.ts_ns[rows]
    labels, phases = origins(trace, trace.points.track_id[rows].astype(np.int64), at_ns)
    holders, holder = numbered(label or "(no operator around it)" for label in labels)
    phase = np.array([MEMORY_PHASES.index(name) for name in phases], np.int64)
    number, begin, end = np.append(steps[np.argsort(steps[:, 1])], [[-1, 0, 0]], axis=0).T
    last = np.searchsorted(begin[:-1], at_ns, "right") - 1
    step = np.where(end[last] > at_ns, number[last], -1)
    made = []
    for kind, device in unique(columns[:, :2], axis=0).tolist():
        own = np.flatnonzero((columns[:, 0] == kind) & (columns[:, 1] == device))
        address, change, total, reserved = columns[own, 2:].T
        facts: dict[str, Any] = {}
        if not total.any():  # PyTorch 1.9
            total, facts = np.cumsum(change), {"why": "(addresses are not recorded)"}
        name = _DEVICES.get(kind, f"device{kind}") + (f":{device}" if device >= 0 else "")
        made.append(
            MemorySamples(
                at_ns[own], total.astype(np.float64), 0.0, name, change, address, reserved, phase[own],
                holder[own].astype(np.int64), holders, step[own], facts,
            )
        )  # fmt: skip
    return made


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= FARTHEST_NS else 0


def of_snapshot(trace: Trace) -> Sequence[MemorySamples]:
    """List the allocations of each device; at first the blocks that were there before its history."""
    devices, stacks, settings = trace.header[ALLOCATOR]
    origin = [*map(_origin, stacks), ("(no stack recorded)", 0)]  # the last for no stack
    holders, holder = numbered(name for name, _ in origin)
    phase = np.array([number for _, number in origin], np.int64)
    made = []
    for device, (history, blocks, reserved_bytes) in devices.items():
        action, _, size, time_us, _ = history
        kept = history[:, is_own := (action == _ALLOC) | (action == _FREE)]
        address, n_bytes, stack = _before(kept, used := blocks[:, blocks[1] >= 0])
        change = np.append(n_bytes, np.where(kept[0] == _ALLOC, kept[2], -kept[2]))
        before = np.zeros(len(address), np.int64)
        grown = size * _SIGNS[action]
        reserved = reserved_bytes - grown.sum() + np.append(before, np.cumsum(grown)[is_own])
        at_us = np.append(before + np.append(time_us, -1)[0], kept[3])
        free, last_failed = blocks[3, blocks[1] < 0], history[1:3, action == _OOM][:, -1:].ravel().tolist()
        stack = np.append(stack, kept[4])
        facts = {
            "n_before": len(before),
            "free_blocks": len(free),
            "free_bytes": int(free.sum()),
            "largest_free_bytes": int(free.max(initial=0)),
            "expandable_segments": isinstance(settings, dict) and settings.get("expandable_segments") is True,
            "out_of_memory": dict(zip(("free_bytes", "bytes"), last_failed, strict=False)),
            "missing_bytes": int(used[1].sum() - change.sum()),
        }
        made.append(
            MemorySamples(
                1000 * at_us, np.cumsum(change).astype(np.float64), 0.0, f"device {device}", change,
                np.append(address, kept[1]), reserved, phase[stack], holder[stack].astype(np.int64), holders,
                np.full(len(change), -1), facts,
            )
        )  # fmt: skip
    return made


def _before(history: Int64, used: Int64) -> tuple[Int64, Int64, Int64]:
    """Find what was allocated before a history (5, n): addresses, bytes and stacks (k,), -1 for none.

    That are the blocks whose first entry is a free, and the `used` blocks (4, m) without any entry.
    """
    _, first = np.unique(history[1], return_index=True)
    freed = history[1:3, first[history[0, first] != _ALLOC]]
    kept = used[:3, ~np.isin(used[0], history[1])]
    address, n_bytes, stack = np.append(kept, [*freed, np.full(freed.shape[1], -1)], axis=1)
    return address, n_bytes, stack


def _origin(frames: Sequence[Any]) -> tuple[str, int]:
    """Name the innermost line of Python outside of PyTorch in a stack, and number the phase."""
    frames = [frame for frame in frames if isinstance(frame, dict)] or [{}]
    files, names = ([text_of(frame.get(key)) for frame in frames] for key in ("filename", "name"))
    texts = [f"{file}:{name}" for file, name in zip(files, names, strict=True)]
    matches = ((i, phase) for i, text in enumerate(texts) for phase, rule in _PHASES if rule.search(text))
    told, phase = next(matches, (0, 0))
    in_python = [i for i, file in enumerate(files) if file.endswith(".py")]
    shown = next((i for i in in_python if "/torch/" not in files[i]), next(iter(in_python), told))
    file = files[shown].replace("\\", "/").rpartition("/")[2]
    line = f"{file}:{whole(frames[shown].get('line'))} " if in_python else ""
    return line + names[shown].partition("(")[0], phase
