"""Transfers that take longer than their bytes need: slow links, slow collectives, many small messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from arrays import Float64
from arrays.numbering import unique
from dag.step_graph import Bool
from diagnose.finding import Finding, Skipped, edit
from diagnose.finding_thresholds import (
    BYTES_OF_A_RANK,
    HALF,
    LARGE_BYTES,
    MANY_MESSAGES,
    MOST_LATENCY_NS,
    SLOW,
    SLOWEST_LINK_GBS,
    SMALL_BYTES,
)
from diagnose.job_view import JobView
from errors import counted
from function_names import brief
from replay.whatif.collective_times import LATENCY, MERGED, short_collectives, slow_collectives
from replay.whatif.scaling import GONE
from replay.whatif.sized_collectives import Rates, events_by_owner, turns
from units import in_digits, in_ms

NO_BYTES = "the bytes of the transfers are not recorded"
NO_COMMUNICATION = "no communication between ranks is recorded"


def slow_links(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the worker whose pushes take longer than those of the same partitions elsewhere."""
    recording = view.recording
    pushes = view.which(lambda one: one.transfer.is_sent)
    if not pushes.any() or len(recording.owners) < 2:
        yield from slow_ones(view)
        return
    ratios = _ratios(view, pushes)
    owner = int(ratios.argmax())
    if ratios[owner] <= SLOW:
        return
    name, stages = recording.owners[owner], view.stages(lambda part: part.is_sent)
    slow = dict.fromkeys(stages, float(ratios[owner]))
    pulls = view.which(lambda one: one.transfer.is_answer)
    back = float(_ratios(view, pulls)[owner])
    if back > SLOW:
        slow |= dict.fromkeys(view.stages(lambda part: part.is_answer), back)
    chosen = pushes & view.which(lambda one: one.owner == owner)
    yield Finding(
        kind="slow_collective",
        title=f"the link of {name} is slow",
        cause=f"its pushes take {ratios[owner]:.1f} times as long as its peers'"
        + (f", its pulls {back:.1f} times" if back > SLOW else "")
        + "; transfers of the same partitions are compared, without the waiting for the link",
        action="look at its network: speed of the port, errors, other traffic, the path to the servers",
        edits=[edit(f"{name}.{stage}", 1 / ratio) for stage, ratio in slow.items()],
        ranks=[name],
        operations=list(slow),
        evidence=view.show(chosen, 3),
    )


def _ratios(view: JobView, chosen: Bool) -> Float64:
    """Return how much longer `chosen` transfers (n,) of each owner (m,) take than its peers'; 0: none.

    The median over the steps; 0 where the steps differ so much that no link is the cause: where the lower
    quartile is at most its square root.
    """
    n_owners = len(view.recording.owners)
    keys, number = view.recording.numbered(lambda one: (one.main, one.transfer.key))
    is_sent = np.zeros((n_owners, len(keys)), np.bool_)
    for step in view.steps:
        mine = chosen[step.operation] & (step.work_ns > 0)
        is_sent[step.owner[mine], number[step.operation[mine]]] = True
    sending = np.flatnonzero(is_sent.any(axis=1))  # of several GPUs of a worker only one pushes
    by_all = np.flatnonzero(is_sent[sending].all(axis=0))
    alike = chosen & np.isin(number, by_all)
    ratios = np.zeros(n_owners)
    if len(sending) > 1 and alike.any():
        took = [
            np.bincount(step.owner, step.work_ns * alike[step.operation], n_owners)[sending]
            for step in view.steps
        ]
        peers = [np.median(np.delete(took, place, axis=1), axis=1) for place in range(len(sending))]
        by_step = np.array(took) / np.maximum(np.transpose(peers), 1)
        low, usual = np.quantile(by_step, [0.25, 0.5], axis=0)
        ratios[sending] = np.where(low**2 > usual, usual, 0.0)
    return ratios


