"""Transfers that take longer than others of their bytes: slow links, slow collectives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from arrays import Float64, Int64
from arrays.intervals import at_once
from arrays.numbering import unique
from dag.step_graph import Bool, Recording, StepGraph
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.step_parts import Operation
from errors import counted
from figures.time_by_role import Slices, time_of_ids
from replay.whatif.bandwidth import is_sized, link_rate
from replay.whatif.edits import apply
from replay.whatif.even_work import scaled

#: A link or collective that takes this much longer than its peers is slow.
_SLOW = 1.5
#: Collectives of one size class that it takes to know what is usual.
_PEERS = 3
NO_BYTES = "the bytes of the transfers are not recorded"
#: The end of an event and that of its slice differ by no more than this.
_TOLERANCE_NS = 2_000


class TransferRate(NamedTuple):
    """One operation that moves data, over all steps: its rate (GB/s) is that of the link."""

    operation: Operation
    n_bytes: float
    rate: float
    exposed_ns: float  # what it takes of an average step while its rank computes nothing


def slow_links(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the worker whose pushes take longer than those of the same partitions elsewhere."""
    recording = view.recording
    pushes = view.which(lambda one: one.transfer.is_sent)
    if not pushes.any() or len(recording.owners) < 2:
        yield from slow_collectives(view)
        return
    ratios = _ratios(view, pushes)
    owner = int(ratios.argmax())
    if ratios[owner] <= _SLOW:
        return
    name, stages = recording.owners[owner], view.stages(lambda part: part.is_sent)
    slow = dict.fromkeys(stages, float(ratios[owner]))
    pulls = view.which(lambda one: one.transfer.is_answer)
    back = float(_ratios(view, pulls)[owner])
    if back > _SLOW:
        slow |= dict.fromkeys(view.stages(lambda part: part.is_answer), back)
    edits = [f"{name}.{stage}={1 / ratio:.3g}" for stage, ratio in slow.items()]
    chosen = pushes & view.which(lambda one: one.owner == owner)
    yield Finding(
        kind="slow_collective",
        title=f"the link of {name} is slow: its pushes take {ratios[owner]:.1f} times as long as its peers'"
        + (f", its pulls {back:.1f} times" if back > _SLOW else ""),
        cause="transfers of the same partitions are compared, without the waiting for the link",
        action="look at its network: speed of the port, errors, other traffic, the path to the servers",
        edit=lambda one: apply(one, edits),
        change=" ".join(edits),
        ranks=[name],
        operations=list(slow),
        evidence=view.show(chosen, 3),
    )


def _ratios(view: JobView, chosen: Bool) -> Float64:
    """Return how much longer `chosen` transfers (n,) of each owner (m,) take than its peers'; 0: none.

    The median over the steps; 0 where the steps differ so much that no link is the cause: where the lower
    quartile is at most its square root.
    """
    n_owners = len(view.recording.owners)
    keys, number = view.recording.numbered(lambda one: (one.main, one.transfer.key))
    is_sent = np.zeros((n_owners, len(keys)), np.bool_)
    for step in view.steps:
        mine = chosen[step.operation] & (step.work_ns > 0)
        is_sent[step.owner[mine], number[step.operation[mine]]] = True
    sending = np.flatnonzero(is_sent.any(axis=1))  # of several GPUs of a worker only one pushes
    by_all = np.flatnonzero(is_sent[sending].all(axis=0))
    alike = chosen & np.isin(number, by_all)
    ratios = np.zeros(n_owners)
    if len(sending) > 1 and alike.any():
        took = [
            np.bincount(step.owner, step.work_ns * alike[step.operation], n_owners)[sending]
            for step in view.steps
        ]
        peers = [np.median(np.delete(took, place, axis=1), axis=1) for place in range(len(sending))]
        by_step = np.array(took) / np.maximum(np.transpose(peers), 1)
        low, usual = np.quantile(by_step, [0.25, 0.5], axis=0)
        ratios[sending] = np.where(low**2 > usual, usual, 0.0)
    return ratios


