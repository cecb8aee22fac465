"""Reduction of gradients: after the backward pass, or in larger buckets."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.numbering import places_by_value
from analyzer.model.graph.step_graph import Recording, StepGraph, operation_edges
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.recorded_collectives import may_reduce
from analyzer.reading.dialects.roles import Phase
from analyzer.reading.dialects.step_parts import Joint
from replay.answer import CROWDED
from replay.edit import Edit, EditRequest, Job, Order
from replay.engine import make_plan, simulate
from replay.whatif.collective_times import crowded_ns

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]+)?)([KMG])B")
#: A full bucket holds fewer than this many caps: the last gradient is seldom larger than the cap.
_MOST_CAPS = 2.0
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `overlap=` and `bucket_cap=`; None for any other request."""
    recording = job.recording
    if request.name == "bucket_cap":
        size = _SIZE.fullmatch(request.value)
        if size is None:
            raise request.refused("not a number of KB, MB or GB")
    elif request.asks("overlap", "off"):
        size = None
    else:
        return None
    reduced = []  # bytes of the buckets of each owner and step
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        buckets, n_bytes = _buckets(job, recording, step)
        reduced += [n_bytes[places] for places in places_by_value(step.owner[buckets])]
    if not reduced:
        raise request.refused("no reduction of gradients begins in a recorded backward pass")
    if size is None:
        return Edit(without_overlap, order=Order.WAITS, error_ns=CROWDED * crowded_ns(recording)[0])
    if np.concatenate(reduced).min() == 0:
        raise request.refused("the bytes of the gradients are not recorded (profile with record_shapes=True)")
    cap = float(size[1]) * _BYTES[size[2]]
    # the cap closed all buckets except the last one of a pass; the first one may have had a smaller cap
    full = float(
        np.median([n_bytes[1:-1].min() if len(n_bytes) > 2 else n_bytes.max() for n_bytes in reduced])
    )
    if full > _MOST_CAPS * cap:
        raise request.refused(
            f"recorded buckets cannot be divided, and the smallest full one has {full / _BYTES['M']:.3g} MB; "
            "a cap must be at least half of that"
        )
    if full >= cap:  # it may be the recorded cap: the last gradient takes a bucket beyond the cap
        return Edit(lambda recording: recording)
    return Edit(lambda recording: joined(job, recording, cap), order=Order.EVENTS)


def without_overlap(recording: Recording) -> Recording:
    """Start the reductions of gradients after the backward pass of their rank.

    Events that wait for a reduction (buckets copied back) do not count as the backward pass.
    """
    track = recording.numbered(lambda op: (op.owner, op.track))[1]

    def edited(step: StepGraph) -> StepGraph:
        reduces, works = gradients(recording, step)
        works &= ~_reached(*operation_edges(step.edges), reduces)[1::2]
        events = np.flatnonzero(works)
        events = events[np.lexsort((step.end_ns[events], track[step.operation[events]]))]
        last = events[np.diff(track[step.operation[events]], append=-1) != 0]  # of each thread or stream
        late, early = np.nonzero(step.owner[None, last] == step.owner[reduces, None])
        chosen = np.flatnonzero(reduces)[late]
        zeros = np.zeros_like(chosen)
        edges = np.column_stack((last[early], chosen, zeros + Joint.END_TO_HEAD, zeros + Rule.EDITED))
        return replace(step, edges=np.concatenate((step.edges, edges)).astype(step.edges.dtype))

    return recording.edited(edited)


def joined(job: Job, recording: Recording, cap: float) -> Recording:
    """Join each owner's buckets in turn until they reach the cap.

    As in DDP, the gradient that fills a bucket to the `cap` closes it; here that is the last gradient of a
    recorded bucket.

    The last of the joined buckets reduces everything once its own gradients are ready. The others take no
    time, and events that wait for them wait for the last one. Its bytes take the usual time per byte.
    """
    latency_ns, per_byte = job.collectives.latency, _time_per_byte(job)

    def edited(step: StepGraph) -> StepGraph:
        buckets, n_bytes = _buckets(job, recording, step)
        into = buckets[_carriers(step.owner[buckets], n_bytes, cap)]
        work, edges = step.work_ns.astype(np.int64), step.edges
        carried = into != buckets
        total = np.bincount(into, n_bytes, len(step))
        carries = np.unique(into[carried])
        bytes_ns = total[carries] * per_byte[step.owner[carries]]
        work[carries] = np.rint(latency_ns[step.operation[carries]] + bytes_ns)
        work[buckets[carried]] = 0
        carrier = np.arange(len(step))
        carrier[buckets] = into
        is_bucket = np.isin(np.arange(len(step)), buckets)
        waits = (carrier[edges[:, 0]] != edges[:, 0]) & ~is_bucket[edges[:, 1]]
        waits &= np.isin(edges[:, 2], (Joint.END_TO_HEAD, Joint.END_TO_BODY))
        waits &= ~_leads_to(step, is_bucket)[edges[:, 1], 1]  # avoid cycles between buckets
        more = edges[waits]
        more = np.column_stack((carrier[more[:, 0]], more[:, 1:])).astype(edges.dtype)
        return replace(step, work_ns=work, edges=np.concatenate((edges, more)))

    return recording.edited(edited)


