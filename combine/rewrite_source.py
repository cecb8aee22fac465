"""One trace rewritten for a place among others: new pids, tids, names and ids, spilled in sorted runs.

The events pass through in pieces; what stays in memory is the tables of processes and tracks, and the begins
and ends of the operations by which clocks are compared. Events that the scanner in C found share heads
(`combine.event_text`) and are handled as columns; others are rewritten one by one. Processes and threads are
numbered in the order in which the file names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

import dialects
from arrays import Int64, NDArray
from arrays.numbering import places_by_value
from combine.distinct_ids import (
    EXACT_SOURCES,
    SourcePlace,
    SourceProcess,
    SourceThread,
    Tables,
    first_id,
    make_unique,
)
from combine.event_text import (
    DROPPED,
    DURATION,
    KEPT,
    LEFT_OUT,
    LONGEST_WRITTEN_NS,
    NO_ROLE,
    Heads,
    HeadTable,
    Placed,
    Times,
    exact_times,
    member,
    microseconds,
    packed,
    times,
)
from combine.external_sort import Events, Run, RunWriter, run_writer, text_starts
from dialects.sync_points import SyncPart, SyncPoints, collected
from dialects.system import Need, System
from errors import counted
from formats import native
from formats.columns import Trace, no_slices
from formats.event import NO_TIME, args_object
from formats.native.rewriter import ScannedWhole, WholeScanner
from formats.times import FLOAT_LIMIT_US, InexactError
from formats.values import cleaned
from formats.whole import ARGUMENTS, ExactWholeEvent, OddEvent, WholeEvent, WholeReader, encode
from trace_utils import CommFilter

_ENCODE = msgspec.json.Encoder().encode
_LOOK = 1  # a role of which only an event's args tell which operation it is part of
_FIRST = 2  # the number of the first operation that name and track tell
_REMEMBERED = 1 << 17  # names with their tracks, and arguments
#: Metadata that is gathered, and written anew at the head of the combined file.
_GATHERED = frozenset(("process_name", "process_sort_index", "thread_name", "thread_sort_index"))


class _Rewriter:
    """Rewrites the events of one source, and gathers its processes, threads, metadata and sync points.

    Events that have a time go to `runs`; those without are in `untimed`, ready to be written.
    """

    def __init__(self, place: SourcePlace, runs: RunWriter) -> None:
        self._place = place
        self._system = dialects.named(place.dialect, place.comm)
        self._runs = runs
        self.tables = Tables(place)
        self.anchors = SyncFinder(self._system)
        self.filter = CommFilter(self._system, place.names, place.owner)
        self.packs_args = bool(place.prefix)  # BytePS writes four short lines of them for each event
        self._args_text = lru_cache(_REMEMBERED)(packed if self.packs_args else bytes)
        self._placed = lru_cache(_REMEMBERED)(self._newly_placed)
        self.heads = HeadTable(self._placed, self._args_text)
        self.untimed: list[bytes] = []
        self.n_events = 0
        self.dropped = 0
        self.n_strays = 0  # what has no phase, and so is not an event
        self.n_mistaken = 0  # pieces with bytes that are not UTF-8
        self.metadata: list[dict[str, Any]] = []  # what tells of the whole file
        self.front_tid: int | None = None

    def add(self, events: list[WholeEvent], times: Times) -> None:
        """Rewrite the events of one piece, each for itself; `times` are theirs."""
        is_slice = np.fromiter((event.ph == "X" for event in events), np.bool_, len(events))
        if self._place.axis is not None:
            times = times._replace(ts=self._place.axis.corrected(times.ts))
        # as events are sorted by them: -1 where there is none
        dur = np.where(is_slice & (times.dur >= 0), np.minimum(times.dur, LONGEST_WRITTEN_NS), -1)
        roles, rows, tails = self._rewritten(events, times, is_slice)
        self.anchors.add(events.__getitem__, roles, times.ts, dur)
        heads = np.zeros(len(rows), np.int32)
        self._runs.add(Events.with_tails(times.ts[rows], dur[rows], heads, tails))

    def add_scanned(self, scanned: ScannedWhole) -> None:
        """Take the events that the scanner in C scanned."""
        self.heads.extend(scanned.new_keys)
        heads = scanned.key + np.int32(1)
        _, role, fate, is_front = self.heads.columns()
        ts = scanned.ts_ns if self._place.axis is None else self._place.axis.corrected(scanned.ts_ns)
        at = text_starts(scanned.lengths)
        roles = role[heads]
        if roles.any():

            def look(row: int) -> WholeEvent:
                kind = self.heads.kinds[int(heads[row])]
                start = int(at[row])
                text = scanned.text[start : start + int(scanned.lengths[row])].partition(ARGUMENTS)[2]
                return WholeEvent(name=kind.name, cat=kind.cat, args=msgspec.Raw(text))

            self.anchors.add(look, roles, ts, scanned.dur_ns)
        if (fronts := heads[is_front[heads]]).size:
            self.front_tid = self.heads.placed[int(fronts[-1])].tid
        events = Events(ts, scanned.dur_ns, heads, at, scanned.lengths, scanned.text)
        fates = fate[heads]
        if fates.any():
            self.dropped += int(np.count_nonzero(fates == DROPPED))
            events = events.select(np.flatnonzero(fates == KEPT))
        self.n_events += len(events)
        self._runs.add(events)

    def _rewritten(
        self, events: list[WholeEvent], times: Times, is_slice: NDArray[np.bool_]
    ) -> tuple[Int64, Int64, list[bytes]]:
        """Rewrite events; return the roles of all, which stay and have a time, and the tails of these.

        Those without a time are put aside.
        """
        rows, roles = [], []
        for row, event in enumerate(events):
            if event.ph is None or (event.ph == "M" and self._gather(event)):
                self.n_strays += event.ph is None
                roles.append(NO_ROLE)
                continue
            placed = self._placed(event.name, event.cat, event.pid, event.tid)
            roles.append(placed.role)
            if placed.fate == KEPT:
                event.name, event.pid, event.tid, event.ts = placed.name, placed.pid, placed.tid, None
                rows.append(row)
                if placed.is_front:
                    self.front_tid = placed.tid
            elif placed.fate == DROPPED:
                self.dropped += 1
        self.n_events += len(rows)
        kept = [events[row] for row in rows]
        if self.packs_args:
            for event in kept:
                if bytes(event.args):
                    event.args = msgspec.Raw(self._args_text(bytes(event.args)))
        make_unique(kept, self._place.number)
        order = np.array(rows, np.int64)
        with_dur = (is_slice & times.is_exact)[order]
        before = [b""] * len(kept)
        texts = microseconds(times.dur[order][with_dur])
        for row, text in zip(np.flatnonzero(with_dur).tolist(), texts, strict=True):
            before[row] = DURATION + text
            kept[row].dur = None
        for row in np.flatnonzero(~with_dur).tolist():
            dur = kept[row].dur
            if type(dur) is float and dur.is_integer() and abs(dur) < FLOAT_LIMIT_US:
                kept[row].dur = int(dur)  # as it may have been written: types of one kind of number differ
        write = encode if OddEvent in set(map(type, kept)) else _ENCODE
        texts = [start + member(write(event)) for start, event in zip(before, kept, strict=True)]
        timed = times.ts[order] != NO_TIME
        self.untimed += [b"{" + texts[i][1:] + b"}" for i in np.flatnonzero(~timed).tolist()]
        return np.array(roles, np.int64), order[timed], [texts[i] for i in np.flatnonzero(timed).tolist()]

    def _newly_placed(self, name: Any, cat: Any, pid: Any, tid: Any) -> Placed:
        """Return how events of a name, category, process and thread are rewritten."""
        role, fate = self.anchors.role(name, cat, tid), self._fate(name, cat, pid, tid)
        if fate != KEPT:
            return Placed(name, 0, 0, role, fate, is_front=False)
        track = self.tables.track(pid, tid)
        is_front = name is not None and name == self._system.front_operation
        new = self._place.prefix + name if isinstance(name, str) else name
        return Placed(new, track.pid, track.tid, role, fate, is_front)

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
        """Take note of a metadata event; True if it is to be written anew at the end."""
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
                self.heads.place_again(event.pid)
        elif what == "sort_index" and isinstance(value, (int, float)):
            entry.sort_index = value
        return True


class SyncFinder:
    """Collects begins and ends of one source's synchronous operations, as `System.sync_part` tells them."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._parts: dict[SyncPart, int] = {}
        self._may_matter = lru_cache(None)(self._system.may_synchronise)
        self._roles: list[Int64] = []
        self._begins: list[Int64] = []
        self._ends: list[Int64] = []

    def role(self, name: Any, cat: Any, tid: Any) -> int:
        """Return the role of events of that name, category and thread: what `add` is to take them for."""
        if not isinstance(name, str) or not self._may_matter(name):
            return NO_ROLE
        if self._system.args.get(Need.SYNC):
            return _LOOK
        return self._number(self._system.sync_part(name, str(cat or ""), tid, {}))

    def add(self, event_of: Callable[[int], WholeEvent], roles: Int64, ts: Int64, dur: Int64) -> None:
        """Look through the events of one piece, `roles`, `ts` and `dur` (n,); a dur of -1 means no duration.

        `event_of` returns the name, the category and the arguments of an event.
        """
        rows = np.flatnonzero((roles != NO_ROLE) & (dur >= 0))
        roles = roles[rows]
        if self._system.args.get(Need.SYNC):
            roles = np.fromiter((self._looked_at(event_of(i)) for i in rows.tolist()), np.int64, len(rows))
            rows, roles = rows[roles != NO_ROLE], roles[roles != NO_ROLE]
        if len(rows):
            self._roles.append(roles)
            self._begins.append(ts[rows])
            self._ends.append(ts[rows] + dur[rows])

    def found(self, about: Trace) -> SyncPoints:
        """Return the operations, in nanoseconds on the source's own clock; `about` has its metadata."""
        if not self._roles:
            return self._system.sync_points(about)
        roles, begins, ends = map(np.concatenate, (self._roles, self._begins, self._ends))
        parts = list(self._parts)
        narrow = roles.astype(np.min_scalar_type(len(self._parts) + _FIRST))
        points = collected(
            (parts[int(roles[rows[0]]) - _FIRST], begins[rows], ends[rows])
            for rows in places_by_value(narrow)
        )
        return self._system.in_groups(points, about.header)

    def _looked_at(self, event: WholeEvent) -> int:
        args = args_object(event.args) if isinstance(event.args, msgspec.Raw) else {}
        return self._number(self._system.sync_part(str(event.name), str(event.cat or ""), None, args))

    def _number(self, part: SyncPart | None) -> int:
        return NO_ROLE if part is None else self._parts.setdefault(part, len(self._parts) + _FIRST)


