"""Simulation of steps in a row, with recorded or edited times.

Most operations wait for one other operation alone, the one before on their thread. Such a *run* takes the
sum of its times, so that a simulation costs a sum over the events and a pass over the few runs. Runs are cut
where an edge leads into one or out of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int32, Int64
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import (
    NO_LINK,
    LazySteps,
    Recording,
    StepBounds,
    StepGraph,
    operation_edges,
)
from analyzer.reading.dialects.step_parts import narrow
from replay.engine import UNLIMITED, Plan, Schedule, make_plan, simulate
from replay.row import Row

#: Columns of a step that determine the edges; work, gaps, begins and tails do not.
_STRUCTURE = (
    "operation", "owner", "link", "start_ns", "end_ns", "edges", "next_ns", "last", "turn", "overtaken",
    "held", "continued", "across",
)  # fmt: skip


class Runs:
    """The recorded steps `rows` in a row, prepared for simulation with any times.

    Operations are numbered as in `Row`, but for the events of a step, which are in `_order`: track by
    track. Run k is the operations from ``first[k]`` to the one before ``first[k + 1]``.
    """

    def __init__(self, recording: Recording, rows: Sequence[int]) -> None:
        self.rows = rows
        self._row = row = Row(recording, rows)
        self._operations = recording.operations
        # Links serve simultaneous requests in the order of the step, so steps with links keep their order.
        self._order: Sequence[Int64 | None] = [None] * len(rows)
        if not row.has_links:
            track = recording.numbered(lambda op: (op.owner, op.track))[1].astype(np.int32)
            self._order = [
                _by_track(recording, track[row.step(position).operation]) for position in range(len(rows))
            ]
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
        if recording.operations is not prepared.operations or (recording.sides, recording.carries) != (
            prepared.sides,
            prepared.carries,
        ):
            return False
        return all(
            all(
                getattr(recording.steps[row], name) is getattr(prepared.steps[row], name)
                for name in _STRUCTURE
            )
            for row in self.rows
        )

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
            times = _Times(self, position, step).of_runs(*self._bounds(position))
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
        times = _Times(self, position, step)
        inside = self._inside(position)
        first, after = self._bounds(position)
        heads, bodies = times.of_events(first, after, schedule.start_ns[inside])
        if self._row.has_links:  # transfers that share a link take longer than their work
            carried = np.flatnonzero(self._plan.device[inside] != UNLIMITED)
            bodies[first[carried] // 2] = schedule.end_ns[inside][carried]
        return heads, bodies, times.work

    # ---- edges between runs

    def _of_step(self, position: int) -> tuple[Int64, Int64]:
        """Edges of a step between runs (e, 2), and the operations that start a run."""
        step, first = self._row.step(position), int(self._row.first_op[position])
        index_of = self._places(position)
        source, target = (index_of(operations) for operations in operation_edges(step.edges))
        over = narrow(index_of(2 * step.overtaken + 1))
        source, target = np.append(source, over[:, 0]), np.append(target, over[:, 1])
        begins = np.zeros(2 * len(step), np.bool_)
        begins[::2] = True
        begins[target[target == source + 1]] = False
        run = np.cumsum(begins, dtype=np.int32)
        joins = (run[source] != run[target]) | (source >= target)
        within = first + np.column_stack((source[joins], target[joins])).astype(np.int64)
        around = [self._placed(edges) for edges in self._row.around(position)]
        return narrow(np.concatenate([within, *around])), first + narrow(np.flatnonzero(begins))

    def _places(self, position: int) -> Callable[[Int64], Int64]:
        """Make the function from operations of a step to their indices in track order."""
        order = self._order[position]
        if order is None:
            return lambda operations: operations
        index_of = np.empty_like(order)
        index_of[order] = np.arange(len(order))
        return lambda operations: 2 * index_of[operations >> 1] + (operations & 1)

    def _placed(self, edges: Int64) -> Int64:
        """Renumber edges between operations of `Row`."""
        placed: Int64 = edges.copy()
        for position in unique(np.searchsorted(self._begin, edges.ravel(), side="right") - 1).tolist():
            first = self._row.first_op[position]
            inside = (edges >= first) & (edges < self._begin[position + 1])
            placed[inside] = first + self._places(position)(edges[inside] - first)
        return placed

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


class _Times:
    """Cumulative times of a step's events, to sum up runs."""

    def __init__(self, runs: Runs, position: int, step: StepGraph) -> None:
        self.work, gap = runs._row.work_and_gaps(position, step)
        work = self.work
        self.order = runs._order[position]
        if self.order is not None:
            work, gap = work[self.order], gap[self.order]
        self.gap = gap
        self.until = np.zeros(len(gap) + 1, np.int64)  # sums of all earlier events
        np.cumsum(gap + work, dtype=np.int64, out=self.until[1:])

    def _over(self, operation: Int64) -> Int64:
        """Sum of all times up to the end of an operation; 0 before the first."""
        event = operation >> 1
        is_body = (operation & 1).astype(np.bool_)
        before = self.until[event + is_body]
        return np.asarray(np.where(is_body, before, before + self._gap_of(operation)))

    def _gap_of(self, operation: Int64) -> Int64:
        """Gap before an operation; 0 before a body."""
        return np.where(operation & 1, 0, self.gap[operation >> 1])

    def of_runs(self, first: Int64, after: Int64) -> tuple[Int64, Int64]:
        """Lengths of runs, and the gaps before them."""
        gap = self._gap_of(first)
        return self._over(after - 1) - self._over(first - 1) - gap, gap

    def of_events(self, first: Int64, after: Int64, start: Int64) -> tuple[Int64, Int64]:
        """Compute the ends of heads and bodies (n,), in the order of the step."""
        shift = np.repeat(start - self._over(first - 1) - self._gap_of(first), after - first)
        heads, bodies = shift[::2] + self.until[:-1], shift[1::2] + self.until[1:]
        heads += self.gap
        if self.order is not None:
            placed = np.empty((2, len(heads)), np.int64)
            placed[0, self.order], placed[1, self.order] = heads, bodies
            heads, bodies = placed
        return heads, bodies


def _by_track(recording: Recording, track: Int32) -> Int64 | None:
    """Order of a step's events by track (n,); None if sorted already."""
    if (np.diff(track) >= 0).all():
        return None
    order = np.argsort(track.astype(np.min_scalar_type(int(track.max()))), kind="stable")
    return recording.to_file(narrow(order))
