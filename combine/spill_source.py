"""One trace rewritten for a place among others: new pids, tids, names and ids, spilled in sorted runs.

The events pass through in pieces; what stays in memory is the tables of processes and tracks, and the
begins and ends of the operations by which clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from combine.event_rewriter import Rewriter
from combine.event_text import Heads, exact_times, times
from combine.external_sort import Run, run_writer
from combine.pid_tid import Place, Process, Track
from combine.unique_ids import EXACT_SOURCES, first_id
from dialects.sync_points import SyncPoints
from errors import counted
from formats import native
from formats.columns import Trace, no_slices
from formats.native.rewriter import ScanningWholeReader, WholeScanner
from formats.times import InexactError
from formats.whole import ExactWholeEvent, WholeEvent, WholeReader


class Rewritten(Struct, frozen=True):
    """The result of rewriting one source; picklable."""

    runs: Sequence[Run]
    untimed: Sequence[bytes]  # events without a time, ready to be written
    n_events: int
    processes: Sequence[Process]
    tracks: Sequence[Track]
    about: Trace  # the header and the metadata of the whole file, without events
    sync_points: SyncPoints
    front_tid: int | None  # the thread that is shown first
    heads: Heads
    known: Sequence[str]  # names that --filter may have; () without it
    repairs: Sequence[str]


def rewrite(place: Place, spill: Path) -> Rewritten:
    """Rewrite one source into sorted runs in the file `spill`; `TraceError` if it is not a readable trace."""
    library = native.library() if place.scan else None
    with run_writer(spill, library) as runs:
        work = Rewriter(place, runs)
        is_exact = False  # whether times are decoded as text

        def add(events: list[WholeEvent], piece: memoryview) -> None:
            nonlocal is_exact
            if not is_exact:
                try:
                    work.add(events, times(events))
                    return
                except InexactError:
                    is_exact = True
                    reader.use(ExactWholeEvent)
                    events = reader.decode_again(piece)
            work.add(*exact_times(events))

        if library is None:
            reader = WholeReader(place.path)
        else:
            ids_from = first_id(place.number) if place.number < EXACT_SOURCES else None
            scanner = WholeScanner(library, ids_from, place.table_bytes, args_are_key=work.packs_args)
            reader = ScanningWholeReader(place.path, scanner, work.add_scanned, add)
        for events, piece in reader:
            if not _is_text(piece):
                work.n_mistaken += 1
                piece = memoryview(str(piece, "utf-8", "replace").encode())
                events = reader.decode_again(piece)
            add(events, piece)
    reader.damage.strays += work.n_strays
    phrases = reader.damage.phrases()
    if place.axis is not None:
        phrases.append(place.axis.remark)
    if work.n_mistaken:
        phrases.append("characters that are not UTF-8 replaced")
    if work.dropped:
        phrases.append(f"{counted(work.dropped, 'event')} without a pid or tid left out")
    about = no_slices(str(place.path), place.dialect, reader.header, work.metadata)
    return Rewritten(
        runs=runs.runs,
        untimed=work.untimed,
        n_events=work.n_events,
        processes=list(work.tables.processes.values()),
        tracks=list(work.tables.tracks.values()),
        about=about,
        sync_points=work.anchors.found(about),
        front_tid=work.front_tid,
        heads=work.heads.heads(),
        known=tuple(work.filter.known),
        repairs=phrases,
    )


def _is_text(piece: memoryview) -> bool:
    """Whether `piece` is UTF-8 throughout: what is copied without a look may be anything."""
    try:
        str(piece, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
