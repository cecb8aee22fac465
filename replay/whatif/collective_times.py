"""Edits of collectives: slow ones as fast as their peers, short ones merged."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.base.arrays.numbering import places_by_value
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from replay.edit import Edit, EditRequest, Job, measured
from replay.even_work import for_all, ratio_of, scaled, with_work

#: A collective is slow if its peers exceed its bandwidth by this factor.
_SLOW = 1.5
#: Least number of collectives in a size class that has a usual bandwidth.
_PEERS = 3
#: A collective is dominated by latency if it exceeds the shortest one by at most this factor in a quarter of
#: the steps: longer times in other steps are then not due to bytes.
LATENCY = 2.0
#: Number of short collectives that become one.
MERGED = 10
#: A collective known to move more bytes than this is never dominated by latency.
_MOST_BYTES = 1 << 20


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `collectives=`; None for any other request."""
    if not request.asks("collectives", "peers", "merged"):
        return None
    if request.value == "peers":
        factor = np.ones(len(job.recording.operations))
        slow, usual = slow_collectives(job)
        factor[job.collectives.rates.operation[slow]] = job.collectives.rates.bus[slow] / usual
        return measured(job, lambda recording: scaled(recording, factor))
    short, _ = short_collectives(job)
    return measured(job, lambda recording: merged(recording, short))


def slow_collectives(job: Job) -> tuple[Int64, Float64]:
    """Find collectives whose bus bandwidth is far below that of others of their kind and size.

    They are rows (k,) of `Rates`, with the usual bandwidth (GB/s) of each. With several ranks only
    collectives of a whole group count: any other time may be pure waiting, such as a send or a receive
    between pipeline stages.
    """
    rates = job.collectives.rates
    known = np.arange(len(rates.operation))
    if len(job.recording.owners) > 1:
        known = known[_meets_others(job.recording)[rates.operation]]
    slow, usual = [np.empty(0, np.int64)], [np.empty(0)]
    for places in places_by_value(rates.group[known]):
        # tensors that are reduced together are one collective
        members = known[places]
        first = members[np.unique(rates.turn[members], return_index=True)[1]]
        if len(first) >= _PEERS:
            middle = np.median(rates.bus[first])
            slow.append(members[rates.bus[members] * _SLOW < middle])
            usual.append(np.full(len(slow[-1]), middle))
    return np.concatenate(slow), np.concatenate(usual)


def _meets_others(recording: Recording) -> Mask:
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


def at_bandwidth(job: Job, recording: Recording, *, times: float, target: float) -> Recording:
    """Make collectives move their bytes `times` as fast, or at `target` bytes/ns of the bus (0: none).

    A target concerns collectives of known bytes. Their latency stays.
    """
    latency = job.collectives.latency
    moves = job.recording.which(lambda op: op.is_communication)
    factor = np.where(moves, 1 / times, 1.0)
    if target:
        rates = job.collectives.rates
        operation, took = rates.operation, rates.took_ns
        now = took * _times_as_long(job.recording, recording)[operation]
        factor[:] = 1.0
        factor[operation] = rates.bus * took / target / np.maximum(now - latency[operation], 1.0)
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
    more_ns = np.rint(for_all(recording, latency * (times - 1), 0.0))
    return with_work(
        recording, (np.maximum(step.work_ns + more_ns[step.operation], 0) for step in recording.steps)
    )


def crowded_ns(recording: Recording) -> tuple[float, float]:
    """Time of an owner's kernels in a step: beside collectives that move bytes, and in total."""
    works = recording.which(lambda op: op.is_kernel)
    moves = recording.which(lambda op: op.on_device and op.is_communication)
    times = []
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        by_owner = (step.events_by_owner(chosen) for chosen in (works, moves))
        for kernels, moving in zip(*by_owner, strict=True):
            start, end = step.start_ns[kernels], step.end_ns[kernels]
            busy = union(step.end_ns[moving] - step.work_ns[moving], step.end_ns[moving])
            times.append((float(clipped_lengths(busy, start, end).sum()), float(np.sum(end - start))))
    beside, total = zip(*times, strict=True)
    return sum(beside) / len(times), sum(total) / len(times)


def short_collectives(job: Job) -> tuple[Mask, float]:
    """Select collectives (n,) dominated by latency, and measure the shortest."""
    recording = job.recording
    collectives = recording.which(lambda op: op.is_collective and op.is_communication)
    collectives &= job.collectives.bytes_at_once <= _MOST_BYTES
    parts = []
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        events = np.flatnonzero(collectives[step.operation] & (step.work_ns > 0))
        parts.append((step.operation[events], step.work_ns[events]))
    operation, work = (np.concatenate(column) for column in zip(*parts, strict=True))
    count = np.bincount(operation, minlength=len(collectives))
    ordered = np.append(work[np.lexsort((work, operation))], 0)
    lower_quartile = np.where(count > 0, ordered[np.cumsum(count) - count + count // 4], 0)
    shortest = float(np.quantile(work, 0.05)) if len(work) else 0.0
    return collectives & (lower_quartile <= LATENCY * shortest), shortest


def merged(recording: Recording, collectives: Mask) -> Recording:
    """Merge `collectives` (n,): of every `MERGED` of an owner one takes time."""
    is_chosen = for_all(recording, collectives.astype(np.float64), 0.0) > 0

    def merged(step: StepGraph) -> StepGraph:
        work = step.work_ns.copy()
        events = np.flatnonzero(is_chosen[step.operation])
        for owner in range(len(recording.owners)):
            of_owner = events[step.owner[events] == owner]
            work[of_owner[step.turns(of_owner) % MERGED > 0]] = 0
        return replace(step, work_ns=work)

    return recording.edited(merged)
