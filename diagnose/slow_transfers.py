"""What makes transfers longer than their bytes: slow links, small messages, servers, order, negotiation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from diagnose.even_work import scaled
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.step_parts import WAIT, Operation
from errors import counted
from formats.columns import Int64, unique
from intervals import at_once, union
from replay.uncertainty import Float
from replay.whatif.bandwidth import is_sized, link_rate
from replay.whatif.edits import apply
from replay.whatif.partition import at_partition_bytes

#: A link or collective that takes this much longer than its peers is slow.
_SLOW = 1.5
#: Collectives of one size class that it takes to know what is usual.
_PEERS = 3
#: A collective that takes no longer than this many times the shortest is latency, hardly bytes; so many
#: of them in a step are many; and merging leaves one in so many.
_LATENCY, _MANY, _MERGED = 2.0, 16, 10
#: Partitions below this size are small, and merged into such of that size.
_SMALL_BYTES, _LARGE_BYTES = 256 << 10, 4 << 20
_NO_LINKS = "no links to servers are recorded"
_NO_BYTES = "the bytes of the transfers are not recorded"
#: The end of an event and that of its slice differ by no more than this.
_TOLERANCE_NS = 2_000


class Transfer(NamedTuple):
    """One operation that moves data, over all steps: its rate (GB/s) is that of the link."""

    operation: Operation
    n_bytes: float
    rate: float
    exposed_ns: float  # of an average step: while the rank computed nothing


def slow_links(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the worker whose pushes take longer than those of the same partitions elsewhere."""
    recording = view.recording
    pushes = view.which(lambda one: one.link and one.stage == "PUSH")
    if not pushes.any() or len(recording.owners) < 2:
        yield from slow_collectives(view)
        return
    ratios = _push_ratios(view, pushes)
    owner = int(ratios.argmax())
    if ratios[owner] <= _SLOW:
        return
    name = recording.owners[owner]
    edit = f"{name}.PUSH={1 / ratios[owner]:.3g}"
    chosen = pushes & view.which(lambda one: one.owner == owner)
    yield Finding(
        kind="slow_collective",
        title=f"the link of {name} is slow: its pushes take {ratios[owner]:.1f} times as long as its peers'",
        cause="pushes of the same partitions are compared, without the waiting for the link",
        action="look at its network: speed of the port, errors, other traffic, the path to the servers",
        edit=lambda one: apply(one, [edit]),
        change=edit,
        ranks=[name],
        operations=["PUSH"],
        evidence=view.show(chosen, 3),
    )


def _push_ratios(view: JobView, pushes: Bool) -> Float:
    """Return how much longer the pushes of each owner (m,) take than the same ones of its peers; 0: none."""
    n_owners = len(view.recording.owners)
    keys, number = view.recording.numbered(lambda one: (one.main, one.key))
    total = np.zeros((n_owners, len(keys)))
    for row in view.rows:
        step = view.recording.steps[row]
        mine = pushes[step.operation]
        np.add.at(total, (step.owner[mine], number[step.operation[mine]]), step.work_ns[mine])
    pushing = np.flatnonzero(total.sum(axis=1))  # of several GPUs of a worker only one pushes
    total = total[pushing][:, (total[pushing] > 0).all(axis=0)]
    ratios = np.zeros(n_owners)
    if len(pushing) > 1 and total.size:
        sums = total.sum(axis=1)
        peers = [np.median(np.delete(sums, place)) for place in range(len(pushing))]
        ratios[pushing] = sums / np.maximum(peers, 1)
    return ratios


