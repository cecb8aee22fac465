"""The links of a job: their rate, as far as the recording tells it, and the bytes of transfers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import NO_LINK, Recording, StepGraph
from dialects.step_parts import Direction, Joint, Operation

#: A stretch of time tells a link's rate if it holds this share of what the link carries in a step: the first
#: bytes after a pause may be faster than the link lasts (a token bucket). A link is busy that carries this
#: share of what the busiest one does.
_GOOD_PART = 0.25
#: Where the best is this share of what a link may carry, it shows that it is the limit.
_TOLD = 0.85


#: Begins of stretches that are tried of a link in a step, at most.
_MOST_STRETCHES = 64

#: Bytes that stand for a full partition where its size is not known.
_UNIT = 1_000_000
#: A link that is busy for less of a step may never have been the limit, but the threads that handle messages:
#: what they may take (ns) for each byte and for each message. By so much a link may be faster than it seems.
_RARELY_BUSY = 0.35
_PER_BYTE, _PER_MESSAGE, _MOST_HIDDEN = 0.5, 100_000, 4.0


def is_sized(recording: Recording) -> bool:
    """Return whether the bytes of transfers are known, or the recording has no transfers."""
    transfers = [one for one in recording.table.kinds if one.transfer.link or one.is_communication]
    return not transfers or any(one.transfer.n_bytes for one in transfers)


class LinkRate(NamedTuple):
    """The rate of a job's links, bytes per nanosecond, as far as the recording shows it.

    `at_least` was carried in one step, `usual` is the median of what each busy link carried at best in each
    step. A link that is the limit carries the same in all of them. Where it never was the limit, it carries
    more than at least once, nobody knows how much more: `at_most` is as far beyond the best, as a ratio, as
    the best is beyond the usual; or what it would carry if threads took `handling` (ns) for each byte of
    the best. `likely` is half as far.
    """

    at_least: float
    usual: float
    handling: float = 0.0

    @property
    def at_most(self) -> float:
        """A rate that the link hardly exceeds."""
        by_threads = 1 / max(1 / self.at_least - self.handling, 1 / (_MOST_HIDDEN * self.at_least))
        return max(self.at_least * self.at_least / self.usual, by_threads)

    @property
    def carried(self) -> float:
        """The rate at which bytes pass, with what threads do with them."""
        return float(self.at_least * (self.at_least / self.usual) ** 0.5)

    @property
    def likely(self) -> float:
        """The rate of the link alone that is to be reckoned with."""
        return float(self.at_least * (self.at_most / self.at_least) ** 0.5)

    @property
    def is_told(self) -> bool:
        """Whether the link was the limit for long."""
        return self.at_most * _TOLD <= self.at_least


def link_rate(recording: Recording) -> LinkRate | None:
    """Return the rate of the job's links; None where sizes are not known.

    A transfer's bytes pass between its begin and its end: a PUSH's begin is its sending, a PULL's is its
    asking or the sending of the last PUSH that it waits for. So no link is slower than the bytes of the
    transfers that lie within any stretch of time, over its length. The best of these bounds, over stretches
    that hold a good part of what the link carries in a step, is its rate where it is ever busy. (All links
    are taken to be alike.)
    """
    is_known = is_sized(recording)
    recording = with_sizes(recording)
    n_bytes = bytes_of(recording)
    carried = []
    for step in recording.steps:
        size, begin = n_bytes[step.operation], begins(step)
        links = [np.flatnonzero(step.link == link) for link in np.unique(step.link[step.link != NO_LINK])]
        most = max((int(size[mine].sum()) for mine in links), default=0)
        carried += [
            _fastest(size[mine], begin[mine], step.end_ns[mine])
            for mine in links
            if 0 < most <= size[mine].sum() / _GOOD_PART
        ]
    if not carried or max(carried) <= 0:
        return None
    best = max(carried)
    return LinkRate(best, float(np.median(carried)), _handling(recording, n_bytes, best) if is_known else 0.0)


def _handling(recording: Recording, n_bytes: Int64, rate: float) -> float:
    """Return the time of threads per byte of a transfer (ns), where links of `rate` are rarely busy."""
    busy, sizes = [], []
    for step in recording.steps:
        on_link = step.link != NO_LINK
        size = n_bytes[step.operation[on_link]]
        length = max(int((step.next_ns - step.begin_ns).max()), 1)
        busy.append(float(np.bincount(step.link[on_link], size).max(initial=0)) / rate / length)
        sizes.append(size)
    if np.median(busy) >= _RARELY_BUSY:
        return 0.0
    size = np.concatenate(sizes)
    return _PER_BYTE + _PER_MESSAGE / float(np.median(size[size >= size.max() * _GOOD_PART]))


def begins(step: StepGraph) -> Int64:
    """Return before when no byte of each event (n,) can have been on its way."""
    begin: Int64 = step.start_ns.copy()
    into = step.edges[step.edges[:, 2] >= Joint.END_TO_BODY]
    np.maximum.at(begin, into[:, 1], step.start_ns[into[:, 0]])
    return begin


def _fastest(size: Int64, begin_ns: Int64, end_ns: Int64) -> float:
    """Return the most bytes over time of a stretch from the begin of one transfer (n,) to an end."""
    least = _GOOD_PART * float(size.sum())
    if not least:
        return 0.0
    order = np.argsort(end_ns, kind="stable")
    size, begin_ns, end_ns = size[order], begin_ns[order], end_ns[order]
    since = np.unique(begin_ns)
    found = 0.0
    for first in since[np.linspace(0, len(since) - 1, min(len(since), _MOST_STRETCHES)).astype(int)].tolist():
        carried = np.cumsum(np.where(begin_ns >= first, size, 0))
        rate = carried / np.maximum(end_ns - first, 1)
        found = max(found, float(rate[(carried >= least) & (end_ns > first)].max(initial=0.0)))
    return found


def with_sizes(recording: Recording) -> Recording:
    """Return the recording with the sizes of partitions, relative ones where no log has them.

    The copy of a partition to host memory (COPYD2H) takes a time that grows with its size: the shortest
    copy of all stands for nothing, that of the usual partition of a tensor that has several for one unit.
    """
    if any(operation.transfer.n_bytes for operation in recording.table.kinds):
        return recording
    copies = _copy_ns(recording)
    # Of a tensor's partitions all but the last are full.
    full = [ns for (owner, key), ns in copies.items() if (owner, key + 1) in copies]
    none = min(copies.values(), default=0)
    one = float(np.median(full)) if full else max(copies.values(), default=0)
    if one <= none:
        return recording

    def sized(operation: Operation) -> Operation:
        if operation.transfer.key is None or (operation.owner, operation.transfer.key) not in copies:
            return operation
        share = min((copies[operation.owner, operation.transfer.key] - none) / (one - none), 1.0)
        return operation._replace(transfer=operation.transfer._replace(n_bytes=round(_UNIT * share)))

    return replace(recording, operations=[sized(operation) for operation in recording.operations])


def _copy_ns(recording: Recording) -> dict[tuple[int, int], float]:
    """Return the shortest copy to host memory of each partition, by (owner, key)."""
    found: dict[tuple[int, int], float] = {}
    for step in recording.steps:
        for number, work in zip(step.operation.tolist(), step.work_ns.tolist(), strict=True):
            one = recording.operations[number]
            if one.transfer.key is not None and one.transfer.direction is Direction.TO_HOST:
                found[one.owner, one.transfer.key] = min(found.get((one.owner, one.transfer.key), work), work)
    return found


def bytes_of(recording: Recording) -> Int64:
    """Return how many bytes each operation (n,) moves; 0 where that is not known."""
    return recording.column(lambda one: one.transfer.n_bytes)
