"""Edits of collectives: slow ones as fast as their peers, short ones merged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import Bool, Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from replay.edit import Edit, EditRequest, Job, measured
from replay.even_work import for_all, ratio_of, scaled
from replay.whatif.sized_collectives import events_by_owner, turns

NAME = "collectives=peers|merged"
HELP = (
    "peers: slow collectives reach the bus bandwidth of others of their kind and size; merged: one of ten "
    "short collectives remains"
)

#: A collective is slow if its peers reach so many times its bandwidth.
_SLOW = 1.5
#: A size class needs so many collectives to show what is usual.
_PEERS = 3
#: A collective is dominated by latency if it takes at most so many times the shortest one in a quarter of the
#: steps: longer times in other steps are then not due to bytes. Merging leaves one in so many.
LATENCY, MERGED = 2.0, 10
#: A collective known to move more bytes than this is never dominated by latency.
_MOST_BYTES = 1 << 20


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `collectives=`; None for any other request."""
    if not request.asks("collectives", "peers", "merged"):
        return None
    if request.value == "peers":
        factor = np.ones(len(job.recording.operations))
        for one in slow_collectives(job):
            factor[one.operation] = one.rate / one.usual
        return measured(job, lambda recording: scaled(recording, factor))
    short, _ = short_collectives(job)
    return measured(job, lambda recording: merged(recording, short))


class SlowCollective(NamedTuple):
    """A slow collective: its bus bandwidth, the usual one of its class (GB/s), and its turn in a step."""

    operation: int
    rate: float
    usual: float
    turn: int


def slow_collectives(job: Job) -> list[SlowCollective]:
    """Find collectives whose bus bandwidth is far below that of others of their kind and size.

    With several ranks only collectives of a whole group count: any other time may be pure waiting, such as a
    send or a receive between pipeline stages.
    """
    found = job.collectives.rates
    is_known = np.ones(len(found.operation), np.bool_)
    if len(job.recording.owners) > 1:
        is_known = meets_others(job.recording)[found.operation]
    operation, group, turn = (one[is_known] for one in (found.operation, found.group, found.turn))
    rate = found.bus[is_known]
    slow = []
    for one in unique(group):
        members = np.flatnonzero(group == one)
        # tensors that are reduced together are one collective
        usual = float(np.median(rate[members[np.unique(turn[members], return_index=True)[1]]]))
        if len(np.unique(turn[members])) >= _PEERS:
            late = members[rate[members] * _SLOW < usual].tolist()
            slow += [SlowCollective(int(operation[i]), float(rate[i]), usual, int(turn[i])) for i in late]
    return slow


def meets_others(recording: Recording) -> Bool:
    """Select operations (n,) that wait for a whole group of owners in some step."""
    meets = np.zeros(len(recording.operations), np.bool_)
    is_meeting = recording.which(lambda op: op.role is Role.MEETING)
    for row in recording.whole_steps:
        step = recording.steps[row]
        source, target = step.edges[:, :2].T
        others = (step.owner[source] != step.owner[target]) | is_meeting[step.operation[source]]
        others &= kinds_of(step.edges) == EdgeKind.GROUP
        meets[step.operation[target[others]]] = True
    return meets


def at_bandwidth(
    job: Job, recording: Recording, latency: Float64, *, times: float, target: float
) -> Recording:
    """Make collectives move their bytes `times` as fast, or at `target` bytes/ns.

    A target is of the bus, for those whose bytes are known (0: none). Their `latency` (n,) stays.
    """
    moves = job.recording.which(lambda op: op.is_communication)
    factor = np.where(moves, 1 / times, 1.0)
    if target:
        rates = job.collectives.rates
        operation, rate, took = rates.operation, rates.bus, rates.took_ns
        now = took * _times_as_long(job.recording, recording)[operation]
        factor[:] = 1.0
        factor[operation] = rate * took / target / np.maximum(now - latency[operation], 1.0)
    return scaled(recording, factor, latency)


def _times_as_long(recorded: Recording, edited: Recording) -> Float64:
    """Mean time of each recorded operation (n,) after an edit, relative to before."""
    means, n = [], len(recorded.operations)
    for recording in (recorded, edited):
        total, count = np.zeros((2, len(recording.operations)))
        for step in map(recording.steps.__getitem__, recording.whole_steps):
            total += np.bincount(step.operation, step.work_ns, len(total))
            count += np.bincount(step.operation, step.work_ns > 0, len(total))
        means.append(total[:n] / np.maximum(count[:n], 1))
    return ratio_of(means[1], means[0])


def with_latency(recording: Recording, latency: Float64, times: float) -> Recording:
    """Multiply the `latency` (n,) of collectives by `times`."""
    more_ns = np.rint(for_all(recording, latency * (times - 1), 0.0)).astype(np.int64)

    def edited(step: StepGraph) -> StepGraph:
        return replace(step, work_ns=np.maximum(step.work_ns + more_ns[step.operation], 0))

    return recording.edited(edited)


def crowded_ns(recording: Recording) -> tuple[float, float]:
    """Time of an owner's kernels in a step: beside collectives that move bytes, and in total."""
    works = recording.which(lambda op: op.is_kernel)
    moves = recording.which(lambda op: op.on_device and op.is_communication)
    beside, at_all = [0.0], [0.0]
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        for kernels, moving in zip(
            *(events_by_owner(recording, step, one) for one in (works, moves)), strict=True
        ):
            start, end = step.start_ns[kernels], step.end_ns[kernels]
            busy = union(step.end_ns[moving] - step.work_ns[moving], step.end_ns[moving])
            beside.append(float(clipped_lengths(busy, start, end).sum()))
            at_all.append(float(np.sum(end - start)))
    n = max(len(beside) - 1, 1)
    return sum(beside) / n, sum(at_all) / n


def short_collectives(job: Job) -> tuple[Bool, float]:
    """Select collectives (n,) dominated by latency, and measure the shortest."""
    recording = job.recording
    collectives = recording.which(lambda op: op.is_collective and op.is_communication)
    collectives &= job.collectives.bytes_at_once <= _MOST_BYTES
    shortest, usual = _shortest_ns(recording, collectives)
    return collectives & (usual <= LATENCY * shortest), shortest


def _shortest_ns(recording: Recording, collectives: Bool) -> tuple[float, Int64]:
    """Time of the shortest `collectives` (n,), and the lower quartile of each (n,)."""
    parts = []
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        own = np.flatnonzero(collectives[step.operation] & (step.work_ns > 0))
        parts.append((step.operation[own], step.work_ns[own]))
    operation, work = (np.concatenate(column) for column in zip(*parts, strict=True))
    count = np.bincount(operation, minlength=len(collectives))
    ordered = np.append(work[np.lexsort((work, operation))], 0)
    in_a_fourth = ordered[np.cumsum(count) - count + count // 4]
    shortest = float(np.quantile(work, 0.05)) if len(work) else 0.0
    return shortest, np.where(count > 0, in_a_fourth, 0)


def merged(recording: Recording, collectives: Bool) -> Recording:
    """Merge `collectives` (n,): of every `MERGED` of an owner one takes time."""
    is_chosen = for_all(recording, collectives.astype(np.float64), 0.0) > 0

    def merged(step: StepGraph) -> StepGraph:
        work = step.work_ns.copy()
        events = np.flatnonzero(is_chosen[step.operation])
        for owner in range(len(recording.owners)):
            own = events[step.owner[events] == owner]
            work[own[turns(step, own) % MERGED > 0]] = 0
        return replace(step, work_ns=work)

    return recording.edited(merged)
