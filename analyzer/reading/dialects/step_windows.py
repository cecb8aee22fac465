"""Cut the recording of one rank into its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.distributions import longest_usual, median
from analyzer.base.arrays.numbering import occurrence_number, ranges, unique
from analyzer.base.errors import TraceError, counted
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import (
    Joint,
    Meetings,
    Operation,
    OperationTable,
    RankStep,
    edge_rows,
    from_start,
    meetings_table,
    narrow,
)
from analyzer.reading.dialects.tolerances import ALWAYS_FEW, IN_A_ROW, JITTER_NS, MOST_TIMES

Groups = NDArray[np.integer]
#: `RecordedEvents.iteration` of events that no step requested.
NO_STEP = -1
_SIDES: tuple[Literal["left"], Literal["right"]] = ("left", "right")


class RecordedEvents(Struct, frozen=True):
    """The n events of one rank's whole recording, and their dependencies."""

    kinds: Sequence[Operation]
    kind: Int64  # (n,) index into `kinds`; events of one kind differ by their order in a step
    start_ns: Int64
    end_ns: Int64
    issued_ns: Int64  # (n,) the launch of a kernel; else the start
    leads: Mask  # (n,) events of the main thread: the next step begins when the last of them has ended
    edges: Int64  # as `RankStep.edges`
    meetings: Meetings = field(default_factory=lambda: meetings_table(()))
    #: (n,) the step that requested the event, else `NO_STEP`: a step ends when all its work is done, even on
    #: a device. None: steps end with the events that lead.
    iteration: Int64 | None = None


def as_bounds(table: Int64) -> list[tuple[int, int, int]]:
    """Convert a table (n, 3) of steps to tuples."""
    return list(zip(*table.T.tolist(), strict=True))


