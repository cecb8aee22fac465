"""What nothing hides: the loading of input, transfers, and the waiting for whichever rank is last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnose.chance import EXPOSED
from diagnose.even_work import even_in_each_step
from diagnose.faster import NO_TIME, phase_at
from diagnose.finding import EVEN_IN_REPLAY, Finding, Skipped
from diagnose.job_view import JobView, listed
from errors import counted

#: Input that takes less than this share of the step's path is as good as hidden.
_LEAST_INPUT = 0.05
#: Of the two parts of exposed communication, one below this share of the step is no finding.
_LEAST_PART = 0.05


def slow_input(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps that wait for the loader."""
    if not view.is_input.any():
        yield Skipped("input", "no loading of input is recorded")
        return
    on_path = view.path_work_ns(view.is_input)
    if on_path < _LEAST_INPUT * view.step_ns:
        return
    recording = view.recording
    yield Finding(
        kind="input",
        title="the steps wait for their input",
        cause=f"{on_path / 1e6:.1f} ms a step of the critical path is loading, "
        f"{np.median(on_path / view.iteration_ns):.0%} of the step",
        action="load ahead of time: more workers, prefetching, a faster store, less decoding on the way",
        edit=lambda one: phase_at(one, "I/O", NO_TIME),
        change=f"I/O={NO_TIME}",
        ranks=recording.owners,
        operations=view.mains(view.is_input),
        evidence=view.show(view.is_input, 3),
    )


def exposed_communication(view: JobView) -> Iterator[Finding | Skipped]:
    """Find transfers on the critical path, and time in which ranks wait for a different one each time."""
    recording = view.recording
    transfers = view.is_communication
    if not transfers.any():
        yield Skipped("exposed_communication", "no communication between ranks is recorded")
    on_path = view.path_work_ns(transfers)
    waiting = _waiting_in_turn(view)
    if on_path + waiting < EXPOSED * view.step_ns:
        return
    least = _LEAST_PART * view.step_ns
    largest, is_largest = view.largest(transfers)
    if on_path > least:
        yield Finding(
            kind="exposed_communication",
            title=f"communication is not hidden: {on_path / 1e6:.1f} ms of transfers on the critical path",
            cause=f"most of it is in {listed(largest)}",
            action="overlap it with computation (smaller buckets, priorities), send less (compression, "
            "fewer steps with synchronisation), or use a faster network",
            edit=lambda one: phase_at(one, "Comm", NO_TIME),
            change=f"Comm={NO_TIME}",
            ranks=recording.owners,
            operations=largest,
            evidence=view.show(transfers & is_largest, 3),
            caveat="an upper bound: transfers that take no time at all"
            + (", nor the waiting for ranks that are not recorded" if len(recording.owners) == 1 else ""),
        )
    if waiting > least:
        yield Finding(
            kind="exposed_communication",
            title=f"ranks wait for {_the_last(view)}",
            cause=f"the rank with the most work in a step has {waiting / 1e6:.1f} ms more than the mean rank",
            action="give all ranks inputs of the same length, and look for other processes on the machines",
            edit=even_in_each_step,
            ranks=recording.owners,
            caveat="an upper bound: every rank is taken to work as long as the mean one in each step",
            look=EVEN_IN_REPLAY,
        )


def _the_last(view: JobView) -> str:
    """Return who has the most work, in words: one rank in each of (too few) steps, or one after another."""
    last = np.unique(view.owner_work_ns(view.is_own).argmax(axis=1))
    if len(last) > 1:
        return "whichever is last, a different one each time"
    return f"{view.recording.owners[last[0]]}, the last in {counted(len(view.rows), 'recorded step')}"


def _waiting_in_turn(view: JobView) -> float:
    """Return how much longer the rank with the most work works than the mean rank, the median over steps.

    0 where ranks do nothing together.
    """
    if not any(len(one.meeting) for one in view.meetings):
        return 0.0
    work = view.owner_work_ns(view.is_own)
    return float(np.median(work.max(axis=1) - work.mean(axis=1)))
