"""What a link is made of: bytes that take their time, and all else that a transfer costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from dialects.step_parts import Direction, Joint, Operation
from errors import TraceError

#: A stretch of time tells a link's rate if it holds this share of what the link carries in a step: the first
#: bytes after a pause may be faster than the link lasts (a token bucket). A link is busy that carries this
#: share of what the busiest one does.
_GOOD_PART = 0.25
#: Where the best is this share of what a link may carry, it shows that it is the limit.
_TOLD = 0.85
#: This share of the messages of a kind are called quick: they stood behind nothing.
_QUICK = 0.2
#: Begins of stretches that are tried of a link in a step, at most.
_MOST_STRETCHES = 64

#: Bytes that stand for a full partition where its size is not known.
_UNIT = 1_000_000
#: A link that is busy for less of a step may never have been the limit, but the threads that handle messages:
#: what they may take (ns) for each byte and for each message. By so much a link may be faster than it seems.
_RARELY_BUSY = 0.35
_PER_BYTE, _PER_MESSAGE, _MOST_HIDDEN = 0.5, 100_000, 4.0
#: The share of a link's bandwidth that the bytes of tensors get; the rest are headers and acknowledgements.
_GOODPUT = 0.95


def is_sized(recording: Recording) -> bool:
    """Return whether the bytes of transfers are known, or the recording has no transfers."""
    transfers = [one for one in recording.table.kinds if one.transfer.link or one.is_communication]
    return not transfers or any(one.transfer.n_bytes for one in transfers)


class LinkRate(NamedTuple):
    """What a link of a job carries, bytes per nanosecond, as far as the recording tells it.

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
    """Return what a link of the job carries; None where sizes are not known.

    A transfer's bytes pass between its begin and its end: a PUSH's begin is its sending, a PULL's is its
    asking or the sending of the last PUSH that it waits for. So no link is slower than the bytes of the
    transfers that lie within any stretch of time, over its length. The best of these bounds, over stretches
    that hold a good part of what the link carries in a step, is its rate where it is ever busy. (All links
    are taken to be alike.)
    """
    is_known = is_sized(recording)
    recording = with_sizes(recording)
    n_bytes = _sizes(recording)
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
    """Return what threads may take for each byte of a transfer (ns) where links of `rate` are rarely busy."""
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


def times_faster(
    recording: Recording, factor: float, rate: float | None, *, waits_stay: bool = False
) -> Recording:
    """Return the recording with links of `rate` (bytes/ns) that carry `factor` times as much.

    Faster, only the time of the bytes changes (of transfers taken apart: `as_messages`), and with it what a
    message takes longer than the quick ones of its kind: it stands behind bytes in a queue that nobody
    recorded, unless the `waits_stay`. Latency and the computation of a transfer stay. Slower, no transfer
    is quicker than its bytes. Where not even relative sizes are known, the whole transfer changes.
    """
    if not recording.links and not any(operation.is_communication for operation in recording.table.kinds):
        raise TraceError("bandwidth: no transfer between ranks is recorded")
    if factor == 1:
        return recording
    recording = with_sizes(recording)
    if rate is None or not recording.links:
        return _times_shorter(recording, factor)
    if factor < 1:
        return _slower(recording, rate * factor)
    recording = _in_any_order(recording)
    n_bytes = _sizes(recording)
    extra_ns = n_bytes / rate * (1 / factor - 1)
    work = [_with_wire(step, extra_ns[step.operation]) for step in recording.steps]
    edited = _with_work(recording, work)
    return edited if waits_stay else _shorter_waits(edited, factor, rate * factor)


def _shorter_waits(recording: Recording, factor: float, rate: float) -> Recording:
    """Return the recording with 1 / `factor` of what messages take beyond their bytes and the quick ones.

    Messages are acknowledgements, which have no link, and answers, whose bytes their links carry at `rate`.
    """
    of_kinds = (
        recording.which(lambda one: one.transfer.is_acknowledgement),
        recording.which(lambda one: one.transfer.is_answer),
    )
    wires = (np.zeros(len(recording.operations)), _sizes(recording) / rate)
    work = [step.work_ns.astype(np.float64) for step in recording.steps]
    for is_of, wire in zip(of_kinds, wires, strict=True):
        chosen = [is_of[step.operation] for step in recording.steps]
        own = [wire[step.operation[of]] for step, of in zip(recording.steps, chosen, strict=True)]
        beyond = [all_[of] - needs for all_, of, needs in zip(work, chosen, own, strict=True)]
        quick = max(float(np.quantile(np.concatenate(beyond), _QUICK)), 0.0) if is_of.any() else 0.0
        for all_, of, needs, more in zip(work, chosen, own, beyond, strict=True):
            all_[of] = needs + np.minimum(more, quick + np.maximum(more - quick, 0) / factor)
    return _with_work(recording, work)


