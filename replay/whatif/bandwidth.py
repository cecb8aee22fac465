"""What a link is made of: bytes that take their time, and all else that a transfer costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from dialects.step_parts import Operation
from errors import TraceError
from formats.columns import Int64

#: A burst of transfers has no longer pause than this, and at least so many transfers.
_PAUSE_NS = 50_000
_BURST = 8

#: Bytes that stand for a full partition where its size is not known.
_UNIT = 1_000_000
#: The share of a link's bandwidth that the bytes of tensors get; the rest are headers and acknowledgements.
_GOODPUT = 0.95

Float = NDArray[np.float64]


def is_sized(recording: Recording) -> bool:
    """Return whether the bytes of transfers are known, or the recording has no transfers."""
    transfers = [one for one in recording.table.kinds if one.link or one.is_communication]
    return not transfers or any(one.n_bytes for one in transfers)


def link_rate(recording: Recording) -> float | None:
    """Return what a link of the job carries, bytes per nanosecond; None where sizes are not known.

    While transfers follow each other on a link without a pause, the bytes since the first began cannot
    come faster than the link is; every stall only makes them late. So the fastest begin of any such
    burst, of any link (they are taken to be of one kind), is the nearest to it.
    """
    recording = with_sizes(recording)
    n_bytes = _sizes(recording)
    fastest = 0.0
    for step in recording.steps:
        size = n_bytes[step.operation]
        for link in range(len(recording.links)):
            mine = np.flatnonzero(step.link == link)
            mine = mine[np.argsort(step.end_ns[mine], kind="stable")]
            fastest = max(fastest, _fastest(size[mine], step.end_ns[mine], step.work_ns[mine]))
    return fastest or None


def _fastest(size: Int64, end_ns: Int64, work_ns: Int64) -> float:
    """Return the highest rate of the begin of a burst; transfers (n,) are in the order of their ends."""
    if not size.any():
        return 0.0
    begin_ns = end_ns - work_ns
    starts = np.flatnonzero(np.concatenate([[True], begin_ns[1:] > end_ns[:-1] + _PAUSE_NS]))
    found = 0.0
    for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(size)], strict=True):
        carried = np.cumsum(size[first:stop]) / np.maximum(end_ns[first:stop] - begin_ns[first], 1)
        found = max(found, float(carried[_BURST - 1 :].max(initial=0.0)))
    return found


def times_faster(recording: Recording, factor: float, rate: float | None) -> Recording:
    """Return the recording with links of `rate` (bytes/ns) that carry `factor` times as much.

    Only the time of the bytes changes; latency and the computation of a transfer stay. Where not even
    relative sizes are known, the whole transfer changes.
    """
    has_links = any(operation.link for operation in recording.table.kinds)
    if not has_links and not any(operation.is_communication for operation in recording.table.kinds):
        raise TraceError("bandwidth: no transfer between ranks is recorded")
    recording = with_sizes(recording)
    n_bytes = _sizes(recording)
    steps = []
    for step in recording.steps:
        if rate is None or not has_links:
            moves = step.link != NO_LINK if has_links else _communicates(recording, step)
            work = np.where(moves, step.work_ns / factor, step.work_ns)
        else:
            on_wire = n_bytes[step.operation] / rate
            if factor > 1:
                on_wire += _behind_answers(recording, step, on_wire)
            work = _with_wire(step, on_wire * (1 / factor - 1))
        steps.append(replace(step, work_ns=np.rint(work).astype(np.int64)))
    return replace(recording, steps=steps)


def at_rate(recording: Recording, target: float, rate: float | None) -> Recording:
    """Return the recording with links of `target` bytes per nanosecond, recorded with those of `rate`.

    On slower links no transfer is quicker than its bytes.

    Raises
    ------
    TraceError
        The bytes of the transfers are not known.
    """
    if not is_sized(recording):
        raise TraceError("bandwidth: the bytes of the transfers are not recorded; give a ratio (bandwidth=2)")
    if rate is not None and target * _GOODPUT > rate:
        return times_faster(recording, target * _GOODPUT / rate, rate)
    n_bytes = _sizes(recording)
    steps = []
    for step in recording.steps:
        least = np.rint(n_bytes[step.operation] / (target * _GOODPUT)).astype(np.int64)
        moves = (step.link != NO_LINK) | _communicates(recording, step)
        steps.append(replace(step, work_ns=np.where(moves, np.maximum(step.work_ns, least), step.work_ns)))
    return replace(recording, steps=steps)


def with_sizes(recording: Recording) -> Recording:
    """Return the recording with the sizes of partitions, relative ones where no log has them.

    The copy of a partition to host memory (COPYD2H) takes a time that grows with its size: the shortest
    copy of all stands for nothing, that of the usual partition of a tensor that has several for one unit.
    """
    if any(operation.n_bytes for operation in recording.table.kinds):
        return recording
    copies = _copy_ns(recording)
    # Of a tensor's partitions all but the last are full.
    full = [ns for (owner, key), ns in copies.items() if (owner, key + 1) in copies]
    none = min(copies.values(), default=0)
    one = float(np.median(full)) if full else max(copies.values(), default=0)
    if one <= none:
        return recording

    def sized(operation: Operation) -> Operation:
        if operation.key is None or (operation.owner, operation.key) not in copies:
            return operation
        share = min((copies[operation.owner, operation.key] - none) / (one - none), 1.0)
        return operation._replace(n_bytes=round(_UNIT * share))

    return replace(recording, operations=[sized(operation) for operation in recording.operations])


def _copy_ns(recording: Recording) -> dict[tuple[int, int], float]:
    """Return the shortest copy to host memory of each partition, by (owner, key)."""
    found: dict[tuple[int, int], float] = {}
    for step in recording.steps:
        for number, work in zip(step.operation.tolist(), step.work_ns.tolist(), strict=True):
            one = recording.operations[number]
            if one.key is not None and one.stage == "COPYD2H":
                found[one.owner, one.key] = min(found.get((one.owner, one.key), work), work)
    return found


def _with_wire(step: StepGraph, extra_ns: Float) -> Float:
    """Return the work of each event, on a link with `extra_ns` (n,) more."""
    work = step.work_ns.astype(np.float64)
    for link in np.unique(step.link[step.link != NO_LINK]).tolist():
        mine = np.flatnonzero(step.link == link)
        mine = mine[np.argsort(step.turn[mine], kind="stable")]
        work[mine] = _carried(work[mine] + extra_ns[mine])
    return work


def _behind_answers(recording: Recording, step: StepGraph, wire_ns: Float) -> Float:
    """Return how long the acknowledgement of each PUSH may have waited behind answers to PULLs (n,).

    Acknowledgements come back over the link that carries the answers. What a PUSH took beyond its own
    bytes while that link was busy is the time of other bytes: on a faster link it shrinks with theirs.
    (A slower link makes them wait longer, but that does not keep the worker's own link busy.)
    """
    waited = np.zeros(len(step))
    begin = step.end_ns - step.work_ns
    stage = np.array([operation.stage for operation in recording.operations])[step.operation]
    answers = np.flatnonzero(stage == "PULL")
    answers = answers[np.argsort(step.end_ns[answers], kind="stable")]
    pushes = np.flatnonzero((stage == "PUSH") & (step.link != NO_LINK))
    if len(answers) and len(pushes):
        ends, starts = (
            _busy_until(begin[answers], step.end_ns[answers], at[pushes]) for at in (step.end_ns, begin)
        )
        waited[pushes] = np.clip(step.work_ns[pushes] - wire_ns[pushes], 0, ends - starts)
    return waited


def _busy_until(begin_ns: Int64, end_ns: Int64, at_ns: Int64) -> Int64:
    """Return for how long a link, busy in intervals (k,) one after the other, had been so at each moment."""
    before_ns = np.concatenate([[0], np.cumsum(end_ns - begin_ns)])
    i = np.searchsorted(begin_ns, at_ns, side="right")
    last = np.maximum(i - 1, 0)
    within = np.minimum(at_ns, end_ns[last]) - begin_ns[last]
    busy: Int64 = np.where(i > 0, before_ns[last] + within, 0)
    return busy


def _carried(service: Float) -> Float:
    """Return `service` without negative values, the rest taken from those that follow.

    Acknowledgements of several transfers are often read together; then one seems to have taken all the
    time and the others none.
    """
    owed = 0.0
    for i, time in enumerate(service.tolist()):
        service[i] = max(time - owed, 0.0)
        owed = max(owed - time, 0.0)
    return service


def _sizes(recording: Recording) -> Int64:
    return recording.column(lambda one: one.n_bytes)


def _communicates(recording: Recording, step: StepGraph) -> Bool:
    chosen: Bool = recording.which(lambda one: one.is_communication)[step.operation]
    return chosen
