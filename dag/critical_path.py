"""The critical path of a recorded step, and the slack of everything beside it.

The path is walked backwards from the step's end on the rank that ends last: through an event's work to
what let it go on last, or to its start; from a start through the gap before it to the input that ended
last; until the step's begin. So it adds up to the step's duration, and nobody's waiting lies on it: the
path runs through whoever was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dag.join_ranks import by_link
from dag.step_graph import StepGraph, from_start, operation_edges
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
    walk = _Walk(step, _Inputs(step, frozenset(scope)), int(step.begin_ns[owner]))
    walk.run(owner, int(ends[owner]))
    return CriticalPath(owner, walk.stretches[::-1], int(ends[owner] - step.begin_ns[owner]))


def _ends(step: StepGraph) -> Int64:
    """Return when the step of each owner ends (m,): as recorded, else the usual time after its last event."""
    by_tail = step.last_end_ns + np.maximum(step.tail_ns, 0)
    return np.where(step.next_ns < 0, by_tail, step.next_ns)


class _Inputs:
    """What each event waits for, among the events of some owners."""

    def __init__(self, step: StepGraph, scope: frozenset[int]) -> None:
        inside = np.isin(step.owner, list(scope))
        self.inside = inside
        edges = step.edges[inside[step.edges[:, 0]] & inside[step.edges[:, 1]]]
        source, _, _, self._kind = edges.T
        self._source = source
        self._from_start = from_start(edges)
        self._at = np.where(self._from_start, step.start_ns[source], step.end_ns[source])
        into = operation_edges(edges)[1]
        order = np.lexsort((-np.arange(len(edges)), self._at, into))
        is_latest = np.append(np.diff(into[order]) != 0, np.ones(min(len(edges), 1), np.bool_))
        self._latest_into = np.full(2 * len(step), -1, np.int64)
        self._latest_into[into[order[is_latest]]] = order[is_latest]
        self._before_on_link = _before_on_link(step)
        self._end = step.end_ns

    def of_head(self, event: int) -> tuple[int, int, bool, int] | None:
        """Return (time, source, by its start, kind) of what let `event` start last; None for nothing."""
        return self._latest(event, to_body=False)

    def of_body(self, event: int) -> tuple[int, int, bool, int] | None:
        """Return the same of what let `event` go on last, the transfer before it on its link included."""
        latest = self._latest(event, to_body=True)
        before = self._before_on_link.get(event)
        if before is not None and self.inside[before]:
            freed = int(self._end[before])
            if latest is None or freed > latest[0]:
                return freed, before, False, Kind.DEVICE
        return latest

    def _latest(self, event: int, *, to_body: bool) -> tuple[int, int, bool, int] | None:
        row = int(self._latest_into[2 * event + to_body])
        if row < 0:
            return None
        return int(self._at[row]), int(self._source[row]), bool(self._from_start[row]), int(self._kind[row])


def _before_on_link(step: StepGraph) -> dict[int, int]:
    """Return the transfer that each one's link served before it."""
    pairs = [zip(served[1:].tolist(), served[:-1].tolist(), strict=True) for served in by_link(step)]
    return {after: before for each in pairs for after, before in each}


@dataclass
class _Walk:
    """The way back from a step's end to its begin; `stretches` are in the order of the walk."""

    step: StepGraph
    inputs: _Inputs
    begin_ns: int
    stretches: list[Stretch] = field(default_factory=list)

    def run(self, owner: int, end_ns: int) -> None:
        """Walk back from the end of an owner's step."""
        last = self.step.last[self.step.owner[self.step.last] == owner]
        if len(last) == 0:
            self._add(NO_EVENT, owner, GAP, self.begin_ns, end_ns, -1)
            return
        event = int(last[np.argmax(self.step.end_ns[last])])
        self._add(NO_EVENT, owner, GAP, int(self.step.end_ns[event]), end_ns, -1)
        at_end, at = True, int(self.step.end_ns[event])
        while at > self.begin_ns:
            found = self._through_body(event) if at_end else self._before_start(event)
            if found is None:
                return
            at, event, at_end = found

    def _through_body(self, event: int) -> tuple[int, int, bool]:
        """Add an event's work and return (time, event, at its end) from which the path goes on."""
        step = self.step
        start, end, owner = (int(column[event]) for column in (step.start_ns, step.end_ns, step.owner))
        began = end - int(step.work_ns[event])
        latest = self.inputs.of_body(event)
        if latest is None or latest[0] <= start:
            self._add(event, owner, "", began, end, -1)
            self._add(event, owner, WAIT, start, began, -1)
            return start, event, False
        at, source, by_start, kind = latest
        self._add(event, owner, "", began, end, kind)
        self._add(event, owner, WAIT, at, began, -1)
        return at, source, not by_start

    def _before_start(self, event: int) -> tuple[int, int, bool] | None:
        """Add the gap before an event and return where the path goes on; None at its owner's begin."""
        step = self.step
        start, owner = int(step.start_ns[event]), int(step.owner[event])
        ready, begin = start - int(step.gap_ns[event]), int(step.begin_ns[owner])
        latest = self.inputs.of_head(event)
        if latest is None or latest[0] <= begin:
            self._add(event, owner, GAP, ready, start, -1)
            self._add(event, owner, WAIT, begin, ready, -1)
            self._add(NO_EVENT, owner, GAP, self.begin_ns, begin, -1)
            return None
        at, source, by_start, kind = latest
        self._add(event, owner, GAP, ready, start, kind)
        self._add(event, owner, WAIT, at, ready, -1)
        return at, source, not by_start

    def _add(self, event: int, owner: int, cat: str, start_ns: int, end_ns: int, kind: int) -> None:
        start = max(start_ns, self.begin_ns)
        if end_ns > start:
            self.stretches.append(Stretch(event, owner, cat, start, end_ns, kind))


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
    source, target = _all_edges(step)
    # an operation is 2 * event for the event's start, 2 * event + 1 for its body
    cost = np.column_stack([step.gap_ns, step.work_ns]).reshape(-1)
    latest = np.column_stack([latest_end - step.work_ns, latest_end]).reshape(-1).tolist()
    costs = cost.tolist()
    for before, after in _backwards(source, target, 2 * len(step)):
        limit = latest[after] - costs[after]
        if limit < latest[before]:
            latest[before] = limit
    return np.array(latest[1::2], np.int64) - step.end_ns


def _all_edges(step: StepGraph) -> tuple[Int64, Int64]:
    """Return the edges between starts (2 * event) and bodies (2 * event + 1), as sources and targets."""
    events = np.arange(len(step))
    served = [(before, after) for after, before in _before_on_link(step).items()]
    on_link = 2 * np.array(served, np.int64).reshape(-1, 2) + 1
    source, target = operation_edges(step.edges)
    return np.concatenate([2 * events, source, on_link[:, 0]]), np.concatenate(
        [2 * events + 1, target, on_link[:, 1]]
    )


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
