"""Many transfers whose time is latency, not bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dag.step_graph import Bool, StepGraph
from diagnose.detectors.slow_transfers import NO_BYTES, NO_COMMUNICATION
from diagnose.evidence import longest_events
from diagnose.finding import Finding, Scope, Skipped, edit
from diagnose.finding_thresholds import LARGE_BYTES, MANY_MESSAGES, MOST_LATENCY_NS, SMALL_BYTES
from diagnose.job_view import JobView, names_of
from replay.whatif.collective_times import LATENCY, MERGED, short_collectives
from replay.whatif.sized_collectives import events_by_owner, turns


def small_messages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find many transfers whose time is latency, not bytes."""
    parts = [operation for operation in view.recording.operations if operation.transfer.key is not None]
    if not view.is_communication.any():
        yield Skipped("small_messages", NO_COMMUNICATION)
        return
    if not parts:
        yield from _short_collectives(view)
        return
    sizes = np.array([part.transfer.n_bytes for part in parts if part.transfer.n_bytes])
    if not len(sizes):
        yield Skipped("small_messages", f"{NO_BYTES}; BytePS's log has them")
        return
    tensors = {(part.owner, part.main) for part in parts}
    per_tensor = len({(part.owner, part.main, part.transfer.key) for part in parts}) / len(tensors)
    if np.median(sizes) > SMALL_BYTES or per_tensor < 2:
        return
    yield Finding(
        kind="small_messages",
        title="partitions are small",
        cause=f"{np.median(sizes) / 1024:,.0f} KiB, {per_tensor:.0f} to a tensor; every partition costs "
        "a request and an answer, whatever its size",
        action=f"raise BYTEPS_PARTITION_BYTES (now about {sizes.max()}), e.g. to {LARGE_BYTES}",
        edits=[edit("partition_bytes", LARGE_BYTES)],
        scope=Scope(operations=sorted({part.main for part in parts})[:3]),
        evidence=longest_events(view, view.which(lambda operation: operation.transfer.is_sent), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    short, shortest_ns = short_collectives(view.job)
    if short.sum() < MANY_MESSAGES * len(view.recording.owners):
        return
    has_bytes = any(rank.sizes.n_bytes.any() for rank in view.job.ranks)
    if view.has_device and shortest_ns > MOST_LATENCY_NS and not has_bytes:
        return
    often = float(np.median([_n_turns(view, step, short) for step in view.steps]))
    if often < MANY_MESSAGES:
        return
    yield Finding(
        kind="small_messages",
        title=f"{often:,.0f} collectives a step are latency, hardly bytes",
        cause=f"where nothing delays them they take at most {LATENCY * shortest_ns / 1e3:.0f} µs each, "
        "not much more than the shortest",
        action="merge them: larger buckets (bucket_cap_mb), a larger fusion buffer, coalesced collectives",
        edits=[edit("collectives", "merged")],
        scope=Scope(operations=names_of(view, short)[:3]),
        evidence=longest_events(view, short, 1),
        caveat=f"the gain is for one in {MERGED} of them",
    )


def _n_turns(view: JobView, step: StepGraph, short: Bool) -> float:
    """Count the `short` collectives of a rank in a step, those at once as one; the mean over ranks."""
    by_owner = events_by_owner(view.recording, step, short)
    return float(np.mean([len(np.unique(turns(step, events))) for events in by_owner]))
