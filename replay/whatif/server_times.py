"""BytePS's servers: a slow one as fast as the others, or all without time of their own."""

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
from replay.even_work import scaled
from replay.links import LinkRate, Side, busy_sides, is_sized, slower_nodes

NAME = "servers=even|none"
HELP = (
    "even: a slow server takes as long for its bytes as the others; none: pulls take no longer than their "
    "bytes"
)

#: A server is slow if three quarters of its pulls take this many times what three quarters of the others' do.
_SLOWER = 1.2
#: What is compared where a server's threads are slow, and where its network is.
_IN_A_ROW = "pulls that are answered right after another"
_SIDES = "what it receives and sends at best"
#: Large pulls and partitions that it takes to know what a server takes for them.
_PULLS, _PARTITIONS = 8, 2
#: Smaller partitions than this share of the largest tell of messages, not of bytes.
_LARGE = 0.2
#: Share of a faster server's saving that goes to another queue, or frees one (made jobs with a slow server).
_QUEUES = 0.4


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit of the servers; None for any other request."""
    if not request.asks("servers", "even", "none"):
        return None
    if request.value == "none":
        if job.links is None:
            raise request.refused("the bytes of the transfers are not known")
        rate = job.links.at_least
        return measured(job, lambda recording: as_fast_as_wire(recording, rate))
    pace = slowest_server(job)
    if pace is None:
        return Edit(lambda recording: recording)
    slow = () if job.links is None else job.links.slow
    its_link = {one.transfer.link for one in job.recording.table.kinds if one.transfer.server == pace.server}
    own_limit = next((link for link in slow if link in its_link), None)
    return measured(job, lambda recording: _as_fast_as_others(recording, pace, own_limit), error=_QUEUES)


class Pace(NamedTuple):
    """The time of a server per byte, and that of the others (ns)."""

    server: str
    others: str
    own: float
    usual: float
    of: str  # what that is the time of

    @property
    def ratio(self) -> float:
        """How many times as long as the others it takes."""
        return self.own / self.usual


def is_pull(one: Operation) -> bool:
    """Whether an operation is the answer of a server."""
    return one.transfer.is_answer


def slowest_server(job: Job) -> Pace | None:
    """Find the server that surely takes longer than any other; None where none does or can be compared.

    Compared are large pulls that are answered right after another: these wait for nothing else. Then what
    servers send and receive at best.
    """
    recording = job.recording
    servers, of_operation = recording.numbered(lambda one: one.transfer.server if is_pull(one) else "")
    known = job.links if len(servers) > 2 and is_sized(recording) else None
    if known is None:  # or there is but one server, and "" for all that are not pulls
        return None
    paces = _paces_in_a_row(recording, of_operation, 1 / known.at_least)
    for server, (low, usual, _) in paces.items():
        others = np.array([pace for other, pace in paces.items() if other != server])
        if len(others) and low > _SLOWER * others[:, 2].max():
            names = [name for number, name in enumerate(servers) if name and number != server]
            beside = names[0] if len(names) == 1 else "the others"
            return Pace(servers[server], beside, usual, float(np.median(others[:, 1])), _IN_A_ROW)
    return _slowest_side(recording, known)


def _paces_in_a_row(recording: Recording, server_of: Int64, least: float) -> dict[int, Float64]:
    """Measure the quartiles of the time per byte of each server's large pulls; `server_of` operations (n,).

    A pull that is quicker than the `least` time of its bytes waited elsewhere, with the one before it.
    """
    operation, work = _answered_in_a_row(recording)
    n_bytes = recording.column(lambda one: one.transfer.n_bytes)[operation]
    is_large = n_bytes > _LARGE * n_bytes.max(initial=0)
    operation, per_byte = operation[is_large], np.maximum(work[is_large] / n_bytes[is_large], least)
    server, key = server_of[operation], recording.column(lambda one: one.transfer.key or 0)[operation]
    return {
        one: np.quantile(per_byte[server == one], [0.25, 0.5, 0.75])
        for one in unique(server).tolist()
        if (server == one).sum() >= _PULLS and len(unique(key[server == one])) >= _PARTITIONS
    }


def _slowest_side(recording: Recording, known: LinkRate) -> Pace | None:
    """Return the server that surely sends and receives less at best than any other."""
    server_of = {one.transfer.link: one.transfer.server for one in recording.table.kinds if is_pull(one)}
    sides = busy_sides(recording, known.machines)
    for link, own in slower_nodes(recording, sides).items():
        if link in server_of:
            others = {side.link for side in sides if side.link in server_of and side.link != link}
            name = server_of[next(iter(others))] if len(others) == 1 else "the others"
            usual = [_for_a_byte([one for one in sides if one.link == other]) for other in others]
            return Pace(server_of[link], name, _for_a_byte(own), float(np.median(usual)), _SIDES)
    return None


def _for_a_byte(sides: Sequence[Side]) -> float:
    """Return how long a server takes for a byte, the mean of both ways."""
    return float(np.mean([1 / one.usual for one in sides]))


def _answered_in_a_row(recording: Recording) -> tuple[Int64, Int64]:
    """Return the operation and the work (ns) of each pull that was answered right after another (k,)."""
    pulls = recording.which(is_pull)
    operations, work = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        for served in step.by_link():
            begin, end = (step.end_ns - step.work_ns)[served], step.end_ns[served]
            chosen = served[1:][(begin[1:] <= end[:-1]) & pulls[step.operation[served[1:]]]]
            operations.append(step.operation[chosen])
            work.append(step.work_ns[chosen])
    return np.concatenate(operations), np.concatenate(work)


def _as_fast_as_others(recording: Recording, pace: Pace, own_limit: str | None) -> Recording:
    """Return the recording in which a server answers, and takes what is pushed, in the usual time.

    Its messages wait no longer for a byte than those of the others do, if that is less: for its queue, too.
    A link with its `own_limit` carries as much as the others'.
    """
    keys = {one.transfer.key for one in recording.table.kinds if one.transfer.server == pace.server}
    waits = recording.which(lambda one: one.transfer.is_wait)
    own = recording.which(lambda one: one.transfer.key in keys)
    answers = recording.which(is_pull)
    n_bytes, waited = np.zeros((2, 2))
    sizes = recording.column(lambda one: one.transfer.n_bytes)
    for step in recording.steps:
        for its, which in enumerate((~own, own)):
            mine = which[step.operation]
            n_bytes[its] += sizes[step.operation][mine & answers[step.operation]].sum()
            waited[its] += step.work_ns[mine & waits[step.operation]].sum()
    usual, its = waited / np.maximum(n_bytes, 1)
    share = min(1 / pace.ratio, usual / its) if its and n_bytes[0] else 1 / pace.ratio
    factor = np.where(own & waits, share, 1.0)
    if own_limit is None or not recording.carries:
        return scaled(recording, np.where(own & answers, 1 / pace.ratio, factor))
    carries, place = list(recording.carries), recording.links.index(own_limit)
    carries[place] = carries[place + len(recording.links)] = 1.0
    return replace(scaled(recording, factor), carries=carries)


def as_fast_as_wire(recording: Recording, rate: float) -> Recording:
    """Return the recording in which pulls take no longer than their bytes at `rate` (bytes/ns)."""
    beyond = beyond_bytes(recording, rate)
    return recording.edited(lambda step: replace(step, work_ns=step.work_ns - beyond(step)))


def beyond_bytes(recording: Recording, rate: float) -> Callable[[StepGraph], Int64]:
    """Return a function: by how much pulls of a step take longer than their bytes at `rate`, per event (n,).

    Of pulls as messages that is what they wait (`replay.messages`).
    """
    pulls = recording.which(lambda one: one.transfer.direction is Direction.FROM_SERVER)
    wire_ns = np.rint(recording.column(lambda one: one.transfer.n_bytes) / rate).astype(np.int64)

    def beyond(step: StepGraph) -> Int64:
        more_ns = np.maximum(step.work_ns - wire_ns[step.operation], 0)
        return np.where(pulls[step.operation], more_ns, 0)

    return beyond
