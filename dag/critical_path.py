"""The critical path of a recorded step, and the slack of everything beside it.

The path is walked backwards from the step's end on the rank that ends last: through an event's work to
what let it go on last, or to its start; from a start through the gap before it to the input that ended
last; until the step's begin. So it adds up to the step's duration, and nobody's waiting lies on it: the
path runs through whoever was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dag.join_ranks import by_link
from dag.step_graph import StepGraph, operation_edges
from dialects.step_parts import GAP, WAIT, Kind
from errors import DagError
from formats.columns import Int64

#: `Stretch.event` of time that belongs to no event of the path.
NO_EVENT = -1


class Stretch(NamedTuple):
    """A part of the path: an event's work, the gap before it, or its wait for what is out of scope."""

    event: int  # of the step, or `NO_EVENT`
    owner: int
    cat: str  # `GAP`, `WAIT`, or "" for work
    start_ns: int
    end_ns: int
    kind: int  # the `Kind` of the edge by which the path enters it, -1 for none

    @property
    def dur_ns(self) -> int:
        """How much it adds to the path."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What makes a step as long as it is, in time order; the stretches add up to `length_ns`."""

    owner: int  # the owner whose step ends last
    stretches: Sequence[Stretch]
    length_ns: int


def critical_path(step: StepGraph, owners: Sequence[int] | None = None) -> CriticalPath:
    """Return the critical path of `step`, among the events of `owners` (None: all).

    It covers the step of the owner that ends last, from its begin to its end. Where the path reaches
    another owner that began its step later, the time before that is a gap. With a part of the owners,
    what these wait for others is a stretch of category `WAIT`.
    """
    scope = list(range(len(step.begin_ns))) if owners is None else list(owners)
    ends = _ends(step)
    owner = max(scope, key=lambda one: (int(ends[one]), -one))
    begin, end = int(step.begin_ns[owner]), int(ends[owner])
    found = _walked_back(step, _last_inputs(step, scope), owner, begin, end)
    return CriticalPath(owner, found[::-1], end - begin)


def _ends(step: StepGraph) -> Int64:
    """Return when the step of each owner ends (m,): as recorded, else the usual time after its last event."""
    by_tail = step.last_end_ns + np.maximum(step.tail_ns, 0)
    return np.where(step.next_ns < 0, by_tail, step.next_ns)


