"""Memory of the devices: growth, and nearly full devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from analyzer.answers.diagnose.finding import BREAKDOWN, FULL, NEGLIGIBLE, Finding, FindingScope, Skipped
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64
from analyzer.base.arrays.distributions import FEWEST
from analyzer.base.errors import listed
from analyzer.base.units import in_percent
from analyzer.reading import dialects
from analyzer.reading.dialects.system import MemorySamples

_NOTHING = "no memory events are recorded"
_HOST_ONLY = "memory events of the host are recorded, but none of a device"


def memory(view: JobView) -> Iterator[Finding | Skipped]:
    """Find memory that grows over the steps, or nearly fills a device."""
    peaks: dict[str, Float64] = {}
    filled: dict[str, float] = {}
    for owner, rank in enumerate(view.loaded.ranks):
        name = view.recording.owners[owner]
        if rank.memory is not None and len(by_step := _peaks(view, owner, rank.memory)):
            peaks[name] = by_step
            filled[name] = float(by_step.max()) / rank.memory.capacity if rank.memory.capacity else 0.0
    if not peaks:
        on_host = any(rank.memory is not None for rank in view.loaded.ranks)
        setting = dialects.named(view.loaded.files[0].dialect).memory_setting
        remedy = f"; {setting} records them" if setting else ""
        yield Skipped("memory", _HOST_ONLY if on_host else _NOTHING + remedy)
        return
    growing = {}
    for name, by_step in peaks.items():
        growth = float(by_step[-1] / max(by_step[0], 1.0) - 1)
        if len(by_step) >= FEWEST and (np.diff(by_step) > 0).all() and growth > NEGLIGIBLE:
            growing[name] = growth
    if growing:
        worst = max(growing, key=lambda rank: growing[rank])
        first, *_, last = peaks[worst]
        yield _finding(
            f"memory grows from step to step on {listed(list(growing))}",
            f"the peak on {worst} grows from {_gb(first)} to {_gb(last)} in {len(peaks[worst])} steps",
            "look for what is kept: losses that hold their graph, growing lists, caches",
            list(growing),
            growing[worst],
        )
    full = [rank for rank, share in filled.items() if share > FULL]
    if full:
        worst = max(full, key=lambda rank: filled[rank])
        yield _finding(
            f"memory is nearly full on {listed(full)}",
            f"{_gb(peaks[worst].max())}, {in_percent(filled[worst])}, are allocated on {worst}",
            "allocations may have to wait for freed blocks: a smaller batch, recomputation, sharded states",
            full,
            filled[worst] - FULL,
        )


def _finding(title: str, cause: str, action: str, ranks: Sequence[str], weight: float) -> Finding:
    scope, caveat = FindingScope(ranks), "no gain is claimed"
    return Finding("memory", title, cause, action, scope=scope, caveat=caveat, look=BREAKDOWN, weight=weight)


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB"


def _peaks(view: JobView, owner: int, samples: MemorySamples) -> Float64:
    """Find the peak in bytes of each whole step of an owner with samples."""
    peaks = []
    for step in (view.as_recorded.recording.steps[row] for row in view.rows):
        within = (samples.at_ns >= step.begin_ns[owner]) & (samples.at_ns < step.next_ns[owner])
        peaks.append(samples.n_bytes[within].max(initial=0.0))
    return np.array([peak for peak in peaks if peak > 0], np.float64)
