"""A step of so many ranks that nobody holds all of it: contracted to where ranks wait for each other.

What ranks do together are its *points*. Between them each rank is replaced by the longest work and gaps
from point to point, so that by when a point must be over follows from all ranks without their events. A path
is walked on the ranks it touches, which are made for that alone; slack, rank by rank. Both are those of the
whole `StepGraph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from arrays.numbering import unique
from dag.critical_path import (
    CriticalPaths,
    Inputs,
    Way,
    ends_ns,
    last_event,
    last_inputs,
    latest_ns,
    latest_of,
    part_of,
    slack_ns,
    way_back,
)
from dag.join_ranks import RankParts
from dag.step_graph import Bool, LazySteps, Recording, StepGraph, operation_edges
from errors import DagError

#: A step of more events is contracted; so many are looked at together. In memory each takes about 400 bytes.
_MOST_WHOLE = 100_000
_TOGETHER = 20_000
#: Ranks that are kept while paths are walked, for a path that goes back and forth.
_MOST_KEPT = 32
#: A round that leaves more than this share of the edges is the last.
_HARDLY_LESS = 0.9
_NEVER = np.iinfo(np.int64).max // 2
#: Instead of a place: no input; the end of the step; this minus a number, of a place elsewhere.
_NOTHING, _END, _OTHER = -1, -1, -2
#: Instead of a rank: the meetings of many.
_MEETING = -1


def examined(recording: Recording, row: int, most: int = _MOST_WHOLE) -> StepGraph | ContractedStep:
    """Return a step for paths and slack: whole, or contracted if it has more events and can be."""
    steps = recording.steps
    parts = steps.split(row) if isinstance(steps, LazySteps) else None
    if parts is not None and parts.can_be_split and sum(map(len, parts.steps)) > most:
        with suppress(DagError):  # which edges among events of one moment to leave out, only all of them tell
            return ContractedStep(parts, min(most, _TOGETHER))
    return steps[row]


def critical_paths(step: StepGraph | ContractedStep, parts: Sequence[Sequence[int]]) -> CriticalPaths:
    """Return the critical paths among several parts of a step's owners, none of whom is in two of them."""
    return ContractedPaths(step, parts) if isinstance(step, ContractedStep) else CriticalPaths(step, parts)


def slacks(step: StepGraph | ContractedStep) -> Iterator[tuple[StepGraph, Int64]]:
    """Yield the events of all owners, in order, as graphs of one or several owners with the slack of each."""
    if isinstance(step, ContractedStep):
        yield from step.slacks()
    else:
        yield step, slack_ns(step)


