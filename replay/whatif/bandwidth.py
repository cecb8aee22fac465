"""Links that carry more, or less: only the time of the bytes changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from errors import TraceError
from replay.edit import LIKELY, Edit, EditRequest, Guess, Job
from replay.links import bytes_of, is_sized, with_sizes
from replay.selection import as_ratio
from replay.whatif.collective_times import at_bus_bandwidth, bandwidths

NAME = "bandwidth=R|200Mbit"
HELP = "links carry R times the bytes, or that much a second (Kbit, Mbit, Gbit); the rest of a transfer stays"

_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMG])bit(?:/s)?", re.IGNORECASE)
_BITS = {"K": 1e3, "M": 1e6, "G": 1e9}
_LEAST_RATE = 1e-6  # bytes per nanosecond
#: The share of a link's bandwidth that the bytes of tensors get; the rest are headers and acknowledgements.
_GOODPUT = 0.95
#: This share of the messages of a kind are called quick: they stood behind nothing.
_QUICK = 0.2


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that sets the bandwidth; None for any other request."""
    if request.name != "bandwidth":
        return None
    target = _absolute(request)
    ratio = as_ratio(request) if target is None else None

    def apply(recording: Recording, guess: Guess) -> Recording:
        rate, stay = job.rate(guess), guess.waits_stay
        if ratio is not None:
            return times_faster(recording, ratio, rate, waits_stay=stay)
        assert target is not None
        if not job.recording.links and len(bandwidths(job)):
            return at_bus_bandwidth(job, recording, target)
        return at_rate(recording, target, rate, waits_stay=stay)

    def is_faster(guess: Guess) -> bool:
        if ratio is not None:
            return ratio > 1
        rate = job.rate(guess)
        return rate is not None and target is not None and target * _GOODPUT > rate

    guesses: list[Guess] = []
    if job.links is not None and not job.links.is_told:
        guesses += [Guess(rate=lambda links: links.at_least), Guess(rate=lambda links: links.at_most)]
    if job.links is not None and is_faster(LIKELY):
        guesses.append(Guess(waits_stay=True))
    return Edit(apply, order=3, splits=is_faster, guesses=tuple(guesses))


def _absolute(request: EditRequest) -> float | None:
    """Return a bandwidth in bytes per nanosecond; None for a ratio."""
    absolute = _RATE.fullmatch(request.value)
    if absolute is None:
        return None
    target = float(absolute[1]) * _BITS[absolute[2].upper()] / 8 / 1e9
    if target < _LEAST_RATE:
        raise request.refused("a bandwidth must be above 0, and at least 8 Kbit")
    return target


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
    n_bytes = bytes_of(recording)
    extra_ns = n_bytes / rate * (1 / factor - 1)
    work = [_with_wire(step, extra_ns[step.operation]) for step in recording.steps]
    edited = _with_work(recording, work)
    return edited if waits_stay else _shorter_waits(edited, factor, rate * factor)


def _shorter_waits(recording: Recording, factor: float, rate: float) -> Recording:
    """Return the recording with 1 / `factor` of what messages take beyond their bytes and the quick ones.

    Messages are acknowledgements, which have no link, and answers, whose bytes their links carry at `rate`.
    """
    stages = (lambda one: one.transfer.is_acknowledgement, lambda one: one.transfer.is_answer)
    wires = (np.zeros(len(recording.operations)), bytes_of(recording) / rate)
    work = [step.work_ns.astype(np.float64) for step in recording.steps]
    for stage, wire in zip(stages, wires, strict=True):
        is_of = recording.which(stage)
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
    recording, n_bytes = _in_any_order(recording), bytes_of(recording)
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


def _in_any_order(recording: Recording) -> Recording:
    """Return the recording with transfers that overtake each other as they may."""
    return recording.edited(lambda step: replace(step, overtaken=step.overtaken[:0]))


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


def _communicates(recording: Recording, step: StepGraph) -> Bool:
    return recording.which(lambda one: one.is_communication)[step.operation]