def sampled(steps: Int64, most: int | None) -> tuple[Int64, list[str]]:
    """Choose about `most` steps of a table (n, 3), with a note if some are left out.

    They are one of 2, 4, 8, … runs of successive steps, the same on all ranks. The note counts the other
    steps that take much longer than usual.
    """
    if most is None or len(steps) <= most:
        return np.arange(len(steps)), []
    share = 1 << ((len(steps) - 1) // most).bit_length()
    number, begin, end = steps.T
    took, is_kept = end - begin, number // IN_A_ROW % share == 0
    missed = np.flatnonzero(~is_kept & (took > longest_usual(took)))
    slow = "none took much longer than usual"
    if len(missed):
        longest = missed[took[missed].argmax()]
        ratio = f"{took[longest] / median(took):,.1f} times as long as most"
        slow = f"{len(missed):,} took much longer than usual, step {number[longest]} {ratio}"
    looked_at = f"{is_kept.sum():,} of {len(steps):,} steps are looked at, {IN_A_ROW} in a row"
    return np.flatnonzero(is_kept), [f"{looked_at} all over the recording; of the others {slow}"]


def check_sizes(path: str, start_ns: Int64, end_ns: Int64, bounds: Sequence[tuple[int, int, int]]) -> None:
    """Refuse (TraceError) a recording whose events (n,) go on through many steps: each has them all."""
    most = MOST_TIMES * len(start_ns) + ALWAYS_FEW
    _, begins, ends = np.array(bounds, np.int64).reshape(-1, 3).T
    n_begun = np.searchsorted(np.sort(start_ns), ends)
    n_ended = np.searchsorted(np.sort(end_ns), begins, side="right")
    if (n := int((n_begun - n_ended).sum())) > most:
        raise TraceError(
            f"{path}: its {counted(len(start_ns), 'event')} run on through so many of its {len(bounds):,} "
            f"steps ({n:,} times together) that no step can be looked at by itself"
        )


def cut_into_steps(
    events: RecordedEvents, bounds: Sequence[tuple[int, int, int]]
) -> tuple[OperationTable, list[RankStep]]:
    """Cut a recording into its operations and steps; `bounds` as from `windows`, in order.

    An event that goes on in the next step is an event there as well. A host that is ahead of its device is
    cut at the step's end. Work requested before the step is an operation of its own (`from_earlier_step`).
    """
    cutter = _Cutter(events, [begin for _, begin, _ in bounds])
    cuts = [cutter.cut(window) for window in bounds]
    iteration = np.full(len(events.kind), NO_STEP) if events.iteration is None else events.iteration
    labels = []
    for part, step in cuts:
        is_earlier = (events.issued_ns[part] < step.begin_ns) & (iteration[part] == NO_STEP)
        labels.append(2 * events.kind[part] + is_earlier)
    numbers, operations = _operations(events.kinds, labels)
    steps = [replace(step, operation=number) for (_, step), number in zip(cuts, numbers, strict=True)]
    return operations, steps


class _Cutter:
    """Cuts a recording window by window."""

    def __init__(self, events: RecordedEvents, begins: Sequence[int]) -> None:
        by_target = np.argsort(events.start_ns[events.edges[:, 1]], kind="stable")
        self.events = replace(events, edges=narrow(events.edges[by_target]))
        self.order = np.argsort(events.start_ns, kind="stable")
        self.starts = events.start_ns[self.order]
        self.targets = events.start_ns[self.events.edges[:, 1]]  # when each edge's target starts
        self.leads = self.order[events.leads[self.order]]
        self.lead_starts = events.start_ns[self.leads]
        self.by_event = np.argsort(events.meetings.event, kind="stable")
        self.met = events.meetings.event[self.by_event]
        self.meets = np.zeros(len(events.kind), np.bool_)
        self.meets[self.met] = True
        lows = np.searchsorted(self.starts, begins).tolist()
        self.open = still_open(self.order, events.end_ns, begins, lows)
        lows, ends = np.searchsorted(self.targets, begins).tolist(), events.end_ns[self.events.edges[:, 1]]
        self.open_edges = still_open(np.arange(len(by_target)), ends, begins, lows)
        track: dict[object, int] = {}
        tracks = [track.setdefault(kind.track, len(track)) if kind.on_device else -1 for kind in events.kinds]
        self.stream = np.array(tracks, np.int64)[events.kind]  # -1 on no device
        self.new = np.full(len(events.kind), -1, np.int64)  # index of each event in the step that is cut
        source, target, joint, _ = events.edges[events.edges[:, 2] >= Joint.END_TO_BODY].T
        #: End of the last source that an event waits for after its start.
        self.until = np.full(len(events.kind), np.iinfo(np.int64).min)
        over = np.where(joint == Joint.END_TO_BODY, events.end_ns[source], events.start_ns[source])
        np.maximum.at(self.until, target, over)
        #: The last step of each event, counted from the first one, and the event's index there.
        self.home, self.index = np.full((2, len(events.kind)), -1, np.int64)
        self.count = self.since = 0  # steps so far, and the first of those without a pause between them
        self.previous_end: int | None = None

    def cut(self, window: tuple[int, int, int]) -> tuple[Int64, RankStep]:
        """Cut out the next step: its events by start, and the step, still without operations."""
        number, begin, end = window
        low, high = np.searchsorted(self.starts, [begin, end]).tolist()
        part = np.concatenate([next(self.open), self.order[low:high]])
        self.new[part] = np.arange(len(part))
        if begin != self.previous_end:
            self.since = self.count
        self.previous_end = end
        goes_on = part[(self.home[part] >= self.since) & (self.home[part] == self.count - 1)]
        edge_range = np.searchsorted(self.targets, [begin, end]).tolist()
        last, cut, waits = self._last_of(part, window), *self._cut_off(part, number, end)
        low_met, high_met = (np.searchsorted(self.met, part, side) for side in _SIDES)
        met = np.sort(self.by_event[ranges(low_met, high_met)[0]])
        meetings = self.events.meetings
        step = RankStep(
            number=number,
            begin_ns=begin,
            next_ns=end,
            operation=part[:0],
            start_ns=np.maximum(self.events.start_ns[part], begin),
            end_ns=np.where(cut, end, self.events.end_ns[part]),
            edges=np.concatenate([self._edges_within(begin, *edge_range), self._waits_on(part, waits, last)]),
            meetings=meetings.select(met, self.new[meetings.event[met]]),
            last=last,
            continued=np.column_stack((self.index[goes_on], self.new[goes_on])),
            across=self._edges_across(begin, *edge_range),
        )
        self.home[part], self.index[part], self.new[part] = self.count, self.new[part], -1
        self.count += 1
        return part, step

    def _cut_off(self, part: Int64, number: int, end: int) -> tuple[Mask, Mask]:
        """Find the events to split at the step's end, and those that wait there.

        They belong to a host ahead of its device, or to a collective of a later step.
        """
        events = self.events
        if events.iteration is None:
            return (np.zeros(len(part), np.bool_),) * 2
        early = self.meets[part] & (events.iteration[part] > number)
        cut = (events.end_ns[part] > end) & (early | (self.stream[part] < 0))
        return cut, cut & (early | (self.until[part] > end))

    def _waits_on(self, part: Int64, waits: Mask, last: Int64 | None) -> Int64:
        """Let events that wait beyond a step wait for its last work on a device."""
        waiting = np.flatnonzero(waits)
        source = waiting[:0] if last is None else last[self.stream[part[last]] >= 0]
        source = source[np.argsort(self.events.end_ns[part[source]], kind="stable")][-1:]
        sources = np.repeat(source, len(waiting))
        return edge_rows(sources, waiting[: len(sources)], Joint.END_TO_BODY, Rule.COMPLETE)

    def _last_that_leads(self, part: Int64, end: int) -> Int64 | None:
        """Find the last event that leads, and the ended sources of the next one; None if no event leads."""
        events = self.events
        leads = part[events.leads[part] & (events.end_ns[part] <= end)]
        if not len(leads):
            return None
        last = leads[[np.argmax(events.end_ns[leads])]]
        later = int(np.searchsorted(self.lead_starts, end))
        following = self.leads[later : later + 1]
        low, high = (np.searchsorted(self.targets, events.start_ns[following], side) for side in _SIDES)
        into = events.edges[ranges(low, high)[0]]
        sources = into[(into[:, 1] == following) & (into[:, 2] == Joint.END_TO_HEAD), 0]
        sources = sources[(self.new[sources] >= 0) & (events.end_ns[sources] <= end)]
        return unique(self.new[np.append(last, sources)])

    def _last_of(self, part: Int64, window: tuple[int, int, int]) -> Int64 | None:
        """Find the events that complete a step: its last event that leads, and its last of each stream."""
        events, (number, _, end) = self.events, window
        if events.iteration is None:
            return self._last_that_leads(part, end)
        rows = part[(events.iteration[part] == number) & (events.end_ns[part] <= end)]
        rows = rows[events.leads[rows] | (self.stream[rows] >= 0)]
        rows = rows[np.lexsort((events.end_ns[rows], self.stream[rows]))]
        is_last = np.append(np.diff(self.stream[rows]) != 0, np.ones(min(len(rows), 1), np.bool_))
        return unique(self.new[rows[is_last]])

    def _edges_within(self, begin: int, low: int, high: int) -> Int64:
        """Select the edges between a step's events; the targets of `low` to `high` start in the step."""
        events, new = self.events, self.new
        edges: Int64 = np.concatenate([events.edges[next(self.open_edges)], events.edges[low:high]])
        edges = edges[new[edges[:, 0]] >= 0]
        keep = ~from_start(edges) | (events.start_ns[edges[:, 0]] >= begin)
        keep &= (edges[:, 2] >= Joint.END_TO_BODY) | (events.start_ns[edges[:, 1]] >= begin)
        edges = edges[keep]
        edges[:, :2] = new[edges[:, :2]]
        return edges

    def _edges_across(self, begin: int, low: int, high: int) -> Int64:
        """Select the edges (k, 4) of `RankStep.across`.

        Where a step ends with the work of a device, the main thread goes on from its own earlier events.
        """
        home, new = self.home, self.new
        source, target, joint, _ = self.events.edges[low:high].T
        keep = (home[source] >= self.since) & (new[source] < 0)
        if self.events.iteration is None:
            keep &= self.events.issued_ns[target] < begin
        keep &= (joint == Joint.END_TO_HEAD) | (joint == Joint.START_TO_HEAD)
        source, target = source[keep], target[keep]
        return np.column_stack((self.index[source], new[target], joint[keep], self.count - home[source]))


def still_open(items: Int64, end_ns: Int64, begins: Sequence[int], lows: Sequence[int]) -> Iterator[Int64]:
    """Yield the items open at the begin of each window: among the first `low`, and not over.

    `items` are in order of start, `end_ns` are by item.
    """
    seen, since_ns, running = 0, np.iinfo(np.int64).min, items[:0]
    for begin_ns, low in zip(begins, lows, strict=True):
        if begin_ns < since_ns or low < seen:  # windows out of order
            seen, running = 0, items[:0]
        running = np.concatenate([running, items[seen:low]])
        running = running[end_ns[running] > begin_ns]
        seen, since_ns = low, begin_ns
        yield running


def _operations(kinds: Sequence[Operation], labels: Sequence[Int64]) -> tuple[list[Int64], OperationTable]:
    """Assign operations to each step's events: the n-th of a label is the same in every step.

    `labels` are per step twice the kind, plus one for work of an earlier step.
    """
    most = np.zeros(2 * len(kinds), np.int64)
    for label in labels:  # a table of all steps and kinds could be far larger than the recording
        present, count = np.unique(label, return_counts=True)
        most[present] = np.maximum(most[present], count)
    offset = np.cumsum(most) - most
    numbers = [offset[label] + occurrence_number(label) for label in labels]
    used = np.flatnonzero(most)
    variants = OperationTable(
        kinds[label // 2]._replace(from_earlier_step=bool(label % 2)) for label in used.tolist()
    )
    return numbers, OperationTable.of(variants.kinds, np.repeat(variants.kind, most[used]))


def ended_last(end_ns: Int64, group: Groups, moments: Int64, own: Groups) -> Int64:
    """Find the event (n,) of a group other than `own` (k,) that ended last before each of `moments` (k,).

    -1 for none.
    """
    if not len(end_ns):
        return np.full(len(moments), -1, np.int64)
    order = np.argsort(end_ns, kind="stable")
    groups = group[order]
    is_first = np.append(True, groups[1:] != groups[:-1])
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    last = np.searchsorted(end_ns[order], moments, side="right") - 1
    last = np.where((last >= 0) & (groups[last] == own), first[last] - 1, last)
    return np.where(last >= 0, order[last], -1)


def ended_nearest(start_ns: Int64, end_ns: Int64, group: Groups, targets: Int64) -> Int64:
    """Find the event of another group that ended nearest to the start of each target (k,); -1 for none.

    It began before the target, and may seem to end up to `JITTER_NS` after the target's begin.
    """
    begin = start_ns[targets]
    nearest = ended_last(end_ns, group, begin, group[targets])
    before_ns = np.where(nearest >= 0, begin - end_ns[nearest], np.iinfo(np.int64).max)
    nearest = np.where((nearest >= 0) & (start_ns[nearest] < begin), nearest, -1)
    order = np.argsort(end_ns, kind="stable")
    later = np.searchsorted(end_ns[order], begin, side="right")
    left = np.arange(len(targets))
    while len(left):  # later ends, until they are too late
        left = left[later[left] < len(order)]
        source = order[later[left]]
        late = end_ns[source] - begin[left]
        is_near = late <= np.minimum(before_ns[left], JITTER_NS)
        left, source = left[is_near], source[is_near]
        fits = (group[source] != group[targets[left]]) & (start_ns[source] < begin[left])
        fits &= end_ns[source] < end_ns[targets[left]]
        nearest[left[fits]] = source[fits]
        left = left[~fits]
        later[left] += 1
    return nearest
