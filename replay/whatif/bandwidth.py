"""What a link is made of: bytes that take their time, and all else that a transfer costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from errors import TraceError
from replay.model import Model, StepModel
from replay.plan import UNLIMITED, Int64
from replay.recording import RecordedStep

#: A burst of transfers has no longer pause than this, and at least so many transfers.
_PAUSE_NS = 50_000
_BURST = 8

#: Bytes that stand for a full partition where its size is not known.
_UNIT = 1_000_000

Float = NDArray[np.float64]


def link_rate(model: Model) -> float | None:
    """Return what a link of the job carries, bytes per nanosecond; None where sizes are not known.

    While transfers follow each other on a link without a pause, the bytes since the first began cannot
    come faster than the link is; every stall only makes them late. So the fastest begin of any such
    burst, of any link (they are taken to be of one kind), is the nearest to it.
    """
    device, n_bytes = _columns(model)
    fastest = 0.0
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        where, size = device[recorded.operation], n_bytes[recorded.operation]
        for link in range(len(model.recording.devices)):
            mine = np.flatnonzero(where == link)
            mine = mine[np.argsort(recorded.end_ns[mine], kind="stable")]
            fastest = max(fastest, _fastest(size[mine], recorded.end_ns[mine], step.service_ns[mine]))
    return fastest or None


def _fastest(size: Int64, end_ns: Int64, service_ns: Int64) -> float:
    """Return the highest rate of the begin of a burst; transfers (n,) are in the order of their ends."""
    if not size.any():
        return 0.0
    begin_ns = end_ns - service_ns
    starts = np.flatnonzero(np.concatenate([[True], begin_ns[1:] > end_ns[:-1] + _PAUSE_NS]))
    found = 0.0
    for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(size)], strict=True):
        carried = np.cumsum(size[first:stop]) / np.maximum(end_ns[first:stop] - begin_ns[first], 1)
        found = max(found, float(carried[_BURST - 1 :].max(initial=0.0)))
    return found


def at_bandwidth(model: Model, factor: float) -> Model:
    """Return `model` with links that carry `factor` times as many bytes in the same time.

    Only the time of the bytes changes; latency and the computation of a transfer stay. Where not even
    relative sizes are known, the whole service changes.
    """
    if not any(operation.device != UNLIMITED for operation in model.recording.operations):
        return _collectives_at(model, factor)
    model = with_sizes(model)
    device, n_bytes = _columns(model)
    rate = link_rate(model)
    steps = []
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        where = device[recorded.operation]
        if rate is None:
            service = np.where(where == UNLIMITED, step.service_ns, step.service_ns / factor)
        else:
            on_wire = n_bytes[recorded.operation] / rate
            if factor > 1:
                on_wire += _behind_answers(model, step, recorded, where, on_wire)
            service = _with_wire(step, where, on_wire * (1 / factor - 1))
        steps.append(replace(step, service_ns=np.rint(service).astype(np.int64)))
    return replace(model, steps=steps)


def with_sizes(model: Model) -> Model:
    """Return `model` with the sizes of partitions, relative ones where no log told them.

    The copy of a partition to host memory (COPYD2H) takes a time that grows with its size: the shortest
    copy of all stands for nothing, that of the usual partition of a tensor that has several for one unit.
    """
    operations = model.recording.operations
    if any(operation.n_bytes for operation in operations):
        return model
    copies = _copy_ns(model)
    full = [copies[owner, key] for owner, key in _inner_partitions(model) if (owner, key) in copies]
    if not copies:
        return model
    none, one = min(copies.values()), float(np.median(full)) if full else max(copies.values())
    if one <= none:
        return model
    sized = [
        replace(
            operation,
            n_bytes=round(_UNIT * min((copies[operation.owner, operation.key] - none) / (one - none), 1.0)),
        )
        if operation.key is not None and (operation.owner, operation.key) in copies
        else operation
        for operation in operations
    ]
    return replace(model, recording=replace(model.recording, operations=sized))


def _copy_ns(model: Model) -> dict[tuple[int, int], float]:
    """Return the shortest copy to host memory of each partition, by (owner, key)."""
    found: dict[tuple[int, int], float] = {}
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        for number, service in zip(recorded.operation.tolist(), step.service_ns.tolist(), strict=True):
            one = model.recording.operations[number]
            if one.key is not None and one.stage == "COPYD2H":
                known = found.get((one.owner, one.key), service)
                found[one.owner, one.key] = min(known, service)
    return found


def _inner_partitions(model: Model) -> set[tuple[int, int]]:
    """Return (owner, key) of the partitions that are not the last of their tensor: those are all full."""
    pushed = {(one.owner, one.key) for one in model.recording.operations if one.key is not None}
    return {(owner, key) for owner, key in pushed if (owner, key + 1) in pushed}


def _with_wire(step: StepModel, device: Int64, extra_ns: Float) -> Float:
    """Return the service of each event, on a link with `extra_ns` (n,) more."""
    service = step.service_ns.astype(np.float64)
    for link in np.unique(device[device != UNLIMITED]).tolist():
        mine = np.flatnonzero(device == link)
        mine = mine[np.argsort(step.turn[mine], kind="stable")]
        service[mine] = _carried(service[mine] + extra_ns[mine])
    return service


def _behind_answers(
    model: Model, step: StepModel, recorded: RecordedStep, device: Int64, wire_ns: Float
) -> Float:
    """Return how long the acknowledgement of each PUSH may have waited behind answers to PULLs (n,).

    Acknowledgements come back over the link that carries the answers. What a PUSH took beyond its own
    bytes while that link was busy is the time of other bytes: on a faster link it shrinks with theirs.
    (A slower link makes them wait longer, but that does not keep the worker's own link busy.)
    """
    waited = np.zeros(len(recorded))
    begin = recorded.end_ns - step.service_ns
    answers = np.flatnonzero(_stages(model, recorded, "PULL"))
    answers = answers[np.argsort(recorded.end_ns[answers], kind="stable")]
    pushes = np.flatnonzero(_stages(model, recorded, "PUSH") & (device != UNLIMITED))
    if len(answers) and len(pushes):
        busy = _Busy(begin[answers], recorded.end_ns[answers])
        during = busy.until(recorded.end_ns[pushes]) - busy.until(begin[pushes])
        waited[pushes] = np.clip(step.service_ns[pushes] - wire_ns[pushes], 0, during)
    return waited


def _stages(model: Model, recorded: RecordedStep, stage: str) -> NDArray[np.bool_]:
    is_stage = np.array([operation.stage == stage for operation in model.recording.operations], np.bool_)
    return is_stage[recorded.operation]


class _Busy:
    """When a link was busy: intervals (k,) one after the other."""

    def __init__(self, begin_ns: Int64, end_ns: Int64) -> None:
        self.begin_ns = begin_ns
        self.end_ns = end_ns
        self.before_ns = np.concatenate([[0], np.cumsum(end_ns - begin_ns)])

    def until(self, at_ns: Int64) -> Int64:
        """Return for how long it had been busy at each moment."""
        i = np.searchsorted(self.begin_ns, at_ns, side="right")
        last = np.maximum(i - 1, 0)
        within = np.minimum(at_ns, self.end_ns[last]) - self.begin_ns[last]
        busy: Int64 = np.where(i > 0, self.before_ns[last] + within, 0)
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


def _columns(model: Model) -> tuple[Int64, Int64]:
    operations = model.recording.operations
    device = np.array([operation.device for operation in operations], np.int64)
    return device, np.array([operation.n_bytes for operation in operations], np.int64)


def _collectives_at(model: Model, factor: float) -> Model:
    """Return `model` with collectives whose transfer takes ``1 / factor`` of its time."""
    collective = np.array([operation.is_communication for operation in model.recording.operations], np.bool_)
    if not collective.any():
        raise TraceError("bandwidth: no transfer between ranks is recorded")
    steps = []
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        mine = collective[recorded.operation]
        service = np.where(mine, np.rint(step.service_ns / factor), step.service_ns)
        steps.append(replace(step, service_ns=service.astype(np.int64)))
    return replace(model, steps=steps)