def slow_collectives(view: JobView) -> Iterator[Finding | Skipped]:
    """Find collectives whose bus bandwidth is below that of others of their kind and size."""
    found = _bandwidths(view)
    if not len(found):
        yield Skipped("slow_collective", NO_BYTES)
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
        caveat="ranks are not recorded: it may be slow, or wait for one of them" if view.lacks_ranks else "",
    )


def _bandwidths(view: JobView) -> Float64:
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
            places, turn = order[at[near]], turns(step, sized)
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


def bytes_at_once(view: JobView) -> Float64:
    """Return how much each operation (n,) moves together with others that are one collective; 0: unknown."""
    found = np.zeros(len(view.recording.operations))
    known = _bandwidths(view)
    if len(known):
        operation, place = known[:, 0].astype(np.int64), known[:, 3].astype(np.int64)
        together = view.recording.column(lambda one: one.owner)[operation] * (place.max() + 1) + place
        found[operation] = np.bincount(together, known[:, 4])[together]
    return found


def transfers(view: JobView) -> tuple[list[TransferRate], float]:
    """Return the transfers whose bytes are known, and what their link carries (GB/s).

    That is what BytePS's links do; for collectives it is the best bus bandwidth seen.
    """
    recording = view.recording
    exposed = exposed_ns(view)
    if len(found := _bandwidths(view)):
        rows = zip(found[:, 0].astype(np.int64).tolist(), found[:, 4], found[:, 2], strict=True)
        best = float(found[:, 2].max())
    else:
        known = link_rate(recording) if is_sized(recording) else None
        if known is None:
            return [], 0.0
        n_bytes = recording.column(lambda one: one.transfer.n_bytes if one.transfer.link else 0)
        at = np.flatnonzero(n_bytes)
        rows = zip(at.tolist(), n_bytes[at], n_bytes[at] / _usual_work_ns(view)[at], strict=True)
        best = known.carried
    operations = recording.operations
    return [
        TransferRate(operations[i], float(n_bytes), float(rate), float(exposed[i]))
        for i, n_bytes, rate in rows
    ], best


def _usual_work_ns(view: JobView) -> Float64:
    """Return the median work of each operation (n,) over the whole steps, 1 at least."""
    operation, work = (
        np.concatenate([getattr(step, column) for step in view.steps]) for column in ("operation", "work_ns")
    )
    order = np.lexsort((work, operation))
    count = np.bincount(operation, minlength=len(view.recording.operations))
    middle = np.cumsum(count) - count + count // 2
    usual = work[order][np.minimum(middle, len(order) - 1)]
    return np.maximum(np.where(count > 0, usual, 1), 1).astype(np.float64)


def exposed_ns(view: JobView) -> Float64:
    """Return what each operation (n,) takes of an average step of its rank while that computes nothing.

    Of transfers that run at once each has its part, so that all add up to what is exposed of them.
    """
    recording, n = view.recording, len(view.recording.operations)
    role = recording.column(lambda one: one.role).astype(np.int8)
    taken = np.zeros(n)
    for step in view.steps:
        for owner, events in enumerate(view.by_owner(step, np.ones(n, np.bool_))):
            ends = step.end_ns[events]
            slices = Slices.of(step.start_ns[events], ends, events, role[step.operation[events]])
            bounds = step.begin_ns[[owner]], np.maximum(step.next_ns[[owner]], ends.max(initial=0))
            taken += time_of_ids(slices, step.operation[events], n, *bounds)[0]
    return np.where(view.is_communication, taken, 0.0) / max(len(view.rows), 1)


def turns(step: StepGraph, events: Int64) -> Int64:
    """Return a number for each of some events of a step: the same for those that work at the same time."""
    return at_once(step.end_ns[events] - step.work_ns[events], step.end_ns[events])


def _scaled(recording: Recording, factor: Float64) -> Recording:
    """Return the recording with the work of each operation (n,) times its factor; 1 for any that is new."""
    return scaled(recording, np.append(factor, np.ones(len(recording.operations) - len(factor))))
