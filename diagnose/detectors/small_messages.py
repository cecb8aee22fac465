"""Transfers so small that their time is latency, not bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.numbering import unique
from dag.step_graph import Bool, Recording, StepGraph
from diagnose.detectors.slow_transfers import NO_BYTES, bytes_at_once, turns
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.step_parts import Operation
from replay.whatif.bandwidth import link_rate
from replay.whatif.partition import at_partition_bytes

#: A collective that in each fourth step takes no longer than this many times the shortest is latency, hardly
#: bytes, as what it takes longer in others is not a matter of bytes; so many of them in a step are many; and
#: merging leaves one in so many.
_LATENCY, _MANY, _MERGED = 2.0, 16, 10
#: One that is known to move more than this is bytes, however many others are as short.
_MOST_BYTES = 1 << 20
#: Partitions below this size are small, and merged into such of that size.
_SMALL_BYTES, _LARGE_BYTES = 256 << 10, 4 << 20


def small_messages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find many transfers whose time is latency, not bytes."""
    parts = [one for one in view.recording.operations if one.transfer.key is not None]
    if not view.is_communication.any():
        yield Skipped("small_messages", "no communication between ranks is recorded")
        return
    if not parts:
        yield from _short_collectives(view)
        return
    if not any(one.transfer.n_bytes for one in parts):
        yield Skipped("small_messages", f"{NO_BYTES}; BytePS's log has them")
        return
    sizes = np.array([one.transfer.n_bytes for one in parts if one.transfer.n_bytes])
    per_tensor = len({(one.owner, one.main, one.transfer.key) for one in parts}) / len(
        {(one.owner, one.main) for one in parts}
    )
    if np.median(sizes) > _SMALL_BYTES or per_tensor < 2:
        return
    known = link_rate(view.recording)
    rate = None if known is None else known.carried
    yield Finding(
        kind="small_messages",
        title=f"partitions are small: {np.median(sizes) / 1024:,.0f} KiB, {per_tensor:.0f} to a tensor",
        cause="every partition costs a request and an answer, whatever its size",
        action=f"raise BYTEPS_PARTITION_BYTES (here it is about {sizes.max():,})",
        edit=lambda one: at_partition_bytes(one, _LARGE_BYTES, rate),
        change=f"partition_bytes={_LARGE_BYTES}",
        ranks=view.recording.owners,
        operations=sorted({one.main for one in parts})[:3],
        evidence=view.show(view.which(lambda one: one.transfer.is_sent), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    collectives = view.which(_is_reduced) & (bytes_at_once(view) <= _MOST_BYTES)
    if not collectives.any():
        return
    shortest, usual = _shortest_ns(view, collectives)
    short = collectives & (usual <= _LATENCY * shortest)
    if short.sum() < _MANY * len(view.recording.owners):
        return
    often = float(np.median([_turns_a_rank(view, step, short) for step in view.steps]))
    if often < _MANY:
        return
    names, kind = view.kind_of
    chosen = [names[i] for i in unique(kind[short]).tolist()]
    yield Finding(
        kind="small_messages",
        title=f"{often:,.0f} collectives a step are so short that they are latency, hardly bytes",
        cause=f"where nothing holds them up they take at most {_LATENCY * shortest / 1e3:.0f} µs each, "
        "not much more than the shortest",
        action="merge them: larger buckets (bucket_cap_mb), a larger fusion buffer, coalesced collectives",
        edit=lambda one: _merged(one, short),
        ranks=view.recording.owners,
        operations=chosen[:3],
        evidence=view.show(short, 1),
        caveat=f"the gain is for one in {_MERGED} of them",
    )


def _turns_a_rank(view: JobView, step: StepGraph, chosen: Bool) -> float:
    """Return how many of the `chosen` operations (n,) a rank does in a step, those at once as one."""
    return float(np.mean([len(np.unique(turns(step, own))) for own in view.by_owner(step, chosen)]))


def _is_reduced(one: Operation) -> bool:
    return one.is_collective and one.is_communication


def _shortest_ns(view: JobView, collectives: Bool) -> tuple[float, Int64]:
    """Return how long the shortest of the `collectives` (n,) take, and each (n,) in a fourth of its steps."""
    parts = []
    for step in view.steps:
        own = np.flatnonzero(collectives[step.operation] & (step.work_ns > 0))
        parts.append((step.operation[own], step.work_ns[own]))
    operation, work = (np.concatenate(column) for column in zip(*parts, strict=True))
    count = np.bincount(operation, minlength=len(collectives))
    ordered = np.append(work[np.lexsort((work, operation))], 0)
    in_a_fourth = ordered[np.cumsum(count) - count + count // 4]
    shortest = float(np.quantile(work, 0.05)) if len(work) else 0.0
    return shortest, np.where(count > 0, in_a_fourth, 0)


def _merged(recording: Recording, collectives: Bool) -> Recording:
    """Return the recording in which one in some of the `collectives` (n,) of each owner takes time."""
    none = np.zeros(len(recording.operations) - len(collectives), np.bool_)
    collectives = np.append(collectives, none)  # what another edit added is none

    def merged(step: StepGraph) -> StepGraph:
        work = step.work_ns.copy()
        events = np.flatnonzero(collectives[step.operation])
        for owner in range(len(recording.owners)):
            own = events[step.owner[events] == owner]
            work[own[turns(step, own) % _MERGED > 0]] = 0
        return replace(step, work_ns=work)

    return recording.edited(merged)
