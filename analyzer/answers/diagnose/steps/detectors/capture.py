"""How far the recording can be trusted: steps, ranks, files, clocks, and what counts as communication."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.answers.diagnose.finding import BREAKDOWN, Finding, FindingScope, ListPlace, Skipped
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays.distributions import FEWEST
from analyzer.base.errors import NoteKind, counted, listed, notes_of
from analyzer.base.names import named
from analyzer.reading import dialects
from analyzer.reading.dialects.roles import MAY_BE, NONE_SHOWN, Role, on_own_streams

_SHOWN = 3


def capture_quality(view: JobView) -> Iterator[Finding | Skipped]:
    """Find flaws of the recording that make the answer less sure than it looks."""
    yield from _lost_work(view)
    for title, cause, action in _flaws(view):
        yield Finding(
            kind="capture_quality",
            title=title,
            cause=cause,
            action=action,
            scope=FindingScope(ranks=()),
            look=BREAKDOWN,
        )


def _lost_work(view: JobView) -> Iterator[Finding]:
    """Find files with launches whose kernels are not recorded; without any kernel that leads."""
    for file in view.loaded.files:
        for note in notes_of(NoteKind.LOST_WORK, file.repairs):
            yield Finding(
                kind="capture_quality",
                title=note.partition(":")[0],
                cause=f"{file.path.name}: how long the device worked is not known",
                action="record with the device's activities switched on, no other profiler beside it, and "
                "fewer steps at a time",
                scope=FindingScope(ranks=()),
                look=BREAKDOWN,
                place=ListPlace.BY_GAIN if view.has_device else ListPlace.FIRST,
            )


def _flaws(view: JobView) -> Iterator[tuple[str, str, str]]:
    n_steps = len(view.rows)
    if n_steps < FEWEST:
        yield (
            f"only {counted(n_steps, 'whole step')} recorded",
            f"{FEWEST} or more are needed for error bars",
            "record ten steps after the warm-up",
        )
    if missing := _missing(view):
        yield (
            listed(missing, 1),
            "waiting for the missing ranks cannot be seen",
            "collect the files of all ranks",
        )
    losses = {}
    for file in view.loaded.files:
        known = [*notes_of(NoteKind.WHOLE, file.repairs), *notes_of(NoteKind.LOST_WORK, file.repairs)]
        if lost := [repair for repair in file.repairs if repair not in known]:
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
    yield from _unseen(view)


def _missing(view: JobView) -> list[str]:
    """Return a line for each file or directory without a trace, and for ranks that are missing or doubled."""
    loaded = view.loaded
    lines = [*loaded.unread, *notes_of(NoteKind.MISSING, loaded.job.notes)]
    if len(loaded.ranks) == 1 and loaded.ranks[0].rank is not None:  # loading says nothing of one alone
        lines += loaded.job.rank_notes([loaded.ranks[0].rank], loaded.ranks[0].world_size or 0)
    return lines


def _unseen(view: JobView) -> Iterator[tuple[str, str, str]]:
    """Find communication of several ranks that no rule may know."""
    n_ranks = max([len(view.recording.owners), *(rank.world_size or 0 for rank in view.loaded.ranks)])
    if n_ranks < 2:
        return
    system = dialects.named(view.loaded.files[0].dialect)
    action = "say with --comm NAME which operations are communication"
    if system.shows_communication and not view.is_communication.any():
        yield NONE_SHOWN.format(n_ranks), view.loaded.ranks[0].rule, action
    rows = [
        ((kind.owner, kind.track.pid), kind.track.tid, kind.name, ns, kind.is_communication)
        for kind, ns in zip(view.recording.table.kinds, view.work_by_kind.sum(axis=0).tolist(), strict=True)
        if kind.on_device and (kind.is_communication or kind.role is Role.COMPUTE)
    ]
    if names := on_own_streams(rows):
        cause = "an operation with a stream of its own may move data"
        yield f"{named(names, _SHOWN)} {MAY_BE}", cause, f"if so, {action}"
