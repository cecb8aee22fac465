"""The steps of several ranks as one recording: meetings become edges, and work, waits and gaps are fitted.

An event's work excludes its waits for other ranks and for a busy link. The time between its last input and
its start is a gap, unless the event is a transfer that began as its link came free.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import cycles, numbered, ranges, unique
from analyzer.base.arrays.spill import Spill
from analyzer.base.errors import TraceError, listed, number_ranges
from analyzer.model.graph.step_graph import (
    NO_LINK,
    LazySteps,
    Recording,
    StepBounds,
    StepGraph,
    operation_edges,
)
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import (
    Joint,
    Meetings,
    Operation,
    OperationTable,
    RankStep,
    RankSteps,
    edge_rows,
    from_start,
    meetings_table,
    narrow,
    renumbered,
)
from analyzer.reading.formats.columns import Track

#: A transfer that begins within this time after its link came free waited for the link.
_PICKED_UP_NS = 50_000
#: Clocks of threads and devices agree to about this: a start that is earlier than its input's end by no more
#: is moved to that end.
_TOLERANCE_NS = 50_000
#: More ranks than this do not wait for each other in pairs: all enter and leave one event.
_MOST_PAIRED = 16
#: On one clock the two ends of a transfer are no further apart than this.
_ENDS_AGREE_NS = 20_000
_FAR_NS = 1 << 62
#: Two ranks end together by chance if they do so less often than this share of the most frequent pair.
_BY_CHANCE = 0.1
_MEETING = Operation("the last rank", "", Track("", "meetings"), Role.MEETING)


def join(ranks: Sequence[RankSteps]) -> Recording:
    """Join the steps of a job's ranks, on one clock, into a recording.

    A step is kept if every rank has one of its number; TraceError if there is none.
    """
    ranks = _numbered_alike(ranks)
    common = set.intersection(*({step.number for step in rank.steps} for rank in ranks))
    kept = _keyed_alike([[step for step in rank.steps if step.number in common] for rank in ranks])
    if not any(len(step) for steps in kept for step in steps):
        held = [
            f"{rank.name} has {number_ranges([step.number for step in rank.steps]) or 'none'}"
            for rank in ranks
        ]
        raise TraceError(
            f"no step is recorded in every rank: {listed(held, 4)}; --step_by NAME or args.KEY says what "
            "marks a step, and files of different times are for compare"
        )
    operations, first = _operations(ranks, len(ranks) if len(ranks) > _MOST_PAIRED else 0)
    link_names = [operation.transfer.link for operation in operations.kinds]
    links = list(dict.fromkeys(filter(None, link_names)))
    link_of_kind = [links.index(link) if link else NO_LINK for link in link_names]
    link = narrow(np.array(link_of_kind))[operations.kind]
    on_device = np.array([operation.on_device for operation in operations.kinds])[operations.kind]
    parts = list(map(list, zip(*kept, strict=True)))
    sizes = [[len(part) for part in of_step] for of_step in parts]
    bounds = [
        StepBounds(
            of_step[0].number,
            np.array([part.begin_ns for part in of_step], np.int64),
            np.array([part.next_ns for part in of_step], np.int64),
        )
        for of_step in parts
    ]
    follows = np.diff([step.number for step in bounds], prepend=bounds[0].number) == 1
    first_row = np.maximum.accumulate(np.where(follows, 0, np.arange(len(bounds))))

    def make(row: int) -> StepGraph:
        of_ranks, parts[row] = parts[row], []  # two forms of all steps would take twice the memory
        return _join_step(of_ranks, sizes[int(first_row[row]) : row][::-1], link, on_device, first)

    return Recording(
        owners=[rank.name for rank in ranks],
        workers=[rank.worker for rank in ranks],
        ranks=[rank.rank for rank in ranks],
        links=links,
        operations=operations,
        steps=LazySteps(bounds, make, spill=Spill()),
        notes=_notes(ranks),
        step_kind=ranks[0].step_kind,
    )


def _numbered_alike(ranks: Sequence[RankSteps]) -> Sequence[RankSteps]:
    """Give all ranks the job's step numbers if some rank knows them; all are taken to begin with one step."""
    known = [rank.steps[0].number for rank in ranks if rank.is_numbered and rank.steps]
    before = min(known, default=1) - 1
    return [
        rank
        if rank.is_numbered
        else replace(rank, steps=[replace(step, number=step.number + before) for step in rank.steps])
        for rank in ranks
    ]


