"""A recording as a model: service times instead of intervals, gaps, and the plan of any steps in a row.

Waiting is no work: what an event spends waiting, for the other workers or for a link that is busy, is
left out of its duration and produced by the simulation. What lies between the last input of an event
and its start is kept, as a gap, unless it is such waiting: a transfer that began as its link came free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.engine import Schedule, critical_path, simulate
from replay.plan import UNLIMITED, Int64, Plan, make_plan
from replay.recording import Bool, RecordedStep, Recording

#: A transfer that begins no later than this after its link came free was held back by the link.
_PICKED_UP_NS = 50_000


@dataclass(frozen=True, slots=True)
class StepModel:
    """One recorded step of n events and m owners, ready to be replayed.

    Attributes
    ----------
    gap_ns : (n,) from an event's last input to its start
    service_ns : (n,) its work without waiting
    turn : (n,) the order in which links served the step's transfers
    tail_ns : (m,) from an owner's last event to the begin of its next step
    lead_ns : (m,) how much later than the first owner each begins the step
    roots : events that start with the step of their owner
    last : events that nothing of their owner's follows
    overtaken : (k, 2) transfers of one link, the second of which could have begun earlier than the first
        (or one before it) but was served after it: several are in flight, and the order is the network's
    held : (n,) transfers that were recorded from when the link served them, not from when they were asked
        for; they have no gap, and start with their body
    """

    gap_ns: Int64
    service_ns: Int64
    turn: Int64
    tail_ns: Int64
    lead_ns: Int64
    roots: Int64
    last: Int64
    overtaken: Int64
    held: Bool


@dataclass(frozen=True, slots=True)
class Model:
    """A recording and the model of each of its steps."""

    recording: Recording
    steps: Sequence[StepModel]


def fit(recording: Recording) -> Model:
    """Return the model of each recorded step from that step's own times.

    A transfer's service is the time from when it could begin (asked for, all it waits for there, the
    transfer before it on the link over) to its end.
    """
    link_free = np.zeros(len(recording.devices), np.int64)
    device_of = np.array([operation.device for operation in recording.operations], np.int64)
    owner_of = np.array([operation.owner for operation in recording.operations], np.int64)
    steps = []
    for row, step in enumerate(recording.steps):
        before_ns = recording.steps[row - 1].end_ns[step.carried[:, 0]] if row else step.carried[:0, 0]
        fitted = _fit_step(step, device_of[step.operation], owner_of[step.operation], link_free, before_ns)
        steps.append(fitted)
    return Model(recording, _known_tails(steps))


def _fit_step(
    step: RecordedStep, device: Int64, owner: Int64, link_free: Int64, before_ns: Int64
) -> StepModel:
    """Return the model of one step; `before_ns` (k,) is when what reaches into it (`carried`) ended."""
    n = len(step)
    edges = step.edges
    ready = step.begin_ns[owner]
    np.maximum.at(ready, step.carried[: len(before_ns), 1], before_ns)
    np.maximum.at(ready, edges.after_end[:, 1], step.end_ns[edges.after_end[:, 0]])
    np.maximum.at(ready, edges.after_start[:, 1], step.start_ns[edges.after_start[:, 0]])
    let_on = np.zeros(n, np.int64)
    np.maximum.at(let_on, edges.body_after_end[:, 1], step.end_ns[edges.body_after_end[:, 0]])
    np.maximum.at(let_on, edges.body_after_start[:, 1], step.start_ns[edges.body_after_start[:, 0]])
    could_begin = np.maximum(step.start_ns, let_on)
    held = _held_by_links(step, device, ready, could_begin, link_free)
    could_begin[held] = np.maximum(ready, let_on)[held]
    overtaken = _wait_for_links(step, device, could_begin, link_free)
    into = np.concatenate([edges.after_end, edges.after_start])
    own = into[owner[into[:, 0]] == owner[into[:, 1]]]
    in_step = _ends_in_step(step, owner)
    out_of = np.concatenate([edges.after_end, edges.body_after_end])
    counts = (owner[out_of[:, 0]] == owner[out_of[:, 1]]) & in_step[out_of[:, 1]]
    followed = out_of[counts, 0]
    return StepModel(
        gap_ns=np.where(held, 0, np.maximum(step.start_ns - ready, 0)),
        service_ns=np.maximum(step.end_ns - could_begin, 0),
        turn=np.argsort(np.argsort(step.end_ns, kind="stable")),
        tail_ns=_tails(step, owner, in_step),
        lead_ns=step.begin_ns - step.begin_ns.min(),
        roots=np.setdiff1d(np.arange(n), own[:, 1]),
        last=np.setdiff1d(np.flatnonzero(in_step), followed),
        overtaken=overtaken,
        held=held,
    )


def _held_by_links(
    step: RecordedStep, device: Int64, ready: Int64, could_begin: Int64, link_free: Int64
) -> Bool:
    """Return which transfers (n,) were ready while their link was busy, and began as it came free.

    Not those whose start another event waits for: that must stay the start that was recorded.
    """
    held = np.zeros(len(step), np.bool_)
    for served in _by_link(step, device):
        before = _freed(step, served, int(link_free[device[served[0]]]))
        begin = np.maximum(could_begin[served], before)
        is_first = begin > before + _PICKED_UP_NS
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(served)), 0))
        start, asked = step.start_ns[served], ready[served]
        held[served] = ~is_first & (before <= start) & (begin[first] <= asked) & (asked < before)
    held[step.edges.after_start[:, 0]] = False
    held[step.edges.body_after_start[:, 0]] = False
    return held


def _wait_for_links(step: RecordedStep, device: Int64, could_begin: Int64, link_free: Int64) -> Int64:
    """Raise `could_begin` of each transfer to the end of the one before it on its link.

    Returns `StepModel.overtaken`.
    """
    overtaken = []
    for served in _by_link(step, device):
        link = device[served[0]]
        late = could_begin[served][1:] < np.maximum.accumulate(could_begin[served])[:-1]
        overtaken.append(np.stack([served[:-1][late], served[1:][late]], axis=1))
        could_begin[served] = np.maximum(could_begin[served], _freed(step, served, int(link_free[link])))
        link_free[link] = max(link_free[link], step.end_ns[served[-1]])
    return np.concatenate(overtaken) if overtaken else np.empty((0, 2), np.int64)


def _by_link(step: RecordedStep, device: Int64) -> list[Int64]:
    """Return the transfers of each link in the order in which it served them."""
    transfers = np.flatnonzero(device != UNLIMITED)
    transfers = transfers[np.lexsort((step.end_ns[transfers], device[transfers]))]
    return [transfers[device[transfers] == link] for link in np.unique(device[transfers])]


def _freed(step: RecordedStep, served: Int64, free_ns: int) -> Int64:
    """Return when the link, free from `free_ns`, was through with what it served before each."""
    return np.concatenate([[free_ns], step.end_ns[served][:-1]])


def _ends_in_step(step: RecordedStep, owner: Int64) -> Bool:
    """Return which events end before their owner's next step begins, as far as that is known."""
    next_ns = step.next_ns[owner]
    return (next_ns < 0) | (step.end_ns <= next_ns)


