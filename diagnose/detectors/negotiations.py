"""Negotiations, in a timeline that one rank recorded for all: who is late, and what passes after the last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from arrays.median import longest_usual
from dag.step_graph import Bool, Recording, StepGraph
from diagnose.chance import EXPOSED, LEAST_EXCESS, is_no_chance
from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView
from dialects.roles import Role
from dialects.step_parts import Kind, Operation, Whose
from result import in_ms

#: How much later the last of two ranks is on average than the first, and how much more one may need than
#: the other (19 times in 20), in standard deviations of the time that one needs.
_LAST_OF_TWO, _APART = 1.128, 2.772
#: Without ticks, the wait for whichever rank is last is taken for that of one where it is half of the step.
_HALF = 0.5

#: Of one step, by the name of a computation that negotiations wait for: its events, in order; how late each
#: was, from when the first rank was ready (the negotiation's begin) to the event's end; which of them began
#: with all ranks alike: the first, and what follows an exchange.
_Lateness: TypeAlias = dict[str, tuple[Int64, Int64, Bool]]


def late_in_negotiations(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the rank that most of the waiting in negotiations is for."""
    if not view.which(_is_wait).any():
        yield Skipped("late_rank", "only one rank is recorded, without a peer to compare it with")
        return
    waited = _waited_for(view)
    if not waited:
        return
    who, per_step = max(waited.items(), key=lambda pair: float(np.median(pair[1])))
    usual = float(np.median(per_step))
    others = [times for name, times in waited.items() if name != who] or [np.zeros(len(per_step))]
    if not is_no_chance(per_step - np.median(others, axis=0), 1.0, len(waited)):
        longest = float(np.median(np.max(list(waited.values()), axis=0)))
        if longest >= EXPOSED * view.step_ns:
            yield _waiting(view, list(waited), longest)
        return
    whose = _whose(view, who)
    is_told = whose.rank is not None and not whose.is_guess
    if usual >= (LEAST_EXCESS if is_told else _HALF) * view.step_ns:
        yield _late(view, who, usual)
    elif usual >= EXPOSED * view.step_ns:
        yield _waiting(view, [who], usual)


def _late(view: JobView, who: str, usual_ns: float) -> Finding:
    whose = _whose(view, who)
    is_known = whose.rank is not None
    rank = f"rank{whose.rank}" if is_known else "the last rank"
    scatter_ns = _scatter_ns(view)
    return Finding(
        kind="late_rank",
        title=f"{rank} holds up the others: they wait {in_ms(usual_ns)} a step for it in negotiations",
        cause=f"{rank} is ready with its tensors later than the first rank"
        + (" (the ticks of the first negotiations tell which rank)" if whose.is_guess else ""),
        action="compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edit=lambda one: ready_with_the_first(one, who, _LAST_OF_TWO * scatter_ns),
        ranks=[rank] if is_known else [],
        evidence=view.show(view.which(lambda one: one.name == who), 3),
        caveat="" if is_known else "the recording does not tell which rank was last",
        doubt_ns=_APART * scatter_ns,
        look=("--option", "critical", "--head", "10"),
    )


def _whose(view: JobView, computation: str) -> Whose:
    return next(one.whose or Whose() for one in view.recording.table.kinds if one.name == computation)


def _waiting(view: JobView, late: Sequence[str], usual_ns: float) -> Finding:
    """Return that negotiations wait for one of the `late` (names of computations), now this one, now that."""

    def all_ready(recording: Recording) -> Recording:
        for who in late:
            recording = ready_with_the_first(recording, who)
        return recording

    is_known = len(late) > 1
    return Finding(
        kind="exposed_communication",
        title=f"ranks wait {in_ms(usual_ns)} a step in negotiations for whichever is last",
        cause="it is a different one each time"
        if is_known
        else "which rank that is, the recording does not tell after the first negotiations",
        action="give all ranks inputs of the same length, and look for other processes on the machines"
        if is_known
        else "record with HOROVOD_CACHE_CAPACITY=0 to see whether it is always the same rank",
        edit=all_ready,
        ranks=view.recording.owners,
        evidence=view.show(view.which(_is_wait), 3),
        caveat="an upper bound: the last rank is taken to be ready when the first one is",
        look=("--option", "critical", "--head", "10"),
    )


def _scatter_ns(view: JobView) -> float:
    """Return by how much it differs from step to step when the first rank is ready, a standard deviation.

    Ranks that are alike differ by as much from each other: they are not ready at the same moment either. A
    step in which the first rank was far later than usual says nothing of the others.
    """
    waits = view.recording.which(_is_wait)
    times = np.array(
        [
            step.start_ns[waits[step.operation]].min(initial=step.next_ns[0]) - step.begin_ns[0]
            for step in view.steps
        ],
        np.float64,
    )
    usual = times[times <= longest_usual(times)] if len(times) else times
    return float(np.std(usual, ddof=1)) if len(usual) > 1 else 0.0