def _notes(ranks: Sequence[RankSteps]) -> list[str]:
    """List the notes of the ranks, and the work and the steps that are left out."""
    notes = list(dict.fromkeys(note for rank in ranks for note in rank.notes))
    n_before = {rank.name: rank.n_before for rank in ranks if rank.n_before}
    if n_before:
        total = sum(n_before.values())
        works = f"{total:,} kernels and copies" if total > 1 else "a kernel or copy"
        on = f" (on {listed(list(n_before))})" if len(ranks) > 1 else ""
        notes.append(f"Ignored {works} launched before the recording{on}")
    numbers = [{step.number for step in rank.steps} for rank in ranks]
    every = set().union(*numbers)
    lacking: dict[str, list[str]] = {}
    for rank, recorded in zip(ranks, numbers, strict=True):
        if recorded != every:
            lacking.setdefault(number_ranges(sorted(every - recorded)), []).append(rank.name)
    if lacking:
        gaps = [f"{steps} (not in {listed(names)})" for steps, names in lacking.items()]
        notes.append(f"steps that not every rank recorded are left out: {listed(gaps)}")
    return notes


def _keyed_alike(steps: Sequence[Sequence[RankStep]]) -> list[list[RankStep]]:
    """Give the keys of meetings the same numbers on all ranks."""
    if len(steps) == 1:  # nobody to meet
        return [[replace(step, meetings=meetings_table(())) for step in steps[0]]]
    number_of: dict[Hashable, int] = {}
    numbers: dict[int, Int64] = {}  # a rank's steps share their keys
    for meetings in (step.meetings for of_rank in steps for step in of_rank):
        if id(meetings.keys) not in numbers:
            number = [number_of.setdefault(key, len(number_of)) for key in meetings.keys]
            numbers[id(meetings.keys)] = narrow(np.array(number, np.int64))

    def renamed(meetings: Meetings) -> Meetings:
        return replace(meetings, keys=(), key=numbers[id(meetings.keys)][meetings.key])

    return [[replace(step, meetings=renamed(step.meetings)) for step in of_rank] for of_rank in steps]


def _operations(ranks: Sequence[RankSteps], n_meetings: int) -> tuple[OperationTable, list[int]]:
    """Join the operations of all ranks, and list the first of each; behind them, those of meetings."""
    kinds: dict[Operation, int] = {}
    kind: list[NDArray[np.integer]] = []
    for owner, rank in enumerate(ranks):
        table = rank.operations
        if not isinstance(table, OperationTable):
            table = OperationTable(table)
        of_owner = (operation._replace(owner=owner) for operation in table.kinds)
        of_kind = [kinds.setdefault(operation, len(kinds)) for operation in of_owner]
        kind.append(np.array(of_kind, np.int32)[table.kind])
    kind.append(np.arange(len(kinds), len(kinds) + n_meetings))
    kinds_and_meetings = [*kinds, *(_MEETING._replace(owner=owner) for owner in range(n_meetings))]
    first = np.cumsum([0, *map(len, kind[:-1])]).tolist()
    return OperationTable.of(kinds_and_meetings, np.concatenate(kind)), first


