"""Edits that give events their usual time: that of peers, of the mean rank, or of other steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.distributions import medians_of_others
from analyzer.base.arrays.numbering import narrowest, occurrence_number, places_by_value, unique
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Joint, Operation
from replay.selection import pipeline_stages

#: Number of slots whose times are gathered together, which limits memory.
_AT_ONCE = 1 << 13
#: Computes the wanted times from the measured ones; both by owner and kind of work (owners, kinds).
Wanted: TypeAlias = Callable[[Float64], Float64]


def as_usual(
    recording: Recording,
    column: str,
    per: Wanted,
    chosen: Mask,
    *,
    kind_of: Callable[[Operation], str] = lambda op: op.label,
    over_steps: bool = True,
    most: float = np.inf,
) -> Recording:
    """Scale ``work_ns`` or ``gap_ns`` of the `chosen` operations (n,) to the usual time of each kind of work.

    `per` computes the usual times, such as those of peers, from all times. `over_steps` compares median steps
    and scales all steps alike; otherwise each step is compared by itself. `most` is the largest factor.
    """
    kinds, kind = recording.numbered(kind_of)
    shape = len(recording.owners), len(kinds)
    cell = recording.column(lambda op: op.owner) * len(kinds) + kind

    def factor(steps: Iterable[StepGraph]) -> Float64:
        sums = [np.bincount(cell[step.operation], getattr(step, column), np.prod(shape)) for step in steps]
        took = np.median(sums, axis=0).reshape(shape)
        share = np.minimum(ratio_of(per(took), took), most)
        return np.where(chosen, share.ravel()[cell], 1.0)

    of_all = factor(map(recording.steps.__getitem__, recording.whole_steps)) if over_steps else None

    def edited(step: StepGraph) -> StepGraph:
        of_step = factor([step]) if of_all is None else of_all
        changed = np.rint(getattr(step, column) * of_step[step.operation]).astype(np.int64)
        return replace(step, **{column: changed})

    return recording.edited(edited)


def of_mean_owner(took: Float64) -> Float64:
    """Share times (owners, kinds) out evenly over the owners."""
    return np.full_like(took, took.mean(axis=0))


def begun_by_owners(recording: Recording) -> Mask:
    """Select the operations (n,) that owners start: own work and its direct successors on the host."""
    is_own = recording.which(lambda op: not op.is_communication)
    whole = recording.whole_steps
    if not whole:
        return is_own
    step = recording.steps[whole[len(whole) // 2]]
    source, target, joint, _ = step.edges.T
    leads = is_own[step.operation[source]] & (step.owner[source] == step.owner[target])
    # edges guessed from times may hide another wait
    leads &= kinds_of(step.edges) != EdgeKind.HAND_OVER
    is_led_to = np.zeros(len(is_own), np.bool_)
    is_led_to[step.operation[target[leads & (joint == Joint.END_TO_HEAD)]]] = True
    return is_own | (is_led_to & recording.which(lambda op: not op.on_device))


def work_by_owner(recording: Recording, chosen: Mask) -> Float64:
    """Sum the work of the `chosen` operations (n,) by whole step and owner (steps, m)."""
    steps, n_owners = map(recording.steps.__getitem__, recording.whole_steps), len(recording.owners)
    return np.array(
        [np.bincount(step.owner, step.work_ns * chosen[step.operation], n_owners) for step in steps]
    )


def scaled(recording: Recording, factor: Float64, fixed_ns: Float64 | None = None) -> Recording:
    """Multiply the work of each operation (n,), except its fixed part, by a factor."""
    factor = for_all(recording, factor, 1.0)
    fixed = for_all(recording, np.zeros(0) if fixed_ns is None else fixed_ns, 0.0)

    def work(step: StepGraph) -> Float64:
        stays = np.minimum(fixed[step.operation], step.work_ns)
        return np.asarray(stays + (step.work_ns - stays) * factor[step.operation])

    return with_work(recording, map(work, recording.steps))


def with_work(recording: Recording, work: Iterable[NDArray[np.number]]) -> Recording:
    """Replace the work of each step's events (n,), rounded to nanoseconds."""
    return recording.with_steps(
        replace(step, work_ns=np.rint(of_step).astype(np.int64))
        for step, of_step in zip(recording.steps, work, strict=True)
    )