def _with_work(recording: Recording, work: Iterable[Float64]) -> Recording:
    """Return the recording with other work of each step's events (n,), rounded to nanoseconds."""
    return recording.with_steps(
        replace(step, work_ns=np.rint(one).astype(np.int64))
        for step, one in zip(recording.steps, work, strict=True)
    )


def _times_shorter(recording: Recording, factor: float) -> Recording:
    """Return the recording with transfers that take 1 / `factor` of their time, whatever they carry."""
    work = []
    for step in recording.steps:
        moves = step.link != NO_LINK if recording.links else _communicates(recording, step)
        work.append(np.where(moves, step.work_ns / factor, step.work_ns))
    return _with_work(recording, work)


def at_rate(
    recording: Recording, target: float, rate: float | None, *, waits_stay: bool = False
) -> Recording:
    """Return the recording with links of `target` bytes per nanosecond, recorded with those of `rate`.

    Raises
    ------
    TraceError
        The bytes of the transfers are not known.
    """
    if not is_sized(recording):
        raise TraceError("bandwidth: the bytes of the transfers are not recorded; give a ratio (bandwidth=2)")
    if rate is None:
        return _slower(recording, target * _GOODPUT)
    return times_faster(recording, target * _GOODPUT / rate, rate, waits_stay=waits_stay)


def _slower(recording: Recording, rate: float) -> Recording:
    """Return the recording with no transfer quicker than its bytes at `rate` (bytes/ns).

    What else a transfer takes goes on while the bytes of the one before it are under way. Requests and
    acknowledgements are not made to wait for more bytes than they did: on slow links workers settle into
    turns, one asking while another one is answered, so that the links are busy all the time.
    """
    recording, n_bytes = _in_any_order(recording), _sizes(recording)
    edited = []
    for step in recording.steps:
        least, work = n_bytes[step.operation] / rate, step.work_ns.astype(np.float64)
        if recording.links:
            for mine in _by_turn(step):
                work[mine] = _lengthened(work[mine], least[mine], step.end_ns[mine])
        else:
            work = np.where(_communicates(recording, step), np.maximum(work, least), work)
        edited.append(work)
    return _with_work(recording, edited)


def _lengthened(service: Float64, least: Float64, end_ns: Int64) -> Float64:
    """Return the `service` of transfers (n,) that follow each other, each burst no shorter than its bytes.

    What one took beyond its bytes counts for those after it, until there is a pause (see `_carried`).
    """
    begin = end_ns - service
    follows = np.concatenate([[False], begin[1:] <= end_ns[:-1]])
    found, beyond = [], 0.0
    for takes, needs, in_burst in zip(service.tolist(), least.tolist(), follows.tolist(), strict=True):
        beyond = (beyond if in_burst else 0.0) + takes - needs
        found.append(takes + max(-beyond, 0.0))
        beyond = max(beyond, 0.0)
    return np.array(found)


def times(target: float, rate: float | None) -> float:
    """Return how many times `rate` (bytes/ns) links of `target` carry of tensors; 1 where it is unknown."""
    return 1.0 if rate is None else target * _GOODPUT / rate


def _in_any_order(recording: Recording) -> Recording:
    """Return the recording with transfers that overtake each other as they may."""
    return recording.edited(lambda step: replace(step, overtaken=step.overtaken[:0]))


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


def _with_wire(step: StepGraph, extra_ns: Float64) -> Float64:
    """Return the work of each event, on a link with `extra_ns` (n,) more."""
    work = step.work_ns.astype(np.float64)
    for mine in _by_turn(step):
        work[mine] = _carried(work[mine] + extra_ns[mine])
    return work


def _by_turn(step: StepGraph) -> Iterator[Int64]:
    """Yield the transfers of each link in the order in which it served them."""
    for link in np.unique(step.link[step.link != NO_LINK]).tolist():
        mine = np.flatnonzero(step.link == link)
        yield mine[np.argsort(step.turn[mine], kind="stable")]


def _carried(service: Float64) -> Float64:
    """Return `service` without negative values, the rest taken from those that follow.

    Acknowledgements of several transfers are often read together; then one seems to have taken all the
    time and the others none.
    """
    owed = 0.0
    for i, time in enumerate(service.tolist()):
        service[i] = max(time - owed, 0.0)
        owed = max(owed - time, 0.0)
    return service


def _sizes(recording: Recording) -> Int64:
    return recording.column(lambda one: one.transfer.n_bytes)


def _communicates(recording: Recording, step: StepGraph) -> Bool:
    return recording.which(lambda one: one.is_communication)[step.operation]
