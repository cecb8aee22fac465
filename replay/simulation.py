"""Recorded steps simulated in a row: each event is two operations, its head and its body.

The head begins once everything that enters it is over and the gap has passed; the body once the head is
over, everything that enters the body as well, and its link is free. It lasts the event's work. Waiting is
what the simulation produces; with their own work and gaps, steps get back the times they were recorded with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph, operation_edges
from dialects.step_parts import Joint
from formats.columns import Track
from replay.engine import UNLIMITED, Plan, Schedule, make_plan, pays, simulate


class Replay(Struct, frozen=True):
    """Some steps of m owners, simulated in a row.

    Attributes
    ----------
    rows : which recorded step stands at each position
    schedule : when all operations ran
    begin_op, end_op : (positions, m) the operations at which each owner's step begins and ends
    first_op : (positions,) the head of the position's first event
    """

    recording: Recording
    rows: Sequence[int]
    schedule: Schedule
    begin_op: Int64
    end_op: Int64
    first_op: Int64

    @property
    def iteration_ns(self) -> Int64:
        """How long each owner took for the step at each position (positions, m)."""
        return self.schedule.end_ns[self.end_op] - self.schedule.start_ns[self.begin_op]

    def heads(self, position: int) -> Int64:
        """Return the plan's operations that are the heads of a step's events (n,); bodies come after them."""
        n = len(self.recording.steps[self.rows[position]])
        heads: Int64 = self.first_op[position] + 2 * np.arange(n)
        return heads

    def step(self, position: int) -> StepGraph:
        """Return the step at `position` with its simulated times, which start at 0.

        What a device did before the step began, ahead of its host, has no time in it and holds up nothing.
        """
        heads = self.heads(position)
        return as_simulated(
            self.recording.steps[self.rows[position]],
            self.schedule.start_ns[heads],
            self.schedule.end_ns[heads + 1],
            self.schedule.start_ns[self.begin_op[position]],
            self.schedule.end_ns[self.end_op[position]],
        )

    def intervals(self, position: int) -> tuple[Int64, Int64]:
        """Return start and end (n,) of the events at `position` as a trace would show them.

        A transfer that is recorded only from when its link serves it starts with its body.
        """
        heads, held = self.heads(position), self.recording.steps[self.rows[position]].held
        return self.schedule.start_ns[heads + held], self.schedule.end_ns[heads + 1]


def as_simulated(step: StepGraph, start: Int64, end: Int64, begin: Int64, next_ns: Int64) -> StepGraph:
    """Return a step with the simulated times of its events (n,) and its owners (m,); see `Replay.step`."""
    earliest = begin[step.owner]
    is_over = end < earliest
    start, end = np.maximum(start, earliest), np.maximum(end, earliest)
    return replace(
        step,
        start_ns=start,
        end_ns=end,
        work_ns=np.minimum(step.work_ns, end - start),
        edges=step.edges[~is_over[step.edges[:, 0]]] if is_over.any() else step.edges,
        begin_ns=begin,
        next_ns=next_ns,
    )


def replay(recording: Recording, rows: Sequence[int]) -> Replay:
    """Simulate the recorded steps `rows`, one after the other, overlapping as their edges allow."""
    row = Row(recording, rows)
    start, end = (np.concatenate(column) for column in zip(*row.schedules(), strict=True))
    return row.ran(Schedule(start, end))


class Planned(Struct, frozen=True):
    """A replay, and all its operations as one plan, to be simulated again with other durations."""

    result: Replay
    plan: Plan

    def with_durations(self, dur_ns: Int64, *, compiled: bool | None = None) -> Replay:
        """Return the same steps simulated with other durations of the plan's operations."""
        return replace(self.result, schedule=simulate(replace(self.plan, dur_ns=dur_ns), compiled=compiled))


