"""Ranks that hold the others up, and the job without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from replay.model import Model
from replay.recording import WAIT, Operation

#: A rank that works this much longer in a step than its peers do (their median) is a straggler.
THRESHOLD = 1.1
NEARLY_ALL = 0.8

Float = NDArray[np.float64]


def work_ns(model: Model) -> Float:
    """Return each owner's own work in each step (steps, owners): computation, input, and between steps."""
    mine = np.array([not operation.is_communication for operation in model.recording.operations], np.bool_)
    owner = np.array([operation.owner for operation in model.recording.operations], np.int64)
    total = np.array([step.tail_ns for step in model.steps], np.float64)
    for row, (step, recorded) in enumerate(zip(model.steps, model.recording.steps, strict=True)):
        counts = mine[recorded.operation]
        np.add.at(total[row], owner[recorded.operation][counts], (step.service_ns + step.gap_ns)[counts])
    return total


def stragglers(model: Model) -> list[int]:
    """Return the owners that work longer than their peers' median by `THRESHOLD`, in nearly all steps."""
    work = work_ns(model)
    if work.shape[1] < 2:
        return []
    peers = [np.median(np.delete(work, i, axis=1), axis=1) for i in range(work.shape[1])]
    ratio = [work[:, i] / np.maximum(median, 1) for i, median in enumerate(peers)]
    return [i for i, steps in enumerate(ratio) if np.quantile(steps, 1 - NEARLY_ALL) > THRESHOLD]


def why_none(model: Model) -> str:
    """Return why `without_stragglers` changes nothing; "" where it changes something."""
    operations = model.recording.operations
    if len(model.recording.owners) > 1:
        few = f"no rank works {THRESHOLD - 1:.0%} longer than its peers in nearly all steps"
        return "" if stragglers(model) else few
    if any(operation.cat == WAIT for operation in operations):
        return "a Horovod timeline is that of rank 0 and does not tell the ranks' own work apart"
    return "only one rank is recorded, without a peer to compare it with"


def without_stragglers(model: Model) -> Model:
    """Return `model` with each straggler's operations and pauses at the median of its peers' in that step.

    Peers' operations are those of the same name. Without a straggler nothing changes.
    """
    slow = stragglers(model)
    fast = [i for i in range(len(model.recording.owners)) if i not in slow]
    if not slow or not fast:
        return model
    same = _same(model)
    steps = []
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        at = {int(operation): event for event, operation in enumerate(recorded.operation)}
        service, gap, tail = step.service_ns.copy(), step.gap_ns.copy(), step.tail_ns.copy()
        for event, operation in enumerate(recorded.operation.tolist()):
            one = model.recording.operations[operation]
            if one.owner not in slow or one.is_communication:
                continue
            peers = [
                at[other] for other in same[_identity(one)] if other in at and _owner(model, other) in fast
            ]
            if peers:
                service[event] = np.median(step.service_ns[peers])
                gap[event] = np.median(step.gap_ns[peers])
        tail[slow] = np.median(step.tail_ns[fast])
        steps.append(replace(step, service_ns=service, gap_ns=gap, tail_ns=tail))
    return replace(model, steps=steps)


def _owner(model: Model, operation: int) -> int:
    return model.recording.operations[operation].owner


def _identity(operation: Operation) -> tuple[str, str]:
    return operation.label, str(operation.track.tid) if operation.is_communication else ""


def _same(model: Model) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for i, operation in enumerate(model.recording.operations):
        found.setdefault(_identity(operation), []).append(i)
    return found
