"""Collectives: slow ones as fast as their peers, short ones merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.intervals import at_once, clipped_lengths, union
from arrays.numbering import unique
from dag.step_graph import Bool, Recording, StepGraph
from dialects.recorded_collectives import bus_factor, size_classes
from dialects.roles import Role
from dialects.step_parts import narrow_ns
from replay.edit import Edit, EditRequest, Guess, Job
from replay.even_work import for_all, scaled

NAME = "collectives=peers|merged"
HELP = (
    "peers: slow collectives have the bus bandwidth of others of their kind and size; merged: of ten short "
    "ones one is left"
)

#: A collective that takes this much longer than its peers is slow.
_SLOW = 1.5
#: Collectives of one size class that it takes to know what is usual.
_PEERS = 3
#: The end of an event and that of its slice differ by no more than this.
_TOLERANCE_NS = 2_000
#: A collective that in each fourth step takes no longer than this many times the shortest is latency, hardly
#: bytes, as its longer times in other steps are not due to bytes; and merging leaves one in so many.
LATENCY, MERGED = 2.0, 10
#: What a hop of a ring or tree takes at least, likely and at most (ns), base time included: of NCCL's own
#: table of latencies (src/graph/tuning.cc), from NVLink with the LL protocol to networks with the simple one.
_HOPS_NS = np.array([600.0, 6_000.0, 20_000.0])
#: Sizes that are apart by this factor tell a latency; where they do not, so much of a time may be latency.
_LARGER, _MOST_HIDDEN = 1.5, np.array([0.1, 0.5, 0.9])
#: One that is known to move more than this is bytes, however many others are as short.
_MOST_BYTES = 1 << 20


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit of the collectives; None for any other request."""
    if not request.asks("collectives", "peers", "merged"):
        return None
    if request.value == "peers":
        factor = np.ones(len(job.recording.operations))
        for one in slow_collectives(job):
            factor[one.operation] = one.rate / one.usual
        return Edit(lambda recording, _: scaled(recording, factor))
    short, _ = short_collectives(job)

    def apply(recording: Recording, _: Guess) -> Recording:
        return merged(recording, short)

    return Edit(apply)


class SlowCollective(NamedTuple):
    """An operation, its bus bandwidth and the usual one of its class (GB/s), and its turn in a step."""

    operation: int
    rate: float
    usual: float
    turn: int


def slow_collectives(job: Job) -> list[SlowCollective]:
    """Return the collectives whose bus bandwidth is below that of others of their kind and size.

    Of several ranks only what is known to meet others' counts: else its time may be all waiting, as that of
    a transfer from stage to stage of a pipeline is.
    """
    found = bandwidths(job)
    if len(job.recording.owners) > 1:
        found = found[meets_others(job.recording)[found[:, 0].astype(np.int64)]]
    operation, group, rate, turn = found[:, 0].astype(np.int64), found[:, 1], found[:, 2], found[:, 3]
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
    """Return which operations (n,) wait for other owners, in some step."""
    meets = np.zeros(len(recording.operations), np.bool_)
    is_meeting = recording.which(lambda one: one.role is Role.MEETING)
    for row in recording.whole_steps:
        step = recording.steps[row]
        source, target = step.edges[:, :2].T
        others = (step.owner[source] != step.owner[target]) | is_meeting[step.operation[source]]
        meets[step.operation[target[others]]] = True
    return meets


