"""Who holds the memory of each device at its peak, to the byte.

An allocation is matched with the next event of its address. What it is follows from where it began and ended:

- activations: allocated in the forward pass, freed in the backward pass
- gradients: allocated in the backward pass, and alive when an optimizer step or `zero_grad` ran
- optimizer state: allocated in an optimizer step, and alive after it
- temporary: allocated and freed within one pass
- parameters: allocated while a module was made, moved or loaded, and never freed

All else is unknown, and what is not among the allocations (it was there before) is not attributed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import unique
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.system import MEMORY_PHASES, MemorySamples
from analyzer.reading.formats.columns import Trace
from trace_utils import Request, Source, TraceFile, read_args, read_ranks

NOT_ATTRIBUTED, CACHED = "not attributed", "cached but free"
_UNKNOWN = [f"unknown, from {name}" if name else "unknown" for name in MEMORY_PHASES]
CATEGORIES = (
    "parameters", "gradients", "optimizer state", "activations", "saved by autograd", "input", "temporary",
    *_UNKNOWN,
)  # fmt: skip
_NUMBER = {name: number for number, name in enumerate(CATEGORIES)}
_SETUP, _FORWARD, _BACKWARD, _UPDATE = map(MEMORY_PHASES.index, MEMORY_PHASES[1:])
_MOST_MOMENTS = 60  # of a chart


class _Peak(Struct, frozen=True):
    """The peak of a device of a rank, in bytes."""

    rank: str
    device: str
    at_ns: int | None  # since the first event; None without times
    step: int | None
    event: int  # counted from 1; 0: before the first one
    n_events: int
    peak: int
    reserved: int  # at the peak; 0 if it is not recorded
    most_reserved: int
    capacity: int  # 0 if unknown
    holders: Sequence[tuple[str, str, int, int]]  # category, holder, bytes, allocations; the largest first
    moments: Sequence[str]  # of a chart
    moment: str  # what they are: step, ms, or event
    series: Mapping[str, Sequence[int]]  # bytes by category at the peak of each
    facts: Mapping[str, Any]

    @property
    def cached(self) -> int:
        """Bytes reserved at the peak, but not allocated."""
        return max(self.reserved - self.peak, 0)

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes at the peak by category, in the usual order; they add up to the peak."""
        total = dict.fromkeys((*CATEGORIES, NOT_ATTRIBUTED), 0)
        for category, _, n_bytes, _ in self.holders:
            total[category] += n_bytes
        return {name: n_bytes for name, n_bytes in total.items() if n_bytes}


class MemoryPeaks(Struct, frozen=True):
    """The peaks of a job's devices, with lines on the files."""

    peaks: Sequence[_Peak]
    files: Sequence[TraceFile]
    repairs: Sequence[str]


def memory_peaks(paths: Sequence[Path], asked: Request) -> MemoryPeaks:
    """Find the peaks of the job at `paths`; of a rank's host only if no device of it allocates.

    TraceError without a readable recording.
    """
    job = read_ranks(paths, _peaks, asked._replace(needs={Need.MEMORY}, points=True))
    named = zip(job.names, job.made, strict=True)
    peaks = [replace(peak, rank=name) for name, of_rank in named for peak in of_rank]
    return MemoryPeaks(peaks, job.files, job.repairs)


def _peaks(source: Source, trace: Trace) -> list[_Peak]:
    """Find the peak of each device in the trace of a rank, which was read for `Need.MEMORY`."""
    system = dialects.of(trace)
    event = system.memory_event
    samples = read_args(source.path, {event}) if event in trace.names else ()
    devices = [device for device in system.allocations(trace, samples) if (device.n_bytes > 0).any()]
    peaks = list(map(_peak, devices))
    return [peak for peak in peaks if not peak.device.startswith("cpu")] or peaks


