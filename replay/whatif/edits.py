"""What-if: edits of a model, as a user writes them (``BW=0.8``, ``rank1.FW=1.5``, ``bandwidth=2``, …)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from errors import UsageError
from replay.model import Model
from replay.plan import UNLIMITED, Int64
from replay.recording import Bool, Operation
from replay.whatif.bandwidth import at_bandwidth
from replay.whatif.partition import at_partition_bytes
from replay.whatif.straggler import without_stragglers

Edit = Callable[[Model], Model]

_OWNER = re.compile(r"(?:wk(?P<worker>\d+)\.?)?(?:rank(?P<rank>\d+)\.?)?(?P<target>.*)", re.DOTALL)
_ADDED = re.compile(r"\+([0-9]+(?:\.[0-9]+)?)(s|ms|us)")
_UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_PARSED_OWNER = re.compile(r"(?:wk(\d+)\.)?rank(\d+)")


def apply(model: Model, edits: Iterable[str]) -> Model:
    """Return `model` with all `edits` made, in their order.

    Raises
    ------
    UsageError
        An edit that is none, a value out of range, or a name that no operation has.
    """
    for text in edits:
        model = parse(text, model)(model)
    return model


def parse(text: str, model: Model) -> Edit:
    """Return the edit that `text` (``name=value``) describes."""
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise UsageError(f"--set {text}: an edit is name=value, e.g. BW=0.8, bandwidth=2, schedule=priority")
    if name == "bandwidth":
        factor = _ratio(text, value)
        return lambda model: at_bandwidth(model, factor)
    if name == "partition_bytes":
        n_bytes = _whole(text, value)
        return lambda model: at_partition_bytes(model, n_bytes)
    if name == "schedule":
        return _schedule(text, value)
    if name == "straggler":
        if value != "none":
            raise UsageError(f"--set {text}: straggler knows only the value none")
        return without_stragglers
    if name == "drop":
        chosen = select(model, value, text)
        return lambda model: changed(model, chosen, Change(0.0), gaps=True)
    change = _change(text, value)
    chosen = select(model, name, text)
    return lambda model: changed(model, chosen, change)


def _change(text: str, value: str) -> Change:
    """Return the change of a duration that `value` means: ``1.5`` (times), ``+400ms``, ``+20us``, ``+1s``."""
    added = _ADDED.fullmatch(value)
    if added is None:
        return Change(factor=_ratio(text, value))
    return Change(added_ns=round(float(added[1]) * _UNITS_NS[added[2]]))


def _ratio(text: str, value: str) -> float:
    try:
        ratio = float(value)
    except ValueError:
        raise UsageError(f"--set {text}: {value} is not a number") from None
    if not 0 < ratio < float("inf"):
        raise UsageError(f"--set {text}: a ratio must be above 0 (1 changes nothing)")
    return ratio


def _whole(text: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"--set {text}: {value} is not a number of bytes above 0")
    return int(value)


def _schedule(text: str, value: str) -> Edit:
    if value not in ("priority", "fifo"):
        raise UsageError(f"--set {text}: a schedule is priority or fifo")
    return lambda model: rescheduled(model, by_priority=value == "priority")


# ---- which operations


@dataclass(frozen=True, slots=True)
class Selection:
    """What an edit changes: operations (n,), and owners (m,) of whom it changes the time between steps.

    Where a rank's computation was not traced, its forward pass is a part of that time.
    """

    operations: Bool
    tails: Bool


def select(model: Model, name: str, text: str) -> Selection:
    """Return what `name` means: an operation, a part of one, a category, a stage, a link, a rank.

    ``wk<i>.`` before it means those of that worker; ``rank<r>.`` those of that local rank, or where all
    have the same (one GPU a worker) or none has it, the r-th rank of the job.

    Raises
    ------
    UsageError
        Nothing; the message names the nearest ones.
    """
    everyone = np.ones(len(model.recording.owners), np.bool_)
    found = _matching(model, name, everyone)
    if not found.operations.any() and not found.tails.any():
        match = _OWNER.fullmatch(name)
        assert match is not None  # every part is optional
        owners = _owners(model, match["worker"], match["rank"])
        found = _matching(model, match["target"], owners)
        if not (found.operations.any() or found.tails.any()):
            raise UsageError(
                f"--set {text}: no operation is called {name}{_nearest(model, match['target'] or name)}"
            )
    return found


def computation(model: Model) -> Selection:
    """Select all work of the ranks."""
    return _matching(model, "", np.ones(len(model.recording.owners), np.bool_))


def communication(model: Model) -> Selection:
    """Select all that moves data between ranks."""
    chosen = [operation.is_communication for operation in model.recording.operations]
    return Selection(np.array(chosen, np.bool_), np.zeros(len(model.recording.owners), np.bool_))


def _matching(model: Model, target: str, owners: Bool) -> Selection:
    """Select the operations of `owners` with a name `target`; their computation where it is empty."""
    operations = model.recording.operations
    chosen = [
        bool(owners[one.owner]) and (target in _names(model, one) if target else one.is_compute)
        for one in operations
    ]
    untraced = np.zeros(len(owners), np.bool_)
    if target in ("", "FW"):
        untraced[[one.owner for one in operations if not one.is_traced]] = True
    return Selection(np.array(chosen, np.bool_), untraced & owners)


def _names(model: Model, operation: Operation) -> tuple[str, ...]:
    link = "" if operation.device == UNLIMITED else model.recording.devices[operation.device]
    parts = (operation.name, operation.label, operation.main)
    return (*parts, operation.cat, operation.phase, operation.stage, link)


def _owners(model: Model, worker: str | None, rank: str | None) -> Bool:
    parsed = [_PARSED_OWNER.fullmatch(owner) for owner in model.recording.owners]
    of_worker = np.array([worker is None or (p is not None and p[1] == worker) for p in parsed], np.bool_)
    if rank is None:
        return of_worker
    local = of_worker & np.array([p is not None and p[2] == rank for p in parsed], np.bool_)
    all_alike = len(parsed) > 1 and bool(local.all())
    if worker is not None or (local.any() and not all_alike):
        return local
    is_nth: Bool = np.arange(len(parsed)) == int(rank)
    return is_nth


def _nearest(model: Model, name: str) -> str:
    known = {word for operation in model.recording.operations for word in _names(model, operation) if word}
    by_lower = {word.lower(): word for word in sorted(known)}
    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.4)
    return f"; the nearest are {', '.join(by_lower[word] for word in found)}" if found else ""


# ---- edits of the times


@dataclass(frozen=True, slots=True)
class Change:
    """A change of durations: times `factor`, and `added_ns` more."""

    factor: float = 1.0
    added_ns: int = 0

    def of(self, time_ns: Int64, chosen: Bool) -> Int64:
        """Return `time_ns` (n,) with the `chosen` changed."""
        new = np.rint(time_ns * self.factor) + self.added_ns
        return np.where(chosen, new, time_ns).astype(np.int64)


def changed(model: Model, chosen: Selection, change: Change, *, gaps: bool = False) -> Model:
    """Return `model` with the work of what is `chosen` changed, and with `gaps` the gaps before it."""
    steps = []
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        mine = chosen.operations[recorded.operation]
        steps.append(
            replace(
                step,
                service_ns=change.of(step.service_ns, mine),
                gap_ns=change.of(step.gap_ns, mine) if gaps else step.gap_ns,
                tail_ns=_tails(model, step.tail_ns, chosen.tails, change),
            )
        )
    return replace(model, steps=steps)


def _tails(model: Model, tail_ns: Int64, chosen: Bool, change: Change) -> Int64:
    """Return the times between steps, of which only the computation in the `chosen` is changed."""
    if not chosen.any():
        return tail_ns
    share = forward_share(model)
    partly = Change(1 + share * (change.factor - 1), change.added_ns)
    return partly.of(tail_ns, chosen)


def forward_share(model: Model) -> float:
    """Return how much of the time between a step's communication and the next gradient is forward pass.

    As the owners whose operations were traced show it; 1 where none was.
    """
    operations = model.recording.operations
    untraced = {one.owner for one in operations if not one.is_traced}
    forward = np.array([one.phase == "FW" for one in operations], np.bool_)
    gradient = np.array([one.is_communication and one.key is None for one in operations], np.bool_)
    owner = np.array([one.owner for one in operations], np.int64)
    work = total = 0
    for step, recorded in zip(model.steps, model.recording.steps, strict=True):
        for who in set(range(len(model.recording.owners))) - untraced:
            mine = owner[recorded.operation] == who
            gradients = recorded.start_ns[mine & gradient[recorded.operation]]
            if len(gradients):
                work += int(step.service_ns[mine & forward[recorded.operation]].sum())
                total += int(gradients.min() - recorded.begin_ns[who] + step.tail_ns[who])
    return min(work / total, 1.0) if work and total else 1.0


def rescheduled(model: Model, *, by_priority: bool) -> Model:
    """Return `model` with links that serve by tensor index, or who is ready first, not as recorded."""
    priority = np.array([(operation.key or 0) >> 16 for operation in model.recording.operations], np.int64)
    none = np.empty((0, 2), np.int64)
    steps = [
        replace(step, turn=priority[recorded.operation] * by_priority, overtaken=none)
        for step, recorded in zip(model.steps, model.recording.steps, strict=True)
    ]
    return replace(model, steps=steps)
