"""Edits of BytePS's servers: a slow server as fast as the others, or no server time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.step_parts import Direction, Operation
from replay.edit import Edit, EditRequest, Job, measured
from replay.links import LinkRate, Side, busy_sides, is_sized, slower_nodes
from replay.usual_times import scaled

#: A server is slow if its lower quartile exceeds the upper quartile of each other server by this factor.
_SLOWER = 1.2
#: Least number of large pulls, and of their partitions, for a comparison of servers.
_PULLS, _PARTITIONS = 8, 2
#: The time of partitions below this share of the largest depends on messages, not on bytes.
_LARGE = 0.2
#: Share of a faster server's saving that goes to another queue, or frees one (made jobs with a slow server).
_QUEUES = 0.4


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `servers=`; None for any other request."""
    if not request.asks("servers", "even", "none"):
        return None
    if request.value == "none":
        if job.links is None:
            raise request.refused("the bytes of the transfers are not known")
        rate = job.links.at_least

        def as_fast_as_wire(recording: Recording) -> Recording:
            beyond = beyond_bytes(recording, rate)
            return recording.edited(lambda step: replace(step, work_ns=step.work_ns - beyond(step)))

        return measured(job, as_fast_as_wire)
    pace = slowest_server(job)
    if pace is None:
        return Edit(lambda recording: recording)
    slow = () if job.links is None else job.links.slow
    of_server = {
        op.transfer.link for op in job.recording.operations.kinds if op.transfer.server == pace.server
    }
    limit = next((link for link in slow if link in of_server), None)
    return measured(job, lambda recording: _as_fast_as_others(recording, pace, limit), error=_QUEUES)


class _Pace(NamedTuple):
    """Time per byte of a server and of the others (ns)."""

    server: str
    others: str
    own: float
    usual: float
    of: str  # the data that was measured

    @property
    def ratio(self) -> float:
        """Time per byte relative to the others."""
        return self.own / self.usual


def is_pull(operation: Operation) -> bool:
    """Check for a server's answer."""
    return operation.transfer.is_answer


def slowest_server(job: Job) -> _Pace | None:
    """Find the server that is clearly slower than all others, if any.

    The comparison uses large pulls answered right after another, which wait for nothing else, then the best
    rates of the servers.
    """
    recording = job.recording
    servers, of_operation = recording.numbered(lambda op: op.transfer.server if is_pull(op) else "")
    known = job.links if len(servers) > 2 and is_sized(recording) else None
    if known is None:  # also with a single server: "" stands for all operations that are not pulls
        return None
    paces = _paces_in_a_row(recording, of_operation, 1 / known.at_least)
    for server, (low, usual, _) in paces.items():
        others = np.array([pace for other, pace in paces.items() if other != server])
        if len(others) and low > _SLOWER * others[:, 2].max():
            names = [name for number, name in enumerate(servers) if name and number != server]
            beside = names[0] if len(names) == 1 else "the others"
            of = "pulls that are answered right after another"
            return _Pace(servers[server], beside, usual, float(np.median(others[:, 1])), of)
    return _slowest_side(recording, known)


def _paces_in_a_row(recording: Recording, server_of: Int64, least: float) -> dict[int, Float64]:
    """Quartiles of the time per byte of each server's large pulls that are answered right after another.

    `server_of` is by operation (n,). A pull that is quicker than the `least` time of its bytes had waited
    together with the pull before.
    """
    pulls = recording.which(is_pull)
    operations, works = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        for served in step.by_link():
            begin, end = (step.end_ns - step.work_ns)[served], step.end_ns[served]
            chosen = served[1:][(begin[1:] <= end[:-1]) & pulls[step.operation[served[1:]]]]
            operations.append(step.operation[chosen])
            works.append(step.work_ns[chosen])
    operation, work = np.concatenate(operations), np.concatenate(works)
    n_bytes = recording.column(lambda op: op.transfer.n_bytes)[operation]
    is_large = n_bytes > _LARGE * n_bytes.max(initial=0)
    operation, per_byte = operation[is_large], np.maximum(work[is_large] / n_bytes[is_large], least)
    server, key = server_of[operation], recording.column(lambda op: op.transfer.key or 0)[operation]
    return {
        number: np.quantile(per_byte[server == number], [0.25, 0.5, 0.75])
        for number in unique(server).tolist()
        if (server == number).sum() >= _PULLS and len(unique(key[server == number])) >= _PARTITIONS
    }


def _slowest_side(recording: Recording, known: LinkRate) -> _Pace | None:
    """Find the server whose best rates, both ways, are clearly the lowest."""
    server_of = {op.transfer.link: op.transfer.server for op in recording.operations.kinds if is_pull(op)}
    sides = busy_sides(recording, known.machines)
    for link, pair in slower_nodes(recording, sides).items():
        if link in server_of:
            others = {side.link for side in sides if side.link in server_of and side.link != link}
            name = server_of[next(iter(others))] if len(others) == 1 else "the others"
            usual = [_for_a_byte([side for side in sides if side.link == other]) for other in others]
            of = "what it receives and sends at best"
            return _Pace(server_of[link], name, _for_a_byte(pair), float(np.median(usual)), of)
    return None


def _for_a_byte(sides: Sequence[Side]) -> float:
    """Time of a server per byte, the mean of both directions."""
    return float(np.mean([1 / side.usual for side in sides]))


def _as_fast_as_others(recording: Recording, pace: _Pace, limit: str | None) -> Recording:
    """Make a server answer, and take pushes, in the usual time.

    Its messages wait no longer per byte than those of other servers, which includes its queue. A link with
    its own `limit` becomes as fast as the others.
    """
    keys = {op.transfer.key for op in recording.operations.kinds if op.transfer.server == pace.server}
    waits = recording.which(lambda op: op.transfer.is_wait)
    is_slow = recording.which(lambda op: op.transfer.key in keys)
    answers = recording.which(is_pull)
    n_bytes, waited = np.zeros((2, 2))
    sizes = recording.column(lambda op: op.transfer.n_bytes)
    for step in recording.steps:
        for group, members in enumerate((~is_slow, is_slow)):
            chosen = members[step.operation]
            n_bytes[group] += sizes[step.operation][chosen & answers[step.operation]].sum()
            waited[group] += step.work_ns[chosen & waits[step.operation]].sum()
    usual, slow = waited / np.maximum(n_bytes, 1)
    share = min(1 / pace.ratio, usual / slow) if slow and n_bytes[0] else 1 / pace.ratio
    factor = np.where(is_slow & waits, share, 1.0)
    if limit is None or not recording.carries:
        return scaled(recording, np.where(is_slow & answers, 1 / pace.ratio, factor))
    carries, index = list(recording.carries), recording.links.index(limit)
    carries[index] = carries[index + len(recording.links)] = 1.0
    return replace(scaled(recording, factor), carries=carries)


def beyond_bytes(recording: Recording, rate: float) -> Callable[[StepGraph], Int64]:
    """Make the function that computes the time of a step's pulls (n,) beyond their bytes at `rate`.

    For pulls split into messages (`replay.messages`) that is their wait.
    """
    pulls = recording.which(lambda op: op.transfer.direction is Direction.FROM_SERVER)
    wire_ns = np.rint(recording.column(lambda op: op.transfer.n_bytes) / rate).astype(np.int64)

    def beyond(step: StepGraph) -> Int64:
        more_ns = np.maximum(step.work_ns - wire_ns[step.operation], 0)
        return np.where(pulls[step.operation], more_ns, 0)

    return beyond
