"""Floating-point operations of a job's model, by step, rank and kind of work; and peak rates of devices."""

from __future__ import annotations

import re
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


#: Words in a device's name; TFLOP/s in bf16 and fp16, tf32, fp32, fp8 (0: not supported); GB/s of its memory;
#: its source ("": the data sheet). The first row whose words are all in the name counts.
_DEVICES = (
    ("NVIDIA B200", 2250, 1100, 75, 4500, 7700, "HGX B200 data sheet"),
    ("NVIDIA H200 NVL", 835.5, 417.5, 60, 1670.5, 4800, ""),
    ("NVIDIA H200", 989.4, 494.7, 66.9, 1978.9, 4800, ""),
    ("NVIDIA H100 NVL", 835.5, 417.5, 60, 1670.5, 3900, ""),
    ("NVIDIA H100 PCIe", 756, 378, 51, 1513, 2000, ""),
    ("NVIDIA H100 HBM2e", 756, 378, 51, 1513, 2000, "NVIDIA H100 PCIe data sheet"),
    ("NVIDIA H100", 989.4, 494.7, 66.9, 1978.9, 3350, ""),
    ("NVIDIA H800", 989.4, 494.7, 66.9, 1978.9, 3350, ""),
    ("NVIDIA H20", 148, 74, 44, 296, 4000, ""),
    ("NVIDIA A100 80GB PCIe", 312, 156, 19.5, 0, 1935, ""),
    ("NVIDIA A100 80GB", 312, 156, 19.5, 0, 2039, ""),
    ("NVIDIA A100", 312, 156, 19.5, 0, 1555, ""),
    ("NVIDIA A40", 149.7, 74.8, 37.4, 0, 696, ""),
    ("NVIDIA A10", 125, 62.5, 31.2, 0, 600, ""),
    ("NVIDIA L40S", 362, 183, 91.6, 733, 864, ""),
    ("NVIDIA L40", 181, 90.5, 90.5, 362, 864, ""),
    ("NVIDIA L4", 121, 60, 30.3, 242.5, 300, ""),
    ("RTX 4090", 165.2, 82.6, 82.6, 330.3, 1008, "NVIDIA Ada architecture paper, sums in fp32"),
    ("V100 PCIe", 112, 0, 14, 0, 900, "NVIDIA V100 data sheet"),
    ("V100", 125, 0, 15.7, 0, 900, "NVIDIA V100 data sheet"),
    ("T4", 65, 0, 8.1, 0, 320, "NVIDIA T4 data sheet"),
    ("AMD Instinct MI325X", 1307.4, 653.7, 163.4, 2614.9, 6000, ""),
    ("AMD Instinct MI300X", 1307.4, 653.7, 163.4, 2614.9, 5300, ""),
    ("AMD Instinct MI250X", 191.5, 0, 47.9, 0, 1638, "half of the MI250X data sheet, for one die"),
)
TYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")


def peaks_of(device: str) -> tuple[Mapping[str, float], str]:
    """Look up the FLOP/s of each type, the bytes a second (`memory`), and their source; nothing if unknown.

    A part of a device (MIG), or one with fewer cores of the same name (Laptop, D), is unknown.

    >>> peaks_of("NVIDIA A100-SXM4-80GB")[0]["tf32"], peaks_of("NVIDIA A10G")
    (156000000000000.0, ({}, ''))
    """
    has = {*re.findall(r"[a-z0-9]+", device.lower())}
    for name, half, tf32, fp32, fp8, memory, source in _DEVICES:
        if {*name.lower().split()} <= has and has.isdisjoint(("mig", "laptop", "d")):
            rates = zip(TYPES, (half, half, tf32, fp32, fp8), strict=True)
            known = {of_type: rate * 1e12 for of_type, rate in rates if rate}
            return {**known, "memory": memory * 1e9}, source or f"{name} data sheet"
    return {}, ""
