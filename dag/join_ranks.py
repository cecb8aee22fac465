"""The steps of several ranks as one recording: meetings become edges, and work, waits and gaps are fitted.

Waiting is no work: what an event spends waiting, for other ranks or for a link that is busy, is left out
of its work. What lies between the last input of an event and its start is a gap, unless it is such
waiting: a transfer that began as its link came free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from dag.model import cycles
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph, operation_edges
from dialects.step_parts import Edge, Joint, Meet, Operation, RankStep, RankSteps, edge_table, from_start
from errors import TraceError
from formats.columns import Int64

#: A transfer that begins no later than this after its link came free was held back by the link.
_PICKED_UP_NS = 50_000
#: Clocks of threads and devices, and whole microseconds, agree to about this: a start that is earlier than
#: its input's end by no more is taken to be at that end.
_TOLERANCE_NS = 50_000


def join(ranks: Sequence[RankSteps]) -> Recording:
    """Return the recording of a job from the steps of its ranks, on one clock.

    A step is kept where every rank has one of its number.

    Raises
    ------
    TraceError
        No step is recorded in all ranks.
    """
    ranks = _numbered_alike(ranks)
    common = set.intersection(*({step.number for step in rank.steps} for rank in ranks))
    kept = [[step for step in rank.steps if step.number in common] for rank in ranks]
    if not common or not any(len(step) for steps in kept for step in steps):
        raise TraceError(f"{', '.join(rank.name for rank in ranks[:5])}: no step is recorded in every rank")
    operations, first = _operations(ranks)
    links = list(dict.fromkeys(one.link for one in operations if one.link))
    link_of = np.array([links.index(one.link) if one.link else NO_LINK for one in operations], np.int64)
    steps: list[StepGraph] = []
    before: Sequence[RankStep] = ()
    for parts in zip(*kept, strict=True):
        follows = bool(before) and parts[0].number == before[0].number + 1
        steps.append(_join_step(parts, before if follows else (), link_of, first))
        before = parts
    return Recording(
        owners=[rank.name for rank in ranks],
        workers=[rank.worker for rank in ranks],
        ranks=[rank.rank for rank in ranks],
        links=links,
        operations=operations,
        steps=_known_tails(steps),
        notes=list(dict.fromkeys(note for rank in ranks for note in rank.notes)),
    )


def _numbered_alike(ranks: Sequence[RankSteps]) -> Sequence[RankSteps]:
    """Return the ranks with the job's own step numbers where some rank knows them.

    The recordings of all ranks are taken to begin with the same step.
    """
    known = [rank.steps[0].number for rank in ranks if rank.is_numbered and rank.steps]
    before = min(known, default=1) - 1
    return [
        rank
        if rank.is_numbered
        else replace(rank, steps=[replace(step, number=step.number + before) for step in rank.steps])
        for rank in ranks
    ]


def _operations(ranks: Sequence[RankSteps]) -> tuple[list[Operation], list[int]]:
    """Return the operations of all ranks, and where each rank's begin."""
    operations: list[Operation] = []
    first = []
    for owner, rank in enumerate(ranks):
        first.append(len(operations))
        own = (one if one.owner == owner else one._replace(owner=owner) for one in rank.operations)
        operations.extend(own)
    return operations, first


def _join_step(
    parts: Sequence[RankStep], before: Sequence[RankStep], link_of: Int64, first: Sequence[int]
) -> StepGraph:
    """Return one step of all ranks as a graph; `before` are the parts of the step before, () for none."""
    offsets = _offsets(parts)
    operation = np.concatenate([part.operation + at for part, at in zip(parts, first, strict=True)])
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    begin = np.array([part.begin_ns for part in parts], np.int64)
    start = np.maximum(np.concatenate([part.start_ns for part in parts]), begin[owner])
    end = np.maximum(np.concatenate([part.end_ns for part in parts]), start)
    own = [part.edges + np.array([at, at, 0, 0]) for part, at in zip(parts, offsets, strict=True)]
    meets = edge_table(_meetings(parts, offsets))
    start, edges = _agreeing(start, end, np.concatenate([*own, meets]))
    last = [None if part.last is None else part.last + at for part, at in zip(parts, offsets, strict=True)]
    step = StepGraph(
        number=parts[0].number,
        operation=operation,
        owner=owner,
        link=link_of[operation],
        start_ns=start,
        end_ns=end,
        edges=_without_cycles(start, end, edges),
        work_ns=end - start,
        gap_ns=np.zeros(len(start), np.int64),
        begin_ns=begin,
        next_ns=np.array([part.next_ns for part in parts], np.int64),
        tail_ns=np.zeros(len(parts), np.int64),
        last=np.empty(0, np.int64),
        turn=np.argsort(np.argsort(end, kind="stable")),
        overtaken=np.empty((0, 2), np.int64),
        held=np.zeros(len(start), np.bool_),
        continued=_from_before([part.continued for part in parts], parts, before),
        across=_from_before([part.across for part in parts], parts, before),
    )
    return fitted(step, last)


