"""How far the recording can be trusted: steps, ranks, files, clocks, and what counts as communication."""

from __future__ import annotations

from collections.abc import Iterator

import dialects
from arrays.median import FEWEST
from diagnose.finding import BREAKDOWN, Finding, Skipped
from diagnose.job_view import JobView
from dialects.name_rules import is_like_collective
from dialects.roles import MAY_BE, NONE_SHOWN, Role, on_own_streams
from errors import NoteKind, counted, listed, notes_of
from function_names import named

_SHOWN = 3


def capture_quality(view: JobView) -> Iterator[Finding | Skipped]:
    """Find what makes the answer less sure than it looks."""
    for title, cause, action in _flaws(view):
        yield Finding(
            kind="capture_quality", title=title, cause=cause, action=action, ranks=(), look=BREAKDOWN
        )


def _flaws(view: JobView) -> Iterator[tuple[str, str, str]]:
    n_steps = len(view.rows)
    if n_steps < FEWEST:
        yield (
            f"{counted(n_steps, 'whole step')} recorded",
            f"{FEWEST} are needed to tell chance from what recurs; gains have no interval",
            "record ten steps after the warm-up",
        )
    if missing := _missing(view):
        yield listed(missing, 1), "waits for what is missing cannot be seen", "collect the files of all ranks"
    losses = {}
    for file in view.loaded.files:
        whole = notes_of(NoteKind.WHOLE, file.repairs)
        if lost := [one for one in file.repairs if one not in whole]:
            losses[file.path.name] = lost
    if losses:
        yield (
            f"{counted(len(losses), 'damaged file')}: {listed(list(losses), _SHOWN)}",
            "; ".join(next(iter(losses.values()))),
            "let the profiler finish writing before the job ends",
        )
    if view.loaded.broken:
        yield "parts of the recording cannot be used", listed(view.loaded.broken, 1), "record them again"
    clocks = notes_of(NoteKind.UNALIGNED, view.recording.notes)
    if clocks:
        yield "the clocks of the ranks are not aligned", listed(clocks, 1), "compare within a rank only"
    yield from _unknown(view)


def _missing(view: JobView) -> list[str]:
    """Return a line for each file or directory without a trace, and for ranks that are missing or doubled."""
    loaded = view.loaded
    lines = [*loaded.unread, *notes_of(NoteKind.MISSING, loaded.job.notes)]
    if len(loaded.ranks) == 1 and loaded.ranks[0].rank is not None:  # loading says nothing of one alone
        lines += loaded.job.rank_notes([loaded.ranks[0].rank], loaded.ranks[0].world_size or 0)
    return lines


def _unknown(view: JobView) -> Iterator[tuple[str, str, str]]:
    recording = view.recording
    on_device = any(one.on_device for one in recording.table.kinds)
    unknown = {
        one.main
        for one in recording.table.kinds
        if not one.is_communication and one.on_device == on_device and is_like_collective(one.name)
    }
    calls = {one.main for one in recording.table.kinds if one.is_communication}
    unknown -= calls
    n_ranks = max([len(recording.owners), *(one.world_size or 0 for one in view.loaded.ranks)])
    if n_ranks > 1:
        yield from _unseen(view, n_ranks)
    if on_device and unknown:
        yield (
            f"{named(sorted(unknown), _SHOWN)} looks like communication but counts as computation",
            view.loaded.ranks[0].rule,
            "read the shares of communication with care",
        )


def _unseen(view: JobView, n_ranks: int) -> Iterator[tuple[str, str, str]]:
    """Yield the flaws of a job of several ranks whose communication no rule may know."""
    system = dialects.named(view.loaded.files[0].dialect)
    tell = "say with --comm NAME which operations are communication"
    if system.shows_communication and not view.is_communication.any():
        yield NONE_SHOWN.format(n_ranks), view.loaded.ranks[0].rule, tell
    kinds = view.recording.table.kinds
    works = zip(kinds, view.work_by_kind.sum(axis=0).tolist(), strict=True)
    rows = [
        ((one.owner, one.track.pid), one.track.tid, one.name, ns, one.is_communication)
        for one, ns in works
        if one.on_device and (one.is_communication or one.role is Role.COMPUTE)
    ]
    if found := on_own_streams(rows):
        what = f"{named(found, _SHOWN)} {MAY_BE}"
        yield what, "what has a stream of its own may move data", f"if so, {tell}"
