"""The holders of each device's memory at its peak, to the byte.

An allocation ends with the next event of its address. The passes in which it began and ended tell what it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.base.arrays import Int64
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
    NOT_ATTRIBUTED: "not among the recorded allocations",
    CACHED: "reserved, not allocated; includes the rounding of sizes",
}
_NAMES = [*EVIDENCE]
_UNKNOWN = _NAMES.index("unknown")
_SETUP, _FORWARD, _BACKWARD, _UPDATE = range(1, len(MEMORY_PHASES))


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
    n_before, why = facts.pop("n_before", 0), facts.pop("why", "(allocated before the recording)")
    total, rows = samples.n_bytes.astype(np.int64), np.arange(len(samples.change))
    first = max(n_before - 1, 0)
    row = first + int(np.argmax(total[first:]))
    peak, at_ns, step = int(total[row]), int(samples.at_ns[row] - samples.at_ns[0]), int(samples.step[row])
    end, category = _ends_and_categories(samples)
    is_known = (samples.change > 0) & (samples.address > 0) & ((rows >= n_before) | (category != _UNKNOWN))
    held = np.flatnonzero(is_known & (rows <= row) & (end > row))
    if (known := int(samples.change[held].sum())) > peak:
        why, known, held = "(frees are missing in the recording)", 0, held[:0]
    of_groups: Counter[tuple[int, int]] = Counter()
    groups = list(zip(category[held].tolist(), samples.holder[held].tolist(), strict=True))
    for group, n_bytes in zip(groups, samples.change[held].tolist(), strict=True):
        of_groups[group] += n_bytes
    counts = Counter(groups)
    holders = [(_NAMES[of], samples.holders[i], n, counts[of, i]) for (of, i), n in of_groups.most_common()]
    if known < peak:
        holders.append((NOT_ATTRIBUTED, why, peak - known, 0))
    reserved = int(samples.reserved[row]) if samples.reserved[row] >= peak else 0
    sizes = Counter({CACHED: max(reserved - peak, 0)})
    for name, _, n_bytes, _ in holders:
        sizes[name] += n_bytes
    keys = ("category", "holder", "bytes", "allocations")
    return {
        "device": samples.device,
        "step": step if step >= 0 else None,
        "at_ms": at_ns / 1e6 if samples.at_ns[0] >= 0 else None,
        "event": row + 1 - n_before,
        "events": len(total) - n_before,
        "peak_bytes": peak,
        "reserved_bytes": reserved or None,
        "categories": {name: sizes[name] for name in _NAMES if sizes[name]},
        "holders": [dict(zip(keys, each, strict=True)) for each in holders],
        **facts,
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
    changes = np.diff([phase, samples.step], prepend=-1).any(axis=0)
    number = np.append(np.cumsum(changes), -1)  # of the pass
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
