"""A hang as findings: the ranks at fault, their call, its time, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import numpy as np

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
from analyzer.answers.diagnose.finding import Evidence, Finding, FindingScope, Skipped
from analyzer.answers.diagnose.hangs.find_hang import Hang
from analyzer.answers.diagnose.hangs.waits import HangCause, Root
from analyzer.base.errors import in_words
from analyzer.reading.formats.recorder.standing import DumpedCall, Standing

_CLOSER = ("diagnose", "--full")
_MOST_EVIDENCE = 8


def hang_diagnosis(hang: Hang, ranks: Mapping[int, Standing], paths: Mapping[int, str]) -> Diagnosis:
    """Make the findings of a hang; `paths` are the dumps of the ranks."""
    findings = [_finding(hang, roots, ranks, paths) for roots in _alike(hang.roots)]
    none = np.empty(0, np.float64)
    return Diagnosis(
        findings=[Ranked(finding) for finding in findings],
        skipped=() if findings else [Skipped("hang", hang.reason)],
        small=0,
        iteration_ns=none,
        job_ns=none,
        numbers=(),
        ranks=[f"rank{rank}" for rank in sorted(ranks)],
        one_step="",
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
