"""Simulation of steps in a row, with recorded or edited times.

Most operations wait for one other operation alone, the one before on their thread. Such a *run* takes the
sum of its times, so that a simulation costs a sum over the events and a pass over the few runs. Runs are cut
where an edge leads into one or out of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import (
    NO_LINK,
    LazySteps,
    Recording,
    StepBounds,
    StepGraph,
    operation_edges,
)
from analyzer.reading.dialects.step_parts import Joint, narrow
from replay.engine import UNLIMITED, Plan, Schedule, make_plan, simulate

#: Columns of a step that determine the edges; work, gaps, begins and tails do not.
_STRUCTURE = (
    "operation", "owner", "link", "start_ns", "end_ns", "edges", "next_ns", "last", "turn", "overtaken",
    "held", "continued", "across",
)  # fmt: skip


class _Row:
    """The operations of steps in a row, and the edges to step starts, step ends and the step before.

    Each step has the starts and ends of its owners, then two operations for each event, its head and its
    body. The head starts when all its inputs are over and the gap has passed. The body starts when the head
    and all inputs of the body are over and its link is free; it lasts the event's work. The simulation
    produces the waiting. Edits of work, gaps, tails and begins leave operations and edges as they are.
    """

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.recording, self.rows = recording, rows
        self.owners = len(recording.owners)
        index = np.arange(len(rows))
        follows = np.diff(np.array(rows, np.int64), prepend=-2) == 1
        #: Number of steps (positions,) recorded without a break before each one.
        self._n_before = index - np.maximum.accumulate(np.where(follows, 0, index))
        sizes, self.has_links = [], False
        for position in range(len(rows)):
            step = self.step(position)
            sizes.append(2 * self.owners + 2 * len(step))
            self.has_links |= bool((step.link != NO_LINK).any())
        self.offset = np.cumsum([0, *sizes[:-1]])
        self.begin_op = self.offset[:, None] + np.arange(self.owners)
        self.end_op = self.begin_op + self.owners
        self.first_op = self.offset + 2 * self.owners
        self.n_ops = sum(sizes)
        self._on_device = recording.which(lambda op: op.on_device)

    def step(self, position: int) -> StepGraph:
        """Load the recorded step at `position`."""
        return self.recording.steps[self.rows[position]]

    def around(self, position: int) -> list[Int64]:
        """Edges from the events of a step to its starts, its ends and the step before."""
        edges = [self.offset[position] + self._to_events(position)]
        if position:
            edges.append(self.offset[position - 1 : position + 1] + self._from_step_before(position))
            edges.append(self._launches(position))
        return edges

    def lead_ns(self, position: int, recorded: Int64) -> Int64:
        """Delay of each owner's start (m,) behind the first owner's; `recorded` if the step follows no other.

        If steps that share a network repeat, the drift between owners in the last round is undone: it was
        chance and would add up.
        """
        if position == 0 or self._follows_a_pause(position):
            return recorded
        if self._n_before[position] or not self.recording.sides:
            return np.zeros_like(recorded)
        moved = self.step(position).lead_ns - self.step(position - 1).next_ns
        return np.asarray(moved - moved.min())

    def work_and_gaps(self, position: int, step: StepGraph) -> tuple[Int64, Int64]:
        """Split off what passed in the step before from the work and gaps (n,) of a step's events.

        Events that began there keep the work that was left. Operations that were launched there, and whose
        inputs are done, may start before their host begins this step: their gap is from their launch on.
        `step` is the recorded one or one with edited times.
        """
        continued, across = self._from_before(position)
        if not len(continued) and not len(across):
            return step.work_ns, step.gap_ns
        work, gaps = step.work_ns.copy(), step.gap_ns.astype(np.int64)
        earlier, resumed = continued.T
        since = np.maximum(self.step(position - 1).end_ns[earlier], step.start_ns[resumed])
        work[resumed] = np.clip(step.end_ns[resumed] - since, 0, work[resumed])
        gaps[resumed] = 0
        early, since_launch = self._launched_before(position, across)
        edited = gaps[early] - (step.start_ns - step.begin_ns[step.owner])[early]
        gaps[early] = np.maximum(since_launch + edited, 0)
        return work, gaps

    def _launched_before(self, position: int, across: Int64) -> tuple[Int64, Int64]:
        """Find the root events launched in earlier steps, and their recorded gaps since the launch."""
        step = self.step(position)
        ready = np.full(len(step), np.iinfo(np.int64).min)
        for back in unique(across[:, 3]).tolist():
            before = self.step(position - back)
            source, target, joint, _ = across[across[:, 3] == back].T
            is_end = joint == Joint.END_TO_HEAD
            np.maximum.at(ready, target, np.where(is_end, before.end_ns[source], before.start_ns[source]))
        is_launched = np.zeros(len(step), np.bool_)
        is_launched[across[:, 1]] = True
        early = np.flatnonzero(is_launched & _is_root(step))
        return early, step.start_ns[early] - ready[early]

    # ---- edges (e, 2) between operations, numbered from the first operation of their step

    def _to_events(self, position: int) -> Int64:
        """Edges between the events of a step and its starts and ends."""
        step, first = self.step(position), 2 * self.owners
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
        first = 2 * self.owners
        begin = np.arange(self.owners)
        ends = self.owners + begin
        continued, _ = self._from_before(position)
        if self._follows_a_pause(position):
            ends, begin = np.repeat(ends, self.owners), np.tile(begin, self.owners)
        resumed = first + 2 * continued.astype(np.int64) + np.array([1, 0])
        # Host events that outlast the step before resume with this step, so the edge leads to their bodies.
        resumed[~self._runs_on(position), 1] += 1
        return np.concatenate([np.stack([ends, begin], axis=1), resumed])

    def _launches(self, position: int) -> Int64:
        """Edges from launches in earlier steps, between operations of all steps."""
        source, target, joint, back = self._from_before(position)[1].T.astype(np.int64)
        done = self.first_op[position - back] + 2 * source + (joint == Joint.END_TO_HEAD)
        return np.stack([done, self.first_op[position] + 2 * target], axis=1)

    def _runs_on(self, position: int) -> Mask:
        """Select continued events (c,) that run on without waiting for the start of this step.

        Device work does, and host events that the boundary cut.
        """
        continued, _ = self._from_before(position)
        if not len(continued):
            return np.empty(0, np.bool_)
        step, (earlier, resumed) = self.step(position), continued.T
        is_cut = self.step(position - 1).end_ns[earlier] <= step.start_ns[resumed]
        return np.asarray(is_cut | self._on_device[step.operation[resumed]])

    def _from_before(self, position: int) -> tuple[Int64, Int64]:
        """`continued` and `across` of a step; empty if the recorded step before it is missing."""
        step, n_before = self.step(position), self._n_before[position]
        return step.continued[: None if n_before else 0], step.across[step.across[:, 3] <= n_before]

    def _follows_a_pause(self, position: int) -> bool:
        """Check whether the profiler paused before a step; owners then start it as recorded."""
        step, before = self.step(position), self.step(position - 1)
        return bool(self._n_before[position]) and step.number > before.number + 1


def _is_root(step: StepGraph) -> Mask:
    """Select events (n,) that wait for nothing of their owner except the start of the step."""
    source, target, joint, _ = step.edges.T
    holds = (joint < Joint.END_TO_BODY) & (step.owner[source] == step.owner[target])
    is_root = np.ones(len(step), np.bool_)
    is_root[target[holds]] = False
    return is_root


class Runs:
    """The recorded steps `rows` in a row, prepared for simulation with any times.

    Operations are numbered as in `_Row`. Run k is the operations from ``first[k]`` to the one before
    ``first[k + 1]``.
    """

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.rows = rows
        self._row = row = _Row(recording, rows)
        self._begin = np.append(row.begin_op[:, 0], row.n_ops)
        edges_of, starts_of = zip(*map(self._of_step, range(len(rows))), strict=True)
        edges = np.concatenate(edges_of)
        alone = np.concatenate([row.begin_op.ravel(), row.end_op.ravel(), *starts_of])
        del edges_of, starts_of
        cuts = (alone, row.first_op, edges[:, 1], edges[:, 0] + 1, self._transfers())
        is_first, is_alone = np.zeros((2, int(self._begin[-1]) + 1), np.bool_)
        is_alone[alone] = True
        for cut in cuts:
            is_first[cut] = True
        self._first = np.flatnonzero(is_first[:-1])
        run_of = np.cumsum(is_first, dtype=np.int32) - 1
        follows = np.flatnonzero(~is_alone[self._first])
        edges = np.concatenate([run_of[edges], narrow(np.column_stack((follows - 1, follows)))])
        del cuts, alone, is_first, is_alone
        #: The runs (positions, m) that start and end each owner's step.
        self.begin_run, self.end_run = run_of[row.begin_op], run_of[row.end_op]
        n = len(set(rows))
        #: Number of steps until the rows repeat.
        self._round = n if all(row == rows[i % n] for i, row in enumerate(rows)) else len(rows)
        self._plan = self._planned(edges)

    def fits(self, recording: Recording) -> bool:
        """Check whether a recording differs from the prepared one only in its times."""
        prepared = self._row.recording
        network = (prepared.sides, prepared.carries)
        if recording.operations is not prepared.operations or (recording.sides, recording.carries) != network:
            return False
        pairs = ((recording.steps[row], prepared.steps[row]) for row in self.rows)
        return all(getattr(new, name) is getattr(old, name) for new, old in pairs for name in _STRUCTURE)

    def simulate(self, steps: Iterable[StepGraph]) -> Schedule:
        """Simulate the runs with the times of `steps`; repeated rows need only those of the first round."""
        return self.simulate_from(steps)[0]

    def simulate_from(self, steps: Iterable[StepGraph], starts: Sequence[float] = ()) -> list[Schedule]:
        """Simulate the runs; again with owners that start the first step one after the other.

        `starts` has the distance between the first and the last owner, as a share of their step.
        """
        dur, gap = np.zeros((2, len(self._plan)), np.int64)
        round_ = self._round
        leads: list[Int64] = []
        for position, step in enumerate(itertools.islice(steps, round_)):
            leads.append(step.lead_ns)
            dur[self.end_run[position::round_]] = step.tail_ns
            first, after = self._bounds(position)
            gaps, until = self._costs(position, step, first)
            times = until[after] - until[first] - gaps, gaps
            for again in range(position, len(self.rows), round_):
                inside = self._inside(again)
                dur[inside], gap[inside] = times
        for position, begin in enumerate(self.begin_run):
            gap[begin] = self._row.lead_ns(position, leads[position % round_])
        schedules = [simulate(replace(self._plan, dur_ns=dur, gap_ns=gap))]
        first, owners = self.begin_run[0], np.arange(len(self.begin_run[0]))
        apart_ns = self.iteration_ns(schedules[0]).mean() / len(owners)
        for share in starts:
            gap[first] = np.rint(owners * share * apart_ns)
            schedules.append(simulate(replace(self._plan, dur_ns=dur, gap_ns=gap)))
        return schedules

    def iteration_ns(self, schedule: Schedule) -> Int64:
        """Time of each owner for the step at each position (positions, m)."""
        return schedule.end_ns[self.end_run] - schedule.start_ns[self.begin_run]

    def events_ns(self, position: int, step: StepGraph, schedule: Schedule) -> tuple[Int64, Int64, Int64]:
        """Start, end and work (n,) of the events of the `step` simulated at `position`."""
        inside = self._inside(position)
        first, after = self._bounds(position)
        gaps, until = self._costs(position, step, first)
        ends = np.repeat(schedule.start_ns[inside] - until[first] - gaps, after - first) + until[1:]
        heads, bodies = ends[::2], ends[1::2]
        if self._row.has_links:  # transfers that share a link take longer than their work
            carried = np.flatnonzero(self._plan.device[inside] != UNLIMITED)
            bodies[first[carried] // 2] = schedule.end_ns[inside][carried]
        return heads, bodies, np.diff(until)[1::2]

    def _costs(self, position: int, step: StepGraph, first: Int64) -> tuple[Int64, Int64]:
        """Gap before each run of a step, and the sums of all times before operations (2n + 1,)."""
        work, gap = self._row.work_and_gaps(position, step)
        costs = np.column_stack((gap, work)).reshape(-1)
        until = np.zeros(len(costs) + 1, np.int64)
        np.cumsum(costs, out=until[1:])
        return np.where(first & 1, 0, costs[first]), until

    # ---- edges between runs

    def _of_step(self, position: int) -> tuple[Int64, Int64]:
        """Edges of a step between runs (e, 2), and the operations that start a run."""
        step, first = self._row.step(position), int(self._row.first_op[position])
        source, target = operation_edges(step.edges)
        over = narrow(2 * step.overtaken + 1)
        source, target = np.append(source, over[:, 0]), np.append(target, over[:, 1])
        begins = np.zeros(2 * len(step), np.bool_)
        begins[::2] = True
        begins[target[target == source + 1]] = False
        run = np.cumsum(begins, dtype=np.int32)
        joins = (run[source] != run[target]) | (source >= target)
        within = first + np.column_stack((source[joins], target[joins])).astype(np.int64)
        return narrow(np.concatenate([within, *self._row.around(position)])), first + narrow(
            np.flatnonzero(begins)
        )

    def _transfers(self) -> Int64:
        """Cuts before and after bodies on links: each of these is a run by itself."""
        if not self._row.has_links:
            return np.empty(0, np.int64)
        bodies = np.concatenate(
            [
                first + 2 * np.flatnonzero(self._row.step(position).link != NO_LINK) + 1
                for position, first in enumerate(self._row.first_op.tolist())
            ]
        )
        return np.append(bodies, bodies + 1)

    def _planned(self, edges: Int64) -> Plan:
        n = len(self._first)
        device, priority = np.full(n, UNLIMITED), np.zeros(n, np.int64)
        if self._row.has_links:
            served = 0
            for position in range(len(self.rows)):
                step = self._row.step(position)
                runs = self._inside(position)
                event, is_body = np.divmod(self._first[runs] - self._row.first_op[position], 2)
                device[runs] = np.where(is_body, step.link[event], UNLIMITED)
                priority[runs] = served + step.turn[event]
                served += int(step.turn.max(initial=0)) + 1
        return make_plan(
            np.zeros(n, np.int64),
            edges,
            device=device,
            priority=priority,
            sides=np.array(self._row.recording.sides, np.int64).reshape(-1, 2),
            carries=self._row.recording.carries,
        )

    def _inside(self, position: int) -> slice:
        """Slice of the runs with the events of a step."""
        bounds = [self._row.first_op[position], self._begin[position + 1]]
        low, high = np.searchsorted(self._first, bounds).tolist()
        return slice(low, high)

    def _bounds(self, position: int) -> tuple[Int64, Int64]:
        """First operation of each run of a step's events, and the end of each run."""
        first = self._first[self._inside(position)] - self._row.first_op[position]
        return first, np.append(first[1:], 2 * len(self._row.step(position)))[: len(first)]


