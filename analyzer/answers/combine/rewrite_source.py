"""One trace rewritten into a temporary file with the pids, tids, names and ids of the combined file.

Events are rewritten piece by piece. Only the time, duration and length of each stay in memory, with the
tables of processes and tracks. The text of an event lacks its time, which depends on the clocks: it begins
with the comma after it. Processes and threads are numbered in the order of the file. The operations by which
clocks are compared are read from the file as columns.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from analyzer.base.arrays import Int32, Int64
from analyzer.base.errors import TraceError, counted, whole_number
from analyzer.reading import dialects
from analyzer.reading.dialects.recorded_collectives import SyncPoints
from analyzer.reading.dialects.system import Need, SecondAxis
from analyzer.reading.formats.columns import Trace, no_slices
from analyzer.reading.formats.event import NO_ARGS, UNDECODABLE, args_object
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.values import NO_TIME, InexactError, cleaned, text_to_ns, to_ns
from analyzer.reading.formats.whole import ID_LIMIT, OddEvent, WholeEvent, decode, encode
from trace_utils import CommFilter, read_trace

_FIRST_INVENTED = 2_000_000_000  # above every thread number of an operating system, below 2^31
_RANK = ("rank",)  # key of the process that stands for the rank: no pid of a file
_LARGEST = 1 << 31  # Perfetto reads larger or negative process ids as 0


class SourcePlace(Struct, frozen=True):
    """One source: what its beginning tells, and its numbers and names in the combined file; picklable.

    Its process ids are `first_pid` to `first_pid` + `n_pids` - 1; a Composer source has the only pid
    `only_pid`, its rank. If names have a `prefix` (BytePS), processes of the file are tensors, and become
    threads of one process, the rank.
    """

    path: Path
    dialect: str
    rank: int | None
    has_events: bool  # other than metadata
    axis: SecondAxis | None = None  # of times by a second clock
    number: int = 0
    prefix: str = ""  # of names: "wk0.rank1."
    first_pid: int = 0
    n_pids: int = 0
    only_pid: int | None = None
    names: tuple[str, ...] = ()  # --filter
    comm: tuple[str, ...] = ()  # --comm
    owner: str = ""  # the prefix of names for this source only: "rank1."


class SourceProcess(Struct):
    """One process of a source: its id in the combined file, and its metadata."""

    pid: int
    text: str  # its recorded pid
    name: str | None = None
    sort_index: float | None = None
    taken: set[int] = field(default_factory=set)  # thread ids in use


class SourceThread(Struct):
    """One thread of a process."""

    pid: int
    tid: int
    text: str | None  # its recorded tid, "" if missing; None if it equals `tid`
    name: str | None = None
    sort_index: float | None = None
    of: SourceProcess | None = None  # its recorded process, if it was moved to the rank's


class Tables:
    """Processes and tracks of one source, and their numbers."""

    def __init__(self, place: SourcePlace) -> None:
        self._place = place
        self.processes: dict[Any, SourceProcess] = {}
        self.tracks: dict[Any, SourceThread] = {}
        self._invented = 0
        self._rank = self.process(_RANK) if place.prefix else None

    def process(self, pid: Any) -> SourceProcess:
        """Look up the process `pid` of the file, or number a new one."""
        key = _number(pid)
        if key not in self.processes:
            self.processes[key] = SourceProcess(self._new_pid(), "" if pid in (None, _RANK) else str(pid))
        return self.processes[key]

    def name_of(self, pid: Any) -> str | None:
        """Name of the process `pid` of the file, in the part read so far."""
        process = self.processes.get(_number(pid))
        return None if process is None else process.name

    def track(self, pid: Any, tid: Any) -> SourceThread:
        """Look up the thread `tid` of `pid` in the file, or number a new one."""
        key = (_number(pid), _number(tid))
        if key not in self.tracks:
            of_file = process = self.process(pid)
            if self._rank is not None and key[1] not in self._rank.taken:  # numbers are keys of partitions
                process = self._rank
            number = self._new_tid(process, key[1])
            text = None if number == key[1] else "" if tid is None else str(tid)
            self.tracks[key] = SourceThread(
                process.pid, number, text, of=None if process is of_file else of_file
            )
        return self.tracks[key]

    def _new_pid(self) -> int:
        if self._place.only_pid is not None:
            return self._place.only_pid
        n = len(self.processes)
        if n >= self._place.n_pids:
            raise TraceError(f"{self._place.path}: more than {n:,} processes, too many to combine")
        return self._place.first_pid + n

    def _new_tid(self, process: SourceProcess, tid: Any) -> int:
        taken = process.taken
        number = 0 if tid is None else tid
        if not isinstance(number, int) or not 0 <= number < _LARGEST or number in taken:
            self._invented += 1
            number = _FIRST_INVENTED + self._invented
            while number in taken:
                number += 1
        taken.add(number)
        return int(number)


def _number(value: Any) -> Any:
    """Convert numeric text to a number, so that 7 and "7" are one process or track."""
    if isinstance(value, str) and value.isascii() and (number := whole_number(value)) is not None:
        return number
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


_ID_BITS = ID_LIMIT.bit_length() - 1
_EXACT_SOURCES = 1 << (53 - _ID_BITS)  # ids of so many sources stay exact in JavaScript
_LOCAL_IDS = frozenset("NODC")  # phases whose ids belong to a process


def make_unique(events: Sequence[WholeEvent], source: int) -> None:
    """Make the ids of flows, asynchronous events and stack frames distinct from other sources'."""
    for event in events:
        if event.id is not None and event.ph not in _LOCAL_IDS:
            event.id = unique_id(event.id, source)
        if isinstance(event, OddEvent):
            event.others = _unique_others(event, source)


def unique_id(value: Any, source: int) -> int | str:
    """Make an id distinct from other sources': a number, or hexadecimal text as Perfetto reads it.

    Small numbers stay exact in viewers (below 2^53); a 64-bit digest replaces other texts.
    """
    first = source << _ID_BITS
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ID_LIMIT:
        if source < _EXACT_SOURCES:
            return value + first
    elif isinstance(value, str):
        try:
            number = -1 if "_" in value else int(value, 16)
        except ValueError:
            number = -1
        if 0 <= number < ID_LIMIT and source < 1 << 23:
            return hex(number + first)
    digest = hashlib.blake2b(f"{source}:{value!r}".encode(errors="replace"), digest_size=8)
    return "0x" + digest.hexdigest()


def _unique_others(event: OddEvent, source: int) -> dict[str, Any]:
    """Make the ids in rarer members distinct: `bind_id`, `id2.global`, stack frames."""
    others = dict(event.others)
    if "bind_id" in others:
        others["bind_id"] = unique_id(msgspec.json.decode(others["bind_id"]), source)
    if "id2" in others:
        ids = msgspec.json.decode(others["id2"])
        if isinstance(ids, dict) and "global" in ids and event.ph not in _LOCAL_IDS:
            others["id2"] = {**ids, "global": unique_id(ids["global"], source)}
    for key in ("sf", "esf"):
        if key in others:
            others[key] = frame_id(msgspec.json.decode(others[key]), source)
    return others


def frame_id(frame: Any, source: int) -> str:
    """Key of a stack frame in the combined file."""
    return f"{source}.{frame}"


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
