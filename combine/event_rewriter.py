"""Events rewritten for a place among others: new pids, tids, names and ids.

Events of a known kind share a head (`combine.event_text`) and are only looked at all together; the others are
rewritten one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter, eq, itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from combine.collective_finder import SyncFinder
from combine.comm_filter import CommFilter
from combine.event_text import LONGEST_NS, HeadTable, learned_times, packed, times
from combine.external_sort import Events, Int32, Int64, RunWriter
from combine.pid_tid import Place, Process, Tables, Track
from combine.unique_ids import EXACT_SOURCES, first_id, make_unique
from formats.event import NO_ARGS, NO_TIME, args_object
from formats.values import FARTHEST_NS, cleaned
from formats.whole import KEY, ExactWholeEvent, LearnedWhole, OddEvent, WholeEvent, encode

_ARGS = attrgetter("args")
_ID = attrgetter("id")
_ARGS_MEMBER = b',"args":'
_ROLE = itemgetter(3)
_ENCODE = msgspec.json.Encoder().encode
_REMEMBERED = 1 << 17  # names with their tracks, and arguments
_Entry = tuple[Any, int, int, int]  # name, pid, tid, role as an anchor
#: Metadata that is gathered, and written anew at the head of the combined file.
_GATHERED = frozenset(("process_name", "process_sort_index", "thread_name", "thread_sort_index"))


class Rewriter:
    """Rewrites the events of one source and gathers what is to be known of the source.

    Events that have a time go to `runs`; those without are in `untimed`, ready to be written.
    """

    def __init__(self, place: Place, runs: RunWriter) -> None:
        self._place = place
        self._runs = runs
        self.tables = Tables(place)
        self.anchors = SyncFinder(place.dialect)
        self.filter = CommFilter(place.dialect, place.names)
        self._by_name = bool(place.prefix)
        self._entry = lru_cache(_REMEMBERED)(self._new_entry)
        self.heads = HeadTable(self._head, place.table_bytes)
        self._kinds = _Kinds(self.heads, KEY)
        self._args_recur = True
        self.is_too_diverse = False  # most events are of kinds that have no place in the table
        self.untimed: list[bytes] = []
        self.n_events = 0
        self.dropped = 0
        self.n_mistaken = 0  # pieces with bytes that are no UTF-8
        self.sync: dict[str, int] = {}
        self.start_ns: int | None = None
        self.front_tid: int | None = None

    @property
    def learns(self) -> bool:
        """Whether events may be decoded as a learned type: not where each must be looked at."""
        return not self.filter and self._place.only_pid is None

    def add(self, events: list[WholeEvent], *, exact: bool) -> None:
        """Rewrite the events of one piece, each for itself; see `add_learned`."""
        ts, dur = times(events, exact=exact)
        if self._place.axis is not None:
            ts = self._place.axis.moved(ts)
        rows, texts = self._rewritten(events, ts, dur)
        self._runs.add(Events(ts[rows], dur[rows], np.zeros(len(rows), np.int32), texts))

    def add_learned(self, events: list[Any], learned: LearnedWhole) -> None:
        """Rewrite the events of one piece by their kinds; those that have none, each for itself.

        On `InexactError`, where times need to be decoded as text, nothing was taken.
        """
        n = len(events)
        ts, dur, is_exact = learned_times(events, learned)
        if self._kinds.names != learned.key:
            self._kinds = _Kinds(self.heads, learned.key)
        n_known = len(self.heads.args)
        kinds = np.fromiter(map(self._kinds.__getitem__, map(self._kinds.getter, events)), np.int32, n)
        slices, own_ids, roles = (column[kinds] for column in self.heads.columns())
        simple = (kinds > 0) & (ts != NO_TIME) & np.where(slices, is_exact, dur == NO_TIME)
        dur = np.where(slices & (dur >= 0), np.minimum(dur, LONGEST_NS), -1)
        heads, tails = self._split(events, kinds, n_known)
        if learned.with_ids:
            ids = np.fromiter(map(_ID, events), np.int64, n)
            simple &= (ids < 0) | (~own_ids & (self._place.number < EXACT_SOURCES))
            tails = self._with_ids(ids, tails)
        self.anchors.add(events, np.where(simple, roles, 0), ts, dur)
        taken = Events(ts, dur, heads, tails)
        self.n_events += n
        if not simple.all():
            self.is_too_diverse = self.heads.is_full and bool(simple.mean() < 0.5)
            taken = self._with_others(taken, events, learned, simple)
        self._runs.add(taken)

    def _split(self, events: list[Any], kinds: Int32, n_known: int) -> tuple[Int32, list[bytes] | None]:
        """Return the heads and tails of events: their arguments are in one or in the other."""
        args = list(map(_ARGS, events))
        if not self._args_recur:
            return 2 * kinds, _tails(args)
        if len(self.heads.args) > n_known:
            for row in np.unique(kinds, return_index=True)[1].tolist():
                if kinds[row] >= n_known:
                    self.heads.set_args(int(kinds[row]), bytes(args[row]))
        expected = map(self.heads.args.__getitem__, kinds.tolist())
        recurs = np.fromiter(map(eq, args, expected), np.bool_, len(args))
        if recurs.all():
            return 2 * kinds + 1, None
        self._args_recur = bool(recurs.mean() > 0.5)
        for row in np.flatnonzero(recurs).tolist():
            args[row] = NO_ARGS
        return 2 * kinds + recurs, _tails(args)

    def _with_ids(self, ids: Int64, tails: list[bytes] | None) -> list[bytes] | None:
        """Return the tails with the ids (n,; -1 where there is none) that no other source has."""
        rows = np.flatnonzero(ids >= 0)
        if not len(rows):
            return tails
        tails = [b""] * len(ids) if tails is None else tails
        numbers = (ids[rows] + first_id(self._place.number)).tolist()
        for row, number in zip(rows.tolist(), numbers, strict=True):
            tails[row] = b',"id":%d%b' % (number, tails[row])
        return tails

    def _with_others(
        self, taken: Events, events: list[Any], learned: LearnedWhole, simple: NDArray[np.bool_]
    ) -> Events:
        """Return `taken` with the events that are not `simple` rewritten, or without them."""
        others = np.flatnonzero(~simple)
        self.n_events -= len(others)
        tails = [b""] * len(events) if taken.tails is None else taken.tails
        whole = [learned.whole(events[i]) for i in others.tolist()]
        rows, texts = self._rewritten(whole, taken.ts[others], taken.dur[others])
        rows = others[rows]
        for row, text in zip(rows.tolist(), texts, strict=True):
            tails[row] = text
        taken.heads[rows] = 0
        simple[rows] = True
        return Events(taken.ts, taken.dur, taken.heads, tails).in_order(np.flatnonzero(simple))

    def _rewritten(self, events: list[WholeEvent], ts: Int64, dur: Int64) -> tuple[Int64, list[bytes]]:
        """Rewrite events with the times `ts`, `dur` (n,); return which stay, and their texts.

        The texts lack the braces and the time. Events without a time are put aside.
        """
        phases = [event.ph for event in events]
        if self.filter:  # what is left out still tells about the clocks
            given = [self.anchors.role(event.name, event.cat, event.tid) for event in events]
            self.anchors.add(events, np.array(given, np.int64), ts, dur)
        rows = np.arange(len(events))
        if set(phases) != {"X"} or not self.learns:
            rows = np.flatnonzero(np.fromiter(map(self._stays, events), np.bool_, len(events)))
            events = [events[i] for i in rows.tolist()]
        if not events:
            return rows, []
        roles = self._move(events)
        if not self.filter:
            self.anchors.add(events, roles, ts[rows], dur[rows])
        make_unique(events, self._place.number)
        texts = _encode(events)
        self.n_events += len(events)
        timed = ts[rows] != NO_TIME
        self.untimed += [texts[i] for i in np.flatnonzero(~timed).tolist()]
        tails = [b"," + text[1:-1] if len(text) > 2 else b"" for text in texts]
        return rows[timed], [tails[i] for i in np.flatnonzero(timed).tolist()]

    def _stays(self, event: WholeEvent) -> bool:
        """Whether the event goes on; metadata is gathered."""
        if event.ph is None or (event.ph == "M" and self._gather(event)):
            return False
        if self._place.only_pid is not None and not self._is_composers(event):
            return False
        return not self.filter or self.filter.keeps(event)

    def _gather(self, event: WholeEvent) -> bool:
        """Take note of a metadata event; True if it is to be written anew at the end."""
        args = cleaned(args_object(event.args))
        if event.name not in _GATHERED:
            if event.name in ("clock_sync_timestamp_us", "clock_sync_error_bound"):
                self.sync.setdefault(str(event.name), _int(args.get("value")))
            return False
        if "start_time_since_epoch_in_micros" in args:
            self.start_ns = _int(args["start_time_since_epoch_in_micros"]) * 1000
            return True
        self.filter.learn(event, args)
        kind, what = str(event.name).split("_", 1)
        process = self.tables.process(event.pid)
        if kind == "thread" and self._is_left_out(event):
            return True
        it: Process | Track = process if kind == "process" else self.tables.track(event.pid, event.tid)
        value = args.get(what)
        if what == "name" and value is not None:
            it.name = str(value)
        elif what == "sort_index" and isinstance(value, (int, float)):
            it.sort_index = value
        return True

    def _is_composers(self, event: WholeEvent) -> bool:
        if event.pid is None or event.tid is None:
            self.dropped += 1
            return False
        if self._is_left_out(event):
            return False
        if event.name == "MulBackward0":
            self.front_tid = self.tables.track(event.pid, event.tid).tid
        return True

    def _is_left_out(self, event: WholeEvent) -> bool:
        return self._place.only_pid is not None and "PyTorch Profiler" in str(event.tid)

    def _move(self, events: list[WholeEvent]) -> Int64:
        """Give the events their pid, tid and name; return the role of each as an anchor (n,)."""
        entries = [self._entry(event.name, event.pid, event.tid) for event in events]
        for event, (name, pid, tid, _) in zip(events, entries, strict=True):
            event.name = name
            event.pid = pid
            event.tid = tid
            if self._by_name and event.args:
                event.args = _packed_args(bytes(event.args))
        return np.fromiter(map(_ROLE, entries), np.int64, len(entries))

    def _head(self, key: tuple[Any, ...]) -> _Entry:
        """Return the new name, pid and tid of events by their `KEY`, and their role as anchors."""
        _, name, cat, pid, tid, _, _ = key
        return *self._entry(name, pid, tid)[:3], self.anchors.role(name, cat, tid)

    def _new_entry(self, name: Any, pid: Any, tid: Any) -> _Entry:
        track = self.tables.track(pid, tid)
        new = self._place.prefix + name if isinstance(name, str) else name
        return new, track.pid, track.tid, self.anchors.role(name, None, tid)


@lru_cache(_REMEMBERED)
def _packed_args(text: bytes) -> msgspec.Raw:
    return msgspec.Raw(packed(text))


def _encode(events: list[WholeEvent]) -> list[bytes]:
    """Return the events as JSON, without their times."""
    kinds = set(map(type, events))
    nothing: Any = NO_ARGS if kinds == {ExactWholeEvent} else None
    for event in events:
        event.ts = nothing
    if ExactWholeEvent in kinds and len(kinds) > 1:
        for event in events:
            if isinstance(event, ExactWholeEvent):
                event.ts = NO_ARGS
    return list(map(encode if OddEvent in kinds else _ENCODE, events))


class _Kinds(dict[tuple[Any, ...], int]):
    """Some members of an event -> its kind; `getter` gets the members `names` of an event."""

    def __init__(self, table: HeadTable, names: Sequence[str]) -> None:
        self._table = table
        self.names = tuple(names)
        self.getter = attrgetter(*names)

    def __missing__(self, members: tuple[Any, ...]) -> int:
        known = dict(zip(self.names, members, strict=True))
        kind = self._table[tuple(known.get(name) for name in KEY)]
        if not self._table.is_full:
            self[members] = kind
        return kind


def _tails(args: list[msgspec.Raw]) -> list[bytes]:
    """Return arguments as members of events."""
    tails = list(map(_ARGS_MEMBER.__add__, args))
    n_args = np.fromiter(map(len, tails), np.int64, len(tails))
    for row in np.flatnonzero(n_args == len(_ARGS_MEMBER)).tolist():
        tails[row] = b""
    return tails


def _int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and abs(value) <= FARTHEST_NS // 1000 else 0