def _offsets(parts: Sequence[RankStep]) -> list[int]:
    """Return where each rank's events begin among those of all."""
    return [int(at) for at in np.cumsum([0, *map(len, parts)])[:-1]]


def _from_before(rows: Sequence[Int64], parts: Sequence[RankStep], before: Sequence[RankStep]) -> Int64:
    """Return rows of (event of the step before, event of this step, …) of all ranks as one table."""
    if not before:
        return rows[0][:0]
    found = np.concatenate(rows)
    counts = [len(one) for one in rows]
    found[:, 0] += np.repeat(_offsets(before), counts)
    found[:, 1] += np.repeat(_offsets(parts), counts)
    return found


# ---- edges


def _meetings(parts: Sequence[RankStep], offsets: Sequence[int]) -> list[Edge]:
    """Return the edges between the ranks that meet: who leaves waits for the others that enter."""
    groups: dict[Hashable, list[tuple[int, int, Meet]]] = defaultdict(list)
    for owner, (part, at) in enumerate(zip(parts, offsets, strict=True)):
        for meet in part.meets:
            groups[meet.key].append((owner, meet.event + at, meet))
    return [
        Edge(source, target, meet.joint, meet.kind)
        for members in groups.values()
        for owner, target, meet in members
        if meet.leaves
        for other, source, mate in members
        if mate.enters and other != owner
    ]


