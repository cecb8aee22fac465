"""The causes of a hang in dumps, or signs of progress; and the findings about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime, timezone

from msgspec import Struct

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
from analyzer.answers.diagnose.finding import (
    DUMPED_WITHIN_NS,
    HALF,
    PAUSE_NS,
    Evidence,
    Finding,
    FindingScope,
    Skipped,
)
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


_CLOSER = ("diagnose", "--full")
_MOST_EVIDENCE = 8


def hang_diagnosis(hang: Hang, ranks: Mapping[int, Standing], paths: Mapping[int, str]) -> Diagnosis:
    """Make the findings of a hang; `paths` are the dumps of the ranks."""
    findings = [_finding(hang, roots, ranks, paths) for roots in _alike(hang.roots)]
    return Diagnosis(
        findings=[Ranked(finding) for finding in findings],
        skipped=() if findings else [Skipped("hang", hang.reason)],
        ranks=[f"rank{rank}" for rank in sorted(ranks)],
        answer=_answer(hang, findings, ranks),
    )


def _answer(hang: Hang, findings: Sequence[Finding], ranks: Mapping[int, Standing]) -> str:
    if not findings:
        dumps = "The dump of 1 rank does" if len(ranks) == 1 else f"The dumps of {len(ranks)} ranks do"
        return f"{dumps} not show that the job hangs: {hang.reason}."
    guilty = {rank for root in hang.roots for rank in root.ranks}
    n_waiting = len(hang.waits.keys() - guilty)
    guilty_ranks = "it" if len(guilty) == 1 else "these"
    verb = "waits" if n_waiting == 1 else "wait"
    victims = f"; {n_waiting} of {len(ranks)} ranks {verb} for {guilty_ranks}, directly or through others"
    hangs = "may hang, or only be slow" if hang.doubt else "hangs"
    titles = "; and ".join(finding.title for finding in findings)
    return f"The job {hangs}: {titles}{victims if n_waiting else ''}."


def _alike(roots: Sequence[Root]) -> Iterator[list[Root]]:
    """Yield the roots of one finding: with one cause, in one call."""
    groups: dict[object, list[Root]] = {}
    for root in roots:
        call = (root.call.group, root.call.number, root.call.peer)
        groups.setdefault((root.cause, root.cause is not HangCause.BEHIND and call), []).append(root)
    yield from groups.values()


def _finding(
    hang: Hang, roots: Sequence[Root], ranks: Mapping[int, Standing], paths: Mapping[int, str]
) -> Finding:
    guilty = sorted({rank for root in roots for rank in root.ranks})
    waiting = sorted({rank for root in roots for rank in root.waiting})
    title, cause, action = _texts(hang, roots, ranks, guilty, waiting)
    return Finding(
        kind="hang",
        title=title,
        cause=cause,
        action=action,
        scope=FindingScope(
            [f"rank{rank}" for rank in guilty], operations=sorted({str(root.call) for root in roots})
        ),
        evidence=list(_evidence(hang, waiting, ranks, paths)),
        caveat="; ".join(filter(None, (hang.caveat, hang.doubt))),
        look=_CLOSER,
    )


def _texts(
    hang: Hang,
    roots: Sequence[Root],
    ranks: Mapping[int, Standing],
    guilty: Sequence[int],
    waiting: Sequence[int],
) -> tuple[str, str, str]:
    """Write title, cause and action of a finding."""
    root, call, who = roots[0], roots[0].call, in_words(guilty)
    times = [root.call.at_ns for root in roots if root.call.at_ns > 0]
    since = f" since {clock(min(times))}" if times else ""
    waited = (
        f"{in_words(waiting)} {'has' if len(waiting) == 1 else 'have'} waited" if waiting else "others wait"
    )
    if root.cause is HangCause.BEHIND:
        return (
            f"{who} stopped: calls are open there that others completed",
            f"{call.title} is open on {in_words(root.ranks)}, yet {in_words(waiting)} completed it, which "
            "needs all of its members: the device, or the thread that watches it, no longer answers",
            f"look at the device and the driver's log (Xid errors) of {who}, and at errors in the log",
        )
    if root.cause is HangCause.NO_DUMP:
        return (
            f"{who} left no dump, and in {call.title} {waited}{since} for it alone",
            f"they are in {call}. A rank that lives writes a dump when others hang: this one has died, "
            "or could not write",
            f"look for the end of {who}: its exit code, the kernel's log (out of memory), its host",
        )
    if root.cause is HangCause.CYCLE:
        circle = "; ".join(_circle(hang, guilty))
        return f"{who} wait for each other{since}", circle, "call the groups in one order on all ranks"
    if root.cause is HangCause.MISMATCH:
        others = "" if len(guilty) == len(waiting) else " from the others"
        return (
            f"{who} called {call.title} differently{others}{since}",
            "; ".join(f"{in_words(members)}: {words}" for words, members in root.differ.items()),
            f"let all members make the same calls in the same order with the same data{_frames(call)}",
        )
    is_one = len(guilty) == 1
    if hang.waits.keys() & waiting:
        title = f"{who} never reached {call.title}, where {waited}{since}"
        cause = f"{who} {'is' if is_one else 'are'} not waiting for anyone; the others are in {call}"
    else:
        title = f"{who} {'has' if is_one else 'have'} not called {call.title}"
        cause = f"{in_words(waiting)} completed it, which needs all of its members"
    return (
        title,
        f"{cause}. {_last_calls(guilty, ranks)}",
        f"look at what {who} did then: `py-spy dump` of the process, its log, its input, its host",
    )


def _evidence(
    hang: Hang, waiting: Sequence[int], ranks: Mapping[int, Standing], paths: Mapping[int, str]
) -> Iterator[Evidence]:
    end_ns = max(standing.last_ns for standing in ranks.values())
    begin_ns = min((wait.call.at_ns for wait in hang.waits.values() if wait.call.at_ns > 0), default=0)
    for rank in [rank for rank in waiting if rank in hang.waits][:_MOST_EVIDENCE]:
        call = hang.waits[rank].call
        at_ns = max(call.at_ns, begin_ns)
        yield Evidence(
            paths.get(rank, ""), f"rank{rank}", None, str(call), at_ns - begin_ns, max(end_ns - at_ns, 0)
        )


def _last_calls(guilty: Sequence[int], ranks: Mapping[int, Standing]) -> str:
    sentences = []
    for rank in [rank for rank in guilty if rank in ranks][:2]:
        if (last := ranks[rank].last) is not None:
            when = f" at {clock(last.at_ns)}" if last.at_ns > 0 else ""
            sentences.append(f"The last call of rank {rank} was {last}{when}{_frames(last)}")
    return ". ".join(sentences)


def _circle(hang: Hang, guilty: Sequence[int]) -> Iterator[str]:
    for rank in guilty[:4]:
        if (wait := hang.waits.get(rank)) is not None:
            on = [other for other in wait.on if other in guilty] or wait.on
            yield f"rank {rank} waits in {wait.call} for {in_words(on)}{_frames(wait.call)}"


def _frames(call: DumpedCall) -> str:
    return f", in {' < '.join(call.frames)}" if call.frames else ""


def clock(at_ns: int) -> str:
    """Format a time since the epoch as a date with milliseconds, in UTC."""
    at = datetime.fromtimestamp(at_ns // 10**9, tz=timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ns // 10**6 % 1000:03d} UTC"