class ContractedStep:
    """One step of many ranks, of which the points are known, and by when each must be over.

    Raises
    ------
    DagError
        Points wait for each other.
    """

    def __init__(self, parts: RankParts, together: int) -> None:
        self.parts = parts
        self.number = parts.steps[0].number
        self.begin_ns = np.array([part.begin_ns for part in parts.steps], np.int64)
        self.ends_ns = np.array([part.next_ns for part in parts.steps], np.int64)
        self.offsets = np.cumsum([0, *map(len, parts.steps)])
        self._until = int(self.ends_ns.max())
        self._batches = _batches(self.offsets, together)
        #: of each point its number among all events, and its rank
        events = [unique(part.meetings.event.astype(np.int64)) for part in parts.steps]
        self.event = np.concatenate([own + at for own, at in zip(events, self.offsets, strict=False)])
        self.owner = np.repeat(np.arange(len(events)), list(map(len, events)))
        self._point_of = np.searchsorted(self.owner, np.arange(len(parts.steps) + 1))
        found = [self._contracted(owners) for owners in self._batches]
        #: the points, with what they wait for of other ranks, and behind them the meetings of many ranks
        self.points = parts.points(
            np.split(self.event - self.offsets[self.owner], self._point_of[1:-1]),
            np.split(np.concatenate([one.start_ns for one in found]), self._point_of[1:-1]),
            np.split(np.concatenate([one.end_ns for one in found]), self._point_of[1:-1]),
        )
        self._latest = _latest_of_points(self.points, found, self._until)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def graph(self, owners: range) -> StepGraph:
        """Return the events of some ranks that follow each other, with what they waited for other ranks."""
        graph = self.parts.alone(owners)
        own, event = self.own_points(owners)
        work = graph.work_ns.astype(np.int64)
        work[event] = np.minimum(work[event], self.points.work_ns[own])
        return replace(graph, work_ns=work)

    def slacks(self) -> Iterator[tuple[StepGraph, Int64]]:
        """Yield the events of all ranks, some ranks at a time, with their slack."""
        for owners in self._batches:
            graph = self.graph(owners)
            own, event = self.own_points(owners)
            places = np.concatenate([2 * event, 2 * event + 1])
            known = places, self._latest[np.concatenate([2 * own, 2 * own + 1])]
            yield graph, latest_ns(graph, self._until, known)[1::2] - graph.end_ns

    def own_points(self, owners: range) -> tuple[Int64, Int64]:
        """Return the points of some ranks, and which of the events of these each is."""
        own = np.arange(self._point_of[owners.start], self._point_of[owners.stop])
        return own, self.event[own] - self.offsets[owners.start]

    def _contracted(self, owners: range) -> _Contracted:
        graph = self.parts.alone(owners)
        own, event = self.own_points(owners)
        columns = graph.start_ns, graph.end_ns, graph.gap_ns, graph.work_ns
        start, end, gap, work = (column[event].astype(np.int64) for column in columns)
        return _Contracted(start, end, gap, work, _chains(graph, own, event, self._until))


class ContractedPaths(CriticalPaths):
    """The critical paths among parts of the owners of a contracted step; see `CriticalPaths`."""

    def __init__(self, step: ContractedStep, parts: Sequence[Sequence[int]]) -> None:
        self._step, self.parts = step, parts
        self.begin_ns, self.ends_ns = step.begin_ns, step.ends_ns
        self._between: Inputs | None = None
        self._kept: dict[int, tuple[StepGraph, Inputs]] = {}

    def _way(self, owner: int, begin: int) -> tuple[Way, int]:
        graph, _ = self._rank(owner)
        event, over = last_event(graph, 0)
        ways = [way_back(graph, self._rank(owner)[1], -1, over, begin)]  # of no place
        n_points = len(self._step.event)
        at, place, rank = over, 2 * event + 1, owner
        while at > begin and place >= 0:
            if rank == _MEETING:
                way = way_back(
                    self._step.points, _left_at_points(self._meetings(), n_points), place, at, begin
                )
                way = way._replace(event=way.event + len(self._step) - n_points)
            else:
                way = way_back(*self._rank(rank), place, at, begin)
                way = way._replace(event=way.event + self._step.offsets[rank], owner=way.owner + rank)
            ways.append(way)
            at, place = int(way.left[-1]), int(way.before[-1])
            if place < _NOTHING:
                rank, place = self._place(_OTHER - place)
        return Way(*map(np.concatenate, zip(*ways, strict=True))), over

    def _rank(self, owner: int) -> tuple[StepGraph, Inputs]:
        """Return the events of a rank, and what let them go on last: `_OTHER` minus a place of the points."""
        if owner not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            graph = self._step.graph(range(owner, owner + 1))
            inputs = last_inputs(graph, np.zeros(len(graph), np.int64))
            own, event = self._step.own_points(range(owner, owner + 1))
            at, before, kind = (column[2 * own + 1] for column in self._meetings())
            later = at > inputs.at[2 * event + 1]
            body = 2 * event[later] + 1
            inputs.at[body], inputs.before[body], inputs.kind[body] = (
                at[later],
                _OTHER - before[later],
                kind[later],
            )
            self._kept[owner] = graph, inputs
        return self._kept[owner]

    def _meetings(self) -> Inputs:
        """Return the last inputs of points, among those of other ranks."""
        if self._between is None:
            points = self._step.points
            part = part_of(self.parts, len(self.begin_ns))
            self._between = last_inputs(points, part[points.owner])
        return self._between

    def _place(self, place: int) -> tuple[int, int]:
        """Return the rank of a place of the points, or `_MEETING`, and the place in that."""
        point, is_body = divmod(place, 2)
        if point >= len(self._step.event):
            return _MEETING, place
        rank = int(self._step.owner[point])
        return rank, 2 * int(self._step.event[point] - self._step.offsets[rank]) + is_body