class Rewritten(Struct, frozen=True):
    """The result of rewriting one source; picklable."""

    runs: Sequence[Run]
    untimed: Sequence[bytes]  # events without a time, ready to be written
    n_events: int
    processes: Sequence[SourceProcess]
    tracks: Sequence[SourceThread]
    about: Trace  # the header and the metadata of the whole file, without events
    sync_points: SyncPoints
    front_tid: int | None  # the thread that is shown first
    heads: Heads
    known: Sequence[str]  # names that --filter may have; () without it
    repairs: Sequence[str]


def rewrite(place: SourcePlace, spill: Path) -> Rewritten:
    """Rewrite one source into sorted runs in the file `spill`; `TraceError` if it is not a readable trace."""
    library = native.library() if place.scan else None
    with run_writer(spill, library) as runs:
        work = _Rewriter(place, runs)
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

        reader = WholeReader(place.path)
        if library is not None:
            ids_from = first_id(place.number) if place.number < EXACT_SOURCES else None
            scanner = WholeScanner(library, ids_from, place.table_bytes, args_are_key=work.packs_args)
            reader.scan_by(scanner.scan, work.add_scanned, add)
        for events, piece in reader:
            if not _is_text(piece):
                work.n_mistaken += 1
                events = reader.decode_again(piece, as_text=True)
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