def slow_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    """Find collectives whose bus bandwidth is below that of others of their kind and size."""
    found = _bandwidths(view)
    if not len(found):
        yield Skipped("slow_collective", _NO_BYTES)
        return
    operation, group, rate, place = found[:, 0].astype(np.int64), found[:, 1], found[:, 2], found[:, 3]
    factor = np.ones(len(view.recording.operations))
    slow = []
    for one in unique(group):
        members = np.flatnonzero(group == one)
        # tensors that are reduced together are one collective
        usual = float(np.median(rate[members[np.unique(place[members], return_index=True)[1]]]))
        if len(np.unique(place[members])) >= _PEERS:
            late = members[rate[members] * _SLOW < usual]
            factor[operation[late]] = rate[late] / usual
            slow += [(int(operation[i]), float(rate[i]), usual, int(place[i])) for i in late.tolist()]
    if not slow:
        return
    worst, its_rate, usual, _ = min(slow, key=lambda one: one[1] / one[2])
    name = view.recording.operations[worst].main
    n_slow = len({place for *_, place in slow})
    yield Finding(
        kind="slow_collective",
        title=f"{counted(n_slow, 'collective')} {'is' if n_slow == 1 else 'are'} slower than others of "
        f"{'its' if n_slow == 1 else 'their'} size, {name}{'' if n_slow == 1 else ' most'}",
        cause=f"its bus bandwidth is {its_rate:.1f} GB/s where others of its kind and size have {usual:.1f}",
        action="look at what runs beside it, at the ranks of its group, and at the links between their hosts",
        edit=lambda one: _scaled(one, factor),
        ranks=[
            view.recording.owners[i] for i in sorted({view.recording.operations[j].owner for j, *_ in slow})
        ],
        operations=sorted({view.recording.operations[i].main for i, *_ in slow}),
        evidence=view.show(factor < 1, 3),
    )


def _bandwidths(view: JobView) -> Float:
    """Return operation, class, bus bandwidth (GB/s), turn and bytes of collectives (k, 5).

    The class is their kind, group and size. The turn counts a rank's collectives of a step; tensors that are
    reduced together have the same.
    """
    found: list[tuple[int, int, float, int, float]] = []
    classes: dict[object, int] = {}
    steps = [view.loaded.recording.steps[row] for row in view.rows]
    events = [view.by_owner(step, view.is_communication) for step in steps]
    for owner, rank in enumerate(view.loaded.ranks):
        sizes, ends = rank.sizes, rank.sizes_end_ns
        if not len(sizes.row):
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
            places, turn = order[at[near]], _turns(step, sized)
            for event, *of_event in zip(sized.tolist(), places.tolist(), turn.tolist(), strict=True):
                operation = int(step.operation[event])
                which[operation] = of_event[0], of_event[1]
                times.setdefault(operation, []).append(float(step.work_ns[event]))
        for operation, (place, number) in which.items():
            n_bytes, n_ranks = float(sizes.n_bytes[place]), int(sizes.n_ranks[place])
            kind = (sizes.kind[place], n_ranks, round(np.log2(max(n_bytes, 1.0))))
            rate = n_bytes * sizes.bus_factor(place) / max(float(np.median(times[operation])), 1.0)
            found.append((operation, classes.setdefault(kind, len(classes)), rate, number, n_bytes))
    return np.array(found, np.float64).reshape(-1, 5)


def transfers(view: JobView) -> tuple[list[Transfer], float]:
    """Return the transfers whose bytes are known, and what their link carries (GB/s).

    That is what BytePS's links do; for collectives it is the best bus bandwidth seen.
    """
    recording = view.recording
    exposed = _exposed_ns(view)
    if len(found := _bandwidths(view)):
        rows = zip(found[:, 0].astype(np.int64).tolist(), found[:, 4], found[:, 2], strict=True)
        best = float(found[:, 2].max())
    else:
        known = link_rate(recording) if is_sized(recording) else None
        if known is None:
            return [], 0.0
        n_bytes = recording.column(lambda one: one.n_bytes if one.link else 0)
        at = np.flatnonzero(n_bytes)
        rows = zip(at.tolist(), n_bytes[at], n_bytes[at] / _usual_work_ns(view)[at], strict=True)
        best = known.carried
    operations = recording.operations
    return [
        Transfer(operations[i], float(n_bytes), float(rate), float(exposed[i])) for i, n_bytes, rate in rows
    ], best


def _usual_work_ns(view: JobView) -> Float:
    """Return the median work of each operation (n,) over the whole steps, 1 at least."""
    operation, work = (
        np.concatenate([getattr(view.recording.steps[row], column) for row in view.rows])
        for column in ("operation", "work_ns")
    )
    order = np.lexsort((work, operation))
    count = np.bincount(operation, minlength=len(view.recording.operations))
    middle = np.cumsum(count) - count + count // 2
    usual = work[order][np.minimum(middle, len(order) - 1)]
    return np.maximum(np.where(count > 0, usual, 1), 1).astype(np.float64)


