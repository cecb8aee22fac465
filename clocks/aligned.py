"""Graphs of several hosts need one clock: offsets from the operations that all take part in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from clocks.offsets import Anchors, Clock, align
from dag_utils import MISSING, Gpu
from formats.columns import Int64, Trace
from opname import QUEUES

_PUSH, _PULL = QUEUES.index("PUSH"), QUEUES.index("PULL")
#: Collectives that nobody leaves before everybody has entered.
_ALL_TO_ALL = re.compile(
    r"gloo:(?:all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier)\w*"
    r"|nccl(?:Dev)?Kernel_(?:AllReduce|AllGather|ReduceScatter|AllToAll)\w*(?:\(.*\))?"
)


def on_one_clock(gpus: Sequence[Gpu]) -> tuple[list[Gpu], dict[int, int], str]:
    """Return the GPUs with `Gpu.offset_ns`, the offset per worker, and what is to be said about it.

    Every PULL of a partition ends after every worker's PUSH of it has begun; see `clocks.offsets`.
    """
    workers = sorted({gpu.worker for gpu in gpus})
    if len(workers) < 2:
        return list(gpus), {}, ""
    anchors = [_byteps_anchors([gpu for gpu in gpus if gpu.worker == worker]) for worker in workers]
    clocks = align(anchors).clocks
    offsets = {worker: clock.offset_ns for worker, clock in zip(workers, clocks, strict=True)}
    moved = [replace(gpu, offset_ns=offsets[gpu.worker]) for gpu in gpus]
    return moved, offsets, _said([f"worker {worker}" for worker in workers], clocks)


def traces_on_one_clock(traces: Sequence[Trace], names: Sequence[str]) -> tuple[list[Trace], str]:
    """Return Kineto traces of several ranks with their timestamps on the first one's clock, and a remark.

    No rank leaves a collective in which all wait for all before the last has entered it.
    """
    if len(traces) < 2:
        return list(traces), ""
    clocks = align([_collective_anchors(trace) for trace in traces]).clocks
    moved = [
        replace(trace, ts_ns=trace.ts_ns + clock.offset_ns,
                points=replace(trace.points, ts_ns=trace.points.ts_ns + clock.offset_ns))
        if clock.offset_ns else trace
        for trace, clock in zip(traces, clocks, strict=True)
    ]  # fmt: skip
    return moved, _said(names, clocks)


def _byteps_anchors(gpus: Sequence[Gpu]) -> Anchors:
    """Return partition -> (starts of PUSH, ends of PULL) per step, of the rank that pushes it."""
    found: dict[Hashable, tuple[Int64, Int64]] = {}
    for gpu in gpus:
        start, dur = gpu.recording.start_ns, gpu.recording.dur_ns
        for main, parts in gpu.recording.parts.items():
            columns = {(stage, key): column for stage, key, column in parts}
            for stage, key in columns:
                pull = columns.get((_PULL, key))
                if stage != _PUSH or pull is None:
                    continue
                push = columns[stage, key]
                both = (start[:, push] != MISSING) & (start[:, pull] != MISSING)
                if both.any():
                    found[main, key] = start[both, push], start[both, pull] + dur[both, pull]
    return found


def _collective_anchors(trace: Trace) -> Anchors:
    """Return collective -> (begins, ends), the n-th of one rank belonging to the n-th of another."""
    wanted = [i for i, name in enumerate(trace.names) if _ALL_TO_ALL.fullmatch(name)]
    group = trace.args["Process Group Name"].as_dict() if "Process Group Name" in trace.args else {}
    sequence = trace.args["Seq"].as_dict() if "Seq" in trace.args else {}
    rows = np.flatnonzero(np.isin(trace.name_id, wanted))
    spans: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for row in rows[np.argsort(trace.ts_ns[rows], kind="stable")].tolist():
        name = trace.names[trace.name_id[row]].split("(")[0]
        key = (name, str(group.get(row)), str(sequence.get(row)))
        spans[key].append((int(trace.ts_ns[row]), int(trace.end_ns[row])))
    return {
        key: (np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))
        for key, pairs in spans.items()
    }


def _said(names: Sequence[str], clocks: Sequence[Clock]) -> str:
    """Return how the clocks were put on one, or ""; only those that were moved, or that nothing ties."""
    loose = [name for name, clock in zip(names, clocks, strict=True) if not clock.is_tied]
    moved = [
        f"{name} by {clock.offset_ns / 1e3:+,.1f} µs (±{(clock.bound_ns or 0) / 1e3:,.1f})"
        for name, clock in zip(names, clocks, strict=True)
        if clock.offset_ns
    ]
    parts = [f"clocks moved: {', '.join(moved)}"] if moved else []
    if loose:
        parts.append(f"no common operation ties the clock of {', '.join(loose)} to the others")
    return "; ".join(parts)
