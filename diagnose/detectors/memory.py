"""Memory of the devices: whether it grows, nearly fills them, or differs between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

import dialects
from arrays import Float64
from arrays.median import FEWEST
from diagnose.finding import BREAKDOWN, Finding, Skipped
from diagnose.finding_thresholds import FULL, MUCH, NEGLIGIBLE
from diagnose.job_view import JobView
from dialects.system import MemorySamples
from errors import listed

_NOTHING = "no memory events are recorded"
_HOST_ONLY = "memory events of the host are recorded, but none of a device"


class _Peaks(Struct, frozen=True):
    """The most bytes allocated in each of some steps of a rank, and what its devices have; 0 is unknown."""

    by_step: Float64
    capacity: float


def memory(view: JobView) -> Iterator[Finding | Skipped]:
    """Find memory that grows over the steps, nearly fills a device, or differs between ranks."""
    peaks = {}
    for owner, rank in enumerate(view.loaded.ranks):
        found = None if rank.memory is None else _peaks(view, owner, rank.memory)
        if found is not None:
            peaks[view.recording.owners[owner]] = found
    if not peaks:
        on_host = any(rank.memory is not None for rank in view.loaded.ranks)
        setting = dialects.named(view.loaded.files[0].dialect).memory_setting
        remedy = f"; {setting} records them" if setting else ""
        yield Skipped("memory", _HOST_ONLY if on_host else _NOTHING + remedy)
        return
    for title, cause, action, ranks, weight in _flaws(peaks):
        yield Finding(
            kind="memory",
            title=title,
            cause=cause,
            action=action,
            ranks=ranks,
            steps=view.numbers,
            caveat="no saving of time is claimed",
            look=BREAKDOWN,
            weight=weight,
        )


def _flaws(peaks: Mapping[str, _Peaks]) -> Iterator[tuple[str, str, str, Sequence[str], float]]:
    """Yield title, cause, action, ranks and weight of each flaw."""
    growing = {rank: share for rank, one in peaks.items() if (share := _growth(one.by_step)) > NEGLIGIBLE}
    if growing:
        worst = max(growing, key=lambda rank: growing[rank])
        steps = peaks[worst].by_step
        yield (
            f"memory grows from step to step on {listed(list(growing))}",
            f"the peak on {worst} grows from {_gb(steps[0])} to {_gb(steps[-1])} in {len(steps)} steps",
            "look for what is kept: losses that hold their graph, growing lists, caches",
            list(growing),
            growing[worst],
        )
    full = {
        rank: one.by_step.max() / one.capacity
        for rank, one in peaks.items()
        if one.capacity and one.by_step.max() > FULL * one.capacity
    }
    if full:
        worst = max(full, key=lambda rank: full[rank])
        yield (
            f"memory is nearly full on {listed(list(full))}",
            f"{_gb(peaks[worst].by_step.max())} of {_gb(peaks[worst].capacity)} are allocated on {worst}",
            "allocations may have to wait for freed blocks: a smaller batch, recomputation, sharded states",
            list(full),
            full[worst] - FULL,
        )
    most = {rank: float(one.by_step.max()) for rank, one in peaks.items()}
    usual = float(np.median(list(most.values())))
    uneven = [rank for rank, peak in most.items() if peak > MUCH * usual]
    if uneven:
        worst = max(uneven, key=lambda rank: most[rank])
        yield (
            f"{listed(uneven)} need{'s' if len(uneven) == 1 else ''} much more memory than the other ranks",
            f"the peak is {_gb(most[worst])} on {worst} and {_gb(usual)} on the median rank",
            "split layers, or states, so that the ranks need about the same",
            uneven,
            most[worst] / usual - 1,
        )


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB"


def _growth(by_step: Float64) -> float:
    """Return by what share the peak grows over the steps, if it grows in each; else 0."""
    if len(by_step) < FEWEST or (np.diff(by_step) <= 0).any():
        return 0.0
    return float(by_step[-1] / max(by_step[0], 1.0) - 1)


def _peaks(view: JobView, owner: int, samples: MemorySamples) -> _Peaks | None:
    peaks = []
    for step in (view.loaded.recording.steps[row] for row in view.rows):
        within = (samples.at_ns >= step.begin_ns[owner]) & (samples.at_ns < step.next_ns[owner])
        peaks.append(samples.n_bytes[within].max(initial=0.0))
    known = np.array([peak for peak in peaks if peak > 0])
    return _Peaks(known, samples.capacity) if len(known) else None