def _tails(step: RecordedStep, owner: Int64, in_step: Bool) -> Int64:
    """Return what passes between each owner's last event and its next step; -1 where unknown."""
    end = step.begin_ns.copy()
    np.maximum.at(end, owner[in_step], step.end_ns[in_step])
    return np.where(step.next_ns < 0, -1, step.next_ns - end)


def _known_tails(steps: Sequence[StepModel]) -> list[StepModel]:
    """Give a step whose next one is not recorded the median tail of the others."""
    tails = np.array([step.tail_ns for step in steps])
    known = np.where(tails < 0, np.nan, tails.astype(np.float64))
    usual = [0 if np.isnan(column).all() else int(np.nanmedian(column)) for column in known.T]
    for step in steps:
        np.copyto(step.tail_ns, usual, where=step.tail_ns < 0)
    return list(steps)


@dataclass(frozen=True, slots=True)
class Replay:
    """Some steps replayed in a row.

    Attributes
    ----------
    rows : which recorded step stands at each position
    plan, schedule : all operations, and when they ran
    begin_op, end_op : (positions, owners) where each owner's step begins and ends, as operations
    first_op : (positions,) the operation that is the head of the position's first event; event i has
        its head at ``first_op + 2 * i`` and its body after it
    """

    model: Model
    rows: Sequence[int]
    plan: Plan
    schedule: Schedule
    begin_op: Int64
    end_op: Int64
    first_op: Int64

    @property
    def iteration_ns(self) -> Int64:
        """How long each owner took for the step at each position (positions, owners)."""
        begin = self.schedule.start_ns[self.begin_op]
        return np.concatenate([begin[1:], self.schedule.end_ns[self.end_op[-1:]]]) - begin

    def interval(self, position: int) -> tuple[Int64, Int64]:
        """Return start and end (n,) of the events of the step at `position`, on the replay's clock."""
        held = self.model.steps[self.rows[position]].held
        heads = self.first_op[position] + 2 * np.arange(len(held))
        return self.schedule.start_ns[heads + held], self.schedule.end_ns[heads + 1]


