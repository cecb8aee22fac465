"""Why a job hangs, or why that is not claimed: the causes of `who_waits`, and signs that the job lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from analyzer.answers.diagnose.finding_thresholds import DUMPED_WITHIN_NS, HALF, PAUSE_NS
from analyzer.answers.diagnose.who_waits import HangCause, Root, Wait, Waits, age
from analyzer.base.errors import in_words
from analyzer.reading import dialects
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.recorder.standing import Standing


class Hang(Struct):
    """The answer of some dumps; `reason` says why no hang is claimed where there is no root.

    `doubt` says why the job may only be slow, `caveat` what else is not known.
    """

    roots: Sequence[Root]
    waits: Mapping[int, Wait]
    reason: str = ""
    caveat: str = ""
    doubt: str = ""


def find_hang(ranks: Mapping[int, Standing]) -> Hang:
    """Find why the job of these ranks hangs, or why that is not claimed."""
    job = Waits(ranks)
    waits = {rank: wait for rank in ranks if (wait := job.wait(rank)) is not None}
    roots = _merged(job.ends())
    roots = [root for root in roots if root.cause is not HangCause.NO_DUMP] or roots
    moved = _moved(job)
    if reason := _unknown(job, roots, moved):
        return Hang((), waits, reason)
    named = {rank for root in roots for rank in root.ranks}
    caveat = ""
    if moved:
        caveat = f"the record of {in_words(moved)} ends before calls that others completed with it"
    elif left := sorted(job.lost - named):
        caveat = f"{in_words(left)} left no dump: whether they wait, too, is not known"
    roots = sorted([*roots, *(root for rank, root in job.frozen.items() if rank not in named)], key=_since)
    times = _Times(job, roots)
    if reason := _sign_of_life(job, roots, times):
        return Hang((), waits, reason)
    return Hang(roots, waits, caveat=caveat, doubt=_doubt(roots, times))


def _since(root: Root) -> tuple[bool, bool, int]:
    return root.cause is HangCause.BEHIND, *age(root.call)


def _merged(roots: Iterable[Root]) -> list[Root]:
    """Leave out roots whose ranks all stand in an earlier one; a mismatch comes first."""
    kept: list[Root] = []
    named: set[int] = set()
    for root in sorted(roots, key=lambda root: root.cause is not HangCause.MISMATCH):
        if not named.issuperset(root.ranks):
            kept.append(root)
            named.update(root.ranks)
    return kept


def _unknown(job: Waits, roots: Sequence[Root], moved: Sequence[int]) -> str:
    """Say why the dumps name nobody; "" where they do."""
    named = {rank for root in roots for rank in root.ranks}
    if named and named <= job.lost and len(job.lost) >= len(job.ranks):
        return f"the others wait for {in_words(sorted(job.lost))} without a dump; give the dumps of all ranks"
    if moved and (len(moved) >= HALF * len(job.ranks) or not named.issubset(moved)):
        return (
            f"others completed calls that {in_words(moved)} had not made: the dumps are of different "
            "moments, and the job moved between them"
        )
    if roots:
        return ""
    if job.frozen:
        return (
            f"calls are open on {in_words(sorted(job.frozen))} that others completed, perhaps "
            "because the dumps are of different moments"
        )
    if any(not call.group.members for calls in job.opens.values() for call in calls):
        return "calls are open, and the dumps do not list the ranks of their groups"
    if any(job.opens.values()):
        return "every open call has been made by all of its members: they may still be running"
    return "no call is open: every rank has completed all that it called"


def _moved(job: Waits) -> list[int]:
    """List the ranks that had not made a call that others had completed, as no one can without them."""
    moved = set()
    for key in job.sure:
        done = (call.number for lane in job.lanes[key].values() for call in lane.done if call.all_wait)
        top = max(done, default=-1)
        moved |= {rank for rank, (entered, _) in job.reached[key].items() if 0 <= entered < top}
    return sorted(moved)


class _Times:
    """How long the first of the `roots` has kept ranks waiting, and how long calls took before (ns).

    Files that are older than a timeout are copies: only the times in them tell how long ranks waited.
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
    """Say why a job with these causes lives; "" where nothing tells."""
    if times.is_timeout or any(root.cause is HangCause.MISMATCH for root in roots):
        return ""
    named = {rank for root in roots for rank in root.ranks}
    if fresh := sorted(
        rank for rank, standing in job.ranks.items() if standing.just_completed_ns > 0 and rank not in named
    ):
        return f"calls of {in_words(fresh)} completed just before the dumps were written: the job moves"
    if running := [call for call in job.running if times.last_ns - call.at_ns < times.longest_ns]:
        return f"{running[0].title} is still running, as it has been made by all of its members"
    if idle := sorted(rank for rank, calls in job.opens.items() if not calls and rank not in named):
        wait = "waits" if len(idle) == 1 else "wait"
        return f"{in_words(idle)} {wait} for nobody, and nobody for them: they may run"
    if not times.is_copy and HALF * times.waited_ns < times.longest_ns:
        took = f"calls took up to {times.longest_ns / 1e6:,.0f} ms before"
        return f"the dumps were written {times.waited_ns / 1e6:,.0f} ms later, and {took}"
    return ""


def _doubt(roots: Sequence[Root], times: _Times) -> str:
    """Say why a job with these causes may only be slow; "" where that cannot be."""
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
    """Return where the rank of a trace stood; None where its system does not record that."""
    return dialects.of(trace).standing(trace)
