"""A hang as findings: who keeps the job waiting, in which call, since when, and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

import numpy as np

from diagnose.diagnosis import Diagnosis, Ranked
from diagnose.finding import Evidence, Finding, Skipped
from diagnose.hangs import Hang
from diagnose.who_waits import HangCause, Root
from errors import counted, in_words
from formats.recorder.standing import DumpedCall, Standing

_CLOSER = ("diagnose", "--full")
_MOST_EVIDENCE = 8


def hang_diagnosis(hang: Hang, ranks: Mapping[int, Standing], paths: Mapping[int, str]) -> Diagnosis:
    """Return the findings of a hang; `paths` are the dumps of the ranks."""
    findings = [_finding(hang, roots, ranks, paths) for roots in _alike(hang.roots)]
    none = np.empty(0, np.float64)
    return Diagnosis(
        findings=[Ranked(one) for one in findings],
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
        return f"No hang is claimed of {counted(len(ranks), 'rank')}: {hang.reason}."
    guilty = {rank for root in hang.roots for rank in root.ranks}
    waiting = len(hang.waits.keys() - guilty)
    verb, whom = "waits" if waiting == 1 else "wait", "it" if len(guilty) == 1 else "these"
    rest = (
        f"; {waiting} of {len(ranks)} ranks {verb} for {whom}, directly or through others" if waiting else ""
    )
    hangs = "may hang, or only be slow" if hang.doubt else "hangs"
    return f"The job {hangs}: {'; and '.join(one.title for one in findings)}{rest}."


def _alike(roots: Sequence[Root]) -> Iterator[list[Root]]:
    """Yield the roots that are one finding: of one cause, in one call."""
    found: dict[object, list[Root]] = {}
    for root in roots:
        call = (root.call.group, root.call.number, root.call.peer)
        found.setdefault((root.cause, root.cause is not HangCause.BEHIND and call), []).append(root)
    yield from found.values()


def _finding(
    hang: Hang, roots: Sequence[Root], ranks: Mapping[int, Standing], paths: Mapping[int, str]
) -> Finding:
    guilty = sorted({rank for root in roots for rank in root.ranks})
    waiting = sorted({rank for root in roots for rank in root.waiting})
    root = roots[0]
    calls = [one.call for one in roots]
    since = [call.at_ns for call in calls if call.at_ns > 0]
    who, has = in_words(guilty), "has" if len(guilty) == 1 else "have"
    what = root.call.title
    when = f" since {clock(min(since))}" if since else ""
    those = (
        f"{in_words(waiting)} {'has' if len(waiting) == 1 else 'have'} waited" if waiting else "others wait"
    )
    others = "" if len(guilty) == len(waiting) else " from the others"
    title, cause, action = {
        HangCause.ABSENT: (
            f"{who} {has} not come to {what}, where {those}{when}",
            f"{who} {'waits' if len(guilty) == 1 else 'wait'} for nobody; the others are in {root.call}. "
            f"{_instead(guilty, ranks)}",
            f"look at what {who} did then: `py-spy dump` of the process, its log, its input, its host",
        ),
        HangCause.BEHIND: (
            f"{who} stopped: the record lacks completions that others have",
            f"{what} is open on {in_words(root.ranks)}, yet {in_words(waiting)} completed it, "
            "which needs all of its members: the device, or the thread that watches it, no longer answers",
            f"look at the device and the driver's log (Xid errors) of {who}, and at errors in the log",
        ),
        HangCause.NO_DUMP: (
            f"{who} left no dump, and in {what} {those}{when} for it alone",
            f"they are in {root.call}. A rank that lives writes a dump when others hang: this one has died, "
            "or could not write",
            f"look for the end of {who}: its exit code, the kernel's log (out of memory), its host",
        ),
        HangCause.CYCLE: (
            f"{who} wait for each other{when}",
            "; ".join(_circle(hang, guilty)),
            "call the groups in one order on all ranks",
        ),
        HangCause.MISMATCH: (
            f"{who} called {what} differently{others}{when}",
            "; ".join(f"{in_words(own)}: {words}" for words, own in root.differ.items()),
            f"let all members make the same calls in the same order with the same data{_frames(root.call)}",
        ),
    }[root.cause]
    return Finding(
        kind="hang",
        title=title,
        cause=cause,
        action=action,
        ranks=[f"rank{rank}" for rank in guilty],
        operations=sorted({str(one) for one in calls}),
        evidence=list(_evidence(hang, waiting, ranks, paths)),
        caveat="; ".join(filter(None, (hang.caveat, hang.doubt))),
        look=_CLOSER,
    )


def _evidence(
    hang: Hang, waiting: Sequence[int], ranks: Mapping[int, Standing], paths: Mapping[int, str]
) -> Iterator[Evidence]:
    end_ns = max(one.last_ns for one in ranks.values())
    begin_ns = min((wait.call.at_ns for wait in hang.waits.values() if wait.call.at_ns > 0), default=0)
    for rank in [rank for rank in waiting if rank in hang.waits][:_MOST_EVIDENCE]:
        call = hang.waits[rank].call
        at_ns = max(call.at_ns, begin_ns)
        yield Evidence(
            paths.get(rank, ""), f"rank{rank}", None, str(call), at_ns - begin_ns, max(end_ns - at_ns, 0)
        )


def _instead(guilty: Sequence[int], ranks: Mapping[int, Standing]) -> str:
    """Return the last calls of ranks that left dumps, in words."""
    told = []
    for rank in [rank for rank in guilty if rank in ranks][:2]:
        last = ranks[rank].last
        if last is None:
            told.append(f"Rank {rank} has no call open: all that it called is complete")
            continue
        when = f" at {clock(last.at_ns)}" if last.at_ns > 0 else ""
        told.append(f"The last call of rank {rank} was {last}{when}{_frames(last)}")
    return ". ".join(told)


def _circle(hang: Hang, guilty: Sequence[int]) -> Iterator[str]:
    for rank in guilty[:4]:
        if (wait := hang.waits.get(rank)) is not None:
            on = [one for one in wait.on if one in guilty] or wait.on
            yield f"rank {rank} waits in {wait.call} for {in_words(on)}{_frames(wait.call)}"


def _frames(call: DumpedCall) -> str:
    return f", in {' < '.join(call.frames)}" if call.frames else ""


def clock(at_ns: int) -> str:
    """Return a time since the epoch as a date with milliseconds, in UTC."""
    at = datetime.fromtimestamp(at_ns // 10**9, tz=timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ns // 10**6 % 1000:03d} UTC"