def _time_per_byte(job: Job) -> Float64:
    """Median time per byte of each owner's buckets (m,), without their latency."""
    recording, latency_ns = job.recording, job.collectives.latency
    paces: list[list[Float64]] = [[] for _ in recording.owners]
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        buckets, n_bytes = _buckets(job, recording, step)
        bytes_ns = np.maximum(step.work_ns[buckets] - latency_ns[step.operation[buckets]], 0.0)
        for owner, of_owner in enumerate(paces):
            known = (step.owner[buckets] == owner) & (n_bytes > 0)
            of_owner.append(bytes_ns[known] / n_bytes[known])
    of_owners = map(np.concatenate, paces)
    return np.array([np.median(of_owner) if len(of_owner) else 0.0 for of_owner in of_owners])


def _carriers(owner: Int64, n_bytes: Float64, cap: float) -> Int64:
    """Index (k,) of the last bucket in the group of each bucket of an `owner`, in order."""
    into: Int64 = np.arange(len(n_bytes))
    first, total = 0, 0.0
    for index, size in enumerate(n_bytes.tolist()):
        if (index and owner[index] != owner[index - 1]) or total >= cap:
            first, total = index, 0.0
        total += size
        into[first : index + 1] = index
    return into


def _buckets(job: Job, recording: Recording, step: StepGraph) -> tuple[Int64, Float64]:
    """Buckets of gradients of a step, owner by owner, and their bytes."""
    begun = gradients(recording, step)[0]
    begun[step.continued[:, 1]] = False
    buckets = np.flatnonzero(begun)
    buckets = buckets[np.lexsort((step.start_ns[buckets], step.owner[buckets]))]
    return buckets, job.collectives.bytes_of(job.recording.recorded_step(step))[buckets]


def gradients(recording: Recording, step: StepGraph) -> tuple[Mask, Mask]:
    """Masks (n,) of a step's reductions of gradients and of its backward pass.

    A rank launches the reductions in its backward pass. A reduction that the remaining pass waits for is part
    of the model, not a reduction of gradients.
    """
    moves = recording.which(lambda op: op.is_communication)[step.operation]
    together = moves & recording.which(lambda op: op.is_collective and may_reduce(op.name))[step.operation]
    backward = recording.which(lambda op: op.phase is Phase.BACKWARD)[step.operation]
    works, reduces = backward & ~moves, backward & together
    on_device = recording.which(lambda op: op.on_device)[step.operation]
    if (works & on_device).any():  # the host may be in another step
        works &= on_device
    if not reduces.any():  # launches are not recorded
        begin, end = (np.full(len(recording.owners), initial) for initial in (np.iinfo(np.int64).max, -1))
        np.minimum.at(begin, step.owner[works], step.start_ns[works])
        np.maximum.at(end, step.owner[works], step.end_ns[works])
        reduces = together & (step.start_ns >= begin[step.owner]) & (step.start_ns <= end[step.owner])
    goes_on = works & _leads_to(step, reduces)[:, 0]
    return reduces & ~_leads_to(step, goes_on, but_through=reduces)[:, 0], works


def _leads_to(step: StepGraph, chosen: Mask, *, but_through: Mask | None = None) -> Mask:
    """Mask of ends and starts of events (n, 2) that a `chosen` event waits for, directly or not.

    Paths through the events `but_through` (n,) do not count.
    """
    edges = step.edges if but_through is None else step.edges[~but_through[step.edges[:, 1]]]
    source, target = operation_edges(edges)
    return _reached(target ^ 1, source ^ 1, chosen).reshape(-1, 2)


def _reached(source: Int64, target: Int64, chosen: Mask) -> Mask:
    """Mask of heads (2i) and bodies (2i + 1) that are, or follow, the head of a chosen event.

    In a plan where only these heads take time, exactly their successors are delayed.
    """
    heads = np.arange(0, 2 * len(chosen), 2)
    edges = np.concatenate((np.column_stack((source, target)), np.column_stack((heads, heads + 1))))
    delay = np.zeros(2 * len(chosen), np.int64)
    delay[::2] = chosen
    return simulate(make_plan(delay, edges)).end_ns > 0