def _join_step(
    parts: Sequence[RankStep],
    before: Sequence[Sequence[int]],
    link_of: Int64,
    on_device: Mask,
    first: Sequence[int],
) -> StepGraph:
    """Join one step of all ranks; `before` are the sizes of the parts in earlier steps, the last one first.

    `link_of` and `on_device` are of operations, `first` the first operation of each rank.
    """
    sizes = [len(part) for part in parts]
    offsets = _offsets(sizes)
    operation = np.concatenate([narrow(part.operation) for part in parts])
    operation += np.repeat(narrow(np.array(first[:-1])), sizes)
    owner = np.repeat(narrow(np.arange(len(parts))), sizes)
    begin = np.array([part.begin_ns for part in parts], np.int64)
    since = np.array([part.since_ns for part in parts], np.int64)[owner]
    start = np.maximum(np.concatenate([part.start_ns for part in parts]) + since, begin[owner])
    end = np.maximum(np.concatenate([part.end_ns for part in parts]) + since, start)
    within = [renumbered(part.edges, offset) for part, offset in zip(parts, offsets, strict=True)]
    meetings = _with_partners(_meetings_of(parts, offsets), end)
    many, few = _by_size(meetings)
    start, edges = _agreeing(start, end, np.concatenate([*within, _meeting_edges(few)]))
    latest, more = _joint_meetings(many, start, end, len(start))
    operation = np.concatenate([operation, narrow(first[-1] + owner[latest])])
    owner = np.concatenate([owner, owner[latest]])
    start, end = (np.concatenate([times, start[latest]]) for times in (start, end))
    edges = np.concatenate([edges, more])
    last = [
        None if part.last is None else part.last + offset for part, offset in zip(parts, offsets, strict=True)
    ]
    link = link_of[operation]
    turn = narrow(np.argsort(np.argsort(end, kind="stable")))
    if (link == NO_LINK).all():  # columns of one value take no memory
        link, turn = (np.broadcast_to(np.int32(value), end.shape) for value in (NO_LINK, 0))
    step = StepGraph(
        number=parts[0].number,
        operation=operation,
        owner=owner,
        link=link,
        start_ns=start,
        end_ns=end,
        edges=_without_cycles(start, end, edges),
        work_ns=end - start,
        gap_ns=end,
        begin_ns=begin,
        next_ns=np.array([part.next_ns for part in parts], np.int64),
        tail_ns=np.zeros(len(parts), np.int64),
        last=np.empty(0, np.int64),
        on_device=np.flatnonzero(on_device[operation]),
        turn=turn,
        overtaken=np.empty((0, 2), np.int64),
        held=np.zeros(len(start), np.bool_),
        continued=_from_before([part.continued for part in parts], sizes, before),
        across=_from_before([part.across for part in parts], sizes, before),
    )
    return fitted(step, last, sum(sizes))


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [int(offset) for offset in np.cumsum([0, *sizes])[:-1]]


def _from_before(rows: Sequence[Int64], sizes: Sequence[int], before: Sequence[Sequence[int]]) -> Int64:
    """Join the rows (event of an earlier step, event of this step, …) of all ranks.

    The fourth column is the number of steps between them; by default 1.
    """
    table = np.concatenate(rows)
    owner = np.repeat(np.arange(len(rows)), [len(pairs) for pairs in rows])
    back = table[:, 3] if table.shape[1] > 3 else np.ones(len(table), np.int64)
    known = back <= len(before)
    table, owner, back = table[known], owner[known], back[known]
    for steps_back in unique(back).tolist():
        table[back == steps_back, 0] += np.array(_offsets(before[steps_back - 1]))[owner[back == steps_back]]
    table[:, 1] += np.array(_offsets(sizes))[owner]
    return table


# ---- meetings


class _JobMeetings(NamedTuple):
    """Parts (k,) of ranks in meetings; those of one meeting have the same number in `group`."""

    group: Int64
    owner: Int64
    event: Int64
    enters: Mask
    leaves: Mask
    joint: Int64
    rule: Int64

    def select(self, rows: NDArray[Any]) -> _JobMeetings:
        return _JobMeetings(*(column[rows] for column in self))


