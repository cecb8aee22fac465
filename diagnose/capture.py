"""How far the recording can be trusted: steps, ranks, files, clocks, and what counts as communication."""

from __future__ import annotations

import re
from collections.abc import Iterator

from diagnose.finding import Finding, Skipped
from diagnose.job_view import JobView, listed
from errors import counted
from replay.uncertainty import FEWEST

#: Names that look like communication, whatever the rule says.
_LIKE_COMMUNICATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|nccl|rccl|hccl|nvshmem|deep_?ep",
    re.IGNORECASE,
)
_SHOWN = 3


def capture_quality(view: JobView) -> Iterator[Finding | Skipped]:
    """Find what makes the answer less sure than it looks."""
    for title, cause, action in _flaws(view):
        yield Finding(
            kind="capture_quality",
            title=title,
            cause=cause,
            action=action,
            look=("--option", "statistic", "--sub_option", "breakdown"),
        )


def _flaws(view: JobView) -> Iterator[tuple[str, str, str]]:
    """Yield title, cause and action of each flaw."""
    n_steps = len(view.rows)
    if n_steps < FEWEST:
        yield (
            f"{counted(n_steps, 'whole step')} recorded",
            f"{FEWEST} are needed to tell chance from what recurs; gains have no interval",
            "record ten steps after the warm-up",
        )
    missing = [note for note in view.loaded.job.notes if "rank" in note]
    if missing:
        yield listed(missing, 1), "a verdict from some of the ranks", "collect the files of all ranks"
    damaged = [file for file in view.loaded.files if file.repairs]
    if damaged:
        shown = listed([file.path.name for file in damaged], _SHOWN)
        yield (
            f"{counted(len(damaged), 'damaged file')}: {shown}",
            "; ".join(damaged[0].repairs),
            "let the profiler finish writing before the job ends",
        )
    if view.loaded.broken:
        yield "parts of the recording cannot be used", listed(view.loaded.broken, 1), "record them again"
    clocks = [note for note in view.recording.notes if "clock" in note and "moved" not in note]
    if clocks:
        yield "the clocks of the ranks are not aligned", listed(clocks, 1), "compare within a rank only"
    yield from _unknown(view)


def _unknown(view: JobView) -> Iterator[tuple[str, str, str]]:
    recording = view.recording
    on_device = any(one.on_device for one in recording.operations)
    unknown = {
        one.main
        for one in recording.operations
        if not one.is_communication and one.on_device == on_device and _LIKE_COMMUNICATION.search(one.name)
    }
    calls = {one.main for one in recording.operations if one.is_communication}
    unknown -= calls
    if on_device and unknown:
        yield (
            f"{listed(sorted(unknown), _SHOWN)} looks like communication but counts as computation",
            view.loaded.ranks[0].rule,
            "read the shares of communication with care",
        )
