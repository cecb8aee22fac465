"""Memory of the devices: whether it grows, nearly fills them, or differs between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

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


def memory(view: JobView) -> Iterator[Finding | Skipped]:
    """Find memory that grows over the steps, nearly fills a device, or differs between ranks."""
    peaks, capacity = {}, {}
    for owner, rank in enumerate(view.loaded.ranks):
        name = view.recording.owners[owner]
        if rank.memory is not None and len(by_step := _peaks(view, owner, rank.memory)):
            peaks[name], capacity[name] = by_step, rank.memory.capacity
    if not peaks:
        on_host = any(rank.memory is not None for rank in view.loaded.ranks)
        setting = dialects.named(view.loaded.files[0].dialect).memory_setting
        remedy = f"; {setting} records them" if setting else ""
        yield Skipped("memory", _HOST_ONLY if on_host else _NOTHING + remedy)
        return
    flaw = partial(Finding, "memory", steps=view.numbers, caveat="no gain is claimed", look=BREAKDOWN)
    for title, cause, action, ranks, weight in _flaws(peaks, capacity):
        yield flaw(title, cause, action, ranks=ranks, weight=weight)


def _flaws(
    peaks: Mapping[str, Float64], capacity: Mapping[str, float]
) -> Iterator[tuple[str, str, str, Sequence[str], float]]:
    """Yield title, cause, action, ranks and weight of each flaw.

    `peaks` are the most bytes in each step of a rank, `capacity` what its devices have (0: unknown).
    """
    growing = {rank: share for rank, one in peaks.items() if (share := _growth(one)) > NEGLIGIBLE}
    if growing:
        worst = max(growing, key=lambda rank: growing[rank])
        steps = peaks[worst]
        yield (
            f"memory grows from step to step on {listed(list(growing))}",
            f"the peak on {worst} grows from {_gb(steps[0])} to {_gb(steps[-1])} in {len(steps)} steps",
            "look for what is kept: losses that hold their graph, growing lists, caches",
            list(growing),
            growing[worst],
        )
    most = {rank: float(one.max()) for rank, one in peaks.items()}
    full = {rank: most[rank] / of for rank, of in capacity.items() if of and most[rank] > FULL * of}
    if full:
        worst = max(full, key=lambda rank: full[rank])
        yield (
            f"memory is nearly full on {listed(list(full))}",
            f"{_gb(most[worst])} of {_gb(capacity[worst])} are allocated on {worst}",
            "allocations may have to wait for freed blocks: a smaller batch, recomputation, sharded states",
            list(full),
            full[worst] - FULL,
        )
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


def _peaks(view: JobView, owner: int, samples: MemorySamples) -> Float64:
    """Return the most bytes in each whole step of an owner in which any are recorded."""
    peaks = []
    for step in (view.loaded.recording.steps[row] for row in view.rows):
        within = (samples.at_ns >= step.begin_ns[owner]) & (samples.at_ns < step.next_ns[owner])
        peaks.append(samples.n_bytes[within].max(initial=0.0))
    return np.array([peak for peak in peaks if peak > 0], np.float64)