def _peak(samples: MemorySamples) -> _Peak:
    total, n_before = samples.n_bytes.astype(np.int64), samples.facts.get("n_before", 0)
    first = max(n_before - 1, 0)
    row = first + int(np.argmax(total[first:]))
    end, category = _ends_and_categories(samples)
    rows = np.arange(len(total))
    is_known = (samples.change > 0) & (samples.address > 0)
    is_known &= (rows >= n_before) | (category != _NUMBER[_UNKNOWN[0]])
    held = np.flatnonzero(is_known & (rows <= row) & (end > row))
    holders = _grouped(samples, held, category)
    why = samples.facts.get("why", "allocated before the recording")
    rest = int(total[row]) - sum(n_bytes for _, _, n_bytes, _ in holders)
    if rest < 0:  # frees are missing, so that nobody can be named
        is_known[:], holders, rest = False, [], int(total[row])
        why = "frees are missing in the recording"
    if rest:
        holders.append((NOT_ATTRIBUTED, why, rest, 0))
    by_step = bool((samples.step >= 0).any())
    rows = _moments(samples, total, first, by_step)
    at_ms = (samples.at_ns[rows] - samples.at_ns[0]) / 1e6
    has_times = samples.at_ns[0] >= 0
    return _Peak(
        rank="",
        device=samples.device,
        at_ns=int(samples.at_ns[row] - samples.at_ns[0]) if has_times else None,
        step=int(samples.step[row]) if samples.step[row] >= 0 else None,
        event=row + 1 - n_before,
        n_events=len(total) - n_before,
        peak=int(total[row]),
        reserved=int(samples.reserved[row] * (samples.reserved[row] >= total[row])),
        most_reserved=int(samples.reserved.max()),
        capacity=int(samples.capacity),
        holders=sorted(holders, key=lambda holder: -holder[2]),
        moments=[
            str(n)
            for n in (samples.step[rows] if by_step else at_ms.round(1) if has_times else rows).tolist()
        ],
        series=_series(samples, total, rows, np.where(is_known, category, -1), end),
        moment="step" if by_step else "ms" if has_times else "event",
        facts=samples.facts,
    )


def _ends_and_categories(samples: MemorySamples) -> tuple[Int64, Int64]:
    """Find the event that ends each allocation (n,), n for none, and its category by the rules above.

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
    phase = np.where((change < 0) & (is_alike | (samples.phase == 0)), samples.phase[last], samples.phase)
    number = np.cumsum(np.diff(phase, prepend=phase[:1]) != 0)  # of the pass
    is_freed = end < n
    until = np.where(is_freed, np.append(phase, -1)[end], -1)
    in_pass = is_freed & (np.append(number, -1)[end] == number)
    updates = np.append(np.flatnonzero(phase == _UPDATE), n + 1)
    meets_update = updates[np.searchsorted(updates[:-1], rows, "right")] <= np.minimum(end, n - 1)
    recorded = np.array([_NUMBER.get(name, -1) for name in samples.category or ("",) * n])
    rules = {
        "parameters": (phase == _SETUP) & ~is_freed,
        "gradients": (phase == _BACKWARD) & meets_update,
        "optimizer state": (phase == _UPDATE) & ~in_pass,
        "activations": (phase == _FORWARD) & (until == _BACKWARD),
        "temporary": (phase > _SETUP) & in_pass,
    }
    ruled = np.select(
        list(rules.values()), [_NUMBER[name] for name in rules], len(CATEGORIES) - len(_UNKNOWN) + phase
    )
    return end, np.where(recorded >= 0, recorded, ruled)


def _grouped(samples: MemorySamples, rows: Int64, category: Int64) -> list[tuple[str, str, int, int]]:
    """Add up allocations `rows` by category and holder."""
    width = max(len(samples.holders), 1)
    keys, index, counts = np.unique(
        category[rows] * width + samples.holder[rows], return_inverse=True, return_counts=True
    )
    n_bytes = np.zeros(len(keys), np.int64)
    np.add.at(n_bytes, index, samples.change[rows])
    pairs = (divmod(key, width) for key in keys.tolist())
    return [
        (CATEGORIES[of], samples.holders[holder], size, count)
        for (of, holder), size, count in zip(pairs, n_bytes.tolist(), counts.tolist(), strict=True)
    ]


def _moments(samples: MemorySamples, total: Int64, first: int, by_step: bool) -> Int64:
    """Choose the event with the peak of each step, or of each of up to 60 equal parts of the recording."""
    rows = np.arange(first, len(total))
    part = samples.step[rows] if by_step else (rows - first) * _MOST_MOMENTS // len(rows)
    order = rows[np.lexsort((rows, -total[rows], part))]
    part = part[order - first]
    is_first = np.append(True, part[1:] != part[:-1])
    return order[is_first & (part >= 0)]


def _series(
    samples: MemorySamples, total: Int64, rows: Int64, category: Int64, end: Int64
) -> dict[str, list[int]]:
    """Add up what was held at each of `rows` (m,) by category; -1 is not attributed."""
    made: dict[str, list[int]] = {}
    rest = total[rows]
    for number in unique(category[category >= 0]).tolist():
        own = np.flatnonzero(category == number)
        change = np.zeros(len(total) + 1, np.int64)
        change[own] = samples.change[own]
        np.subtract.at(change, end[own], samples.change[own])
        held = np.cumsum(change)[rows]
        rest = rest - held
        if held.any():
            made[CATEGORIES[number]] = held.tolist()
    cached = np.maximum(samples.reserved[rows] - total[rows], 0)
    return {**made, NOT_ATTRIBUTED: np.maximum(rest, 0).tolist(), CACHED: cached.tolist()}
