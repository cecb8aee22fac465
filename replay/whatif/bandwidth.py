"""Faster or slower links, of which only the time of the bytes changes, and another order of service."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.model.graph.step_graph import Recording
from analyzer.reading.dialects.step_parts import Direction
from replay.answer import CROWDED
from replay.edit import Edit, EditRequest, Job, Order
from replay.links import LinkRate, bytes_of, is_sized, with_sizes
from replay.selection import as_ratio
from replay.usual_times import scaled, with_work
from replay.whatif.collective_times import at_bandwidth, crowded_ns, with_latency

_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMG])bit(?:/s)?", re.IGNORECASE)
_BITS = {"K": 1e3, "M": 1e6, "G": 1e9}
_LEAST_RATE = 1e-6  # bytes per nanosecond
#: Tensors get this share of a link's bandwidth; headers and acknowledgements take the remainder.
_GOODPUT = 0.95
#: This share of the messages of a kind counts as quick: nothing delayed them.
_QUICK = 0.2


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `bandwidth=`, `latency=` and `schedule=`; None for any other request."""
    if request.asks("schedule", "priority", "fifo"):
        return _of_schedule(by_tensor=request.value == "priority")
    if request.name == "latency":
        return _of_latency(request, job)
    if request.name != "bandwidth":
        return None
    target = _absolute(request)
    ratio = as_ratio(request, ", nor a rate such as 200Mbit or 10Gbit") if target is None else None
    if job.collectives and not job.recording.links:
        return _of_collectives(job, ratio, target)
    links = job.links

    def apply(recording: Recording) -> Recording:
        if target is not None and (links is None or not is_sized(job.recording)):
            raise TraceError(
                "bandwidth: the bytes of the transfers are not recorded; give a ratio (bandwidth=2)"
            )
        times = _times(links, ratio, target)
        if links is not None and recording.sides:
            recording = _with_limits(recording, links, times, ratio)
        return times_faster(recording, times, None if links is None else links.at_most)

    return Edit(apply, order=Order.BANDWIDTH, caution=_caution(job))


def _of_collectives(job: Job, ratio: float | None, target: float | None) -> Edit:
    def apply(recording: Recording) -> Recording:
        return at_bandwidth(job, recording, times=ratio or 1.0, target=target or 0.0)

    error_ns = _crowded(job.recording, ratio)
    return Edit(apply, order=Order.BANDWIDTH, error_ns=error_ns, caution=_caution(job))


def _with_limits(recording: Recording, links: LinkRate, times: float, ratio: float | None) -> Recording:
    """Set the limits of nodes for links that are `times` as fast.

    Slow nodes keep a `ratio`; an absolute bandwidth is that of all nodes.
    """
    sides, _ = links.limits(recording.links)
    *carries, within = recording.carries
    carries = [min(side * ratio / times, 1.0) if ratio and side < 1 else 1.0 for side in carries]
    return replace(recording, sides=sides, carries=[*carries, within / times])


def _caution(job: Job) -> str:
    """Describe the assumption about links of unknown rate."""
    rate = job.links
    if rate is None:
        return "" if job.collectives else "the rate of the links is not known; a ratio scales whole transfers"
    if not is_sized(job.recording):
        return "the rate of the links is not known; sizes are taken from the copies to host memory"
    if rate.is_certain:
        return ""
    least, most = (f"{bytes_per_ns * 8e3:,.0f}" for bytes_per_ns in (rate.at_least, rate.at_most))
    return f"the links were never busy for long; they carried {least} Mbit/s once and may carry {most}"


def _times(links: LinkRate | None, ratio: float | None, target: float | None) -> float:
    """Ratio of the wanted link rate to that of the unedited job."""
    if links is None:
        return ratio or 1.0
    wanted = ratio or 1.0 if target is None else target * _GOODPUT / links.likely
    return wanted * links.likely / links.at_most if wanted < 1 else wanted


def _crowded(recording: Recording, ratio: float | None) -> float:
    """Bound the change of kernels beside collectives that are `ratio` times as fast (ns per step)."""
    beside, at_all = crowded_ns(recording)
    if ratio is None:
        return CROWDED * beside
    return CROWDED * (min(beside / ratio, at_all) - beside if ratio < 1 else beside * (1 - 1 / ratio))


def _of_latency(request: EditRequest, job: Job) -> Edit:
    times, latency = as_ratio(request), job.collectives.latency
    if not latency.any():
        raise request.refused("the bytes of collectives are not recorded, so their latency is unknown")
    return Edit(lambda recording: with_latency(recording, latency, times), order=Order.LATENCY)


def _absolute(request: EditRequest) -> float | None:
    """Parse an absolute bandwidth into bytes per nanosecond; None for a ratio."""
    absolute = _RATE.fullmatch(request.value)
    if absolute is None:
        return None
    target = float(absolute[1]) * _BITS[absolute[2].upper()] / 8 / 1e9
    if target < _LEAST_RATE:
        raise request.refused("a bandwidth must be above 0, and at least 8 Kbit")
    return target


def times_faster(recording: Recording, factor: float, rate: float | None) -> Recording:
    """Make links of `rate` (bytes/ns) `factor` times as fast.

    The time of the bytes changes. On faster links messages also wait less behind unrecorded bytes: the time
    beyond the quick messages of their kind shrinks. Latency and the computation of a transfer stay. Without
    even relative sizes the whole transfer changes.
    """
    if not recording.links and not any(op.is_communication for op in recording.operations.kinds):
        raise TraceError("bandwidth: no transfer between ranks is recorded")
    if factor == 1:
        return recording
    moves = recording.which(lambda op: op.transfer.link if recording.links else op.is_communication)
    if rate is None or not recording.links:
        edited = scaled(recording, np.where(moves, 1 / factor, 1.0))
    else:
        more_ns = np.where(moves, bytes_of(with_sizes(recording)) / rate * (1 / factor - 1), 0.0)
        edited = with_work(
            recording, (np.maximum(step.work_ns + more_ns[step.operation], 0.0) for step in recording.steps)
        )
    return edited if factor < 1 else _shorter_waits(edited, factor)


def _shorter_waits(recording: Recording, factor: float) -> Recording:
    """Divide by `factor` the time that messages wait longer than the quick ones of their kind."""
    work = [step.work_ns.astype(np.float64) for step in recording.steps]
    directions, number_of = recording.numbered(lambda op: op.transfer.is_wait and op.transfer.direction)
    for number, direction in enumerate(directions):
        if direction not in (Direction.TO_SERVER, Direction.FROM_SERVER):
            continue
        chosen = [number_of[step.operation] == number for step in recording.steps]
        times = np.concatenate([of_step[events] for of_step, events in zip(work, chosen, strict=True)])
        quick = float(np.quantile(times, _QUICK))
        for of_step, events in zip(work, chosen, strict=True):
            longer = np.maximum(of_step[events] - quick, 0)
            of_step[events] = np.minimum(of_step[events], quick + longer / factor)
    return with_work(recording, work)


def _of_schedule(*, by_tensor: bool) -> Edit:
    """Serve first the lowest tensor index, or what came first, instead of the recorded order."""

    def rescheduled(recording: Recording) -> Recording:
        priority = recording.column(lambda op: max(op.transfer.tensor, 0)) * by_tensor
        none = np.empty((0, 2), np.int64)
        return recording.edited(lambda step: replace(step, turn=priority[step.operation], overtaken=none))

    return Edit(rescheduled, order=Order.WAITS)
