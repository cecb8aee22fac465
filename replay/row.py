"""Recorded steps in a row: operations, and the edges to step starts, step ends and the step before.

An event is two operations, its head and its body. The head starts when all its inputs are over and the gap
has passed. The body starts when the head and all inputs of the body are over and its link is free; it lasts
the event's work. The simulation produces the waiting. With recorded work and gaps, steps get their recorded
times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import unique
from analyzer.model.graph.step_graph import NO_LINK, Recording, StepGraph
from analyzer.reading.dialects.step_parts import Joint


class Row:
    """Steps in a row: each has the starts and ends of its owners, and two operations for each event.

    Edits of work, gaps, tails and begins leave the operations and their edges as they are.
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
        self._early: dict[int, tuple[Int64, Int64]] = {}

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
        if position not in self._early:
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
            self._early[position] = early, step.start_ns[early] - ready[early]
        return self._early[position]

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
