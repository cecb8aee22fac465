"""Find the causes of a hang in dumps, or signs of progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from analyzer.answers.diagnose.finding import DUMPED_WITHIN_NS, HALF, PAUSE_NS
from analyzer.answers.diagnose.hangs.waits import HangCause, Root, Wait, Waits, age
from analyzer.base.errors import in_words
from analyzer.reading import dialects
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.recorder.standing import DumpedCall, Standing


class Hang(Struct):
    """The answer of some dumps."""

    roots: Sequence[Root]
    waits: Mapping[int, Wait]
    reason: str = ""  # the dumps show no hang, if there is no root
    caveat: str = ""
    doubt: str = ""  # the job may only be slow


def find_hang(ranks: Mapping[int, Standing]) -> Hang:
    """Find the causes of the hang of these ranks, or the reason why the dumps do not show one."""
    job = Waits(ranks)
    waits = {rank: wait for rank in ranks if (wait := job.wait(rank)) is not None}
    roots: list[Root] = []
    explained: set[int] = set()
    for root in sorted(job.ends(), key=lambda root: root.cause is not HangCause.MISMATCH):
        if not explained.issuperset(root.ranks):
            roots.append(root)
            explained.update(root.ranks)
    roots = [root for root in roots if root.cause is not HangCause.NO_DUMP] or roots
    missed = _missed(job)
    if not roots and not job.frozen and not any(job.opens.values()) and (leads := _leads(job, missed)):
        reason = _progress(job, {rank for root in leads for rank in root.ranks})
        return Hang(() if reason else leads, waits, reason, doubt=_OLDER_DUMP)
    moved = sorted(missed)
    if reason := _unknown(job, roots, moved):
        return Hang((), waits, reason)
    named = {rank for root in roots for rank in root.ranks}
    caveat = ""
    if moved:
        caveat = f"the record of {in_words(moved)} ends before calls that others completed with it"
    elif left := sorted(job.lost - named):
        caveat = f"{in_words(left)} left no dump: whether they wait, too, is not known"
    beside = [*_leads(job, missed), *job.frozen.values()]
    roots = sorted([*roots, *(root for root in beside if named.isdisjoint(root.ranks))], key=_since)
    times = _Times(job, roots)
    if reason := _sign_of_life(job, roots, times):
        return Hang((), waits, reason)
    return Hang(roots, waits, caveat=caveat, doubt=_doubt(roots, times))


def _since(root: Root) -> tuple[bool, bool, int]:
    return root.cause is HangCause.BEHIND, *age(root.call)


def _unknown(job: Waits, roots: Sequence[Root], moved: Sequence[int]) -> str:
    """Explain why the dumps show no rank at fault; "" if they do."""
    named = {rank for root in roots for rank in root.ranks}
    if named and named <= job.lost and len(job.lost) >= len(job.ranks):
        return (
            f"the other ranks wait for {in_words(sorted(job.lost))}, whose dumps are missing: pass all dumps"
        )
    if moved and len(moved) >= HALF * len(job.ranks):
        return (
            f"others completed calls that {in_words(moved)} had not made: the dumps were written at "
            "different moments, and the job went on in between"
        )
    if roots:
        return ""
    if job.frozen:
        return (
            f"calls are open on {in_words(sorted(job.frozen))} that others completed, perhaps "
            "because the dumps were written at different moments"
        )
    if any(not call.group.members for calls in job.opens.values() for call in calls):
        return "calls are open, and the dumps do not list the ranks of their groups"
    if any(job.opens.values()):
        return "all members have made every open call: the calls may still be running"
    return "no call is open: every rank has completed all of its calls"


def _missed(job: Waits) -> dict[int, DumpedCall]:
    """Map ranks to the first call that they had not made, though others completed it and it needs all."""
    missed: dict[int, DumpedCall] = {}
    for key in job.sure:
        done = [call for lane in job.lanes[key].values() for call in lane.done if call.all_wait]
        for rank, (entered, _) in job.reached[key].items():
            later = [call for call in done if call.number > entered >= 0]
            if later:
                missed.setdefault(rank, min(later, key=lambda call: call.number))
    return missed


_OLDER_DUMP = "the dumps of the ranks at fault may only be older than those of the others"


def _leads(job: Waits, missed: Mapping[int, DumpedCall]) -> list[Root]:
    """List ranks that have not made a call that others completed, unless they are more than half.

    A recorder may report a collective complete as soon as its own part is done, so no call need be open.
    """
    if len(missed) > HALF * len(job.ranks):
        return []
    leads = []
    for rank, call in missed.items():
        reached = job.reached[call.group.key].items()
        leads.append(
            Root(HangCause.ABSENT, (rank,), call, [by for by, (_, done) in reached if done >= call.number])
        )
    return sorted(leads, key=_since)


class _Times:
    """The time since the first of the `roots`, and the longest earlier call (ns).

    Files older than a timeout are copies: only the times inside tell how long ranks waited.
    """

    def __init__(self, job: Waits, roots: Sequence[Root]) -> None:
        standings = job.ranks.values()
        self.last_ns = max(standing.last_ns for standing in standings)
        written_ns = max(standing.written_ns for standing in standings)
        self.longest_ns = max(standing.longest_ns for standing in standings)
        since_ns = min(root.call.at_ns for root in roots)
        waits = [(written_ns - root.call.at_ns, root.call.timeout_ns) for root in roots]
        # dumps of a watchdog are written soon after a timeout
        known = [(waited, limit) for waited, limit in waits if 0 < waited < limit + DUMPED_WITHIN_NS]
        self.is_copy = not known
        self.is_timeout = any(waited > limit for waited, limit in known)
        self.waited_ns = (self.last_ns if self.is_copy else written_ns) - since_ns


def _sign_of_life(job: Waits, roots: Sequence[Root], times: _Times) -> str:
    """Explain why a job with these causes may be making progress; "" if it is not."""
    if times.is_timeout or any(root.cause is HangCause.MISMATCH for root in roots):
        return ""
    named = {rank for root in roots for rank in root.ranks}
    if reason := _progress(job, named):
        return reason
    if running := [call for call in job.running if times.last_ns - call.at_ns < times.longest_ns]:
        return f"{running[0].title} may still be running: all of its members have made it"
    if idle := sorted(rank for rank, calls in job.opens.items() if not calls and rank not in named):
        waits, them = ("it waits", "it") if len(idle) == 1 else ("they wait", "them")
        return f"{in_words(idle)} may be running: {waits} for no rank, and no rank waits for {them}"
    if not times.is_copy and HALF * times.waited_ns < times.longest_ns:
        took = f"calls took up to {times.longest_ns / 1e6:,.0f} ms before"
        return f"the dumps were written {times.waited_ns / 1e6:,.0f} ms later, and {took}"
    return ""


def _progress(job: Waits, guilty: Set[int]) -> str:
    """Report calls that completed just before the dumps, except on `guilty` ranks; "" for none."""
    fresh = sorted(
        rank for rank, standing in job.ranks.items() if standing.just_completed_ns > 0 and rank not in guilty
    )
    return f"calls of {in_words(fresh)} completed just before the dumps were written" if fresh else ""


def _doubt(roots: Sequence[Root], times: _Times) -> str:
    """Explain why a job with these causes may only be slow; "" if it is not."""
    if times.is_timeout or any(root.cause is HangCause.MISMATCH for root in roots):
        return ""
    if HALF * times.waited_ns >= times.longest_ns and (times.is_copy or times.waited_ns >= PAUSE_NS):
        return ""
    what = "the times in the dumps end" if times.is_copy else "the dumps were written"
    return (
        f"{what} after {times.waited_ns / 1e6:,.0f} ms of waiting, calls took up to "
        f"{times.longest_ns / 1e6:,.0f} ms before, and a job that saves its state may pause for longer: "
        "if no timeout made the job write them, it may only be slow"
    )


def standing_of(_: object, trace: Trace) -> Standing | None:
    """Read the open and completed calls of a rank; None if its system does not record them."""
    return dialects.of(trace).standing(trace)