def for_all(recording: Recording, column: Float64, added: float) -> Float64:
    """Extend a column of the recorded operations by the value `added` for operations of other edits."""
    return np.pad(column, (0, len(recording.operations) - len(column)), constant_values=added)


def stages(recording: Recording) -> Int64:
    """Pipeline stage of each owner (m,); all 0 without a pipeline."""
    return np.array(pipeline_stages(recording) or [0] * len(recording.owners), np.int64)


def is_own_work(recording: Recording) -> Mask:
    """Select the ranks' work (n,), without communication and BytePS's STEP, in which a rank waits."""
    return recording.which(lambda op: not op.is_communication and op.role is not Role.UPDATE)


def done_by_all(recording: Recording) -> Mask:
    """Select the operations (n,) of kinds that every owner has; only these can be compared."""
    mains, kind = recording.numbered(lambda op: op.main)
    n_owners = len(recording.owners)
    pairs = unique(kind * n_owners + recording.column(lambda op: op.owner))
    return np.asarray(np.bincount(pairs // n_owners, minlength=len(mains)) == n_owners)[kind]


def excess_ns(time: Float64, late: Sequence[int], group: Int64) -> float:
    """Excess `time` (steps, m) of late owners over their peers, in the median step."""
    excess = [time[:, rank] - np.median(time[:, peers_of(rank, late, group)], axis=1) for rank in late]
    return float(np.median(np.mean(excess, axis=0)))


def ratio_of(wanted: Float64, of: Float64) -> Float64:
    """Divide `wanted` by times; 1 where these are 0."""
    return np.where(of > 0, wanted / np.maximum(of, 1), 1.0)


def peers_of(owner: int, late: Sequence[int], group: Int64) -> list[int]:
    """Peers of an owner: its `group` (m,) without the `late` owners, or all others if none is left."""
    others = [peer for peer in range(len(group)) if peer not in (*late, owner)]
    return [peer for peer in others if group[peer] == group[owner]] or others


def peers_usual(time: Float64, group: Int64) -> Float64:
    """Median `time` (steps, m) of each owner's peers in each step (`peers_of` with no late owner).

    There are at least two owners.
    """
    usual = medians_of_others(time)  # for owners alone in their group
    for alike in places_by_value(group):
        if len(alike) > 1:
            usual[:, alike] = medians_of_others(time[:, alike])
    return usual


def as_peers(
    recording: Recording,
    late: Sequence[int],
    *,
    work: bool = True,
    gaps: bool = False,
    over_steps: bool = True,
) -> Recording:
    """Give each kind of work of the `late` owners the time that their peers need for it.

    Peers are the owners of the same stage. `gaps` shortens the gaps before events that the owners start, and
    late owners start and end a step no later than their peers. For `over_steps` see `as_usual`.
    """
    group, is_late = stages(recording), recording.which(lambda op: op.owner in late)

    def of_peers(took: Float64) -> Float64:
        wanted: Float64 = took.copy()
        for owner in late:
            wanted[owner] = np.median(took[peers_of(owner, late, group)], axis=0)
        return wanted

    def earlier(step: StepGraph) -> StepGraph:
        begin, tail = (
            np.minimum(column, np.rint(of_peers(column.astype(np.float64))).astype(np.int64))
            for column in (step.begin_ns, step.tail_ns)
        )
        return replace(step, begin_ns=begin, tail_ns=tail)

    edited = recording
    if work:
        computes = recording.which(lambda op: not op.is_communication)
        edited = as_usual(edited, "work_ns", of_peers, computes & is_late, over_steps=over_steps)
    if gaps:
        begun = begun_by_owners(recording) & is_late
        edited = as_usual(edited, "gap_ns", of_peers, begun, over_steps=over_steps, most=1.0).edited(earlier)
    return edited


# ---- the same event in other steps


def slots(steps: Sequence[StepGraph]) -> list[Int64]:
    """Identify the events of each step by a number for operation and occurrence.

    Events of different steps with the same number are the same.
    """
    if not steps:
        return []
    repeats, nths = [], []
    for step in steps:
        events = np.flatnonzero((np.bincount(step.operation) > 1)[step.operation])
        nth = occurrence_number(step.operation[events])
        repeats.append(events[nth > 0])
        nths.append(nth[nth > 0])
    n_operations = 1 + max(int(step.operation.max(initial=0)) for step in steps)
    operation = np.concatenate(
        [step.operation[of_step] for step, of_step in zip(steps, repeats, strict=True)]
    )
    further = n_operations + pair_numbers(operation, np.concatenate(nths))
    numbers = []
    for step, of_step in zip(steps, repeats, strict=True):
        number = step.operation
        if len(of_step):  # the columns of a step may be read-only
            number = number.copy()
            number[of_step], further = further[: len(of_step)], further[len(of_step) :]
        numbers.append(number)
    return numbers


def pair_numbers(first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]]) -> Int64:
    """Assign equal pairs of values (n,) equal numbers, from 0 without a gap."""
    pair = first.astype(np.int64) * (int(second.max(initial=0)) + 1) + second
    return np.unique(pair, return_inverse=True)[1].reshape(-1).astype(np.int64)