def _exposed_ns(view: JobView) -> Float:
    """Return for how long of a step, on average, each operation (n,) ran while its rank computed nothing."""
    recording = view.recording
    exposed = np.zeros(len(recording.operations))
    on_device = view.which(lambda one: one.on_device)  # where there is one, it is what computes
    is_compute = view.which(
        lambda one: one.is_compute and one.cat != "STEP"
    )  # in which BytePS waits for them
    is_compute &= on_device == on_device.any()
    for row in view.rows:
        step = recording.steps[row]
        by_owner = view.by_owner(step, view.is_communication)
        for mine, computing in zip(by_owner, view.by_owner(step, is_compute), strict=True):
            start, end = step.start_ns[mine], step.end_ns[mine]
            begin, until = union(step.start_ns[computing], step.end_ns[computing])
            busy = np.cumsum(np.stack([begin * 0, until - begin], 1).reshape(-1))
            edges = np.stack([begin, until], 1).reshape(-1)
            hidden = np.interp(end, edges, busy) - np.interp(start, edges, busy) if len(edges) else 0
            np.add.at(exposed, step.operation[mine], end - start - hidden)
    return exposed / max(len(view.rows), 1)


def _turns(step: StepGraph, events: Int64) -> Int64:
    """Return a number for each of some events of a step: the same for those that work at the same time."""
    return at_once(step.end_ns[events] - step.work_ns[events], step.end_ns[events])


def _scaled(recording: Recording, factor: Float) -> Recording:
    """Return the recording with the work of each operation (n,) times its factor; 1 for any that is new."""
    return scaled(recording, np.append(factor, np.ones(len(recording.operations) - len(factor))))


# ---- small messages


def small_messages(view: JobView) -> Iterator[Finding | Skipped]:
    """Find many transfers whose time is latency, not bytes."""
    parts = [one for one in view.recording.operations if one.key is not None]
    if not view.is_communication.any():
        yield Skipped("small_messages", "no communication between ranks is recorded")
        return
    if not parts:
        yield from _short_collectives(view)
        return
    if not any(one.n_bytes for one in parts):
        yield Skipped("small_messages", f"{_NO_BYTES}; BytePS's log has them")
        return
    sizes = np.array([one.n_bytes for one in parts if one.n_bytes])
    per_tensor = len({(one.owner, one.main, one.key) for one in parts}) / len(
        {(one.owner, one.main) for one in parts}
    )
    if np.median(sizes) > _SMALL_BYTES or per_tensor < 2:
        return
    known = link_rate(view.recording)
    rate = None if known is None else known.carried
    yield Finding(
        kind="small_messages",
        title=f"partitions are small: {np.median(sizes) / 1024:,.0f} KiB, {per_tensor:.0f} to a tensor",
        cause="every partition costs a request and an answer, whatever its size",
        action=f"raise BYTEPS_PARTITION_BYTES (here it is about {sizes.max():,})",
        edit=lambda one: at_partition_bytes(one, _LARGE_BYTES, rate),
        change=f"partition_bytes={_LARGE_BYTES}",
        ranks=view.recording.owners,
        operations=sorted({one.main for one in parts})[:3],
        evidence=view.show(view.which(lambda one: one.stage == "PUSH"), 1),
    )


