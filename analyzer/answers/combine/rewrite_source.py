"""One trace rewritten into a temporary file with the pids, tids, names and ids of the combined file.

Events are rewritten piece by piece. Only the time, duration and length of each stay in memory, with the
tables of processes and tracks. The text of an event lacks its time, which depends on the clocks: it begins
with the comma after it. Processes and threads are numbered in the order of the file. The operations by which
clocks are compared are read from the file as columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct

from analyzer.answers.combine.distinct_ids import (
    SourcePlace,
    SourceProcess,
    SourceThread,
    Tables,
    make_unique,
)
from analyzer.base.arrays import Int32, Int64
from analyzer.base.errors import counted
from analyzer.reading import dialects
from analyzer.reading.dialects.recorded_collectives import SyncPoints
from analyzer.reading.dialects.system import Need
from analyzer.reading.formats.columns import Trace, no_slices
from analyzer.reading.formats.event import NO_ARGS, UNDECODABLE, args_object
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.values import NO_TIME, InexactError, cleaned, text_to_ns, to_ns
from analyzer.reading.formats.whole import WholeEvent, decode, encode
from trace_utils import CommFilter, read_trace

_REMEMBERED = 1 << 17  # names with their tracks
_LONGEST_NS = 10**18  # a duration that is longer is sorted like this one
KEPT, LEFT_OUT, DROPPED = range(3)  # fates of events of a kind; dropped ones are counted
#: Metadata that is written again at the head of the combined file.
_GATHERED = frozenset(("process_name", "process_sort_index", "thread_name", "thread_sort_index"))


class _Placed(NamedTuple):
    """The rewriting of the events of one name, category, process and thread."""

    name: Any
    pid: int
    tid: int
    fate: int
    is_front: bool  # whether their thread is shown first


class _Rewriter:
    """Rewrites the events of one source, and collects its processes, threads and metadata.

    Events with a time go to `file`, events without one to `untimed`, ready to be written.
    """

    def __init__(self, place: SourcePlace, file: IO[bytes]) -> None:
        self._place = place
        self._system = dialects.named(place.dialect, place.comm)
        self._file = file
        empty = np.zeros(0, np.int64)
        self.columns = [(empty, empty, empty.astype(np.int32))]  # times, durations and lengths, by pieces
        self.tables = Tables(place)
        self.filter = CommFilter(self._system, place.names, place.owner)
        self._placed = lru_cache(_REMEMBERED)(self._newly_placed)
        self.untimed: list[bytes] = []
        self.n_events = 0
        self.dropped = 0
        self.metadata: list[dict[str, Any]] = []  # about the whole file
        self.front_tid: int | None = None

    def add(self, events: list[WholeEvent]) -> None:
        """Rewrite the events of one piece."""
        is_slice = np.fromiter((event.ph == "X" for event in events), np.bool_, len(events))
        ts, dur = _ns([event.ts for event in events]), _ns([event.dur for event in events])
        if self._place.axis is not None:
            ts = self._place.axis.corrected(ts)
        dur = np.where(is_slice & (dur >= 0), np.minimum(dur, _LONGEST_NS), -1)
        rows = self._place_events(events)
        kept = [events[row] for row in rows.tolist()]
        self.n_events += len(kept)
        make_unique(kept, self._place.number)
        texts = list(map(encode, kept))
        is_timed = ts[rows] != NO_TIME
        self.untimed += itertools.compress(texts, ~is_timed)
        rows, texts = rows[is_timed], [b"," + text[1:-1] for text in itertools.compress(texts, is_timed)]
        self.columns.append((ts[rows], dur[rows], np.fromiter(map(len, texts), np.int32, len(texts))))
        self._file.write(b"".join(texts))

    def _place_events(self, events: Sequence[WholeEvent]) -> Int64:
        """Rename events, their processes and threads; return the rows of the events to keep."""
        rows = []
        for row, event in enumerate(events):
            if event.ph == "M" and self._gather(event):
                continue
            placed = self._placed(event.name, event.cat, event.pid, event.tid)
            if placed.fate == KEPT:
                event.name, event.pid, event.tid, event.ts = placed.name, placed.pid, placed.tid, NO_ARGS
                rows.append(row)
                if placed.is_front:
                    self.front_tid = placed.tid
            elif placed.fate == DROPPED:
                self.dropped += 1
        return np.array(rows, np.int64)

    def _newly_placed(self, name: Any, cat: Any, pid: Any, tid: Any) -> _Placed:
        fate = self._fate(name, cat, pid, tid)
        if fate != KEPT:
            return _Placed(name, 0, 0, fate, is_front=False)
        track = self.tables.track(pid, tid)
        is_front = name is not None and name == self._system.front_operation
        new = self._place.prefix + name if isinstance(name, str) else name
        return _Placed(new, track.pid, track.tid, fate, is_front)

    def _fate(self, name: Any, cat: Any, pid: Any, tid: Any) -> int:
        if self._place.only_pid is not None and (pid is None or tid is None):
            return DROPPED
        if self._system.is_left_out(tid):
            return LEFT_OUT
        if self._place.names:
            known = name if isinstance(name, str) else ""
            if self.filter.keeps(known, str(cat or ""), tid, self.tables.name_of(pid)) is False:
                return LEFT_OUT
        return KEPT

    def _gather(self, event: WholeEvent) -> bool:
        """Collect a metadata event; True if it is written again at the head."""
        args = cleaned(args_object(event.args))
        kind, _, what = str(event.name).partition("_")
        if event.name not in _GATHERED or (args and what not in args):
            named = {key: cleaned(getattr(event, key)) for key in ("name", "pid", "tid")}
            self.metadata.append({**named, "args": args})
            return event.name in _GATHERED
        process = self.tables.process(event.pid)
        if kind == "thread" and self._system.is_left_out(event.tid):
            return True
        entry: SourceProcess | SourceThread = (
            process if kind == "process" else self.tables.track(event.pid, event.tid)
        )
        value = args.get(what)
        if what == "name" and value is not None:
            is_new, entry.name = entry.name != str(value), str(value)
            if kind == "process" and self._place.names and is_new:  # it may be an operation
                self._placed.cache_clear()
        elif what == "sort_index" and isinstance(value, (int, float)):
            entry.sort_index = value
        return True


class Rewritten(Struct, frozen=True):
    """The result of rewriting one source; picklable."""

    file: Path  # the texts of the events with a time
    columns: Path  # three arrays (n,): times, durations (ns on the source's clock, or -1), lengths of texts
    extent: tuple[int, int] | None  # from the first begin to the last end; None without events
    untimed: Sequence[bytes]  # events without a time, ready to be written
    n_events: int
    processes: Sequence[SourceProcess]
    tracks: Sequence[SourceThread]
    about: Trace  # the header and the metadata of the whole file, without events
    sync_points: SyncPoints  # since the epoch if the file has it
    front_tid: int | None  # the thread that is shown first
    known: Sequence[str]  # names that --filter may have; () without it
    repairs: Sequence[str]


def read_columns(source: Rewritten) -> tuple[Int64, Int64, Int32]:
    """Read the times, durations and lengths of a source's events."""
    with open(source.columns, "rb") as file:
        return np.load(file), np.load(file), np.load(file)