def slow_ones(view: JobView) -> Iterator[Finding | Skipped]:
    """Find collectives whose bus bandwidth is below any link's, or that of others of their kind and size."""
    job = view.job
    if not job.collectives:
        yield Skipped("slow_collective", NO_BYTES if view.is_communication.any() else NO_COMMUNICATION)
        return
    if (found := _slower_than_links(view, job.collectives.rates)) is not None:
        yield found
        return
    slow = slow_collectives(job)
    if not slow:
        return
    worst, operations = min(slow, key=lambda one: one.rate / one.usual), job.recording.operations
    n_slow = len({one.turn for one in slow})
    chosen = np.zeros(len(operations), np.bool_)
    chosen[[one.operation for one in slow]] = True
    is_slow, whose = ("is slower", "its") if n_slow == 1 else ("are slower", "their")
    yield Finding(
        kind="slow_collective",
        title=f"{counted(n_slow, 'collective')} {is_slow} than others of {whose} size"
        + (f", or wait{'s' * (n_slow == 1)} for ranks that are not recorded" if view.lacks_ranks else "")
        + f", {brief(operations[worst.operation].main)}{'' if n_slow == 1 else ' most'}",
        cause=f"its bus bandwidth is {in_digits(worst.rate)} GB/s where others of its kind and size have "
        f"{in_digits(worst.usual)}",
        action="look at what runs beside it, at the ranks of its group, and at the links between their hosts",
        edits=[edit("collectives", "peers")],
        ranks=[
            view.recording.owners[owner]
            for owner in sorted({operations[one.operation].owner for one in slow})
        ],
        operations=sorted({operations[one.operation].main for one in slow}),
        evidence=view.show(chosen, 3),
        caveat="ranks are not recorded: it may be slow, or wait for one of them" if view.lacks_ranks else "",
    )


def _slower_than_links(view: JobView, known: Rates) -> Finding | None:
    """Return a finding where even large collectives of devices have far less than any link of a host.

    `known` are the collectives.
    """
    operations = view.recording.operations
    on_device = np.array([operations[i].on_device for i in known.operation.tolist()], np.bool_)
    is_large = on_device & (known.n_bytes >= np.maximum(BYTES_OF_A_RANK * known.n_ranks, LARGE_BYTES))
    large = known.operation[is_large]
    usual_ns, shortest_ns = (at[large] for at in _work_ns(view))
    best = float((known.bus[is_large] * usual_ns / shortest_ns).max(initial=0.0))
    if not len(large) or best > HALF * SLOWEST_LINK_GBS:
        return None
    n_bytes = known.n_bytes[is_large]
    largest = int(n_bytes.argmax())
    chosen = np.zeros(len(operations), np.bool_)
    chosen[large] = True
    edits = [edit("bandwidth", f"{8 * SLOWEST_LINK_GBS:.0f}Gbit")]
    if view.job.collectives.latency[chosen].mean() > HALF * usual_ns.mean():
        edits.append(edit("latency", GONE))
    return Finding(
        kind="slow_collective",
        title=f"collectives reach {best:.2g} GB/s on the bus",
        cause=f"the slowest link between GPUs of a host (PCIe 3.0 x16) carries {SLOWEST_LINK_GBS:.0f}; "
        f"{n_bytes[largest] / 1e6:.3g} MB take {in_ms(usual_ns[largest])}",
        action="look at what they run over (NCCL_DEBUG=INFO prints it: a link, shared memory, a network) and "
        "at the links (nvidia-smi topo -m, rocm-smi --showtopo); run nccl-tests there to compare",
        edits=edits,
        operations=sorted({operations[i].main for i in large.tolist()}),
        evidence=view.show(chosen, 3),
        caveat="between hosts a network may carry less"
        + ("; ranks are not recorded, so they may wait for one of them" if view.lacks_ranks else ""),
        look=("statistic", "--sub_option", "collectives"),
    )


def _work_ns(view: JobView) -> tuple[Float64, Float64]:
    """Return the median and the shortest work of each operation (n,) over the whole steps, 1 at least."""
    operation, work = (
        np.concatenate([getattr(step, column) for step in view.steps]) for column in ("operation", "work_ns")
    )
    order = np.lexsort((work, operation))
    count = np.bincount(operation, minlength=len(view.recording.operations))
    first = np.cumsum(count) - count
    usual, shortest = (
        work[order][np.minimum(at, len(order) - 1)].astype(np.float64) for at in (first + count // 2, first)
    )
    usual, shortest = (np.maximum(np.where(count > 0, one, 1.0), 1.0) for one in (usual, shortest))
    return usual, shortest


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
        operations=sorted({one.main for one in parts})[:3],
        evidence=view.show(view.which(lambda one: one.transfer.is_sent), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    short, shortest = short_collectives(view.job)
    if short.sum() < MANY_MESSAGES * len(view.recording.owners):
        return
    if (
        view.has_device
        and shortest > MOST_LATENCY_NS
        and not any(rank.sizes.n_bytes.any() for rank in view.job.ranks)
    ):
        return
    # of each step how many a rank does, those at once as one
    n_turns = [
        np.mean([len(np.unique(turns(step, own))) for own in events_by_owner(view.recording, step, short)])
        for step in view.steps
    ]
    often = float(np.median(n_turns))
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
        operations=chosen[:3],
        evidence=view.show(short, 1),
        caveat=f"the gain is for one in {MERGED} of them",
    )