def replay(model: Model, rows: Sequence[int], *, compiled: bool | None = None) -> Replay:
    """Replay the recorded steps `rows`, one after the other, overlapping as their edges allow."""
    plan, begin_op, end_op, first_op = _assemble(model, rows)
    return Replay(model, rows, plan, simulate(plan, compiled=compiled), begin_op, end_op, first_op)


def _assemble(model: Model, rows: Sequence[int]) -> tuple[Plan, Int64, Int64, Int64]:
    owners = len(model.recording.owners)
    device_of = np.array([operation.device for operation in model.recording.operations], np.int64)
    owner_of = np.array([operation.owner for operation in model.recording.operations], np.int64)
    dur, gap, device, priority, edges = [], [], [], [], []
    first_ops: list[int] = []
    offset = previous_end = served = 0
    for position, row in enumerate(rows):
        step, recorded = model.steps[row], model.recording.steps[row]
        n = len(recorded)
        begin, end, first = offset, offset + owners, offset + 2 * owners
        owner = owner_of[recorded.operation]
        dur += [np.zeros(owners, np.int64), step.tail_ns, _interleave(np.zeros(n, np.int64), step.service_ns)]
        lead = step.lead_ns if position == 0 else np.zeros(owners, np.int64)
        gap += [lead, np.zeros(owners, np.int64), _interleave(step.gap_ns, np.zeros(n, np.int64))]
        free = np.full(n, UNLIMITED)
        device += [np.full(2 * owners, UNLIMITED), _interleave(free, device_of[recorded.operation])]
        priority += [np.zeros(2 * owners, np.int64), served + np.repeat(step.turn, 2)]
        served += int(step.turn.max(initial=0)) + 1
        edges += _step_edges(step, recorded, owner, begin, end, first)
        if position:
            edges.append(np.stack([previous_end + np.arange(owners), begin + np.arange(owners)], axis=1))
            if rows[position - 1] == row - 1:
                edges.append(2 * recorded.carried + np.array([first_ops[-1] + 1, first]))
        previous_end = end
        first_ops.append(first)
        offset = first + 2 * n
    plan = make_plan(
        np.concatenate(dur),
        np.concatenate(edges),
        device=np.concatenate(device),
        priority=np.concatenate(priority),
        gap_ns=np.concatenate(gap),
        slots=np.ones(len(model.recording.devices), np.int64),
    )
    firsts = np.array(first_ops, np.int64)
    begins = firsts[:, None] - 2 * owners + np.arange(owners)
    return plan, begins, begins + owners, firsts


def _interleave(heads: Int64, bodies: Int64) -> Int64:
    return np.stack([heads, bodies], axis=1).reshape(-1)


def _step_edges(
    step: StepModel, recorded: RecordedStep, owner: Int64, begin: int, end: int, first: int
) -> list[Int64]:
    """Return the edges of one step between operations."""
    n = np.arange(len(recorded))
    edges = recorded.edges
    return [
        first + np.stack([2 * n, 2 * n + 1], axis=1),
        first + 2 * edges.after_end + np.array([1, 0]),
        first + 2 * edges.after_start,
        first + 2 * edges.body_after_end + 1,
        first + 2 * edges.body_after_start + np.array([0, 1]),
        first + 2 * step.overtaken + 1,
        np.stack([begin + np.arange(first - end), end + np.arange(first - end)], axis=1),
        np.stack([begin + owner[step.roots], first + 2 * step.roots], axis=1),
        np.stack([first + 2 * step.last + 1, end + owner[step.last]], axis=1),
    ]


def path_of(result: Replay) -> list[int]:
    """Return the operations of the plan on the critical path, from the first step to the last end."""
    last = result.end_op[-1][np.argmax(result.schedule.end_ns[result.end_op[-1]])]
    return critical_path(result.plan, result.schedule, int(last))