def rewrite(index: SourcePlace, path: Path) -> Rewritten:
    """Rewrite one source into the file `path`; `TraceError` if it is not a readable trace."""
    reader = EventReader(index.path, decode)
    with open(path, "wb") as file:
        work = _Rewriter(index, file)
        for piece in reader:
            work.add(piece)
    system = dialects.named(index.dialect, index.comm)
    sync_points = system.sync_points(read_trace(index.path, args=system.args.get(Need.SYNC, ())))
    remarks = [index.axis.remark] if index.axis is not None else []
    if work.dropped:
        remarks.append(f"{counted(work.dropped, 'event')} without a pid or tid left out")
    about = no_slices(str(index.path), index.dialect, reader.header, work.metadata)
    ts, dur, lengths = map(np.concatenate, zip(*work.columns, strict=True))
    columns = path.with_suffix(".columns")
    with open(columns, "wb") as file:
        for column in (ts, dur, lengths):
            np.save(file, column)
    return Rewritten(
        file=path,
        columns=columns,
        extent=(int(ts.min()), int((ts + np.maximum(dur, 0)).max())) if len(ts) else None,
        untimed=work.untimed,
        n_events=work.n_events,
        processes=list(work.tables.processes.values()),
        tracks=list(work.tables.tracks.values()),
        about=about,
        sync_points=sync_points,
        front_tid=work.front_tid,
        known=tuple(work.filter.known),
        repairs=[*reader.damage.phrases(), *remarks],
    )


def _ns(times: Sequence[msgspec.Raw]) -> Int64:
    """Convert times or durations (n,), JSON texts in microseconds, to ns; `NO_TIME` where there is none."""
    try:
        texts = (b"null" if time == NO_ARGS else time for time in times)
        return to_ns(msgspec.json.decode(b"[%b]" % b",".join(texts)))
    except (InexactError, *UNDECODABLE):
        return text_to_ns(times)
