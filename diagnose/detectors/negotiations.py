"""Negotiations, in a timeline that one rank recorded for all: who is late, and what passes after the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diagnose.chance import is_no_chance
from diagnose.finding import Finding, Skipped, edit
from diagnose.finding_thresholds import EXPOSED, HALF, NEGLIGIBLE
from diagnose.job_view import JobView
from dialects.step_parts import Whose
from replay.whatif.negotiation import is_wait, waited_for
from units import in_ms


def late_in_negotiations(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the rank that most of the waiting in negotiations is for."""
    if not view.which(is_wait).any():
        yield Skipped("late_rank", "only one rank is recorded, without a peer to compare it with")
        return
    waited = waited_for(view.recording, view.rows)
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
    if usual >= (NEGLIGIBLE if is_told else HALF) * view.step_ns:
        yield _late(view, who, usual)
    elif usual >= EXPOSED * view.step_ns:
        yield _waiting(view, [who], usual)


def _late(view: JobView, who: str, usual_ns: float) -> Finding:
    whose = _whose(view, who)
    is_known = whose.rank is not None
    rank = f"rank{whose.rank}" if is_known else "the last rank"
    return Finding(
        kind="late_rank",
        title=f"{rank} holds up the others in negotiations",
        cause=f"they wait {in_ms(usual_ns)} for it; {rank} is ready with its tensors later "
        "than the first rank"
        + (" (the ticks of the first negotiations tell which rank)" if whose.is_guess else ""),
        action="compare its batch, its data and its machine (clocks, other processes) with its peers'",
        edits=[edit(f"{rank}.ready" if is_known else "ready", "peers")],
        ranks=[rank] if is_known else [],
        evidence=view.show(view.which(lambda one: one.name == who), 3),
        caveat="" if is_known else "the recording does not tell which rank was last",
        look=("critical", "--head", "10"),
    )


def _whose(view: JobView, computation: str) -> Whose:
    return next(one.whose or Whose() for one in view.recording.table.kinds if one.name == computation)


def _waiting(view: JobView, late: Sequence[str], usual_ns: float) -> Finding:
    """Return that negotiations wait for one of the `late` (names of computations), now this one, now that."""
    who = "which rank that is, the recording does not tell after the first negotiations"
    action = "record with HOROVOD_CACHE_CAPACITY=0 to see whether it is always the same rank"
    if len(late) > 1:
        who = "it is a different one each time"
        action = "give all ranks inputs of the same length, and look for other processes on the machines"
    return Finding(
        kind="exposed_communication",
        title="ranks wait in negotiations for the last one",
        cause=f"they wait {in_ms(usual_ns)}; {who}",
        action=action,
        edits=[edit("ready", "first")],
        evidence=view.show(view.which(is_wait), 3),
        caveat="an upper bound: the last rank is taken to be ready when the first one is",
        look=("critical", "--head", "10"),
    )


# ---- after all are ready


def negotiation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find time that passes although all ranks are ready: until the negotiating thread looks again."""
    waits = view.which(is_wait)
    if not waits.any():
        yield Skipped("negotiation", "no negotiation is recorded")
        return
    found, counts = [], []
    for step in view.steps:
        negotiated = waits[step.operation]
        reduced = step.edges[negotiated[step.edges[:, 0]], 1]
        found.append(step.work_ns[negotiated].max(initial=0) + step.gap_ns[reduced].max(initial=0))
        counts.append(negotiated.sum())
    yield Finding(
        kind="negotiation",
        title="reductions wait although all ranks are ready",
        cause=f"up to {in_ms(np.median(found))}; {np.median(counts):.0f} tensors are negotiated in a "
        "step, and looked at once in a cycle",
        action="shorten HOROVOD_CYCLE_TIME, or raise HOROVOD_FUSION_THRESHOLD for fewer reductions",
        edits=[edit("negotiation", "none")],
        operations=view.mains(waits)[:3],
        evidence=view.show(waits, 1),
    )
