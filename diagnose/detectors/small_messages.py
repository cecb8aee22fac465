"""Transfers so small that their time is latency, not bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from arrays.numbering import unique
from dag.step_graph import Bool, StepGraph
from diagnose.detectors.slow_transfers import NO_BYTES, NO_COMMUNICATION
from diagnose.finding import Finding, Skipped, edit
from diagnose.finding_thresholds import LARGE_BYTES, MANY_MESSAGES, SMALL_BYTES
from diagnose.job_view import JobView
from replay.whatif.collective_times import LATENCY, MERGED, short_collectives, turns


def small_messages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find many transfers whose time is latency, not bytes."""
    parts = [one for one in view.recording.operations if one.transfer.key is not None]
    if not view.is_communication.any():
        yield Skipped("small_messages", NO_COMMUNICATION)
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
    if np.median(sizes) > SMALL_BYTES or per_tensor < 2:
        return
    yield Finding(
        kind="small_messages",
        title="partitions are small",
        cause=f"{np.median(sizes) / 1024:,.0f} KiB, {per_tensor:.0f} to a tensor; every partition costs "
        "a request and an answer, whatever its size",
        action=f"raise BYTEPS_PARTITION_BYTES (now about {sizes.max()}), e.g. to {LARGE_BYTES}",
        edits=[edit("partition_bytes", LARGE_BYTES)],
        ranks=view.recording.owners,
        operations=sorted({one.main for one in parts})[:3],
        evidence=view.show(view.which(lambda one: one.transfer.is_sent), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    short, shortest = short_collectives(view.job)
    if short.sum() < MANY_MESSAGES * len(view.recording.owners):
        return
    often = float(np.median([_turns_a_rank(view, step, short) for step in view.steps]))
    if often < MANY_MESSAGES:
        return
    names, kind = view.kind_of
    chosen = [names[i] for i in unique(kind[short]).tolist()]
    yield Finding(
        kind="small_messages",
        title=f"{often:,.0f} collectives a step are latency, hardly bytes",
        cause=f"where nothing holds them up they take at most {LATENCY * shortest / 1e3:.0f} µs each, "
        "not much more than the shortest",
        action="merge them: larger buckets (bucket_cap_mb), a larger fusion buffer, coalesced collectives",
        edits=[edit("collectives", "merged")],
        ranks=view.recording.owners,
        operations=chosen[:3],
        evidence=view.show(short, 1),
        caveat=f"the gain is for one in {MERGED} of them",
    )


def _turns_a_rank(view: JobView, step: StepGraph, chosen: Bool) -> float:
    """Return how many of the `chosen` operations (n,) a rank does in a step, those at once as one."""
    return float(np.mean([len(np.unique(turns(step, own))) for own in view.by_owner(step, chosen)]))