def _agreeing(start: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Return starts and edges that do not contradict each other.

    A start a little before its input's end is moved to that end; an edge that is further off joins the
    source's start where that was earlier, else it is dropped.
    """
    start = start.copy()
    for _ in range(4):
        at, limit = _edge_times(start, end, edges)
        late = at - limit
        if not (late > 0).any():
            return start, edges
        to_head = edges[:, 2] < Joint.END_TO_BODY
        target = edges[:, 1]
        small = to_head & (late > 0) & (late <= _TOLERANCE_NS) & (at <= end[target])
        np.maximum.at(start, target[small], at[small])
        far = (late > 0) & ~small
        drop = far & from_start(edges)
        edges, far = edges[~drop], far[~drop]
        edges[far, 2] += 1
    at, limit = _edge_times(start, end, edges)
    return start, edges[at <= limit]


def _edge_times(start: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Return per edge when its source let it go, and by when its target needs that (e,)."""
    source, target, joint, _ = edges.T
    at = np.where(from_start(edges), start[source], end[source])
    return at, np.where(joint >= Joint.END_TO_BODY, end[target], start[target])


def _without_cycles(start: Int64, end: Int64, edges: Int64) -> Int64:
    """Return the edges without those that close a cycle among events of one moment.

    An edge leads forward in time or takes none; a cycle can only be among those that take none.
    """
    at, limit = _edge_times(start, end, edges)
    tied = np.flatnonzero(at == limit)
    tails, heads = operation_edges(edges[tied])
    instant = np.flatnonzero(start == end)
    among = np.concatenate([np.stack([tails, heads], 1), np.stack([2 * instant, 2 * instant + 1], 1)])
    number = cycles(2 * len(start), among)
    inside = (number[tails] == number[heads]) & (edges[tied, 0] >= edges[tied, 1])
    return np.delete(edges, tied[inside], axis=0)


# ---- work, waits and gaps


def fitted(step: StepGraph, last: Sequence[Int64 | None]) -> StepGraph:
    """Return `step` with what its events needed themselves, and what came before them.

    From its times, edges and links; `last` are those of each owner's events that are stated to hold up the
    next step, None where none are.

    A transfer's work is the time from when it could begin (asked for, all it waits for there, the
    transfer before it on the link over) to its end.
    """
    n = len(step)
    at, _ = _edge_times(step.start_ns, step.end_ns, step.edges)
    to_head = step.edges[:, 2] < Joint.END_TO_BODY
    target = step.edges[:, 1]
    ready = step.begin_ns[step.owner]
    np.maximum.at(ready, target[to_head], at[to_head])
    let_on = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(let_on, target[~to_head], at[~to_head])
    could_begin = np.maximum(step.start_ns, let_on)
    held = _held_by_links(step, ready, could_begin)
    could_begin[held] = np.maximum(ready, let_on)[held]
    overtaken = _wait_for_links(step, could_begin)
    step = replace(step, last=_last_events(step, last))
    return replace(
        step,
        start_ns=np.where(held, ready, step.start_ns),
        work_ns=np.maximum(step.end_ns - could_begin, 0),
        gap_ns=np.where(held, 0, step.start_ns - ready),
        tail_ns=np.where(step.next_ns < 0, -1, step.next_ns - step.last_end_ns),
        overtaken=overtaken,
        held=held,
    )


def _last_events(step: StepGraph, last: Sequence[Int64 | None]) -> Int64:
    """Return the events that hold up their owner's next step."""
    next_ns = step.next_ns[step.owner]
    in_step = (next_ns < 0) | (step.end_ns <= next_ns)
    out_of = step.edges[~from_start(step.edges)]
    within = (step.owner[out_of[:, 0]] == step.owner[out_of[:, 1]]) & in_step[out_of[:, 1]]
    free = in_step.copy()
    free[out_of[within, 0]] = False
    stated = [owner for owner, events in enumerate(last) if events is not None]
    free[np.isin(step.owner, stated)] = False
    for owner in stated:
        events = last[owner]
        assert events is not None
        free[events[in_step[events]]] = True
    return np.flatnonzero(free)


def _held_by_links(step: StepGraph, ready: Int64, could_begin: Int64) -> Bool:
    """Return which transfers (n,) were ready while their link was busy, and began as it came free.

    Not those whose start another event waits for: that must stay the start that was recorded.
    """
    held = np.zeros(len(step), np.bool_)
    for served in by_link(step):
        before = _freed(step, served)
        begin = np.maximum(could_begin[served], before)
        is_first = begin > before + _PICKED_UP_NS
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(served)), 0))
        start, asked = step.start_ns[served], ready[served]
        held[served] = ~is_first & (before <= start) & (begin[first] <= asked) & (asked < before)
    held[step.edges[from_start(step.edges), 0]] = False
    return held


def _wait_for_links(step: StepGraph, could_begin: Int64) -> Int64:
    """Raise `could_begin` of each transfer to the end of the one before it on its link.

    Returns `StepGraph.overtaken`.
    """
    overtaken = []
    for served in by_link(step):
        late = could_begin[served][1:] < np.maximum.accumulate(could_begin[served])[:-1]
        overtaken.append(np.stack([served[:-1][late], served[1:][late]], axis=1))
        could_begin[served] = np.maximum(could_begin[served], _freed(step, served))
    return np.concatenate(overtaken) if overtaken else np.empty((0, 2), np.int64)


def by_link(step: StepGraph) -> list[Int64]:
    """Return the transfers of each link in the order in which it served them."""
    transfers = np.flatnonzero(step.link != NO_LINK)
    order = np.lexsort((step.start_ns[transfers], step.end_ns[transfers], step.link[transfers]))
    transfers = transfers[order]
    return [transfers[step.link[transfers] == link] for link in np.unique(step.link[transfers])]


def _freed(step: StepGraph, served: Int64) -> Int64:
    """Return when the link was through with what it served before each of its transfers."""
    return np.concatenate([[np.iinfo(np.int64).min], step.end_ns[served][:-1]])


def _known_tails(steps: Sequence[StepGraph]) -> list[StepGraph]:
    """Give a step whose next one is not recorded the median tail of the others."""
    tails = np.array([step.tail_ns for step in steps])
    known = np.where(tails < 0, np.nan, tails.astype(np.float64))
    usual = [0 if np.isnan(column).all() else int(np.nanmedian(column)) for column in known.T]
    return [replace(step, tail_ns=np.where(step.tail_ns < 0, usual, step.tail_ns)) for step in steps]
