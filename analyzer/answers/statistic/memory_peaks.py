"""Who holds the memory of each device at its peak, to the byte.

An allocation ends with the next event of its address. The passes in which it began and ended tell what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64
from analyzer.base.units import ms_of
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.system import MEMORY_PHASES, MemorySamples
from analyzer.reading.formats.columns import Trace
from trace_utils import Request, Source, TraceFile, read_args, read_ranks

NOT_ATTRIBUTED, CACHED = "not attributed", "cached but free"
_LEFT = "held to the end, or freed elsewhere"
#: Categories, and what shows that memory belongs to one.
EVIDENCE: Mapping[str, str] = {
    "parameters": "allocated where a module is made, moved or loaded; never freed",
    "gradients": "allocated in backward; held when the optimizer runs",
    "optimizer state": "allocated in an optimizer step; held after it",
    "activations": "allocated in forward; freed in backward",
    "temporary": "allocated and freed within one pass",
    "unknown": "allocated in no known pass",
    **{f"unknown, from {name}": _LEFT for name in MEMORY_PHASES[1:]},
    NOT_ATTRIBUTED: "allocated before the recording",
    CACHED: "reserved, not allocated; with what sizes are rounded up by",
}
_CATEGORIES = [*EVIDENCE]
_UNKNOWN = _CATEGORIES.index("unknown")
_SETUP, _FORWARD, _BACKWARD, _UPDATE = range(1, len(MEMORY_PHASES))
_MOMENTS = 60  # of a chart


def memory_peaks(
    paths: Sequence[Path], asked: Request
) -> tuple[list[dict[str, Any]], Sequence[TraceFile], list[str]]:
    """Describe the peak of each device of the job at `paths`; its files, and the lines on them.

    The host of a rank counts only if no device of it allocates. TraceError without a readable recording.
    """
    job = read_ranks(paths, _peaks, asked._replace(needs={Need.MEMORY}, points=True))
    named = zip(job.names, job.made, strict=True)
    return [{"rank": name, **peak} for name, of_rank in named for peak in of_rank], job.files, job.repairs


def _peaks(source: Source, trace: Trace) -> list[dict[str, Any]]:
    """Describe the peak of each device in the trace of a rank, which was read for `Need.MEMORY`."""
    system = dialects.of(trace)
    event = system.memory_event
    samples = read_args(source.path, {event}) if event in trace.names else ()
    devices = [device for device in system.allocations(trace, samples) if (device.n_bytes > 0).any()]
    return list(map(_peak, [each for each in devices if not each.device.startswith("cpu")] or devices))


def _peak(samples: MemorySamples) -> dict[str, Any]:
    """Describe the peak of a device: bytes by category and holder add up to it."""
    facts = dict(samples.facts)
    n_before, why = facts.pop("n_before", 0), facts.pop("why", "")
    total, first, rows = (
        samples.n_bytes.astype(np.int64),
        max(n_before - 1, 0),
        np.arange(len(samples.change)),
    )
    row = first + int(np.argmax(total[first:]))
    end, category = _ends_and_categories(samples)
    is_known = (samples.change > 0) & (samples.address > 0) & ((rows >= n_before) | (category != _UNKNOWN))
    held = np.flatnonzero(is_known & (rows <= row) & (end > row))
    peak, known = int(total[row]), int(samples.change[held].sum())
    if known > peak:
        why, known, held, is_known = (
            "frees are missing in the recording",
            0,
            held[:0],
            np.zeros_like(is_known),
        )
    holders = _grouped(samples, held, category)
    if known < peak:
        holders.append((NOT_ATTRIBUTED, why or EVIDENCE[NOT_ATTRIBUTED], peak - known, 0))
    sizes = dict.fromkeys(_CATEGORIES, 0)
    for name, _, n_bytes, _ in holders:
        sizes[name] += n_bytes
    reserved = int(samples.reserved[row]) if samples.reserved[row] >= peak else 0
    sizes[CACHED] = max(reserved - peak, 0)
    at_ns = samples.at_ns - samples.at_ns[0] if samples.at_ns[0] >= 0 else None
    keys = ("category", "holder", "bytes", "allocations")
    return {
        "device": samples.device,
        "step": int(samples.step[row]) if samples.step[row] >= 0 else None,
        "at_ms": None if at_ns is None else ms_of(int(at_ns[row])),
        "event": row + 1 - n_before,
        "events": len(total) - n_before,
        "peak_bytes": peak,
        "reserved_bytes": reserved or None,
        "categories": {name: n_bytes for name, n_bytes in sizes.items() if n_bytes},
        "holders": [dict(zip(keys, h, strict=True)) for h in sorted(holders, key=lambda h: -h[2])],
        **facts,
        "over_time": _over_time(samples, total, first, at_ns, np.where(is_known, category, -1), end),
    }


def _ends_and_categories(samples: MemorySamples) -> tuple[Int64, Int64]:
    """Find the event that ends each allocation (n,), n for none, and its category.

    A free without a phase, or with its allocation's stack, happened in the phase of the last allocation.
    """
    n, change, holder = len(samples.change), samples.change, samples.holder
    rows = np.arange(n)
    order = np.lexsort((rows, samples.address))
    same = np.diff(samples.address[order]) == 0
    end, begin = np.full(n, n), np.full(n, -1)
    end[order[:-1][same]], begin[order[1:][same]] = order[1:][same], order[:-1][same]
    is_alike = (begin >= 0) & (holder == holder[begin]) & (samples.phase == samples.phase[begin])
    last = np.maximum.accumulate(np.where(change > 0, rows, 0))
    is_vague = (change < 0) & (is_alike | (samples.phase == 0))
    phase = np.where(is_vague, samples.phase[last], samples.phase)
    number = np.append(np.cumsum(np.diff(phase, prepend=phase[:1]) != 0), -1)  # of the pass
    in_pass, until = number[end] == number[:-1], np.append(phase, -1)[end]
    updates = np.append(np.flatnonzero(phase == _UPDATE), n)
    meets_update = updates[np.searchsorted(updates[:-1], rows, "right")] <= np.minimum(end, n - 1)
    rules = (  # in the order of the categories
        (phase == _SETUP) & (end == n),
        (phase == _BACKWARD) & meets_update,
        (phase == _UPDATE) & ~in_pass,
        (phase == _FORWARD) & (until == _BACKWARD),
        (phase > _SETUP) & in_pass,
    )
    return end, np.select(rules, range(len(rules)), _UNKNOWN + phase)


def _grouped(samples: MemorySamples, rows: Int64, category: Int64) -> list[tuple[str, str, int, int]]:
    """Add up allocations `rows`: category, holder, bytes, and their number."""
    width = len(samples.holders)
    keys = category[rows] * width + samples.holder[rows]
    distinct, index, counts = np.unique(keys, return_inverse=True, return_counts=True)
    n_bytes = np.zeros(len(distinct), np.int64)
    np.add.at(n_bytes, index, samples.change[rows])
    columns = (distinct // width, distinct % width, n_bytes, counts)
    groups = zip(*(column.tolist() for column in columns), strict=True)
    return [(_CATEGORIES[of], samples.holders[holder], size, count) for of, holder, size, count in groups]


def _over_time(
    samples: MemorySamples, total: Int64, first: int, at_ns: Int64 | None, category: Int64, end: Int64
) -> dict[str, list[float]]:
    """Add up what is held by category at the peak of each of up to 60 equal parts of a recording's events."""
    rows = np.arange(first, len(total))
    part = (rows - first) * _MOMENTS // len(rows)
    order = rows[np.lexsort((rows, -total[rows], part))]
    rows = order[np.diff(part[order - first], prepend=-1) > 0]
    made = {"at": (rows - first if at_ns is None else at_ns[rows] / 1e6).tolist()}
    rest = total[rows]
    for number, name in enumerate(_CATEGORIES):
        own = np.flatnonzero(category == number)
        change = np.zeros(len(total) + 1, np.int64)
        change[own] = samples.change[own]
        np.subtract.at(change, end[own], samples.change[own])
        held = np.cumsum(change)[rows]
        rest = rest - held
        made |= {name: held.tolist()} if held.any() else {}
    return {
        **made, NOT_ATTRIBUTED: rest.tolist(), CACHED: np.maximum(samples.reserved[rows] - total[rows], 0).tolist()
    }  # fmt: skip