def _short_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    collectives = view.which(_is_reduced)
    if not collectives.any():
        return
    steps = view.recording.steps  # each is made anew when it is asked for: together they are large
    works = [step.work_ns[collectives[step.operation]] for step in map(steps.__getitem__, view.rows)]
    shortest = _shortest_ns(works)
    at_most = [(work <= _LATENCY * shortest).sum() / len(view.recording.owners) for work in works]
    if np.median(at_most) < _MANY:
        return
    counts = []
    for step in map(steps.__getitem__, view.rows):
        short = (own[step.work_ns[own] <= _LATENCY * shortest] for own in view.by_owner(step, collectives))
        counts.append(np.mean([_n_turns(step, own) for own in short]))
    often = float(np.median(counts))
    if often < _MANY:
        return
    names, kind = view.kind_of
    chosen = [names[i] for i in unique(kind[collectives]).tolist()]
    yield Finding(
        kind="small_messages",
        title=f"{often:,.0f} collectives a step are so short that they are latency, hardly bytes",
        cause=f"they take at most {_LATENCY * shortest / 1e3:.0f} µs each, not much more than the shortest",
        action="merge them: larger buckets (bucket_cap_mb), a larger fusion buffer, coalesced collectives",
        edit=lambda one: _merged(one, shortest),
        ranks=view.recording.owners,
        operations=chosen[:3],
        evidence=view.show(collectives, 1),
        caveat=f"the gain is for one in {_MERGED} of them",
    )


def _n_turns(step: StepGraph, events: Int64) -> int:
    return len(np.unique(_turns(step, events)))


def _is_reduced(one: Operation) -> bool:
    return one.is_collective and one.is_communication


def _shortest_ns(works: Sequence[Int64]) -> float:
    work = np.concatenate(works)
    work = work[work > 0]
    return float(np.quantile(work, 0.05)) if len(work) else 0.0


def _merged(recording: Recording, shortest: float) -> Recording:
    """Return the recording in which one in some of the short collectives of each owner takes any time."""
    collectives = recording.which(_is_reduced)
    steps = []
    for step in recording.steps:
        work = step.work_ns.copy()
        events = np.flatnonzero(collectives[step.operation] & (work <= _LATENCY * shortest))
        for owner in range(len(recording.owners)):
            own = events[step.owner[events] == owner]
            work[own[_turns(step, own) % _MERGED > 0]] = 0
        steps.append(replace(step, work_ns=work))
    return replace(recording, steps=steps)


# ---- servers, and the order in which they are asked


def slow_server(view: JobView) -> Iterator[Finding | Skipped]:
    """Find pulls that take longer than their bytes although everything was pushed: the server's own time."""
    recording = view.recording
    pulls = view.which(_is_pull)
    if not pulls.any():
        yield Skipped("server", _NO_LINKS)
        return
    known = link_rate(recording) if is_sized(recording) else None
    if known is None:
        yield Skipped("server", f"{_NO_BYTES}; BytePS's log has them")
        return
    rate = known.carried
    wire = recording.column(lambda one: one.n_bytes) / rate
    beyond = []
    for row in view.rows:
        step = recording.steps[row]
        mine = pulls[step.operation]
        beyond.append(np.maximum(step.work_ns - wire[step.operation], 0)[mine].sum() / len(recording.owners))
    usual = float(np.median(beyond))
    uneven = _uneven_servers(view)
    yield Finding(
        kind="server",
        title=f"the servers take {usual / 1e6:.1f} ms a step of each worker beyond the time of the bytes",
        cause=f"pulls end that much after the last push and the time that their bytes need{uneven}",
        action="give the servers more cores or threads (BYTEPS_SERVER_ENGINE_THREAD), or use more servers",
        edit=lambda one: _as_fast_as_wire(one, rate),
        ranks=recording.owners,
        operations=["PULL"],
        evidence=view.show(pulls, 3),
        caveat="an upper bound: servers that take no time at all",
    )


def _is_pull(one: Operation) -> bool:
    return bool(one.link) and one.stage == "PULL"


def _uneven_servers(view: JobView) -> str:
    """Return how uneven the bytes lie on the servers, as words that end a cause; "" where they are even."""
    load: dict[str, int] = {}
    for one in view.recording.operations:
        if one.stage == "PULL" and one.owner == 0:
            load[one.link] = load.get(one.link, 0) + one.n_bytes
    if len(load) < 2 or max(load.values()) < _SLOW * np.mean(list(load.values())):
        return ""
    most = max(load, key=lambda link: load[link])
    return f"; {most.removesuffix(' PULL')} holds {load[most] / sum(load.values()):.0%} of the bytes"