def _meetings_of(parts: Sequence[RankStep], offsets: Sequence[int]) -> _JobMeetings:
    owner = np.repeat(np.arange(len(parts)), [len(part.meetings) for part in parts])
    names = ("event", "key", "turn", "enters", "leaves", "joint", "rule")
    event, key, turn, *others = (
        np.concatenate([getattr(part.meetings, name) for part in parts]) for name in names
    )
    _, group = numbered((key.astype(np.int64) * (int(turn.max(initial=0)) + 1) + turn).tolist())
    return _JobMeetings(group.astype(np.int64), owner, event + np.array(offsets)[owner], *others)


def _with_partners(meetings: _JobMeetings, end: Int64) -> _JobMeetings:
    """Assign the exchanges, whose partners are not recorded, to meetings of the ranks that take part.

    All ranks take part in each if they have equally many and the n-th end together. Otherwise ranks send to
    each other in pairs, which end together when the last byte has arrived; an exchange that ends alone meets
    nobody. If most do, clocks disagree, and equally many are enough.
    """
    rows = np.flatnonzero(meetings.rule == Rule.EXCHANGE)
    if not len(rows):
        return meetings
    rows = rows[np.argsort(end[meetings.event[rows]], kind="stable")]
    ends, owner, of_group = end[meetings.event[rows]], meetings.owner[rows], meetings.group[rows]
    first = _pairs(owner, ends)
    _, earliest, size = np.unique(of_group, return_index=True, return_counts=True)
    if (size == len(unique(owner))).all():
        _, latest = np.unique(of_group[::-1], return_index=True)
        if median(ends[::-1][latest] - ends[earliest]) <= _ENDS_AGREE_NS or 4 * len(first) < len(rows):
            return meetings._replace(
                rule=np.where(meetings.rule == Rule.EXCHANGE, Rule.COLLECTIVE, meetings.rule)
            )
    group, rule = meetings.group.copy(), meetings.rule.copy()
    for half in (rows[first], rows[first + 1]):
        group[half] = int(meetings.group.max()) + 1 + np.arange(len(first))
        rule[half] = Rule.TRANSFER
    return meetings._replace(group=group, rule=rule).select(rule != Rule.EXCHANGE)


def _pairs(owner: Int64, end: Int64) -> Int64:
    """Pair events (n,), in order of their ends, with the next one: list the first of each pair.

    Both are of different owners and end within `_ENDS_AGREE_NS`, nearer than to any other. Owners that rarely
    end together are no pair.
    """
    apart = np.diff(end)
    may_meet = (owner[1:] != owner[:-1]) & (apart <= _ENDS_AGREE_NS)
    apart = np.where(may_meet, apart, _FAR_NS)
    before, after = np.append(_FAR_NS, apart[:-1]), np.append(apart[1:], _FAR_NS)
    first = np.flatnonzero(may_meet & (apart < before) & (apart <= after))
    both = np.sort(np.stack([owner[first], owner[first + 1]]), axis=0)
    _, who, often = np.unique(both, axis=1, return_inverse=True, return_counts=True)
    return np.asarray(first[often[who.reshape(-1)] >= _BY_CHANCE * often.max(initial=0)])


def _by_size(meetings: _JobMeetings) -> tuple[_JobMeetings, _JobMeetings]:
    """Split the parts into those of collectives with more than `_MOST_PAIRED` parts, and all others.

    In a collective each part enters and leaves, the latter when the last has entered.
    """
    is_collective = (meetings.joint == Joint.START_TO_BODY) & (meetings.rule == Rule.COLLECTIVE)
    is_collective &= meetings.enters & meetings.leaves
    size = np.bincount(meetings.group)
    is_many = (size > _MOST_PAIRED) & (np.bincount(meetings.group, is_collective, len(size)) == size)
    chosen = is_many[meetings.group]
    return meetings.select(chosen), meetings.select(~chosen)