def _last_inputs(step: StepGraph, scope: Sequence[int]) -> tuple[Int64, Int64, Int64]:
    """Return what let each event start (2 * event) and go on (2 * event + 1) last, among events of `scope`.

    Per start and body (2n,): when, which start or body, and the `Kind`; the earliest time for nothing. A
    transfer's body also waits for the one before it on its link.
    """
    inside = np.isin(step.owner, scope)
    edges = step.edges[inside[step.edges[:, 0]] & inside[step.edges[:, 1]]]
    source, target = operation_edges(edges)
    times = np.column_stack([step.start_ns, step.end_ns]).reshape(-1)
    order = np.lexsort((-np.arange(len(edges)), times[source], target))  # of several the first edge
    at = np.full(len(times), np.iinfo(np.int64).min)
    last_source, kind = np.zeros_like(at), np.zeros_like(at)
    at[target[order]] = times[source[order]]
    last_source[target[order]], kind[target[order]] = source[order], edges[order, 3]
    before, after = _on_links(step).T
    later = inside[before // 2] & (times[before] > at[after])
    before, after = before[later], after[later]
    at[after], last_source[after], kind[after] = times[before], before, Kind.DEVICE
    return at, last_source, kind


def _on_links(step: StepGraph) -> Int64:
    """Return the bodies of the transfers that follow each other on a link (k, 2)."""
    pairs = [np.column_stack((served[:-1], served[1:])) for served in by_link(step)]
    return 2 * np.concatenate([np.empty((0, 2), np.int64), *pairs]) + 1


def _walked_back(
    step: StepGraph, inputs: tuple[Int64, Int64, Int64], owner: int, begin: int, end: int
) -> list[Stretch]:
    """Return the way back from the end of an owner's step to its begin."""
    found: list[Stretch] = []

    def add(event: int, owner: int, cat: str, start_ns: int, end_ns: int, kind: int = -1) -> None:
        start_ns = max(start_ns, begin)
        if end_ns > start_ns:
            found.append(Stretch(event, owner, cat, start_ns, end_ns, kind))

    last = step.last[step.owner[step.last] == owner]
    if len(last) == 0:
        add(NO_EVENT, owner, GAP, begin, end)
        return found
    event = int(last[np.argmax(step.end_ns[last])])
    at, place = int(step.end_ns[event]), 2 * event + 1
    add(NO_EVENT, owner, GAP, at, end)
    # numbers of a memoryview are Python's own, which is twice as fast here
    ats, sources, kinds = (column.data for column in inputs)
    starts, ends, owners = step.start_ns.data, step.end_ns.data, step.owner.data
    while at > begin:
        event, is_body = divmod(place, 2)
        start, owner = starts[event], owners[event]
        at, place, kind = ats[place], sources[place], kinds[place]
        if is_body:  # through its work, to what let it go on last, or to its start
            began = ends[event] - int(step.work_ns[event])
            if at <= start:
                at, place, kind = start, 2 * event, -1
            add(event, owner, "", began, ends[event], kind)
            add(event, owner, WAIT, at, began)
            continue
        ready, own_begin = start - int(step.gap_ns[event]), int(step.begin_ns[owner])
        if at <= own_begin:  # nothing recorded let it start
            add(event, owner, GAP, ready, start)
            add(event, owner, WAIT, own_begin, ready)
            add(NO_EVENT, owner, GAP, begin, own_begin)
            break
        add(event, owner, GAP, ready, start, kind)
        add(event, owner, WAIT, at, ready)
    return found


def slack_ns(step: StepGraph) -> Int64:
    """Return how much longer each event may take before the step ends later (n,); 0 on the critical path.

    An event that nothing in the step waits for may last until the step's end.

    Raises
    ------
    DagError
        Events wait for each other.
    """
    ends = _ends(step)
    until = int(ends.max(initial=0))
    latest_end = np.maximum(step.end_ns, until)
    np.minimum.at(latest_end, step.last, (until - ends + step.last_end_ns)[step.owner[step.last]])
    # 2 * event stands for an event's start, 2 * event + 1 for its body
    starts = 2 * np.arange(len(step))
    edges = np.concatenate(
        [np.column_stack((starts, starts + 1)), np.column_stack(operation_edges(step.edges)), _on_links(step)]
    )
    costs = np.column_stack([step.gap_ns, step.work_ns]).reshape(-1).tolist()
    latest = np.column_stack([latest_end - step.work_ns, latest_end]).reshape(-1).tolist()
    for before, after in _backwards(edges[:, 0], edges[:, 1], 2 * len(step)):
        limit = latest[after] - costs[after]
        if limit < latest[before]:
            latest[before] = limit
    return np.array(latest[1::2], np.int64) - step.end_ns


def _backwards(source: Int64, target: Int64, n: int) -> Iterator[tuple[int, int]]:
    """Yield the edges so that those out of an operation come before those into it."""
    order = np.argsort(target, kind="stable")
    bounds = np.searchsorted(target[order], np.arange(n + 1)).tolist()
    sources = source[order].tolist()
    waiting = np.bincount(source, minlength=n).tolist()
    free = [operation for operation in range(n) if waiting[operation] == 0]
    done = 0
    while free:
        operation = free.pop()
        done += 1
        for before in sources[bounds[operation] : bounds[operation + 1]]:
            yield before, operation
            waiting[before] -= 1
            if waiting[before] == 0:
                free.append(before)
    if done < n:
        raise DagError(f"{n - done} starts and ends of events wait for each other: the graph has a cycle")