def bandwidths(job: Job) -> Float64:
    """Return operation, class, bus bandwidth (GB/s), turn, bytes, ranks, time and line of collectives (k, 8).

    The class is their kind, group and size. The turn counts a rank's collectives of a step; tensors that are
    reduced together have the same. The time (ns) is without waiting, the median over the steps. Those of a
    line have the kind and group in common, so that their times differ by their bytes alone.
    """
    found: list[tuple[int, int, float, int, float, int, float, int]] = []
    classes: dict[object, int] = {}
    lines: dict[object, int] = {}
    recording = job.recording
    steps = [recording.steps[row] for row in recording.whole_steps]
    moves = recording.which(lambda one: one.is_communication)
    events = [events_by_owner(recording, step, moves) for step in steps]
    for owner, rank in enumerate(job.ranks):
        sizes, ends = rank.sizes, rank.sizes_end_ns
        n_bytes_of = sizes.n_bytes
        if not n_bytes_of.any():
            continue
        order = np.argsort(ends, kind="stable")
        ends = np.append(ends[order], np.iinfo(np.int64).max)
        times: dict[int, list[float]] = {}
        which: dict[int, tuple[int, int]] = {}
        for step, by_owner in zip(steps, events, strict=True):
            mine = by_owner[owner]
            at = np.searchsorted(ends, step.end_ns[mine] - _TOLERANCE_NS)
            near = ends[at] - step.end_ns[mine] <= _TOLERANCE_NS
            sized = mine[near]
            places, turn = order[at[near]], turns(step, sized)
            for event, *of_event in zip(sized.tolist(), places.tolist(), turn.tolist(), strict=True):
                operation = int(step.operation[event])
                which[operation] = of_event[0], of_event[1]
                times.setdefault(operation, []).append(float(step.work_ns[event]))
        for operation, (place, number) in which.items():
            call, n_bytes = sizes.calls[sizes.call[place]], float(n_bytes_of[place])
            if not n_bytes:
                continue
            n_ranks = call.n_ranks or max(rank.world_size or 0, 2)
            kind = (call.kind, n_ranks, int(size_classes(n_bytes_of[[place]])[0]))
            took = max(float(np.median(times[operation])), 1.0)
            rate = n_bytes * bus_factor(call.kind, n_ranks) / took
            classed = classes.setdefault(kind, len(classes))
            line = lines.setdefault((call.kind, call.group or owner, n_ranks), len(lines))
            found.append((operation, classed, rate, number, n_bytes, n_ranks, took, line))
    return np.array(found, np.float64).reshape(-1, 8)


class Latency(NamedTuple):
    """The time of collectives beside their bytes, per operation (n,) in ns: at least, likely, at most."""

    at_least: Float64
    likely: Float64
    at_most: Float64


def latencies(job: Job) -> Latency:
    """Return the latency of each operation; 0 where its bytes are not known.

    Where all ranks are recorded and collectives of one kind and group differ in size, it is where the line
    through their times is at 0 bytes. That of others is their hops in a ring or tree times what a hop takes:
    in those of the job whose latency is known, or in any (`_HOPS_NS`).
    """
    found = bandwidths(job)
    operation, n_bytes, n_ranks, took, line = found[:, [0, 4, 5, 6, 7]].T
    hops = 2 * np.ceil(np.log2(np.maximum(n_ranks, 2)))
    told: Float64 = np.full((len(found), 3), np.nan)
    is_whole = max((rank.world_size or 0 for rank in job.ranks), default=0) <= len(job.ranks)
    for one in unique(line) if is_whole else ():
        members = np.flatnonzero(line == one)
        told[members] = _at_no_bytes(n_bytes[members], took[members])
    known = np.isfinite(told[:, 1])
    hop = _HOPS_NS
    if known.any():
        of_hop = told[known] / hops[known, None]
        hop = np.array([min(_HOPS_NS[0], of_hop[:, 0].min()), np.median(of_hop[:, 1]), of_hop[:, 2].max()])
    ranges = np.where(known[:, None], told, np.minimum(hops[:, None] * hop, took[:, None] * _MOST_HIDDEN))
    of_all = np.zeros((3, len(job.recording.operations)))
    of_all[:, operation.astype(np.int64)] = ranges.T
    return Latency(*of_all)


def guessed(known: Latency) -> Sequence[Guess]:
    """Return the other guesses that count where latencies are not told."""
    is_told = not (known.at_least < known.at_most).any()
    return () if is_told else (Guess(latency="at_least"), Guess(latency="at_most"))


def _at_no_bytes(n_bytes: Float64, took: Float64) -> tuple[float, float, float]:
    """Return where the line through times (k,) by bytes is at 0 bytes: at least, likely, at most; else NaN.

    Each time weighs as much as another, whatever it is (their errors are shares). The bounds are two standard
    errors away.
    """
    if n_bytes.max() < _LARGER * n_bytes.min():
        return (np.nan,) * 3
    rows = np.column_stack((np.ones_like(n_bytes), n_bytes)) / took[:, None]
    inverse = np.linalg.inv(rows.T @ rows)
    at, slope = inverse @ rows.sum(axis=0)
    if slope <= 0:
        return (np.nan,) * 3
    off = float(np.sqrt(np.sum((rows @ (at, slope) - 1) ** 2) / max(len(took) - 2, 1) * inverse[0, 0]))
    most = float(took.min())
    low, mid, high = np.clip((at - 2 * off, at, at + 2 * off), 0.0, most)
    return float(low), float(mid), float(high)


