"""Floating-point operations of a job's model, by step and rank, and by kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.numbering import numbered
from analyzer.base.errors import UsageError
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.name_rules import COMMUNICATION
from analyzer.reading.dialects.steps import step_table
from analyzer.reading.formats.columns import Trace
from trace_utils import Request, Source, TraceFile, read_ranks


class _RankWork(Struct, frozen=True):
    """The work of a rank in its k steps, by g kinds and types of work, without communication."""

    on_device: bool  # else the work is that of operators
    device: str  # "" if unknown
    steps: Int64  # (k, 3) number, begin, end
    is_marked: bool  # else the recording stands for a step
    kinds: Sequence[tuple[str, str]]  # (g)
    #: (k, g, 6) time, operations, those that repeat others, bytes, time of products, time with known bytes
    sums: Float64


def modelled_ranks(
    paths: Sequence[Path], asked: Request
) -> tuple[Mapping[str, _RankWork], Sequence[TraceFile], Sequence[str]]:
    """Add up the work of each rank of a job; also its files and repairs. UsageError without shapes."""
    needs = {Need.SHAPES, Need.STEPS}
    job = read_ranks(paths, partial(_rank_work, step_by=asked.step_by), asked._replace(needs=needs))
    job.check_any()
    ranks = {name: made for name, made in zip(job.names, job.made, strict=True) if made is not None}
    if ranks:
        return ranks, job.files, job.repairs
    raise UsageError(
        f"--sub_option flops: {paths[0]} has no shapes of operators; record it with PyTorch's profiler and "
        "record_shapes=True"
    )


def _rank_work(source: Source, trace: Trace, step_by: str | None) -> _RankWork | None:
    """Add up the work of a rank; None without shapes."""
    system = dialects.of(trace)
    work = system.modelled_work(trace) if len(trace) else None
    if work is None:
        return None
    steps = step_table(system.find_steps(trace, step_by).whole)
    is_marked = len(steps) > 0
    if not is_marked:
        steps = np.array([[0, trace.ts_ns.min(), trace.end_ns.max()]], np.int64)
    step = np.searchsorted(steps[:, 1], work["begin_ns"], side="right") - 1
    inside = (step >= 0) & (work["begin_ns"] < steps[step, 2]) & (work["kind"] != COMMUNICATION)
    work, step = work[inside], step[inside]
    kinds, kind = numbered(zip(work["kind"].tolist(), work["type"].tolist(), strict=True))
    took, shape = work["dur_ns"].astype(np.float64), (len(steps), len(kinds))
    values = [took, *(work[of] for of in ("flops", "again", "bytes"))]
    values += [took * work["is_modelled"], took * (work["bytes"] > 0)]
    cell = step * len(kinds) + kind
    sums = [np.bincount(cell, value, np.prod(shape)).reshape(shape) for value in values]
    devices = trace.header.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], dict) else {}
    on_device = bool(system.device_work(trace).any())
    name = str(first.get("name") or "") if on_device else ""
    return _RankWork(on_device, name, steps, is_marked, kinds, np.stack(sums, axis=-1))