def _meeting_edges(meetings: _JobMeetings) -> Int64:
    """Make the edges between ranks that meet: from each part that enters to the others that leave."""
    order = np.argsort(meetings.group, kind="stable")
    entering, leaving = (
        meetings.select(order[chosen[order]]) for chosen in (meetings.enters, meetings.leaves)
    )
    low, high = (np.searchsorted(entering.group, leaving.group, side) for side in ("left", "right"))
    source, target = ranges(low, high)
    others = entering.owner[source] != leaving.owner[target]
    source, target = source[others], target[others]
    columns = (entering.event[source], leaving.event[target], leaving.joint[target], leaving.rule[target])
    return narrow(np.column_stack(columns))


def _joint_meetings(meetings: _JobMeetings, start: Int64, end: Int64, first: int) -> tuple[Int64, Int64]:
    """Make events of the meetings of many ranks, so that edges stay few: their latest events, and all edges.

    All enter one event, which all leave. If parts enter after others have left, several such events follow
    each other: each is left by the parts that ended before the next one entered. They are numbered from
    `first` on.
    """
    latest: list[Int64] = []
    tables: list[Int64] = []
    for group in unique(meetings.group).tolist():
        events = meetings.event[meetings.group == group]
        events = events[np.argsort(start[events], kind="stable")]
        seen = np.searchsorted(start[events], end[events], side="right")  # parts entered when each leaves
        number = unique(seen)
        here = first + np.arange(len(number))
        first += len(number)
        latest.append(events[number - 1])
        into = np.searchsorted(number, np.arange(len(events)), side="right")
        entered = into < len(number)
        tables += [
            edge_rows(events[entered], here[into[entered]], Joint.START_TO_HEAD, Rule.COLLECTIVE),
            edge_rows(here[:-1], here[1:], Joint.END_TO_HEAD, Rule.COLLECTIVE),
            edge_rows(here[np.searchsorted(number, seen)], events, Joint.END_TO_BODY, Rule.COLLECTIVE),
        ]
    edges = narrow(np.concatenate([np.empty((0, 4), np.int64), *tables]))
    return np.concatenate([np.empty(0, np.int64), *latest]), edges


# ---- edges


