"""A file into which the processes of several ranks wrote, so that its numbers are no rank's."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.errors import in_words
from analyzer.reading.formats.columns import Trace

_STEP = re.compile(r"ProfilerStep#\d{1,9}")
_ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


def mixed_ranks(trace: Trace) -> str:
    """Say that several processes wrote one recording of PyTorch's profiler; "" for any other file.

    The profiler writes a file for each process. Two that have the same step in one file, or two that work in
    a damaged file, were given one path: each overwrote parts of what the other had written.
    """
    is_step = np.array([_STEP.fullmatch(name) is not None for name in trace.names], np.bool_)
    if not is_step.any():
        return ""
    is_damaged = any("damaged event" in repair for repair in trace.repairs)
    on_host = _rows_of(trace, _ON_HOST)
    owners = _processes(trace, on_host if is_damaged else _rows_of_shared_steps(trace, on_host, is_step))
    if len(owners) < 2:
        return ""
    devices = _processes(trace, _rows_of(trace, _ON_DEVICE))
    who = in_words(owners, "pid") + (f", {in_words(devices, 'device')}" if devices else "")
    remedy = "" if is_damaged else ", or tell them apart by --rank_by pid"
    return (
        f"{len(owners)} processes wrote this file ({who}): it mixes ranks and its numbers are no rank's; "
        f"record each rank into its own file{remedy}"
    )


def _rows_of(trace: Trace, cats: Collection[str]) -> Int64:
    is_of = np.array([cat in cats for cat in trace.cats], np.bool_)
    return np.flatnonzero(is_of[trace.cat_id]) if len(trace) else np.empty(0, np.int64)


def _rows_of_shared_steps(trace: Trace, rows: Int64, is_step: Mask) -> Int64:
    """Return the slices of steps that several processes have."""
    rows = rows[is_step[trace.name_id[rows]]]
    owners: dict[int, set[object]] = {}
    names = trace.name_id[rows].tolist()
    for name, track in zip(names, trace.track_id[rows].tolist(), strict=True):
        owners.setdefault(name, set()).add(trace.tracks[track].pid)
    return rows[np.array([len(owners[name]) > 1 for name in names], np.bool_)] if names else rows


def _processes(trace: Trace, rows: Int64) -> list[int]:
    """Return the numbers of the processes, or of the devices, of slices; other pids are labels."""
    pids = {trace.tracks[track].pid for track in set(trace.track_id[rows].tolist())}
    return sorted(pid for pid in pids if isinstance(pid, int))
