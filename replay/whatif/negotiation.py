"""Edits of Horovod negotiations, in the timeline that one rank records for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.distributions import longest_usual
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role
from replay.edit import Edit, EditRequest, Job, measured

#: Mean delay of the later of two ranks, and 95 % bound of the difference between two ranks, in standard
#: deviations of a rank's time (normal distribution).
_LAST_OF_TWO, _APART = 2 / np.sqrt(np.pi), 1.96 * np.sqrt(2)

#: For each computation that negotiations of a step wait for, by name: its events, in order; their lateness,
#: from the start of the negotiation (the first rank is ready) to the end of the event; and a mask of the
#: events that all ranks started together, the first one and those after an exchange.
Lateness: TypeAlias = dict[str, tuple[Int64, Int64, Mask]]


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `negotiation=` and `ready=`; None for any other request."""
    if request.asks("negotiation", "none"):
        return measured(job, without_negotiation)
    ranks, _, part = request.name.rpartition(".")
    if part != "ready" or not EditRequest(part, request.value).asks("ready", "peers", "first"):
        return None
    recording = job.recording
    waited = waited_for(recording, recording.whole_steps)
    rank_of = {op.name: op.whose and f"rank{op.whose.rank}" for op in recording.operations.kinds}
    late = [name for name in waited if not ranks or rank_of[name] == ranks]
    if not late:
        raise request.refused("no negotiation waits for a rank" if not ranks else "no such rank")
    as_peers = request.value == "peers"
    scatter_ns = scatter_of_ready_ns(recording) if as_peers else 0.0

    def all_ready(edited: Recording) -> Recording:
        for name in late:
            edited = _ready_with_the_first(edited, name, _LAST_OF_TWO * scatter_ns)
        return edited

    return measured(job, all_ready, error_ns=_APART * scatter_ns)


def negotiations(recording: Recording) -> Mask:
    """Select the waits of negotiations (n,)."""
    return recording.which(lambda operation: operation.role is Role.WAIT)


def waited_for(recording: Recording, rows: Sequence[int]) -> dict[str, Float64]:
    """Time (rows,) that negotiations waited for each computation, by its name."""
    waited: dict[str, Float64] = {}
    for position, lateness in enumerate(_lateness(recording, rows)):
        for name, (_, late, anew) in lateness.items():
            most = np.maximum.reduceat(late, np.flatnonzero(anew))
            waited.setdefault(name, np.zeros(len(rows)))[position] = float(most.sum())
    return waited


def scatter_of_ready_ns(recording: Recording) -> float:
    """Compute the standard deviation over the steps of when the first rank is ready.

    Equal ranks differ from each other by as much. Steps in which the first rank was far later than usual do
    not count.
    """
    waits = negotiations(recording)
    steps = map(recording.steps.__getitem__, recording.whole_steps)
    starts = [
        step.start_ns[waits[step.operation]].min(initial=step.next_ns[0]) - step.begin_ns[0] for step in steps
    ]
    times = np.array(starts, np.float64)
    usual = times[times <= longest_usual(times)]
    return float(np.std(usual, ddof=1)) if len(usual) > 1 else 0.0


def _lateness(recording: Recording, rows: Iterable[int]) -> Iterator[Lateness]:
    """Yield the lateness of the computations in each of the steps `rows`."""
    waits = negotiations(recording)
    # the next computation needs the result of an exchange, not that of a reduction
    gives = recording.which(lambda op: op.is_collective and "REDUCE" not in op.transfer.stage)
    for row in rows:
        yield _of_step(recording, recording.steps[row], waits, gives)


def _of_step(recording: Recording, step: StepGraph, waits: Mask, gives: Mask) -> Lateness:
    edges = step.edges[(kinds_of(step.edges) == EdgeKind.GROUP) & waits[step.operation[step.edges[:, 1]]]]
    late: dict[int, int] = {}
    for source, target in edges[:, :2].tolist():
        late[source] = max(late.get(source, 0), int(step.end_ns[source] - step.start_ns[target]))
    given = gives[step.operation[step.edges[:, 0]]]
    follows = set(step.edges[given & (kinds_of(step.edges) == EdgeKind.DATA), 1].tolist())
    by_name: dict[str, list[int]] = {}
    for event in sorted(late, key=lambda event: int(step.end_ns[event])):
        by_name.setdefault(recording.operations[int(step.operation[event])].name, []).append(event)
    return {
        name: (
            np.array(events, np.int64),
            np.array([late[event] for event in events], np.int64),
            np.array([event in follows or event == events[0] for event in events], np.bool_),
        )
        for name, events in by_name.items()
    }


def _ready_with_the_first(recording: Recording, name: str, later_ns: float) -> Recording:
    """Make the computation `name` ready `later_ns` after the first rank.

    A computation that was ready earlier stays. In a chain each computation is shortened by its additional
    lateness over the one before. A computation that is much less late starts a new chain: all ranks had met
    again.
    """
    of_steps = _lateness(recording, range(len(recording.steps)))

    def earlier(step: StepGraph, lateness: Lateness) -> StepGraph:
        work = step.work_ns.copy()
        if name in lateness:
            events, late, anew = lateness[name]
            before = np.append(0, late[:-1])
            before[anew | (2 * late < before)] = 0
            before[before == 0] = round(later_ns)
            work[events] = np.maximum(work[events] - np.maximum(late - before, 0), 0)
        return replace(step, work_ns=work)

    return recording.with_steps(map(earlier, recording.steps, of_steps))


def without_negotiation(recording: Recording) -> Recording:
    """Start each reduction as soon as the last rank is ready."""
    waits = negotiations(recording)

    def at_once(step: StepGraph) -> StepGraph:
        negotiated = waits[step.operation]
        gap = step.gap_ns.copy()
        gap[step.edges[negotiated[step.edges[:, 0]], 1]] = 0
        return replace(step, work_ns=np.where(negotiated, 0, step.work_ns), gap_ns=gap)

    return recording.edited(at_once)