def _agreeing(start: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Make starts and edges agree with each other.

    A start up to `_TOLERANCE_NS` before its input's end is moved to that end. Any other contradicting edge
    leaves the start of its source instead, or is dropped.
    """
    start = start.copy()
    for _ in range(4):
        let_go, limit = _edge_times(start, end, edges)
        late = let_go - limit
        if not (late > 0).any():
            return start, edges
        to_head = edges[:, 2] < Joint.END_TO_BODY
        target = edges[:, 1]
        small = to_head & (late > 0) & (late <= _TOLERANCE_NS) & (let_go <= end[target])
        np.maximum.at(start, target[small], let_go[small])
        far = (late > 0) & ~small
        drop = far & from_start(edges)
        edges, far = edges[~drop], far[~drop]
        edges[far, 2] += 1
    let_go, limit = _edge_times(start, end, edges)
    return start, edges[let_go <= limit]


def _edge_times(start: Int64, end: Int64, edges: Int64) -> tuple[Int64, Int64]:
    """Find the time at which each edge leaves its source, and by which it must reach its target (e,)."""
    source, target, joint, _ = edges.T
    let_go, limit = end[source], start[target]  # of most edges
    of_start, to_body = np.flatnonzero(from_start(edges)), np.flatnonzero(joint >= Joint.END_TO_BODY)
    let_go[of_start], limit[to_body] = start[source[of_start]], end[target[to_body]]
    return let_go, limit


def _without_cycles(start: Int64, end: Int64, edges: Int64) -> Int64:
    """Drop the edges that close a cycle; all edges of a cycle take no time."""
    let_go, limit = _edge_times(start, end, edges)
    tied = np.flatnonzero(let_go == limit)
    if not (edges[tied, 0] >= edges[tied, 1]).any():  # only such an edge is left out
        return edges
    tails, heads = operation_edges(edges[tied])
    instant = np.flatnonzero(start == end)
    among = np.concatenate([np.stack([tails, heads], 1), np.stack([2 * instant, 2 * instant + 1], 1)])
    number = cycles(2 * len(start), among)
    inside = (number[tails] == number[heads]) & (edges[tied, 0] >= edges[tied, 1])
    return np.delete(edges, tied[inside], axis=0)


# ---- work, waits and gaps


def fitted(step: StepGraph, last: Sequence[Int64 | None], n_recorded: int) -> StepGraph:
    """Fit work, waits and gaps to the times, edges and links of a step.

    `last` are the events of each owner before its next step, None where unknown. Events from `n_recorded` on
    are meetings. A transfer works from when it could begin (its inputs and the previous transfer of its link
    have ended) to its end.
    """
    n = len(step)
    let_go, _ = _edge_times(step.start_ns, step.end_ns, step.edges)
    to_head = step.edges[:, 2] < Joint.END_TO_BODY
    target = step.edges[:, 1]
    ready = step.begin_ns[step.owner]
    np.maximum.at(ready, target[to_head], let_go[to_head])
    let_on = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(let_on, target[~to_head], let_go[~to_head])
    could_begin = np.maximum(step.start_ns, let_on)
    links = step.by_link()
    held = _held_by_links(step, links, ready, could_begin)
    could_begin[held] = np.maximum(ready, let_on)[held]
    overtaken = _wait_for_links(step, links, could_begin)
    step = replace(step, last=_last_events(step, last, n_recorded))
    return replace(
        step,
        start_ns=np.where(held, ready, step.start_ns),
        work_ns=np.maximum(step.end_ns - could_begin, 0),
        gap_ns=np.where(held, 0, step.start_ns - ready),
        tail_ns=np.where(step.next_ns < 0, 0, step.next_ns - step.last_end_ns),
        overtaken=overtaken,
        held=held,
    )


def _last_events(step: StepGraph, last: Sequence[Int64 | None], n_recorded: int) -> Int64:
    stated = np.array([events is not None for events in last], np.bool_)
    next_ns = step.next_ns[step.owner]
    in_step = (next_ns < 0) | (step.end_ns <= next_ns)
    free = in_step & ~stated[step.owner]
    free[n_recorded:] = False
    if free.any():
        source, target = step.edges[~from_start(step.edges), :2].T
        within = (step.owner[source] == step.owner[target]) & in_step[target]
        free[source[within]] = False
    for events in last:
        if events is not None:
            free[events[in_step[events]]] = True
    return np.flatnonzero(free)


def _held_by_links(step: StepGraph, links: Sequence[Int64], ready: Int64, could_begin: Int64) -> Mask:
    """Mark the transfers (n,) that were ready while their link was busy, and began as it came free.

    If another event waits for the start of a transfer, that start stays as recorded.
    """
    held = np.zeros(len(step), np.bool_)
    for served in links:
        before = _previous_end(step, served)
        begin = np.maximum(could_begin[served], before)
        is_first = begin > before + _PICKED_UP_NS
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(served)), 0))
        start, asked = step.start_ns[served], ready[served]
        held[served] = ~is_first & (before <= start) & (begin[first] <= asked) & (asked < before)
    held[step.edges[from_start(step.edges), 0]] = False
    return held


def _wait_for_links(step: StepGraph, links: Sequence[Int64], could_begin: Int64) -> Int64:
    """Raise `could_begin` to the end of the link's previous transfer; return `StepGraph.overtaken`."""
    overtaken = [np.empty((0, 2), np.int64)]
    for served in links:
        late = could_begin[served][1:] < np.maximum.accumulate(could_begin[served])[:-1]
        overtaken.append(np.stack([served[:-1][late], served[1:][late]], axis=1))
        could_begin[served] = np.maximum(could_begin[served], _previous_end(step, served))
    return np.concatenate(overtaken)


def _previous_end(step: StepGraph, served: Int64) -> Int64:
    """List the end of the previous transfer before each transfer of a link."""
    return np.concatenate([[np.iinfo(np.int64).min], step.end_ns[served][:-1]])