def _left_at_points(inputs: Inputs, n_points: int) -> Inputs:
    """Return inputs by which a way back leaves the meetings where it comes to a point of a rank."""
    of_rank = (inputs.before >= 0) & (inputs.before < 2 * n_points)
    return inputs._replace(before=np.where(of_rank, _OTHER - inputs.before, inputs.before))


# ---- contraction


class _Chains(NamedTuple):
    """Who comes before whom between points (e,), and how long all between takes that is left out.

    Places are 2 * point for its start, 2 * point + 1 for its body, `_END` for the step's end, and
    `_OTHER` - i for what is neither but could not be left out; `cost_ns` (i,) is how long these take.
    """

    source: Int64
    target: Int64
    between_ns: Int64
    cost_ns: Int64


class _Contracted(NamedTuple):
    """Some ranks between their points: of each point start, end, gap, and work among its own rank."""

    start_ns: Int64
    end_ns: Int64
    gap_ns: Int64
    work_ns: Int64
    chains: _Chains


def _batches(offsets: Int64, together: int) -> list[range]:
    """Return ranks that follow each other and have so many events together, or one that has more."""
    batches, first = [], 0
    for rank in range(1, len(offsets)):
        if rank == len(offsets) - 1 or offsets[rank + 1] - offsets[first] > together:
            batches.append(range(first, rank))
            first = rank
    return batches


