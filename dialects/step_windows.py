"""A whole recording of one rank is cut into its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from dialects.masks import Mask
from dialects.step_parts import Joint, Meet, Operation, RankStep, from_start
from dialects.steps import Step
from formats.columns import Int64

Groups = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """The n events of a whole recording of one rank, and what they wait for.

    Attributes
    ----------
    kind : (n,) index into `kinds`; events of one kind are told apart by their order in a step
    start_ns, end_ns : (n,)
    issued_ns : (n,) when the work was asked for: the launch of a kernel; else the start
    leads : (n,) which events belong to what runs the steps (the main thread): the next step begins when
        the last of them is over
    edges : (m, 4) as of `RankStep.edges`
    meets : as of `RankStep.meets`
    """

    kinds: Sequence[Operation]
    kind: Int64
    start_ns: Int64
    end_ns: Int64
    issued_ns: Int64
    leads: Mask
    edges: Int64
    meets: Sequence[Meet] = field(default=())


def windows(steps: Sequence[Step]) -> list[tuple[int, int, int]]:
    """Return (number, begin, begin of the next) of each step; one that is followed by a pause ends itself.

    A pause is a number left out, or one longer than the step.
    """
    found = []
    for i, (number, begin, end) in enumerate(steps):
        following = steps[i + 1] if i + 1 < len(steps) else None
        goes_on = following is not None and following.label == number + 1
        if following is not None and goes_on and 0 <= following.start_ns - end <= end - begin:
            end = following.start_ns
        elif following is not None:
            end = min(end, following.start_ns)
        found.append((number, begin, end))
    return found


def cut_into_steps(
    events: RecordedEvents, bounds: Sequence[tuple[int, int, int]]
) -> tuple[list[Operation], list[RankStep]]:
    """Return the operations and the steps of a recording; `bounds` as from `windows`, in order.

    A step has what ran in it, from its begin on; what goes on in the next step is an event there as well.
    Work that was asked for before the step began is an operation of its own (`from_earlier_step`).
    """
    by_target = np.argsort(events.start_ns[events.edges[:, 1]], kind="stable")
    events = replace(events, edges=events.edges[by_target])
    parts = [_events_of(events, begin, end) for _, begin, end in bounds]
    labels = [
        2 * events.kind[one] + (events.issued_ns[one] < begin)
        for one, (_, begin, _) in zip(parts, bounds, strict=True)
    ]
    numbers, operations = _operations(events.kinds, labels)
    steps: list[RankStep] = []
    for one, operation, window in zip(parts, numbers, bounds, strict=True):
        before = parts[len(steps) - 1] if steps and steps[-1].next_ns == window[1] else one[:0]
        steps.append(_step(events, one, operation, window, before))
    return operations, steps


def _events_of(events: RecordedEvents, begin: int, end: int) -> Int64:
    """Return the events that ran between `begin` and `end`, by start."""
    starts_inside = (events.start_ns >= begin) & (events.start_ns < end)
    found = np.flatnonzero(starts_inside | ((events.start_ns < begin) & (events.end_ns > begin)))
    by_start: Int64 = found[np.argsort(events.start_ns[found], kind="stable")]
    return by_start


def _operations(kinds: Sequence[Operation], labels: Sequence[Int64]) -> tuple[list[Int64], list[Operation]]:
    """Return the operation of each step's events: the n-th of a label is the same in every step.

    `labels` are per step twice the kind, plus one for work of an earlier step.
    """
    counts = [np.bincount(one, minlength=2 * len(kinds)) for one in labels]
    most = np.max(counts, axis=0, initial=0) if counts else np.zeros(0, np.int64)
    offset = np.cumsum(most) - most
    numbers = [offset[one] + turns(one) for one in labels]
    variants = [kind for one in kinds for kind in (one, one._replace(from_earlier_step=True))]
    return numbers, [variants[i] for i in np.repeat(np.arange(len(most)), most).tolist()]


def turns(values: Int64) -> Int64:
    """Return how often each value (n,) has occurred before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    found = np.empty_like(values)
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return found