def medians(group: Int64, value: Int64, n_groups: int) -> Int64:
    """Median of the values (n,) of each group, rounded down; 0 for an empty group."""
    order = np.argsort(value)
    order = order[np.argsort(narrowest(group)[order], kind="stable")]
    ordered = np.append(value[order], 0)
    count = np.bincount(group, minlength=n_groups)
    first = np.cumsum(np.append(0, count))
    low, high = first[:-1] + np.maximum(count - 1, 0) // 2, first[:-1] + count // 2
    middle = (ordered[np.minimum(low, len(value))] + ordered[np.minimum(high, len(value))]) // 2
    return np.where(count > 0, middle, 0)


def usual(column: str, steps: Sequence[StepGraph], number: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Count each slot (see `slots`), and take the median of its ``gap_ns`` or ``work_ns``."""
    n_slots = 1 + max((int(slot.max(initial=-1)) for slot in number), default=-1)
    count, middle = np.zeros((2, n_slots), np.int64)
    for begin in range(0, n_slots, _AT_ONCE):  # memory need not hold the times of all events at once
        chosen = [np.flatnonzero((slot >= begin) & (slot < begin + _AT_ONCE)) for slot in number]
        slot = np.concatenate([of_step[events] for of_step, events in zip(number, chosen, strict=True)])
        times = [getattr(step, column)[events] for step, events in zip(steps, chosen, strict=True)]
        n = min(_AT_ONCE, n_slots - begin)
        count[begin : begin + n] = np.bincount(slot - begin, minlength=n)
        middle[begin : begin + n] = medians(slot - begin, np.concatenate(times), n)
    return count, middle


def pace(works: Float64) -> Float64:
    """Time of all kinds of operations in each step (steps,) relative to their usual time.

    It is the median over kinds in every step, weighted by time; `works` (steps, k) has their times. Only a
    changed clock makes all kernels of a device slower alike.

    >>> pace(np.array([[30, 20, 10], [30, 20, 90], [33, 22, 11]])).round(3).tolist()
    [1.0, 1.0, 1.1]
    """
    works = works[:, (works > 0).all(axis=0)]
    if not works.size:
        return np.ones(len(works))
    usual = np.median(works, axis=0)
    ratio = works / usual
    order = np.argsort(ratio, axis=1)
    half = np.cumsum(usual[order], axis=1) >= usual.sum() / 2
    return np.take_along_axis(np.take_along_axis(ratio, order, 1), half.argmax(axis=1)[:, None], 1)[:, 0]


class UsualGaps:
    """Median gap of each event of a recording over its steps."""

    def __init__(self, recording: Recording) -> None:
        self._recorded = [(step.operation, step.gap_ns) for step in recording.steps]
        self._number = [recording.to_file(number) for number in slots(recording.steps)]
        self._gaps = usual("gap_ns", recording.steps, self._number)[1]

    def are_of(self, recording: Recording) -> bool:
        """Check whether a recording has the same events and gaps as the measured one."""
        measured = zip(recording.steps, self._recorded, strict=True)
        return all(step.operation is operation and step.gap_ns is gap for step, (operation, gap) in measured)

    def capped(self, row: int, step: StepGraph) -> StepGraph:
        """Limit the gaps of the step in a row to the usual ones."""
        return replace(step, gap_ns=np.minimum(step.gap_ns, self._gaps[self._number[row]]))


def with_usual_gaps(recording: Recording) -> Recording:
    """Limit gaps to the usual ones: the median of the event over the steps.

    A delay that happened once (another process, a page fault) need not happen in the edited job.
    """
    gaps = UsualGaps(recording)
    return recording.with_steps(itertools.starmap(gaps.capped, enumerate(recording.steps)))
