"""One trace rewritten for a place among others: new pids, tids, names and ids, spilled in sorted runs.

The events pass through in pieces; what stays in memory is the tables of processes and tracks, and the
begins and ends of the operations by which clocks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from analysis.anchors import AnchorFinder
from analysis.ids import make_unique, unique_others
from analysis.runs import Run, RunWriter
from analysis.select import CommFilter
from analysis.tracks import Place, Process, Tables, Track
from formats.event import NO_ARGS, NO_TIME, args_object
from formats.reader import repairs
from formats.times import InexactError, text_to_ns, to_ns
from formats.whole import ExactWholeEvent, OddEvent, WholeEvent, WholeReader, encode

Int64 = NDArray[np.int64]

_TRACK = attrgetter("pid", "tid")
_ARGS = attrgetter("args")
_ROLE = itemgetter(3)
_NAMED_TRACK = attrgetter("name", "pid", "tid")
_ENCODE = msgspec.json.Encoder().encode
_TABLE_LIMIT = 200_000  # distinct names and tracks remembered; then the table starts anew
_FARTHEST_NS = 4 * 10**18  # the year 2096; beyond it sums of times would not fit into 64 bits
_LONGEST_NS = 10**18
_Entry = tuple[Any, int, int, int]  # name, pid, tid, role as an anchor
#: Metadata that is gathered, and written anew at the head of the combined file.
_GATHERED = frozenset(("process_name", "process_sort_index", "thread_name", "thread_sort_index"))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of one source; picklable."""

    runs: Sequence[Run]
    untimed: Sequence[bytes]  # events without a time, ready to be written
    n_events: int
    processes: Sequence[Process]
    tracks: Sequence[Track]
    header: dict[str, Any]
    anchors: dict[Hashable, tuple[Int64, Int64]]
    sync_us: int | None  # Composer's clock_sync_timestamp_us
    sync_bound_us: int | None
    start_ns: int | None  # Horovod's start_time_since_epoch_in_micros
    front_tid: int | None  # Composer: the thread that is shown first
    met: frozenset[str]  # names of --filter that occur
    repairs: Sequence[str]


def rewrite(place: Place, spill: Path, on_read: Callable[[int], object] | None = None) -> Rewritten:
    """Rewrite one source into sorted runs in the file `spill`.

    Raises
    ------
    TraceError
        The source is unreadable or no trace.
    """
    reader = WholeReader(place.path)
    with RunWriter(spill) as runs:
        work = _Rewriter(place, runs)
        exact = False
        consumed = 0
        for events, piece in reader:
            if not _is_text(piece):
                work.n_mistaken += 1
                piece = memoryview(str(piece, "utf-8", "replace").encode())
                events = reader.decode_again(piece)
            try:
                work.add(events, exact=exact)
            except InexactError:
                exact = True
                reader.use(ExactWholeEvent)
                work.add(reader.decode_again(piece), exact=True)
            if on_read is not None:
                on_read(reader.stream.consumed - consumed)
                consumed = reader.stream.consumed
    return work.finish(runs, reader)


