"""The job in which ranks work as long as their peers, or as long as the mean rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.median import medians_of_others
from arrays.numbering import occurrence_number, unique
from dag.step_graph import Bool, Recording, StepGraph
from dialects.edge_rules import EdgeKind, kinds_of
from dialects.roles import Role
from dialects.step_parts import Joint
from replay import occurrences
from replay.occurrences import pair_numbers, slots
from replay.selection import pipeline_stages


class Work(Struct, frozen=True):
    """The operations (n,) of a recording as kinds of work: of one name, on whatever owner."""

    kind: Int64
    owner: Int64
    is_own: Bool  # no communication
    n_owners: int
    n_kinds: int

    def table(self, step: StepGraph, column: str) -> Float64:
        """Return how much of a column of a step each owner has of each kind (owners, kinds)."""
        cell = (self.owner * self.n_kinds + self.kind)[step.operation]
        size = self.n_owners * self.n_kinds
        sums = np.bincount(cell, getattr(step, column), size).astype(np.float64)
        return sums.reshape(self.n_owners, self.n_kinds)

    def usual(self, recording: Recording, column: str) -> Float64:
        """Return the same, the median over the whole steps."""
        tables = [self.table(recording.steps[row], column) for row in recording.whole_steps]
        return np.median(tables, axis=0)

    def of_operations(self, factor: Float64, chosen: Bool) -> Float64:
        """Return the factor (owners, kinds) of each operation (n,), 1 for those that are not `chosen`."""
        return np.where(chosen, factor[self.owner, self.kind], 1.0)


def begun_by_owners(recording: Recording) -> Bool:
    """Return which operations (n,) owners begin themselves: own work, and what that leads to on the host."""
    is_own = recording.which(lambda one: not one.is_communication)
    whole = recording.whole_steps
    if not whole:
        return is_own
    step = recording.steps[whole[len(whole) // 2]]
    source, target, joint, _ = step.edges.T
    leads = is_own[step.operation[source]] & (step.owner[source] == step.owner[target])
    # what only the times tell may have waited for something else
    leads &= kinds_of(step.edges) != EdgeKind.HAND_OVER
    is_led_to = np.zeros(len(is_own), np.bool_)
    is_led_to[step.operation[target[leads & (joint == Joint.END_TO_HEAD)]]] = True
    return is_own | (is_led_to & recording.which(lambda one: not one.on_device))


def work_of(recording: Recording) -> Work:
    """Return the operations of a recording as kinds of work."""
    names, kind = recording.numbered(lambda one: one.name)
    return Work(
        kind=kind,
        owner=recording.column(lambda one: one.owner),
        is_own=recording.which(lambda one: not one.is_communication),
        n_owners=len(recording.owners),
        n_kinds=len(names),
    )


def work_by_owner(recording: Recording, chosen: Bool) -> Float64:
    """Return the work of the `chosen` operations (n,) of each owner in each whole step (steps, m)."""
    steps, n_owners = map(recording.steps.__getitem__, recording.whole_steps), len(recording.owners)
    return np.array([np.bincount(one.owner, one.work_ns * chosen[one.operation], n_owners) for one in steps])


def scaled(recording: Recording, factor: Float64, fixed_ns: Float64 | None = None) -> Recording:
    """Return the recording with the work of each operation (n,), but for its fixed part, times its factor."""
    known = for_all(recording, factor, 1.0)
    if fixed_ns is None:
        return recording.edited(lambda step: replace(step, work_ns=scaled_column(step, known)))
    fixed = for_all(recording, fixed_ns, 0.0)

    def edited(step: StepGraph) -> StepGraph:
        stays = np.minimum(fixed[step.operation], step.work_ns)
        work = stays + (step.work_ns - stays) * known[step.operation]
        return replace(step, work_ns=np.rint(work).astype(np.int64))

    return recording.edited(edited)


def for_all(recording: Recording, column: Float64, added: float) -> Float64:
    """Return a column of the recorded operations, followed by a number for each that another edit added."""
    return np.pad(column, (0, len(recording.operations) - len(column)), constant_values=added)


def scaled_column(step: StepGraph, factor: Float64, column: str = "work_ns") -> Int64:
    """Return a column of a step with each operation's (n,) factor."""
    changed: Int64 = np.rint(getattr(step, column) * factor[step.operation]).astype(np.int64)
    return changed


def stages(recording: Recording) -> Int64:
    """Return the stage of the pipeline that each owner (m,) is; all 0 where there is none."""
    return np.array(pipeline_stages(recording) or [0] * len(recording.owners), np.int64)


def is_own_work(recording: Recording) -> Bool:
    """Return which operations (n,) are a rank's own work, but for BytePS's STEP, in which it waits."""
    return recording.which(lambda one: not one.is_communication and one.role is not Role.UPDATE)


