"""One trace rewritten for a place among others: new pids, tids, names and ids, spilled in sorted runs.

The events pass through in pieces; what stays in memory is the tables of processes and tracks, and the
begins and ends of the operations by which clocks are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from combine.event_rewriter import Rewriter
from combine.event_text import Heads
from combine.external_sort import Run, run_writer
from combine.pid_tid import Place, Process, Track
from combine.unique_ids import EXACT_SOURCES, first_id
from dialects.sync_points import SyncPoints
from errors import counted
from formats import native
from formats.native.rewriter import ScanningWholeReader, WholeScanner
from formats.times import InexactError
from formats.whole import ExactWholeEvent, LearnedWhole, Lessons, OddEvent, WholeEvent, WholeReader

#: After how many pieces of the general type a type is learned; the last three times with names left free.
_LESSONS = (1, 2, 3, 4, 6, 10, 18, 34, 66)


class Rewritten(Struct, frozen=True):
    """What became of one source; picklable."""

    runs: Sequence[Run]
    untimed: Sequence[bytes]  # events without a time, ready to be written
    n_events: int
    processes: Sequence[Process]
    tracks: Sequence[Track]
    header: dict[str, Any]
    sync_points: SyncPoints
    sync_us: int | None  # Composer's clock_sync_timestamp_us
    sync_bound_us: int | None
    start_ns: int | None  # Horovod's start_time_since_epoch_in_micros
    front_tid: int | None  # Composer: the thread that is shown first
    heads: Heads
    met: frozenset[str]  # names of --filter that occur
    repairs: Sequence[str]


def rewrite(place: Place, spill: Path) -> Rewritten:
    """Rewrite one source into sorted runs in the file `spill`; `TraceError` if it is no readable trace."""
    library = native.library() if place.scan else None
    with run_writer(spill, library) as runs:
        work = Rewriter(place, runs)
        reader: WholeReader
        if library is None:
            reader = WholeReader(place.path)
        else:
            ids_from = first_id(place.number) if place.number < EXACT_SOURCES else None
            scanner = WholeScanner(library, ids_from, place.table_bytes, args_are_key=work.packs_args)
            reader = ScanningWholeReader(
                place.path, scanner, work.add_scanned, lambda events, piece: pupil.add(events, piece)
            )
        pupil = _Pupil(reader, work)
        for events, piece in reader:
            if not _is_text(piece):
                work.n_mistaken += 1
                piece = memoryview(str(piece, "utf-8", "replace").encode())
                reader.uniform = WholeEvent
                events = reader.decode_again(piece)
            pupil.add(events, piece)
    reader.damage.strays += work.n_strays
    phrases = reader.damage.phrases()
    if place.axis is not None:
        phrases.append(place.axis.remark)
    if work.n_mistaken:
        phrases.append("characters that are not UTF-8 replaced")
    if work.dropped:
        phrases.append(f"{counted(work.dropped, 'event')} without a pid or tid left out")
    return Rewritten(
        runs=runs.runs,
        untimed=work.untimed,
        n_events=work.n_events,
        processes=list(work.tables.processes.values()),
        tracks=list(work.tables.tracks.values()),
        header=reader.header,
        sync_points=work.anchors.found(reader.header),
        sync_us=work.sync.get("clock_sync_timestamp_us"),
        sync_bound_us=work.sync.get("clock_sync_error_bound"),
        start_ns=work.start_ns,
        front_tid=work.front_tid,
        heads=work.heads.heads(),
        met=frozenset(work.filter.met),
        repairs=phrases,
    )


class _Pupil:
    """Hands pieces to a rewriter, decoded as the best type that is known."""

    def __init__(self, reader: WholeReader, work: Rewriter) -> None:
        self._reader = reader
        self._work = work
        self._lessons = Lessons()
        self._learned: LearnedWhole | None = None
        self._n_general = 0
        self._exact = False

    def add(self, events: list[Any], piece: memoryview) -> None:
        """Rewrite the events of one piece."""
        if not events:
            return
        try:
            if self._learned is not None and self._reader.uniform is self._learned.type:
                self._work.add_learned(events, self._learned)
                if self._work.is_too_diverse:
                    self._learned = None
                    self._reader.use(WholeEvent)
                return
            may_learn = not (self._exact or self._work.is_too_diverse)
            learned = self._learn(events) if may_learn else None
            if learned is not None and (again := self._reader.decode_as_learned(piece)) is not None:
                self._work.add_learned(again, learned)
                return
            self._work.add(events, exact=self._exact)
        except InexactError:
            self._exact = True
            self._reader.use(ExactWholeEvent)
            self._work.add(self._reader.decode_again(piece), exact=True)

    def _learn(self, events: list[WholeEvent]) -> LearnedWhole | None:
        """Take note of events of the general type; return the type, if one is made of what is known now."""
        if len(events) == 1 or self._n_general >= _LESSONS[-1] or OddEvent in set(map(type, events)):
            return None
        self._lessons.add(events)
        self._n_general += 1
        if self._n_general not in _LESSONS:
            return None
        self._learned = self._lessons.learned(with_names=self._n_general < _LESSONS[-3])
        if self._learned is not None:
            self._reader.learn(self._learned)
        return self._learned


def _is_text(piece: memoryview) -> bool:
    """Whether `piece` is UTF-8 throughout: what is copied without a look may be anything."""
    try:
        str(piece, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