def _step(
    events: RecordedEvents, part: Int64, operation: Int64, window: tuple[int, int, int], before: Int64
) -> RankStep:
    number, begin, end = window
    new = np.full(len(events.kind), -1, np.int64)
    new[part] = np.arange(len(part))
    place_before = np.full(len(events.kind), -1, np.int64)
    place_before[before] = np.arange(len(before))
    goes_on = part[place_before[part] >= 0]
    return RankStep(
        number=number,
        begin_ns=begin,
        next_ns=end,
        operation=operation,
        start_ns=np.maximum(events.start_ns[part], begin),
        end_ns=events.end_ns[part],
        edges=_edges_within(events, new, begin, end),
        meets=_meets_within(events, new),
        last=_last_that_leads(events, part, new, end),
        continued=np.column_stack((place_before[goes_on], new[goes_on])),
        across=_edges_across(events, place_before, new, begin, end),
    )


def _last_that_leads(events: RecordedEvents, part: Int64, new: Int64, end: int) -> Int64 | None:
    """Return what the next step's begin waits for: the last event that leads to it, and what hands over.

    None where no event leads.
    """
    leads = part[events.leads[part] & (events.end_ns[part] <= end)]
    if not len(leads):
        return None
    last = leads[[np.argmax(events.end_ns[leads])]]
    later = np.flatnonzero(events.leads & (events.start_ns >= end))
    if len(later):
        following = later[np.argmin(events.start_ns[later])]
        into = events.edges[events.edges[:, 1] == following]
        sources = into[into[:, 2] == Joint.END_TO_HEAD, 0]
        last = np.append(last, sources[(new[sources] >= 0) & (events.end_ns[sources] <= end)])
    return np.unique(new[last])


def _edges_within(events: RecordedEvents, new: Int64, begin: int, end: int) -> Int64:
    """Return the edges between a step's events; what was over when the step began holds up nothing.

    `events.edges` are by the start of their targets.
    """
    low, high = np.searchsorted(events.start_ns[events.edges[:, 1]], [begin, end])
    going_on = np.flatnonzero(events.end_ns[events.edges[:low, 1]] > begin)
    edges: Int64 = np.concatenate([events.edges[going_on], events.edges[low:high]])
    edges = edges[new[edges[:, 0]] >= 0]
    keep = ~from_start(edges) | (events.start_ns[edges[:, 0]] >= begin)
    keep &= (edges[:, 2] >= Joint.END_TO_BODY) | (events.start_ns[edges[:, 1]] >= begin)
    edges = edges[keep]
    edges[:, :2] = new[edges[:, :2]]
    return edges


def _edges_across(events: RecordedEvents, before: Int64, new: Int64, begin: int, end: int) -> Int64:
    """Return (source, target, joint) of what was asked for in the step before but began here (k, 3)."""
    low, high = np.searchsorted(events.start_ns[events.edges[:, 1]], [begin, end])
    source, target, joint, _ = events.edges[low:high].T
    keep = (before[source] >= 0) & (new[source] < 0) & (events.issued_ns[target] < begin)
    keep &= (joint == Joint.END_TO_HEAD) | (joint == Joint.START_TO_HEAD)
    across: Int64 = np.column_stack((before[source], new[target], joint))[keep]
    return across


def _meets_within(events: RecordedEvents, new: Int64) -> list[Meet]:
    """Return a step's part in what several ranks do together."""
    event = new[np.array([meet.event for meet in events.meets], np.int64)]
    here = np.flatnonzero(event >= 0).tolist()
    return [events.meets[i]._replace(event=int(event[i])) for i in here]


def ended_last(end_ns: Int64, group: Groups, moments: Int64, own: Groups) -> Int64:
    """Return, for each of `moments` (k,), what had ended last by then in a group other than `own` (k,).

    `end_ns` and `group` are of what may have ended (n,); what is returned are indices (k,), -1 for none.
    """
    if not len(end_ns):
        return np.full(len(moments), -1, np.int64)
    order = np.argsort(end_ns, kind="stable")
    groups = group[order]
    runs = np.append(True, groups[1:] != groups[:-1])
    run_start = np.maximum.accumulate(np.where(runs, np.arange(len(order)), 0))
    at = np.searchsorted(end_ns[order], moments, side="right") - 1
    at = np.where((at >= 0) & (groups[at] == own), run_start[at] - 1, at)
    return np.where(at >= 0, order[at], -1)