def at_bandwidth(
    job: Job, recording: Recording, latency: Float64, *, times: float, target: float
) -> Recording:
    """Return the recording with collectives that carry their bytes `times` as fast, or at `target` bytes/ns.

    A target is of the bus, for those whose bytes are known (0: none). Their `latency` (n,) stays.
    """
    moves = job.recording.which(lambda one: one.is_communication)
    factor = np.where(moves, 1 / times, 1.0)
    if target:
        found = bandwidths(job)
        operation, rate, took = found[:, 0].astype(np.int64), found[:, 2], found[:, 6]
        factor[:] = 1.0
        factor[operation] = rate * took / target / np.maximum(took - latency[operation], 1.0)
    return scaled(recording, factor, latency)


def with_latency(recording: Recording, latency: Float64, times: float) -> Recording:
    """Return the recording with collectives whose `latency` (n,) is `times` as long."""
    more_ns = np.rint(for_all(recording, latency * (times - 1), 0.0)).astype(np.int64)

    def edited(step: StepGraph) -> StepGraph:
        return replace(step, work_ns=narrow_ns(np.maximum(step.work_ns + more_ns[step.operation], 0)))

    return recording.edited(edited)


def bytes_at_once(job: Job) -> Float64:
    """Return how much each operation (n,) moves together with others that are one collective; 0: unknown."""
    found = np.zeros(len(job.recording.operations))
    known = bandwidths(job)
    if len(known):
        operation, place = known[:, 0].astype(np.int64), known[:, 3].astype(np.int64)
        together = job.recording.column(lambda one: one.owner)[operation] * (place.max() + 1) + place
        found[operation] = np.bincount(together, known[:, 4])[together]
    return found


def crowded_ns(recording: Recording) -> tuple[float, float]:
    """Return for how long an owner's kernels run in a step beside collectives that move bytes, and at all."""
    works = recording.which(lambda one: one.on_device and one.is_compute)
    moves = recording.which(lambda one: one.on_device and one.is_communication)
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


def turns(step: StepGraph, events: Int64) -> Int64:
    """Return a number for each of some events of a step: the same for those that work at the same time."""
    return at_once(step.end_ns[events] - step.work_ns[events], step.end_ns[events])


def events_by_owner(recording: Recording, step: StepGraph, chosen: Bool) -> list[Int64]:
    """Return the events of each owner (m) in a step of which the operations (n,) are `chosen`."""
    events = np.flatnonzero(chosen[step.operation])
    events = events[np.argsort(step.owner[events], kind="stable")]
    return np.split(events, np.searchsorted(step.owner[events], np.arange(1, len(recording.owners))))


def short_collectives(job: Job) -> tuple[Bool, float]:
    """Return which operations (n,) are collectives whose time is latency, and how long the shortest is."""
    recording = job.recording
    collectives = recording.which(lambda one: one.is_collective and one.is_communication)
    collectives &= bytes_at_once(job) <= _MOST_BYTES
    shortest, usual = _shortest_ns(recording, collectives)
    return collectives & (usual <= LATENCY * shortest), shortest


def _shortest_ns(recording: Recording, collectives: Bool) -> tuple[float, Int64]:
    """Return how long the shortest of the `collectives` (n,) take, and each (n,) in a fourth of its steps."""
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
    """Return the recording in which one in some of the `collectives` (n,) of each owner takes time."""
    is_chosen = for_all(recording, collectives.astype(np.float64), 0.0) > 0

    def merged(step: StepGraph) -> StepGraph:
        work = step.work_ns.copy()
        events = np.flatnonzero(is_chosen[step.operation])
        for owner in range(len(recording.owners)):
            own = events[step.owner[events] == owner]
            work[own[turns(step, own) % MERGED > 0]] = 0
        return replace(step, work_ns=work)

    return recording.edited(merged)