def _chains(graph: StepGraph, points: Int64, event: Int64, until: int) -> _Chains:
    """Return the contracted edges between the `points` of some ranks, which are these `event`s of theirs."""
    n = len(graph)
    end = 2 * n
    is_kept = np.zeros(2 * n + 1, np.bool_)
    is_kept[np.concatenate([2 * event, 2 * event + 1, [end]])] = True
    bodies = 2 * np.arange(n) + 1
    cost = np.append(np.column_stack([graph.gap_ns, graph.work_ns]).reshape(-1).astype(np.int64), 0)
    source, target = (column.astype(np.int64) for column in operation_edges(graph.edges))
    source, target = np.concatenate([bodies - 1, source]), np.concatenate([bodies, target])
    # the step's end is the limit of what nothing follows, or only what runs on beyond it
    is_last = np.ones(2 * n, np.bool_)
    is_last[source[graph.end_ns[target // 2] <= until]] = False
    free = np.flatnonzero(is_last[bodies])
    beyond = until - np.maximum(graph.end_ns[free], until)
    tail = (ends_ns(graph) - graph.last_end_ns)[graph.owner[graph.last]]
    source = np.concatenate([source, bodies[free], bodies[graph.last]])
    between = np.concatenate([np.zeros(len(target), np.int64), beyond, tail])
    target = np.concatenate([target, np.full(len(free) + len(graph.last), end)])
    source, target, between = _contract(source, target, between, cost, is_kept)
    place = np.full(2 * n + 1, _END)
    place[2 * event], place[2 * event + 1] = 2 * points, 2 * points + 1
    others = np.setdiff1d(np.concatenate([source, target]), np.flatnonzero(is_kept))
    place[others] = _OTHER - np.arange(len(others))
    return _Chains(place[source], place[target], between, cost[others])


def _contract(
    source: Int64, target: Int64, between: Int64, cost: Int64, is_kept: Bool
) -> tuple[Int64, Int64, Int64]:
    """Return fewer edges with the same longest ways between those of n places that are kept.

    An edge takes `between` (e,), a place `cost` (n,). What is left out: a place with one way on, or with one
    way to it, whose edges then lead past it; one that nothing leads to; of several edges from one place to
    another all but the longest. So edges never become more.
    """
    n = len(cost)
    while True:
        n_before = len(source)
        alone = (np.bincount(source, minlength=n) == 1) & ~is_kept
        over = alone[source]
        to, way = _run(n, source[over], target[over], between[over] + cost[source[over]])
        source, target, between = source[~over], to[target[~over]], between[~over] + way[target[~over]]
        into = np.bincount(target, minlength=n)
        alone = (into == 1) & ~is_kept
        over = alone[target]
        to, way = _run(n, target[over], source[over], between[over] + cost[target[over]])
        source, target, between = to[source[~over]], target[~over], between[~over] + way[source[~over]]
        wanted = is_kept | (np.bincount(target, minlength=n) > 0)
        alive = wanted[source]
        source, target, between = _longest(n, source[alive], target[alive], between[alive])
        if len(source) >= _HARDLY_LESS * n_before:
            return source, target, between


def _run(n: int, place: Int64, following: Int64, way: Int64) -> tuple[Int64, Int64]:
    """Return where each of n places leads to, along the one edge of each `place`, and how long that takes."""
    to, length = np.arange(n), np.zeros(n, np.int64)
    to[place], length[place] = following, way
    while True:
        length[place] += length[to[place]]
        further = to[to[place]]
        if (further == to[place]).all():
            return to, length
        to[place] = further


def _longest(n: int, source: Int64, target: Int64, between: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the longest of the edges between each two places."""
    key = source * n + target
    order = np.lexsort((between, key))
    is_last = np.append(np.diff(key[order]) != 0, np.ones(min(len(key), 1), np.bool_))
    chosen = order[is_last]
    return source[chosen], target[chosen], between[chosen]


def _latest_of_points(points: StepGraph, found: Sequence[_Contracted], until: int) -> Int64:
    """Return by when starts and bodies of the points must be over, those of meetings behind them (2n,)."""
    n, end = len(points), 2 * len(points)
    source, target = (column.astype(np.int64) for column in operation_edges(points.edges))
    n_own = sum(len(one.gap_ns) for one in found)
    gap, work = points.gap_ns.astype(np.int64), points.work_ns.astype(np.int64)
    gap[:n_own] = np.concatenate([one.gap_ns for one in found])
    work[:n_own] = np.minimum(work[:n_own], np.concatenate([one.work_ns for one in found]))
    meetings = 2 * np.arange(n_own, n)
    sources, targets = [source, meetings], [target, meetings + 1]
    costs = [np.column_stack([gap, work]).reshape(-1), np.zeros(1, np.int64)]
    number = end + 1
    for chains in (one.chains for one in found):
        first = number
        ends = [
            np.where(at <= _OTHER, first + _OTHER - at, np.where(at == _END, end, at)) for at in chains[:2]
        ]
        costs.append(chains.cost_ns)
        number += len(chains.cost_ns)
        is_long = chains.between_ns != 0  # what takes time is a place of its own
        long = number + np.arange(int(is_long.sum()))
        costs.append(chains.between_ns[is_long])
        number += len(long)
        sources += [ends[0][~is_long], ends[0][is_long], long]
        targets += [ends[1][~is_long], long, ends[1][is_long]]
    latest = np.full(number, _NEVER)
    latest[end] = until
    latest[2 * n_own : end] = np.repeat(np.maximum(points.end_ns[n_own:], until), 2)
    source, target, cost = map(np.concatenate, (sources, targets, costs))
    return latest_of(source, target, cost, latest)[: 2 * n]