def _as_fast_as_wire(recording: Recording, rate: float) -> Recording:
    """Return the recording in which pulls take no longer than their bytes at `rate` (bytes/ns)."""
    pulls = recording.which(_is_pull)
    wire_ns = recording.column(lambda one: one.n_bytes) / rate
    steps = []
    for step in recording.steps:
        least = np.minimum(step.work_ns, np.rint(wire_ns[step.operation])).astype(np.int64)
        steps.append(replace(step, work_ns=np.where(pulls[step.operation], least, step.work_ns)))
    return replace(recording, steps=steps)


def priority_inversion(view: JobView) -> Iterator[Finding | Skipped]:
    """Find tensors that the next step needs first and that are sent last."""
    if not view.recording.links:
        yield Skipped("priority_inversion", _NO_LINKS)
        return
    late = _overtaken(view)
    if late is None:
        return
    first, share = late
    yield Finding(
        kind="priority_inversion",
        title=f"{first} is needed first but waits behind others",
        cause=f"in {share:.0%} of the steps one that the next forward pass needs later was sent before it",
        action="send by priority (BYTEPS_SCHEDULING_CREDIT, smaller partitions)",
        edit=lambda one: apply(one, ["schedule=priority"]),
        change="schedule=priority",
        ranks=view.recording.owners,
        operations=[first],
        evidence=view.show(view.which(lambda one: one.main == first and one.stage == "PUSH"), 1),
    )


def _overtaken(view: JobView) -> tuple[str, float] | None:
    """Return the tensor of the lowest index that waited for another on its link, and in how many steps."""
    recording = view.recording
    index = recording.column(lambda one: -1 if one.key is None else one.key >> 16)
    waited: dict[int, int] = {}
    for row in view.rows:
        step = view.recording.steps[row]
        moving = np.flatnonzero((step.link != NO_LINK) & (step.end_ns - step.start_ns > step.work_ns))
        late = set()
        for event in moving.tolist():
            same = (step.link == step.link[event]) & (index[step.operation] > index[step.operation[event]])
            same &= (step.end_ns > step.start_ns[event]) & (step.end_ns <= step.end_ns[event])
            if same.any():
                late.add(int(index[step.operation[event]]))
        for one in late:
            waited[one] = waited.get(one, 0) + 1
    if not waited:
        return None
    lowest = min(waited)
    name = next(one.main for one in recording.table.kinds if one.key is not None and one.key >> 16 == lowest)
    return name, waited[lowest] / len(view.rows)


# ---- negotiation


def negotiation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time that passes although all ranks are ready: until the negotiating thread looks again."""
    waits = view.which(lambda one: one.cat == WAIT)
    if not waits.any():
        yield Skipped("negotiation", "no negotiation is recorded")
        return
    recording = view.recording
    found = []
    for row in view.rows:
        step = recording.steps[row]
        negotiated = waits[step.operation]
        reduced = step.edges[negotiated[step.edges[:, 0]], 1]
        found.append(step.work_ns[negotiated].max(initial=0) + step.gap_ns[reduced].max(initial=0))
    n_reduced = np.median([waits[recording.steps[row].operation].sum() for row in view.rows])
    yield Finding(
        kind="negotiation",
        title=f"reductions begin up to {np.median(found) / 1e6:.1f} ms after all ranks are ready",
        cause=f"{n_reduced:.0f} tensors are negotiated in a step, and looked at once in a cycle",
        action="shorten HOROVOD_CYCLE_TIME, or raise HOROVOD_FUSION_THRESHOLD for fewer reductions",
        edit=without_negotiation,
        ranks=recording.owners,
        operations=view.mains(waits)[:3],
        evidence=view.show(waits, 1),
    )


def without_negotiation(recording: Recording) -> Recording:
    """Return the recording in which a reduction begins as soon as the last rank is ready."""
    waits = recording.which(lambda one: one.cat == WAIT)
    steps = []
    for step in recording.steps:
        negotiated = waits[step.operation]
        gap = step.gap_ns.copy()
        gap[step.edges[negotiated[step.edges[:, 0]], 1]] = 0
        steps.append(replace(step, work_ns=np.where(negotiated, 0, step.work_ns), gap_ns=gap))
    return replace(recording, steps=steps)
