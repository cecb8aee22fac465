"""A hang as findings: who keeps the job waiting, in which call, since when, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, TypeAlias

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
    """Return the findings of a hang; `paths` are the dumps of the ranks."""
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
    whom = "it" if len(guilty) == 1 else "these"
    verb = "waits" if n_waiting == 1 else "wait"
    rest = f"; {n_waiting} of {len(ranks)} ranks {verb} for {whom}, directly or through others"
    hangs = "may hang, or only be slow" if hang.doubt else "hangs"
    titles = "; and ".join(finding.title for finding in findings)
    return f"The job {hangs}: {titles}{rest if n_waiting else ''}."


def _alike(roots: Sequence[Root]) -> Iterator[list[Root]]:
    """Yield the roots that are one finding: of one cause, in one call."""
    groups: dict[object, list[Root]] = {}
    for root in roots:
        call = (root.call.group, root.call.number, root.call.peer)
        groups.setdefault((root.cause, root.cause is not HangCause.BEHIND and call), []).append(root)
    yield from groups.values()


class _Hung(NamedTuple):
    """The ranks at fault and those that wait, in numbers and words; `since` is the time of the first call."""

    roots: Sequence[Root]
    call: DumpedCall
    guilty: Sequence[int]
    who: str
    waiting: Sequence[int]
    waited: str
    since: str


def _finding(
    hang: Hang, roots: Sequence[Root], ranks: Mapping[int, Standing], paths: Mapping[int, str]
) -> Finding:
    guilty = sorted({rank for root in roots for rank in root.ranks})
    waiting = sorted({rank for root in roots for rank in root.waiting})
    times = [root.call.at_ns for root in roots if root.call.at_ns > 0]
    have = "has" if len(waiting) == 1 else "have"
    waited = f"{in_words(waiting)} {have} waited" if waiting else "others wait"
    since = f" since {clock(min(times))}" if times else ""
    hung = _Hung(roots, roots[0].call, guilty, in_words(guilty), waiting, waited, since)
    title, cause, action = {
        HangCause.ABSENT: lambda: _absent(hung, hang, ranks),
        HangCause.BEHIND: lambda: _behind(hung),
        HangCause.NO_DUMP: lambda: _no_dump(hung),
        HangCause.CYCLE: lambda: _cycle(hung, hang),
        HangCause.MISMATCH: lambda: _mismatch(hung),
    }[roots[0].cause]()
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


_Texts: TypeAlias = tuple[str, str, str]  # title, cause and action


def _absent(hung: _Hung, hang: Hang, ranks: Mapping[int, Standing]) -> _Texts:
    if hang.waits.keys() & hung.waiting:
        verb = "is" if len(hung.guilty) == 1 else "are"
        title = f"{hung.who} never reached {hung.call.title}, where {hung.waited}{hung.since}"
        cause = f"{hung.who} {verb} not waiting for anyone; the others are in {hung.call}"
    else:
        have = "has" if len(hung.guilty) == 1 else "have"
        title = f"{hung.who} {have} not called {hung.call.title}"
        cause = f"{in_words(hung.waiting)} completed it, which needs all of its members"
    return (
        title,
        f"{cause}. {_instead(hung.guilty, ranks)}",
        f"look at what {hung.who} did then: `py-spy dump` of the process, its log, its input, its host",
    )


def _behind(hung: _Hung) -> _Texts:
    return (
        f"{hung.who} stopped: calls are open there that others completed",
        f"{hung.call.title} is open on {in_words(hung.roots[0].ranks)}, yet {in_words(hung.waiting)} "
        "completed it, which needs all of its members: the device, or the thread that watches it, no longer "
        "answers",
        f"look at the device and the driver's log (Xid errors) of {hung.who}, and at errors in the log",
    )


def _no_dump(hung: _Hung) -> _Texts:
    return (
        f"{hung.who} left no dump, and in {hung.call.title} {hung.waited}{hung.since} for it alone",
        f"they are in {hung.call}. A rank that lives writes a dump when others hang: this one has died, "
        "or could not write",
        f"look for the end of {hung.who}: its exit code, the kernel's log (out of memory), its host",
    )


def _cycle(hung: _Hung, hang: Hang) -> _Texts:
    circle = "; ".join(_circle(hang, hung.guilty))
    return f"{hung.who} wait for each other{hung.since}", circle, "call the groups in one order on all ranks"


def _mismatch(hung: _Hung) -> _Texts:
    others = "" if len(hung.guilty) == len(hung.waiting) else " from the others"
    return (
        f"{hung.who} called {hung.call.title} differently{others}{hung.since}",
        "; ".join(f"{in_words(ranks)}: {words}" for words, ranks in hung.roots[0].differ.items()),
        f"let all members make the same calls in the same order with the same data{_frames(hung.call)}",
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


def _instead(guilty: Sequence[int], ranks: Mapping[int, Standing]) -> str:
    """Say what the last calls of ranks were that left dumps."""
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
    """Return a time since the epoch as a date with milliseconds, in UTC."""
    at = datetime.fromtimestamp(at_ns // 10**9, tz=timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ns // 10**6 % 1000:03d} UTC"