class _Rewriter:
    def __init__(self, place: Place, runs: RunWriter) -> None:
        self._place = place
        self._runs = runs
        self._tables = Tables(place)
        self._anchors = AnchorFinder(place.dialect)
        self._filter = CommFilter(place.dialect, place.names)
        self._by_name = bool(place.prefix)
        self._entries = _Entries(self._entry)
        self._roles = np.empty(0, np.int64)
        self._args = _Packed()
        self._untimed: list[bytes] = []
        self._n_events = 0
        self._dropped = 0
        self.n_mistaken = 0  # pieces with bytes that are no UTF-8
        self._sync: dict[str, int] = {}
        self._start_ns: int | None = None
        self._front_tid: int | None = None

    def add(self, events: list[WholeEvent], *, exact: bool) -> None:
        """Rewrite the events of one piece and hand them on.

        Raises
        ------
        InexactError
            Times need to be decoded as text; nothing was taken.
        """
        phases = [event.ph for event in events]
        plain = set(phases) == {"X"}
        ts, dur = _times(events, None if plain else phases, exact=exact)
        if self._filter:  # what is left out still tells about the clocks
            roles = [self._anchors.role(event.name, event.tid) for event in events]
            self._anchors.add(events, np.array(roles, np.int64), ts, dur)
        if not plain or self._place.only_pid is not None or self._filter:
            keep = self._sift(events, phases)
            if len(keep) < len(events):
                events = [events[i] for i in keep]
                ts, dur = ts[keep], dur[keep]
        if not events:
            return
        self._move(events)
        if not self._filter:
            self._anchors.add(events, self._roles, ts, dur)
        kinds = set(map(type, events))
        make_unique(events, self._place.number)
        if OddEvent in kinds:
            for event in events:
                if isinstance(event, OddEvent):
                    event.others = unique_others(event, self._place.number)
        texts = _encode(events, kinds)
        untimed = ts == NO_TIME
        if untimed.any():
            self._untimed += [texts[i] for i in np.flatnonzero(untimed).tolist()]
            timed = np.flatnonzero(~untimed)
            texts, ts, dur = [texts[i] for i in timed.tolist()], ts[timed], dur[timed]
        self._n_events += len(events)
        self._runs.add(texts, ts, dur)

    def finish(self, runs: RunWriter, reader: WholeReader) -> Rewritten:
        phrases = repairs([reader])
        if self.n_mistaken:
            phrases.append("characters that are no UTF-8 replaced")
        if self._dropped:
            phrases.append(f"{self._dropped:,} event(s) without a pid or tid left out")
        return Rewritten(
            runs=runs.runs,
            untimed=self._untimed,
            n_events=self._n_events,
            processes=list(self._tables.processes.values()),
            tracks=list(self._tables.tracks.values()),
            header=reader.header,
            anchors=self._anchors.found(),
            sync_us=self._sync.get("clock_sync_timestamp_us"),
            sync_bound_us=self._sync.get("clock_sync_error_bound"),
            start_ns=self._start_ns,
            front_tid=self._front_tid,
            met=self._filter.met,
            repairs=phrases,
        )

    # -- what is kept --------------------------------------------------------------------------

    def _sift(self, events: list[WholeEvent], phases: Sequence[str | None]) -> list[int]:
        """Gather the metadata; return which events go on."""
        gone = {i for i, phase in enumerate(phases) if phase is None}
        if "M" in phases:
            rows = [i for i, phase in enumerate(phases) if phase == "M"]
            gone.update(i for i in rows if self._gather(events[i]))
        if self._place.only_pid is not None:
            rest = [i for i in range(len(events)) if i not in gone]
            gone.update(i for i in rest if not self._is_composers(events[i]))
        if self._filter:
            gone.update(i for i, event in enumerate(events) if not self._filter.keeps(event))
        return [i for i in range(len(events)) if i not in gone] if gone else list(range(len(events)))

    def _gather(self, event: WholeEvent) -> bool:
        """Take note of a metadata event; True if it is to be written anew at the end."""
        args = args_object(event.args)
        if event.name not in _GATHERED:
            if event.name in ("clock_sync_timestamp_us", "clock_sync_error_bound"):
                self._sync.setdefault(str(event.name), _int(args.get("value")))
            return False
        if "start_time_since_epoch_in_micros" in args:
            self._start_ns = _int(args["start_time_since_epoch_in_micros"]) * 1000
            return True
        self._filter.learn(event, args)
        kind, what = str(event.name).split("_", 1)
        process = self._tables.process(event.pid)
        if kind == "thread" and self._is_left_out(event):
            return True
        it: Process | Track = process if kind == "process" else self._tables.track(event.pid, event.tid)
        value = args.get(what)
        if what == "name" and value is not None:
            it.name = str(value)
        elif what == "sort_index" and isinstance(value, (int, float)):
            it.sort_index = value
        return True

    def _is_composers(self, event: WholeEvent) -> bool:
        if event.pid is None or event.tid is None:
            self._dropped += 1
            return False
        if self._is_left_out(event):
            return False
        if event.name == "MulBackward0":
            self._front_tid = self._tables.track(event.pid, event.tid).tid
        return True

    def _is_left_out(self, event: WholeEvent) -> bool:
        return self._place.only_pid is not None and "PyTorch Profiler" in str(event.tid)

    # -- rewriting -----------------------------------------------------------------------------

    def _move(self, events: list[WholeEvent]) -> None:
        """Give the events their pid, tid and name; keep the role of each as an anchor."""
        getter = _NAMED_TRACK if self._by_name else _TRACK
        if len(self._entries) > _TABLE_LIMIT:
            self._entries.clear()
        entries = list(map(self._entries.__getitem__, map(getter, events)))
        if not self._by_name:
            for event, (_, pid, tid, _) in zip(events, entries, strict=True):
                event.pid = pid
                event.tid = tid
            return
        if len(self._args) > _TABLE_LIMIT:
            self._args.clear()
        packed = map(self._args.__getitem__, map(bytes, map(_ARGS, events)))
        for event, (name, pid, tid, _), args in zip(events, entries, packed, strict=True):
            event.name = name
            event.pid = pid
            event.tid = tid
            event.args = args
        self._roles = np.fromiter(map(_ROLE, entries), np.int64, len(entries))

    def _entry(self, key: tuple[Any, ...]) -> _Entry:
        name, pid, tid = key if self._by_name else (None, *key)
        track = self._tables.track(pid, tid)
        role = self._anchors.role(name, tid) if self._by_name else 0
        new = self._place.prefix + name if isinstance(name, str) else name
        return new, track.pid, track.tid, role