class Simulation(Struct, frozen=True):
    """Simulated steps in a row: the times of all events, from 0 on."""

    runs: Runs
    recording: Recording
    schedule: Schedule

    @property
    def rows(self) -> Sequence[int]:
        """The recorded step at each position."""
        return self.runs.rows

    def position(self, row: int) -> int:
        """Find the position of a recorded step, the first one where it is not simulated."""
        return list(self.rows).index(row) if row in self.rows else 0

    @property
    def iteration_ns(self) -> Int64:
        """Time of each owner for the step at each position (positions, m)."""
        return self.runs.iteration_ns(self.schedule)

    def step(self, position: int) -> StepGraph:
        """Make the step at `position` with its simulated times.

        Device work that finished before the step began has no time in it and delays nothing.
        """
        runs, step = self.runs, self.recording.steps[self.rows[position]]
        start, end, _ = runs.events_ns(position, step, self.schedule)
        begin = self.schedule.start_ns[runs.begin_run[position]]
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
            next_ns=self.schedule.end_ns[runs.end_run[position]],
        )

    def as_recording(self) -> Recording:
        """Make the recording with the simulated times; large steps are made on access."""
        recording, runs, schedule = self.recording, self.runs, self.schedule
        position = {row: index for index, row in enumerate(self.rows)}
        begin, end = schedule.start_ns[runs.begin_run], schedule.end_ns[runs.end_run]
        bounds = list(recording.bounds)
        for row, index in position.items():
            bounds[row] = StepBounds(bounds[row].number, begin[index], end[index])

        def make(row: int) -> StepGraph:
            return self.step(position[row]) if row in position else recording.steps[row]

        return replace(recording, steps=LazySteps(bounds, make, most=1))

    def intervals(self, position: int) -> tuple[Int64, Int64]:
        """Start and end (n,) of the events at `position` as in a trace.

        A transfer that is recorded only from when its link serves it starts with its body.
        """
        step = self.recording.steps[self.rows[position]]
        start, end, work = self.runs.events_ns(position, step, self.schedule)
        return np.where(step.held, end - work, start), end


def simulated(recording: Recording, rows: Sequence[int]) -> Simulation:
    """Simulate the recorded steps `rows`, one after the other, overlapping as their edges allow."""
    runs = Runs(recording, rows)
    return Simulation(runs, recording, runs.simulate(map(recording.steps.__getitem__, rows)))


def replayed_ns(recording: Recording, rows: Sequence[int]) -> Int64:
    """Replayed time of each owner for the recorded steps `rows` (positions, m)."""
    return simulated(recording, rows).iteration_ns
