"""Why a job hangs, or why that is not claimed: the causes of `who_waits`, and signs that the job lives."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

import dialects
from diagnose.finding_thresholds import DUMPED_WITHIN_NS, FEWEST_CALLS, HALF, OUTLYING, PAUSE_NS
from diagnose.who_waits import HangCause, Root, Wait, Waits, age
from errors import in_words
from formats.columns import Trace
from formats.recorder.standing import Standing

#: Causes that time may end.
_LATE = {HangCause.ABSENT, HangCause.BEHIND, HangCause.NO_DUMP, HangCause.NOT_STARTED}


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
    """Return why the job of these ranks hangs, or why that is not claimed."""
    job = Waits(ranks)
    waits = {rank: wait for rank in ranks if (wait := job.wait(rank)) is not None}
    roots = _merged(job.ends())
    known = [root for root in roots if root.cause is not HangCause.NO_DUMP]
    named = {rank for root in known or roots for rank in root.ranks}
    moved, missing = _moved(job), job.all_of([*job.lost])
    reason = caveat = ""
    if roots and not known and len(missing) >= len(ranks):
        reason = f"the others wait for {in_words(missing)} without a dump; give the dumps of all ranks"
    elif moved and (len(moved) >= HALF * len(ranks) or not named <= {*moved}):
        reason = (
            f"others completed calls that {in_words(moved)} had not made: the dumps are of different "
            "moments, and the job moved between them"
        )
    elif not roots:
        reason = _why_not(job)
    elif moved:
        caveat = f"the record of {in_words(moved)} ends before calls that others completed with it"
    elif left := sorted({*missing}.difference(job.all_of([*named]))):
        caveat = f"{in_words(left)} left no dump: whether they wait, too, is not known"
    caveat = "; ".join(filter(None, (caveat, _behind(job, roots))))
    roots = [*(known or roots), *(root for rank, root in job.frozen.items() if rank not in named)]
    reason = reason or _signs_of_life(job, roots)
    roots = [] if reason else [root._replace(ranks=job.all_of(root.ranks)) for root in roots]
    return Hang(sorted(roots, key=_since), waits, reason, caveat, _doubt(job, roots))


def _since(root: Root) -> tuple[bool, bool, int]:
    return root.cause is HangCause.BEHIND, *age(root.call)


def _merged(roots: Iterable[Root]) -> list[Root]:
    """Return the roots without those whose ranks all stand in an earlier one; a mismatch comes first."""
    found: list[Root] = []
    named: set[int] = set()
    for root in sorted(roots, key=lambda one: one.cause is not HangCause.MISMATCH):
        if not named.issuperset(root.ranks):
            found.append(root)
            named.update(root.ranks)
    return found


# ---- signs of life


def _why_not(job: Waits) -> str:
    """Return why nothing is claimed where no way ends."""
    if job.misfit:
        return job.misfit
    if job.frozen:
        return _several_moments(job)
    if not any(one.last for one in job.ranks.values()):
        return "the dumps hold no call" + _by_counters(job)
    if any(not call.group.members for calls in job.opens.values() for call in calls):
        return "calls are open, and the dumps do not list the ranks of their groups"
    if any(job.opens.values()):
        return "every open call has been made by all of its members: they may still be running"
    return "no call is open: every rank has completed all that it called"


def _several_moments(job: Waits) -> str:
    return (
        f"calls are open on {in_words(sorted(job.frozen))} that others completed, perhaps "
        "because the dumps are of different moments"
    )


def _by_counters(job: Waits) -> str:
    """Return a sentence of the ranks whose counters are behind those of others in a group."""
    behind = set()
    for reached in job.reached.values():
        top = max(entered for entered, _ in reached.values())
        behind |= {rank for rank, (entered, _) in reached.items() if entered < top}
    return f"; by their counters {in_words([*behind])} called fewer than others" if behind else ""


def _moved(job: Waits) -> list[int]:
    """Return the ranks that had not made a call that others had completed, as no one can without them."""
    found = set()
    for key in job.sure:
        done = (call.number for lane in job.lanes[key].values() for call in lane.done if call.all_wait)
        top = max(done, default=-1)
        found |= {rank for rank, (entered, _) in job.reached[key].items() if 0 <= entered < top}
    return sorted(found)


def _behind(job: Waits, roots: Sequence[Root]) -> str:
    """Return a sentence of the ranks that called less than most who wait in one call with them."""
    found: set[int] = set()
    for root in roots:
        reached = job.reached.get(root.call.group.key, {}) if root.call.peer is None else {}
        entered = {rank: reached[rank][0] for rank in root.waiting if rank in reached}
        usual, n = Counter(entered.values()).most_common(1)[0] if entered else (0, 0)
        if n > HALF * len(entered):
            found |= {rank for rank, number in entered.items() if number < usual}
    if not found:
        return ""
    whose = "its host waits" if len(found) == 1 else "their hosts wait"
    return f"{in_words(sorted(found))} called less than others that wait there: stopped, too, or {whose}"


def _signs_of_life(job: Waits, roots: Sequence[Root]) -> str:
    """Return why a job with these causes may only be slow; "" where nothing speaks for that."""
    if any(root.cause is HangCause.MISMATCH for root in roots):
        return ""
    last_ns, written_ns, longest_ns = _times(job)
    named = {rank for root in roots for rank in root.ranks}
    if any(_timeouts(roots, written_ns)):
        return ""
    if fresh := sorted(rank for rank in job.fresh if rank not in named):
        return f"calls of {in_words(fresh)} completed just before the dumps were written: the job moves"
    if running := [call for call in job.running if last_ns - call.at_ns < longest_ns]:
        return f"{running[0].title} is still running, as it has been made by all of its members"
    since_ns = min(root.call.at_ns for root in roots)
    several = len(job.frozen) > 1 and any(root.cause is not HangCause.BEHIND for root in roots)
    if several and (last_ns - since_ns < longest_ns or len(job.frozen) > len(job.ranks) // 8):
        return _several_moments(job)
    waited_ns = written_ns - since_ns
    if 0 < HALF * waited_ns < longest_ns:
        took = f"calls took up to {longest_ns / 1e6:,.0f} ms before"
        return f"the dumps were written {waited_ns / 1e6:,.0f} ms later, and {took}"
    if idle := sorted(rank for rank, calls in job.opens.items() if not calls and rank not in named):
        wait = "waits" if len(idle) == 1 else "wait"
        return f"{in_words(idle)} {wait} for nobody, and nobody for them: they may run"
    if not all(_is_usual(job, root, last_ns) for root in roots):
        return ""
    late = in_words(sorted(rank for root in roots for rank in root.ranks))
    return (
        f"{late} came as late to each of the last calls, and the dumps end before the others have waited "
        "for longer than then"
    )


def _doubt(job: Waits, roots: Sequence[Root]) -> str:
    """Return why a job with these causes may only be slow; "" where that cannot be.

    Files that are older than a timeout are copies: only the times in them tell how long ranks waited.
    """
    last_ns, written_ns, longest_ns = _times(job)
    since_ns = min((root.call.at_ns for root in roots), default=0)
    is_late = all(map(_may_end, roots))
    is_copy = not _timeouts(roots, written_ns)
    waited_ns, pause_ns = (last_ns - since_ns, 0) if is_copy else (written_ns - since_ns, PAUSE_NS)
    is_longer = HALF * waited_ns >= longest_ns
    if not is_late or (is_longer and waited_ns >= pause_ns):
        return ""
    what = "the times in the dumps end" if is_copy else "the dumps were written"
    longer = f"calls took up to {longest_ns / 1e6:,.0f} ms before"
    if is_longer:
        longer = "a job that evaluates or saves its state may pause for longer"
    return (
        f"{what} after {waited_ns / 1e6:,.0f} ms of waiting, and {longer}: "
        "if no timeout made the job write them, it may only be slow"
    )


def _may_end(root: Root) -> bool:
    """Whether time may end what a root causes: a message whose other side is through seems to wait."""
    return root.cause in _LATE or (root.cause is HangCause.CYCLE and root.call.peer is not None)


def _times(job: Waits) -> tuple[int, int, int]:
    """Return the last time in the dumps, when they were written, and what a call took at most (ns)."""
    last_ns, written_ns, longest_ns = (
        max(getattr(one, f"{what}_ns") for one in job.ranks.values())
        for what in ("last", "written", "longest")
    )
    return last_ns, written_ns, longest_ns


def _is_usual(job: Waits, root: Root, last_ns: int) -> bool:
    """Whether who has not come is as late in every call, or ever later, and now not later still."""
    lanes = job.lanes[root.call.group.key]
    made: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, lane in lanes.items():
        for call in lane.done:
            made[call.number][rank] = call.at_ns
    whole = [times for times in made.values() if len(times) == len(lanes) and min(times.values()) > 0]
    late = root.ranks[0]
    if root.cause is not HangCause.ABSENT or late not in lanes or len(whole) < FEWEST_CALLS:
        return False
    behind: dict[int, list[int]] = defaultdict(list)
    for times in whole:
        first_ns = min(times.values())
        for rank, at_ns in times.items():
            behind[rank].append(at_ns - first_ns)
    others = max(sum(each) for rank, each in behind.items() if rank != late)
    # it may fall behind ever more
    growth_ns = max(after - before for before, after in pairwise(behind[late]))
    longest_ns = max(behind[late]) + max(growth_ns, 0)
    return sum(behind[late]) > OUTLYING * others and last_ns - root.call.at_ns <= longest_ns


def _timeouts(roots: Iterable[Root], written_ns: int) -> list[bool]:
    """Return of the calls that waited no longer when the dumps were written whether their timeout had passed.

    No longer than to the timeout, and as long as writing takes then: else the files are copies.
    """
    waits = ((root.call.timeout_ns, written_ns - root.call.at_ns) for root in roots)
    return [waited > timeout for timeout, waited in waits if 0 < waited < timeout + DUMPED_WITHIN_NS]


def standing_of(_: object, trace: Trace) -> Standing | None:
    """Return where the rank of a trace stood; None where its system does not record that."""
    return dialects.of(trace).standing(trace)
