"""What PyTorch's allocator did, when, in which phase and for whom: from instants or a snapshot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.reading.dialects.kineto.attribution import origins
from analyzer.reading.dialects.steps import Step, step_table
from analyzer.reading.dialects.system import MEMORY_PHASES, MemorySamples
from analyzer.reading.formats.columns import ADDRESS, ALLOCATOR, Trace
from analyzer.reading.formats.recorder.allocator_snapshot import ACTIONS, LARGEST
from analyzer.reading.formats.recorder.recorder_dump import text_of, whole
from analyzer.reading.formats.values import FARTHEST_NS

#: PyTorch's numbers of kinds of devices.
_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"}


def of_events(
    trace: Trace, samples: Sequence[Mapping[str, Any]], steps: Sequence[Step], event: str
) -> Sequence[MemorySamples]:
    """List the allocations of each device, from the args of all instants called `event`.

    () if their number differs: of several files of a rank only one is read.
    """
    if event not in trace.names:
        return ()
    rows = np.flatnonzero(trace.points.name_id == trace.names.index(event))
    if len(rows) != len(samples):
        return ()
    order = np.argsort(trace.points.ts_ns[rows], kind="stable")
    rows, samples = rows[order], [samples[i] for i in order.tolist()]
    at_ns = trace.points.ts_ns[rows]
    keys = ("Device Type", "Device Id", ADDRESS, "Bytes", "Total Allocated", "Total Reserved")
    columns = np.array([[_integer(sample.get(key)) for key in keys] for sample in samples], np.int64)
    columns = columns.reshape(-1, len(keys))
    has_total = any("Total Allocated" in sample for sample in samples[:1])
    labels, phases = origins(trace, trace.points.track_id[rows].astype(np.int64), at_ns)
    holders, holder = numbered(label or "(no operator around it)" for label in labels)
    phase = np.array([MEMORY_PHASES.index(name) for name in phases], np.int64)
    step = _steps_at(step_table(steps), at_ns)
    made = []
    for kind, number in unique(columns[:, :2], axis=0).tolist():
        own = np.flatnonzero((columns[:, 0] == kind) & (columns[:, 1] == number))
        address, change, total, reserved = columns[own, 2:].T
        made.append(
            MemorySamples(
                at_ns=at_ns[own],
                n_bytes=(total if has_total else np.cumsum(change)).astype(np.float64),
                capacity=_capacity(trace.header, number),
                device=_DEVICES.get(kind, f"device{kind}") + (f":{number}" if number >= 0 else ""),
                change=change,
                address=address if has_total else np.full(len(own), -1),
                reserved=reserved,
                phase=phase[own],
                holder=holder[own].astype(np.int64),
                holders=holders,
                step=step[own],
                facts={} if has_total else {"why": "the recording has no addresses"},
            )
        )
    return made


def _integer(value: Any) -> int:
    return value if type(value) is int and abs(value) <= FARTHEST_NS else 0


def _capacity(header: Mapping[str, Any], number: int) -> float:
    devices = header.get("deviceProperties")
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and device.get("id") == number:
            return float(max(whole(device.get("totalGlobalMem")), 0))
    return 0.0


def _steps_at(steps: Int64, at_ns: Int64) -> Int64:
    """Find the number of the step around each moment (k,); -1 for none."""
    number, begin, end = steps[np.argsort(steps[:, 1])].T
    last = np.searchsorted(begin, at_ns, "right") - 1
    return np.where(np.append(end, 0)[last] > at_ns, np.append(number, -1)[last], -1)


# ---- snapshots

#: What a frame tells of the phase, in the order in which the rules are tried, from the innermost frame on.
_PHASE_OF_FRAME = (
    ("update", re.compile(r"[/\\]torch[/\\]optim[/\\]|:zero_grad$|Optimizer\.step")),
    ("backward", re.compile(r"autograd::(?:Engine|python::PythonEngine)|Backward\d*::apply|_run_backward$")),
    ("setup", re.compile(r"nn[/\\]modules[/\\]\S+:(?:_apply|__init__|reset_parameters)$|:load_state_dict$")),
    ("forward", re.compile(r"nn[/\\]modules[/\\]module\.py:_(?:wrapped_)?call_impl$")),
)
_FOLDERS = re.compile(r".*[/\\]", re.DOTALL)
_OF_TORCH = re.compile(r"[/\\]torch[/\\]")
#: Words of PyTorch's profiler for what a tensor is, and ours.
_CATEGORIES = {
    "parameter": "parameters", "gradient": "gradients", "optimizer_state": "optimizer state",
    "activation": "activations", "temporary": "temporary", "input": "input",
    "autograd_detail": "saved by autograd",
}  # fmt: skip
_ALLOC, _FREE, _FREED, _GROW, _MAP, _SHRINK, _UNMAP, _OOM = map(
    ACTIONS.index,
    ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_map", "segment_free",
     "segment_unmap", "oom"),
)  # fmt: skip


def of_snapshot(trace: Trace) -> Sequence[MemorySamples]:
    """List the allocations of each device; at first the blocks that were there before its history."""
    devices, stacks, settings = trace.header[ALLOCATOR]
    origin = [_origin(stack) for stack in stacks] + [("", 0)]  # the last for no stack
    holders, holder = numbered(name or "(no stack recorded)" for name, _ in origin)
    phase = np.array([number for _, number in origin], np.int64)
    return [
        _of_device(number, device, holders, holder.astype(np.int64), phase, settings)
        for number, device in devices.items()
    ]


def _of_device(
    number: int, device: Any, holders: Sequence[str], holder: Int64, phase: Int64, settings: Mapping[str, Any]
) -> MemorySamples:
    """Order what happened on a device; `holder` and `phase` are those of the stacks (s + 1,)."""
    action, size = device.action, np.where(device.n_bytes < LARGEST, np.maximum(device.n_bytes, 0), 0)
    is_skipped = not (action == _FREE).any() and (action == _FREED).sum() > 1  # an option of the recording
    is_free = action == (_FREED if is_skipped else _FREE)
    kept = np.flatnonzero((action == _ALLOC) | is_free)
    in_use, free = (device.blocks[device.blocks[:, 4] == used] for used in (1, 0))
    address, before, stack = _before(device.address[kept], is_free[kept], size[kept], in_use)
    change = np.concatenate([before, np.where(is_free, -size, size)[kept]])
    grown = size * (np.isin(action, (_GROW, _MAP)) * 1 - np.isin(action, (_SHRINK, _UNMAP)))
    reserved = device.reserved - grown.sum() + np.cumsum(grown)
    stacks = np.concatenate([stack, device.stack[kept]])
    named = [_CATEGORIES.get(device.category[i], "") for i in kept.tolist()]
    is_made_of_profile = any(named)  # by a function of PyTorch, which counts addresses as reserved
    first = reserved[:1] - grown[:1] if len(action) else np.array([device.reserved])
    out_of_memory = np.c_[size, device.address][action == _OOM].tolist()
    return MemorySamples(
        at_ns=1000
        * np.concatenate([np.repeat(np.append(device.time_us, -1)[:1], len(before)), device.time_us[kept]]),
        n_bytes=np.cumsum(change).astype(np.float64),
        capacity=0.0,
        device=f"device {number}",
        change=change,
        address=np.concatenate([address, device.address[kept]]),
        reserved=np.concatenate([np.repeat(first, len(before)), reserved[kept]]) * (not is_made_of_profile),
        phase=phase[stacks],
        holder=holder[stacks],
        holders=holders,
        category=[""] * len(before) + named,
        step=np.full(len(change), -1),
        facts={
            "n_before": len(before),
            "is_made_of_profile": is_made_of_profile,
            "free_blocks": len(free),
            "free_bytes": int(free[:, 1].sum()) * (not is_made_of_profile),
            "largest_free_bytes": int(free[:, 1].max(initial=0)),
            "expandable": settings.get("expandable_segments") is True,
            "out_of_memory": out_of_memory[-1] if out_of_memory else None,
            "missing_bytes": int(in_use[:, 2].sum() - change.sum()),
        },
    )


def _before(address: Int64, is_free: Mask, size: Int64, in_use: Int64) -> tuple[Int64, Int64, Int64]:
    """Find what was allocated before a history (k,): addresses, bytes and stacks (-1 for none).

    That are the blocks whose first entry is a free, and those in use without any entry.
    """
    order = np.lexsort((np.arange(len(address)), address))
    is_first = np.append(True, np.diff(address[order]) != 0)[: len(order)]
    freed = order[is_first & is_free[order]]
    kept = in_use[~np.isin(in_use[:, 0], address)]
    stack = np.concatenate([kept[:, 3], np.full(len(freed), -1)])
    return np.append(kept[:, 0], address[freed]), np.append(kept[:, 2], size[freed]), stack


def _origin(frames: Sequence[Any]) -> tuple[str, int]:
    """Name the innermost line of Python outside of PyTorch, and number the phase, of a stack."""
    frames = [frame for frame in frames if isinstance(frame, dict)]
    files = [text_of(frame.get("filename")) for frame in frames]
    names = [text_of(frame.get("name")) for frame in frames]
    texts = map(":".join, zip(files, names, strict=True))
    phases = (phase for text in texts for phase, rule in _PHASE_OF_FRAME if rule.search(text))
    in_python = [i for i, file in enumerate(files) if file.endswith(".py")]
    shown = next((i for i in in_python if not _OF_TORCH.search(files[i])), next(iter(in_python), 0))
    label = ""
    if frames:
        line = whole(frames[shown].get("line"))
        label = f"{_FOLDERS.sub('', files[shown])}:{line} {names[shown]}"
    return label, MEMORY_PHASES.index(next(phases, ""))
