"""Negotiations, which one rank recorded for all: the late rank, and the time after all are ready."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.answers.diagnose.finding import EXPOSED, HALF, NEGLIGIBLE, Finding, FindingScope, Skipped, edit
from analyzer.answers.diagnose.steps.evidence import is_no_chance, longest_events
from analyzer.answers.diagnose.steps.job_view import JobView, names_of
from analyzer.base.units import in_ms
from analyzer.reading.dialects.step_parts import Whose
from replay.whatif.negotiation import is_wait, waited_for


def late_in_negotiations(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the rank that most of the waiting in negotiations is for."""
    if not view.which(is_wait).any():
        yield Skipped("late_rank", "only one rank is recorded, without a peer to compare it with")
        return
    waited = waited_for(view.recording, view.rows)
    if not waited:
        return
    computation, waits_ns = max(waited.items(), key=lambda pair: float(np.median(pair[1])))
    others = [times for name, times in waited.items() if name != computation] or [np.zeros(len(waits_ns))]
    if not is_no_chance(waits_ns - np.median(others, axis=0), 1.0, len(waited)):
        yield from _waiting(view, float(np.median(np.max(list(waited.values()), axis=0))))
        return
    usual_ns = float(np.median(waits_ns))
    last = _last(view, computation)
    is_known = last.rank is not None and not last.is_guess
    if usual_ns >= (NEGLIGIBLE if is_known else HALF) * view.step_ns:
        yield _late(view, computation, usual_ns)
    else:
        yield from _waiting(view, usual_ns)


def _late(view: JobView, computation: str, usual_ns: float) -> Finding:
    last = _last(view, computation)
    is_known = last.rank is not None
    rank = f"rank{last.rank}" if is_known else "the last rank"
    source = " (the ticks of the first negotiations tell which rank)" if last.is_guess else ""
    return Finding(
        kind="late_rank",
        title=f"{rank} is late in negotiations, and the other ranks wait",
        cause=f"they wait {in_ms(usual_ns)} for it; {rank} is ready with its tensors later "
        f"than the first rank{source}",
        action="compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edits=[edit(f"{rank}.ready" if is_known else "ready", "peers")],
        scope=FindingScope([rank] if is_known else []),
        evidence=longest_events(view, view.which(lambda operation: operation.name == computation), 3),
        caveat="" if is_known else "the recording does not tell which rank was last",
        look=("critical", "--head", "10"),
    )


def _last(view: JobView, computation: str) -> Whose:
    kinds = view.recording.table.kinds
    return next(kind.whose or Whose() for kind in kinds if kind.name == computation)


def _waiting(view: JobView, usual_ns: float) -> Iterator[Finding]:
    """Find that negotiations wait for a different rank each time, or for one that is not recorded."""
    if usual_ns < EXPOSED * view.step_ns:
        return
    yield Finding(
        kind="exposed_communication",
        title="ranks wait in negotiations for the last one",
        cause=f"they wait {in_ms(usual_ns)}; it is a different rank each time, or one that the recording "
        "does not name after the first negotiations",
        action="record with HOROVOD_CACHE_CAPACITY=0 to see which rank is last each time",
        edits=[edit("ready", "first")],
        evidence=longest_events(view, view.which(is_wait), 3),
        caveat="upper bound: the last rank is taken to be ready when the first one is",
        look=("critical", "--head", "10"),
    )


# ---- after all are ready


def negotiation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time that passes although all ranks are ready: until the negotiating thread looks again."""
    waits = view.which(is_wait)
    if not waits.any():
        yield Skipped("negotiation", "no negotiation is recorded")
        return
    waits_ns, counts = [], []
    for step in view.steps:
        negotiated = waits[step.operation]
        reduced = step.edges[negotiated[step.edges[:, 0]], 1]
        waits_ns.append(step.work_ns[negotiated].max(initial=0) + step.gap_ns[reduced].max(initial=0))
        counts.append(negotiated.sum())
    yield Finding(
        kind="negotiation",
        title="reductions wait although all ranks are ready",
        cause=f"up to {in_ms(np.median(waits_ns))}; {np.median(counts):.0f} tensors are negotiated in a "
        "step, and looked at once in a cycle",
        action="shorten HOROVOD_CYCLE_TIME, or raise HOROVOD_FUSION_THRESHOLD for fewer reductions",
        edits=[edit("negotiation", "none")],
        scope=FindingScope(operations=names_of(view, waits)[:3]),
        evidence=longest_events(view, waits, 1),
    )
