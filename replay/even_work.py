"""Edits that give events their usual time: that of peers, of the mean rank, or of other steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.distributions import medians_of_others
from analyzer.base.arrays.numbering import places_by_value, unique
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Joint, Operation
from replay.selection import pipeline_stages

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