def planned(recording: Recording, rows: Sequence[int]) -> Planned:
    """Simulate the recorded steps `rows` as `replay` does, and keep their plan."""
    row = Row(recording, rows)
    plan = row.plan()
    return Planned(row.ran(simulate(plan)), plan)


class InTurn:
    """The steps `rows` of a recording, each asked for when it is wanted: memory need not hold all."""

    def __init__(self, steps: Sequence[StepGraph], rows: Sequence[int]) -> None:
        self._steps, self._rows = steps, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> StepGraph:
        return self._steps[self._rows[position]]

    def __iter__(self) -> Iterator[StepGraph]:
        return map(self._steps.__getitem__, self._rows)


class Row:
    """Steps in a row: per step its owners' begins, their ends, and two operations an event.

    Edits of work, gaps, tails and begins leave the operations and their edges as they are.
    """

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.recording, self.rows = recording, rows
        self.steps = InTurn(recording.steps, rows)
        self.owners = len(recording.owners)
        sizes = [2 * self.owners + 2 * len(step) for step in self.steps]
        self.n_ops = sum(sizes)
        self.offset = np.cumsum([0, *sizes[:-1]])
        self.begin_op = self.offset[:, None] + np.arange(self.owners)
        self.end_op = self.begin_op + self.owners
        self.first_op = self.offset + 2 * self.owners
        self.contends = any(bool((step.link != NO_LINK).any()) for step in self.steps)
        self._early: dict[int, tuple[Int64, Int64]] = {}

    def ran(self, schedule: Schedule) -> Replay:
        """Return the replay of which this is the schedule."""
        return Replay(self.recording, self.rows, schedule, self.begin_op, self.end_op, self.first_op)

    def schedules(self) -> Iterator[Schedule]:
        """Yield when the operations ran, of one step after the other.

        Steps whose transfers share links are simulated together; otherwise a step depends only on the
        one before it, and no more than one is planned at a time.
        """
        if self.contends:
            yield simulate(self.plan())
            return
        before = None
        compiled = pays(self.n_ops)
        for position in range(len(self.steps)):
            dur, gap = self._times(position)
            earliest = None
            if before is not None:
                source, target = self._from_step_before(position).T
                earliest = np.zeros_like(gap)
                np.maximum.at(earliest, target, before.end_ns[source] + gap[target])
            edges = np.concatenate([self._between_events(position), self._to_events(position)])
            plan = make_plan(dur, edges, gap_ns=gap)
            before = simulate(plan, compiled=compiled, earliest_ns=earliest)
            yield before

    def plan(self) -> Plan:
        """Return all operations and the edges between them."""
        times, device, priority, edges = [], [], [], []
        served = 0
        for position, step in enumerate(self.steps):
            times.append(self._times(position))
            device += [np.full(2 * self.owners, UNLIMITED), _interleave(UNLIMITED, step.link)]
            priority += [np.zeros(2 * self.owners, np.int64), served + np.repeat(step.turn, 2)]
            served += int(step.turn.max(initial=0)) + 1
            edges += [self.offset[position] + self._between_events(position), *self.around(position)]
        dur, gap = (np.concatenate(column) for column in zip(*times, strict=True))
        return make_plan(
            dur,
            np.concatenate(edges),
            device=np.concatenate(device) if self.contends else UNLIMITED,
            priority=np.concatenate(priority) if self.contends else 0,
            gap_ns=gap,
        )

    def around(self, position: int) -> list[Int64]:
        """Return the edges that join a step's events to its begins, its ends and the step before it."""
        edges = [self.offset[position] + self._to_events(position)]
        if position:
            edges.append(self.offset[position - 1 : position + 1] + self._from_step_before(position))
        return edges

    def lead_ns(self, position: int, step: StepGraph) -> Int64:
        """Return how much later than the first owner each begins a step (m,) that follows no other."""
        apart = position == 0 or self._follows_a_pause(position)
        return step.lead_ns if apart else np.zeros(len(step.begin_ns), np.int64)

    def _times(self, position: int) -> tuple[Int64, Int64]:
        """Return durations and gaps of the operations of a step."""
        step = self.steps[position]
        work, gaps = self.work_and_gaps(position, step)
        none = np.zeros(self.owners, np.int64)
        dur = np.concatenate([none, step.tail_ns, _interleave(0, work)])
        return dur, np.concatenate([self.lead_ns(position, step), none, _interleave(gaps, 0)])

    def work_and_gaps(self, position: int, step: StepGraph) -> tuple[Int64, Int64]:
        """Return work and gaps (n,) of a step's events, of what the step before began from its end there on.

        What was asked for there, and nothing holds back here, does not wait for its host to begin the step.
        `step` is the recorded one or one with edited times.
        """
        before = self.steps[position - 1]
        work, gaps = step.work_ns, step.gap_ns
        continued, across = self._from_before(position)
        if not len(continued) and not len(across):
            return work, gaps
        work, gaps = work.copy(), gaps.astype(np.int64)
        earlier, resumed = continued.T
        since = np.maximum(before.end_ns[earlier], step.start_ns[resumed])
        work[resumed] = np.clip(step.end_ns[resumed] - since, 0, work[resumed])
        gaps[resumed] = 0
        early, gaps_of_early = self._asked_before(position, across)
        edited = np.zeros(len(early), np.int64)
        if self.stream_of.max(initial=-1) >= 0:  # what an edit made of the time since the step's begin
            edited = gaps[early] - (step.start_ns - step.begin_ns[step.owner])[early]
        gaps[early] = np.maximum(gaps_of_early + edited, 0)
        return work, gaps

    def _asked_before(self, position: int, across: Int64) -> tuple[Int64, Int64]:
        """Return what was asked for in the step before, and nothing holds back here; and its gaps."""
        if position not in self._early:
            step, before = self.steps[position], self.steps[position - 1]
            source, target, joint = across.T
            ready = np.full(len(step), np.iinfo(np.int64).min)
            let_on = np.where(joint == Joint.END_TO_HEAD, before.end_ns[source], before.start_ns[source])
            np.maximum.at(ready, target, let_on)
            is_early = np.zeros(len(step), np.bool_)
            is_early[target] = True
            early = np.flatnonzero(is_early & _is_root(step))
            self._early[position] = early, step.start_ns[early] - ready[early]
        return self._early[position]

    # ---- edges (e, 2) between operations, which are numbered from the first begin of their step

    def _between_events(self, position: int) -> Int64:
        """Return the edges between the operations of the events of a step."""
        step, first = self.steps[position], 2 * self.owners
        events = np.arange(len(step))
        edges = [(2 * events, 2 * events + 1), operation_edges(step.edges), 2 * step.overtaken.T + 1]
        return first + np.stack([np.concatenate(column) for column in zip(*edges, strict=True)], axis=1)

    def _to_events(self, position: int) -> Int64:
        """Return the edges that join the events of a step to its begins and ends."""
        step, first = self.steps[position], 2 * self.owners
        begin = np.arange(self.owners)
        end = self.owners + begin
        continued, across = self._from_before(position)
        is_root = _is_root(step)
        is_root[continued[self._runs_on(position), 1]] = False
        is_root[across[:, 1]] = False
        roots = np.flatnonzero(is_root)
        edges = [
            (begin, end),
            (begin[step.owner[roots]], first + 2 * roots),
            (first + 2 * step.last + 1, end[step.owner[step.last]]),
        ]
        return np.stack([np.concatenate(column) for column in zip(*edges, strict=True)], axis=1)

    def _from_step_before(self, position: int) -> Int64:
        """Return the edges from the operations of the step before to those of a step."""
        first = 2 * self.owners
        begin = np.arange(self.owners)
        ends = self.owners + begin
        continued, across = self._from_before(position)
        if self._follows_a_pause(position):
            edges = [np.stack([np.repeat(ends, len(begin)), np.tile(begin, len(ends))], axis=1)]
        else:
            edges = [np.stack([ends, begin], axis=1)]
        resumed = first + 2 * continued.astype(np.int64) + np.array([1, 0])
        # a host's rest begins with the step, and waits in its course
        resumed[~self._runs_on(position), 1] += 1
        edges.append(resumed)
        source, target, joint = across.T
        done = first + 2 * source + (joint == Joint.END_TO_HEAD)
        edges.append(np.stack([done, first + 2 * target], axis=1))
        return np.concatenate([*edges, *self._streams(position)])

    def _runs_on(self, position: int) -> Bool:
        """Return which of what was begun in the step before (c,) runs on, on a device, as this one begins."""
        continued, _ = self._from_before(position)
        if not len(continued):
            return np.empty(0, np.bool_)
        return self.stream_of[self.steps[position].operation[continued[:, 1]]] >= 0

    def _from_before(self, position: int) -> tuple[Int64, Int64]:
        """Return `continued` and `across` of a step; nothing where it does not come in its turn."""
        step = self.steps[position]
        n = None if self._in_turn(position) else 0
        return step.continued[:n], step.across[:n]

    def _in_turn(self, position: int) -> bool:
        """Whether a step comes after the one that was recorded before it."""
        return position > 0 and self.rows[position - 1] == self.rows[position] - 1

    def _follows_a_pause(self, position: int) -> bool:
        """Whether a step was recorded after a pause of the profiler; all owners then begin it as recorded."""
        step, before = self.steps[position], self.steps[position - 1]
        return self._in_turn(position) and step.number > before.number + 1

    def _streams(self, position: int) -> list[Int64]:
        """Return edges that let a device be behind the host, by one step at most.

        The first work of each stream follows the last one of the step before, which is over when this
        step ends.
        """
        if not self._in_turn(position) or self.stream_of.max(initial=-1) < 0:
            return []
        step, before = self.steps[position], self.steps[position - 1]
        stream, stream_before = self.stream_of[step.operation], self.stream_of[before.operation]
        mine, first = _first_of(stream, step.start_ns)
        theirs, last = _first_of(stream_before, -before.end_ns)
        _, at, at_before = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        heads, bodies = first[at], last[at_before]
        follows = before.end_ns[bodies] <= step.start_ns[heads]
        over = before.end_ns[bodies] <= (step.next_ns - step.tail_ns)[step.owner[heads]]
        sources = 2 * (self.owners + bodies) + 1
        ends = self.owners + step.owner[heads]
        return [
            np.stack([sources[follows], 2 * (self.owners + heads[follows])], axis=1),
            np.stack([sources[over], ends[over]], axis=1),
        ]

    @cached_property
    def stream_of(self) -> Int64:
        """The number of the stream of each operation of the recording, -1 for those of no device."""
        place: dict[tuple[int, Track], int] = {}
        return self.recording.column(
            lambda one: place.setdefault((one.owner, one.track), len(place)) if one.on_device else -1
        )


def _first_of(stream: Int64, order: Int64) -> tuple[Int64, Int64]:
    """Return the streams, and of each the event (of n) that comes first in `order` (n,)."""
    events = np.flatnonzero(stream >= 0)
    events = events[np.lexsort((order[events], stream[events]))]
    streams, first = np.unique(stream[events], return_index=True)
    return streams, events[first]


def _interleave(heads: Int64 | int, bodies: Int64 | int) -> Int64:
    return np.stack(np.broadcast_arrays(heads, bodies), axis=1).reshape(-1)


def _is_root(step: StepGraph) -> Bool:
    """Return which events (n,) nothing of their owner holds back but the begin of the step."""
    source, target, joint, _ = step.edges.T
    holds = (joint < Joint.END_TO_BODY) & (step.owner[source] == step.owner[target])
    is_root = np.ones(len(step), np.bool_)
    is_root[target[holds]] = False
    return is_root