def _encode(events: list[WholeEvent], kinds: Set[type]) -> list[bytes]:
    """Return the events as JSON, without their times."""
    if kinds == {WholeEvent} or kinds == {ExactWholeEvent}:
        nothing: Any = NO_ARGS if kinds == {ExactWholeEvent} else None
        for event in events:
            event.ts = nothing
        return list(map(_ENCODE, events))
    return [_encode_untimed(event) for event in events]


class _Packed(dict[bytes, msgspec.Raw]):
    """Recurring `args` -> the same without the white space between their members."""

    def __missing__(self, text: bytes) -> msgspec.Raw:
        packed = self[text] = _packed(text)
        return packed


class _Entries(dict[Any, _Entry]):
    """(name, pid, tid) or (pid, tid) -> what they become."""

    def __init__(self, make: Callable[[Any], _Entry]) -> None:
        self._make = make

    def __missing__(self, key: Any) -> _Entry:
        entry = self[key] = self._make(key)
        return entry


def _times(
    events: Sequence[WholeEvent], phases: Sequence[str | None] | None, *, exact: bool
) -> tuple[Int64, Int64]:
    """Return starts and durations in nanoseconds; `NO_TIME` and -1 where there are none.

    `phases` is None where all events are slices.
    """
    ts: list[Any] = [event.ts for event in events]
    dur: list[Any] = [event.dur for event in events]
    if exact:
        starts, durations = text_to_ns(list(map(_text, ts))), text_to_ns(list(map(_text, dur)))
    else:
        plain = set(map(type, dur)) <= {int, float}
        starts = to_ns(ts)
        durations = to_ns(dur if plain else [d if isinstance(d, (int, float)) else -1 for d in dur])
    is_slice = True if phases is None else np.array([phase == "X" for phase in phases], np.bool_)
    starts = np.where(np.abs(starts) < _FARTHEST_NS, starts, NO_TIME)
    return starts, np.where(is_slice & (durations >= 0), np.minimum(durations, _LONGEST_NS), -1)


def _is_text(piece: memoryview) -> bool:
    """Whether `piece` is UTF-8 throughout: what is copied without a look may be anything."""
    try:
        str(piece, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _text(value: Any) -> Any:
    """Return the text of a time: as it is, or of the number that it was decoded to."""
    return value if isinstance(value, msgspec.Raw) else b"" if value is None else str(value).encode()


def _encode_untimed(event: WholeEvent) -> bytes:
    event.ts = NO_ARGS if isinstance(event, ExactWholeEvent) else None  # type: ignore[assignment]
    return encode(event)


def _packed(text: bytes) -> msgspec.Raw:
    if not text:
        return NO_ARGS
    try:
        return msgspec.Raw(msgspec.json.format(text, indent=-1))
    except msgspec.DecodeError:
        return msgspec.Raw(text)


def _int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