def done_by_all(recording: Recording) -> Bool:
    """Return which operations (n,) are of a kind that every owner has; others cannot be compared."""
    mains, kind = recording.numbered(lambda one: one.main)
    n_owners = len(recording.owners)
    pairs = unique(kind * n_owners + recording.column(lambda one: one.owner))
    everywhere: Bool = (np.bincount(pairs // n_owners, minlength=len(mains)) == n_owners)[kind]
    return everywhere


def excess_ns(time: Float64, late: Sequence[int], group: Int64) -> float:
    """Return by how much the `time` (steps, m) of late owners exceeds their peers', in the median step."""
    excess = [time[:, one] - np.median(time[:, peers_of(one, late, group)], axis=1) for one in late]
    return float(np.median(np.mean(excess, axis=0)))


def ratio_of(wanted: Float64, of: Float64) -> Float64:
    """Return `wanted` as a share of some times; 1 where these are 0."""
    return np.where(of > 0, wanted / np.maximum(of, 1), 1.0)


def peers_of(owner: int, late: Sequence[int], group: Int64) -> list[int]:
    """Return with whom an owner is compared: its `group` (m,) but for the `late`; all others without such."""
    is_other = np.ones(len(group), np.bool_)
    is_other[[*late, owner]] = False
    alike = np.flatnonzero(is_other & (group == group[owner]))
    peers: list[int] = (alike if len(alike) else np.flatnonzero(is_other)).tolist()
    return peers


def peers_usual(time: Float64, group: Int64) -> Float64:
    """Return the median `time` (steps, m) of each owner's peers (`peers_of`, none of them late) in each step.

    There are at least two owners.
    """
    usual = medians_of_others(time)  # of an owner that has a group for itself
    for one in unique(group):
        alike = np.flatnonzero(group == one)
        if len(alike) > 1:
            usual[:, alike] = medians_of_others(time[:, alike])
    return usual


def as_peers(
    recording: Recording, late: Sequence[int], group: Int64, *, work: bool = True, gaps: bool = False
) -> Recording:
    """Return the recording in which some owners do each kind of own work in their peers' usual time.

    Peers are those of the owner's `group` (m,), its stage of a pipeline. The times of a kind are scaled in
    all steps alike, by the medians over the steps of what it takes in a step: its `work`, the `gaps` before
    its events and before the communication that it begins (but never longer), or both. With `gaps` no late
    owner begins or ends a step later than its peers do.
    """
    kinds, owners = work_of(recording), list(late)
    is_late = np.isin(kinds.owner, owners)
    peers = [owner for owner in range(kinds.n_owners) if owner not in owners]

    def factor(column: str, most: float, chosen: Bool) -> Float64:
        share = _peers_share(kinds.usual(recording, column), owners, group)
        return kinds.of_operations(np.minimum(share, most), chosen & is_late)

    of_work = factor("work_ns", np.inf, kinds.is_own) if work else None
    of_gap = factor("gap_ns", 1.0, begun_by_owners(recording)) if gaps else None

    def edited(step: StepGraph) -> StepGraph:
        if of_work is not None:
            step = replace(step, work_ns=scaled_column(step, of_work))
        if of_gap is not None:
            begin, tail = step.begin_ns.copy(), step.tail_ns.copy()
            for column in (begin, tail):
                column[owners] = np.minimum(column[owners], int(np.median(column[peers])))
            gap_ns = scaled_column(step, of_gap, "gap_ns")
            step = replace(step, gap_ns=gap_ns, begin_ns=begin, tail_ns=tail)
        return step

    return recording.edited(edited)


def _peers_share(usual: Float64, late: Sequence[int], group: Int64) -> Float64:
    """Return the peers' median as a share of each late owner's time (owners, kinds); 1 for the others."""
    share = np.ones_like(usual)
    for owner in late:
        share[owner] = ratio_of(np.median(usual[peers_of(owner, late, group)], axis=0), usual[owner])
    return share


def evened(recording: Recording) -> Recording:
    """Return the recording in which each kind of own work takes the usual time of the mean owner.

    Of the kinds that all owners have: what only some do cannot be shared out so. What all do equally often in
    a step is compared one by one, the n-th with the others' n-th: of the stages of a pipeline one may be
    longer in the forward pass alone, whose operations are called as those of the backward pass.
    """
    work = work_of(recording)
    usual = work.usual(recording, "work_ns")
    is_everywhere: Bool = np.all(usual > 0, axis=0)
    is_shared = work.is_own & is_everywhere[work.kind]
    of_kind = work.of_operations(ratio_of(usual.mean(axis=0), usual), is_shared)

    number = slots(recording.steps)
    times, median_ns = occurrences.usual("work_ns", recording.steps, number)
    operation = np.zeros(len(times), np.int64)
    for slot, step in zip(number, recording.steps, strict=True):
        operation[slot] = step.operation
    factor = of_kind[operation]
    often = np.flatnonzero((2 * times > len(recording.steps)) & is_shared[operation])
    owner, kind = work.owner[operation[often]], work.kind[operation[often]]
    count = np.bincount(owner * work.n_kinds + kind, minlength=work.n_owners * work.n_kinds)
    is_alike = np.ptp(count.reshape(work.n_owners, work.n_kinds), axis=0)[kind] == 0
    often, kind, owner = often[is_alike], kind[is_alike], owner[is_alike]
    same = pair_numbers(kind, occurrence_number(kind * work.n_owners + owner))
    took = median_ns[often]
    factor[often] = ratio_of((np.bincount(same, took) / work.n_owners)[same], took)
    steps = zip(recording.steps, number, strict=True)
    return recording.with_steps(
        replace(step, work_ns=np.rint(step.work_ns * factor[slot]).astype(np.int64)) for step, slot in steps
    )


def even_in_each_step(recording: Recording) -> Recording:
    """Return the recording in which each kind of own work takes the mean owner's time of that step."""
    work = work_of(recording)

    def evened(step: StepGraph) -> StepGraph:
        table = work.table(step, "work_ns")
        factor = work.of_operations(ratio_of(table.mean(axis=0), table), work.is_own)
        return replace(step, work_ns=scaled_column(step, factor))

    return recording.edited(evened)
