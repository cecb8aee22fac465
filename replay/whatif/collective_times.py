"""Bytes, bandwidth and latency of collectives, and edits: slow ones as fast as peers, short ones merged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.intervals import clipped_lengths, union
from analyzer.base.arrays.numbering import places_by_value, unique
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.recorded_collectives import bus_factor, size_classes
from analyzer.reading.dialects.roles import Role
from dag_utils import RankFacts
from replay.edit import Edit, EditRequest, Job, measured
from replay.usual_times import for_all, ratio_of, scaled, with_work

#: The end of an event and the end of its slice may differ by this much.
_TOLERANCE_NS = 2_000
#: Least and likely time of a hop in a ring or tree (ns), base time included, from NCCL's table of latencies
#: (src/graph/tuning.cc), which goes up to 20 µs.
_LEAST_HOP_NS, _HOP_NS = 600.0, 6_000.0
#: Sizes that differ by this factor determine a latency; otherwise at most this share of the time is latency.
_LARGER, _HIDDEN = 1.5, 0.5
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


class Rates(NamedTuple):
    """Bytes moved by operations: a row (k,) for each operation and size that it has in some step."""

    operation: Int64
    group: Int64  # of one kind, number of ranks and size class
    bus: Float64  # bus bandwidth, GB/s
    turn: Int64  # number among a rank's collectives of a step; equal for tensors that are reduced together
    n_bytes: Float64
    n_ranks: Int64
    took_ns: Float64  # without waiting, the median over the steps
    line: Int64  # of one kind and group of ranks, so that times differ by their bytes alone


class SizedCollectives:
    """The collectives of a recording whose bytes are in the traces of some `ranks`."""

    def __init__(self, recording: Recording, ranks: Sequence[RankFacts]) -> None:
        self._recording, self._ranks = recording, ranks
        self._moves = recording.which(lambda op: op.is_communication)
        self._by_end = []
        for rank in ranks:
            order = np.argsort(rank.sizes_end_ns, kind="stable")
            ends = np.append(rank.sizes_end_ns[order], np.iinfo(np.int64).max)
            self._by_end.append((ends, order, rank.sizes.n_bytes))

    def __bool__(self) -> bool:
        return len(self.rates.operation) > 0

    def _sized(self, step: StepGraph, owner: int, events: Int64) -> tuple[Int64, Int64]:
        """Match an owner's events with the sized collectives of its trace."""
        ends, order, _ = self._by_end[owner]
        index = np.searchsorted(ends, step.end_ns[events] - _TOLERANCE_NS)
        near = ends[index] - step.end_ns[events] <= _TOLERANCE_NS
        return events[near], order[index[near]]

    def bytes_of(self, step: StepGraph) -> Float64:
        """Bytes that each event (n,) of a recorded step moves; 0 if unknown.

        An operation may move other bytes in each step: threads take turns with the buckets of gradients.
        """
        n_bytes = np.zeros(len(step))
        moving = step.events_by_owner(self._moves)
        for owner, events in enumerate(moving[: len(self._by_end)]):
            sized, indices = self._sized(step, owner, events)
            n_bytes[sized] = self._by_end[owner][2][indices]
        return n_bytes

    @cached_property
    def rates(self) -> Rates:
        """Bytes and bandwidth of operations."""
        rows: list[tuple[float, ...]] = []
        classes: dict[object, int] = {}
        lines: dict[object, int] = {}
        recording = self._recording
        steps = [recording.steps[row] for row in recording.whole_steps]
        events = [step.events_by_owner(self._moves) for step in steps]
        for owner, rank in enumerate(self._ranks):
            sizes, n_bytes_of = rank.sizes, self._by_end[owner][2]
            times: dict[tuple[int, int], list[float]] = {}
            latest: dict[tuple[int, int], tuple[int, int]] = {}  # index of the size, and turn
            for step, by_owner in zip(steps, events, strict=True):
                sized, indices = self._sized(step, owner, by_owner[owner])
                turn = step.turns(sized)
                for event, index, number in zip(sized.tolist(), indices.tolist(), turn.tolist(), strict=True):
                    if n_bytes := int(n_bytes_of[index]):
                        key = int(step.operation[event]), n_bytes
                        latest[key] = index, number
                        times.setdefault(key, []).append(float(step.work_ns[event]))
            for (operation, n_bytes), (index, number) in latest.items():
                call = sizes.calls[sizes.call[index]]
                n_ranks = call.n_ranks or max(rank.world_size or 0, 2)
                kind = (call.kind, n_ranks, int(size_classes(n_bytes_of[[index]])[0]))
                took = max(float(np.median(times[operation, n_bytes])), 1.0)
                bus = n_bytes * bus_factor(call.kind, n_ranks) / took
                group = classes.setdefault(kind, len(classes))
                line = lines.setdefault((call.kind, call.group or owner, n_ranks), len(lines))
                rows.append((operation, group, bus, number, n_bytes, n_ranks, took, line))
        table = np.array(rows, np.float64).reshape(-1, 8).T
        operation_, group_, turn_, n_ranks_, line_ = table[[0, 1, 3, 5, 7]].astype(np.int64)
        return Rates(operation_, group_, table[2], turn_, table[4], n_ranks_, table[6], line_)

    @cached_property
    def latency(self) -> Float64:
        """Latency of each operation (n,) (ns): its time without its bytes; 0 if the bytes are unknown.

        If all ranks are recorded and collectives of one kind and group differ in size, it is the intercept of
        the line through their times. For others it is the number of hops in a ring or tree times the time of
        a hop, taken from collectives of the job with a known latency, else `_HOP_NS`.
        """
        known = self.rates
        hops = 2 * np.ceil(np.log2(np.maximum(known.n_ranks, 2)))
        measured: Float64 = np.full(len(hops), np.nan)
        is_whole = max((rank.world_size or 0 for rank in self._ranks), default=0) <= len(self._ranks)
        for line in unique(known.line) if is_whole else ():
            members = np.flatnonzero(known.line == line)
            least = float(hops[members[0]] * _LEAST_HOP_NS)
            measured[members] = _at_no_bytes(known.n_bytes[members], known.took_ns[members], least)
        is_measured = np.isfinite(measured)
        hop_ns = np.median((measured / hops)[is_measured]) if is_measured.any() else _HOP_NS
        likely = np.minimum(hops * hop_ns, known.took_ns * _HIDDEN)
        least_ns = np.zeros(len(self._recording.operations))
        least_ns[known.operation] = np.where(is_measured, measured, likely)
        return least_ns

    @cached_property
    def bytes_at_once(self) -> Float64:
        """Bytes of the collective that each operation (n,) belongs to; 0 if unknown."""
        n_bytes, known = np.zeros(len(self._recording.operations)), self.rates
        if self:
            owner = self._recording.column(lambda op: op.owner)[known.operation]
            together = owner * (known.turn.max() + 1) + known.turn
            n_bytes[known.operation] = np.bincount(together, known.n_bytes)[together]
        return n_bytes


def _at_no_bytes(n_bytes: Float64, took: Float64, least: float) -> float:
    """Intercept at 0 bytes of a line through times (k,); NaN if the sizes do not determine it.

    All times have equal weight, because their errors are relative. A line two standard errors below the
    `least` latency shows no latency: large collectives take longer for another reason.
    """
    if n_bytes.max() < _LARGER * n_bytes.min():
        return np.nan
    rows = np.column_stack((np.ones_like(n_bytes), n_bytes)) / took[:, None]
    inverse = np.linalg.inv(rows.T @ rows)
    latency, slope = inverse @ rows.sum(axis=0)
    if slope <= 0:
        return np.nan
    variance = np.sum((rows @ (latency, slope) - 1) ** 2) / max(len(took) - 2, 1) * inverse[0, 0]
    is_below = latency + 2 * float(np.sqrt(variance)) < least
    return np.nan if is_below else float(np.clip(latency, 0.0, took.min()))


# ---- edits


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