def _waited_for(view: JobView) -> dict[str, Float64]:
    """Return how long negotiations waited in each whole step for whose computation, by its name."""
    recording = view.recording
    found: dict[str, Float64] = {}
    for place, lateness in enumerate(_lateness(recording, view.rows)):
        for name, (_, late, anew) in lateness.items():
            most = np.maximum.reduceat(late, np.flatnonzero(anew))
            found.setdefault(name, np.zeros(len(view.rows)))[place] = float(most.sum())
    return found


def _is_wait(one: Operation) -> bool:
    return one.role is Role.WAIT


def _gives_input(one: Operation) -> bool:
    """Whether what follows needs its result: of an exchange; that of a reduction only the update needs."""
    return one.is_collective and "REDUCE" not in one.transfer.stage


def _lateness(recording: Recording, rows: Iterable[int]) -> Iterator[_Lateness]:
    """Yield how late the computations of each step were; `rows` are those of the steps."""
    waits, gives = recording.which(_is_wait), recording.which(_gives_input)
    for row in rows:
        yield _of_step(recording, recording.steps[row], waits, gives)


def _of_step(recording: Recording, step: StepGraph, waits: Bool, gives: Bool) -> _Lateness:
    edges = step.edges[(step.edges[:, 3] == Kind.GROUP) & waits[step.operation[step.edges[:, 1]]]]
    late: dict[int, int] = {}
    for source, target in edges[:, :2].tolist():
        late[source] = max(late.get(source, 0), int(step.end_ns[source] - step.start_ns[target]))
    given = gives[step.operation[step.edges[:, 0]]]
    follows = set(step.edges[given & (step.edges[:, 3] == Kind.DATA), 1].tolist())
    by_name: dict[str, list[int]] = {}
    for event in sorted(late, key=lambda one: int(step.end_ns[one])):
        by_name.setdefault(recording.operations[int(step.operation[event])].name, []).append(event)
    return {
        name: (
            np.array(events, np.int64),
            np.array([late[one] for one in events], np.int64),
            np.array([one in follows or one == events[0] for one in events], np.bool_),
        )
        for name, events in by_name.items()
    }


def ready_with_the_first(recording: Recording, who: str, later_ns: float = 0.0) -> Recording:
    """Return the recording in which `who` (the name of a computation) is ready `later_ns` after the first.

    What was ready earlier stays. Of a chain of computations each is shortened by how much later it was
    than the one before it; one that was much less late began after all ranks had met again, and is a
    chain's first.
    """
    of_steps = _lateness(recording, range(len(recording.steps)))

    def earlier(step: StepGraph, lateness: _Lateness) -> StepGraph:
        work = step.work_ns.copy()
        if who in lateness:
            events, late, anew = lateness[who]
            before = np.append(0, late[:-1])
            before[anew | (2 * late < before)] = 0
            before[before == 0] = round(later_ns)
            work[events] = np.maximum(work[events] - np.maximum(late - before, 0), 0)
        return replace(step, work_ns=work)

    return recording.with_steps(map(earlier, recording.steps, of_steps))


# ---- after all are ready


def negotiation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time that passes although all ranks are ready: until the negotiating thread looks again."""
    waits = view.which(_is_wait)
    if not waits.any():
        yield Skipped("negotiation", "no negotiation is recorded")
        return
    recording = view.recording
    found, counts = [], []
    for step in view.steps:
        negotiated = waits[step.operation]
        reduced = step.edges[negotiated[step.edges[:, 0]], 1]
        found.append(step.work_ns[negotiated].max(initial=0) + step.gap_ns[reduced].max(initial=0))
        counts.append(negotiated.sum())
    yield Finding(
        kind="negotiation",
        title=f"reductions begin up to {in_ms(np.median(found))} after all ranks are ready",
        cause=f"{np.median(counts):.0f} tensors are negotiated in a step, and looked at once in a cycle",
        action="shorten HOROVOD_CYCLE_TIME, or raise HOROVOD_FUSION_THRESHOLD for fewer reductions",
        edit=without_negotiation,
        ranks=recording.owners,
        operations=view.mains(waits)[:3],
        evidence=view.show(waits, 1),
    )


def without_negotiation(recording: Recording) -> Recording:
    """Return the recording in which a reduction begins as soon as the last rank is ready."""
    waits = recording.which(_is_wait)

    def begun(step: StepGraph) -> StepGraph:
        negotiated = waits[step.operation]
        gap = step.gap_ns.copy()
        gap[step.edges[negotiated[step.edges[:, 0]], 1]] = 0
        return replace(step, work_ns=np.where(negotiated, 0, step.work_ns), gap_ns=gap)

    return recording.edited(begun)
