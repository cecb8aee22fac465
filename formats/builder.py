"""Events to columns: every distinct (phase, name, category, pid, tid) is interned once, by one look-up."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from formats.columns import ArgColumn, Int32, Int64, Points, Track
from formats.event import FULL, LEAN, NO_TIME, UNDECODABLE, Event, args_object
from formats.learned import LearnedType, learn
from formats.pairs import pair, pair_neighbours
from formats.times import times_ns

Key = tuple[Any, Any, Any, Any, Any]  # ph, name, cat, pid, tid
_KEY = attrgetter("ph", "name", "cat", "pid", "tid")
_SLICE_KEY = attrgetter("name", "cat", "pid", "tid")
_TS = attrgetter("ts")
_DUR = attrgetter("dur")
_ARGS = attrgetter("args")
_SLICE, _BEGIN, _END, _META, _OTHER = range(5)
#: After how many pieces of the general types a type is learned, again each time it did not fit; from the
#: last but one on with names left free.
_LESSONS = (2, 3, 4, 6, 10, 18, 34, 66)
_LONGEST_NS = 1 << 61  # 73 years
_ROLE = {"X": _SLICE, "B": _BEGIN, "E": _END, "M": _META}


class _Interner(dict[Key, int]):
    """Numbers the keys in order of first appearance."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class _SliceInterner(dict[tuple[Any, Any, Any, Any], int]):
    """Numbers X events by (name, category, pid, tid), as `_Interner` does."""

    def __init__(self, ids: _Interner) -> None:
        self._ids = ids

    def __missing__(self, key: tuple[Any, Any, Any, Any]) -> int:
        full: Key = ("X", *key)
        number = self[key] = self._ids[full]
        return number


@dataclass(slots=True)
class Rows:
    """What was gathered from (a part of) a file; picklable, and parts can be joined in order.

    `key`, `ts_ns`, `dur_ns` are the X, B and E events; `args` holds for each wanted key the rows that
    have it and their values; `points` the other timed events where they were asked for.
    """

    keys: list[Key]
    counts: Int64  # (len(keys),) events of each key
    key: Int32
    ts_ns: Int64
    dur_ns: Int64
    args: dict[str, tuple[Int64, list[Any]]]
    points: tuple[Int32, Int64, list[str | None]]
    metadata: list[dict[str, Any]]
    repairs: dict[str, int] = field(default_factory=dict)


class Builder:
    """Gathers pieces of events into `Rows`."""

    def __init__(self, wanted: Collection[str] = (), points: bool = False) -> None:
        self.wanted = frozenset(wanted)
        self.with_points = points
        self._prefixes = tuple(key[:-1] for key in wanted if key.endswith("*"))
        self._ids = _Interner()
        self._slice_ids = _SliceInterner(self._ids)
        self._learned: LearnedType | None = None
        self._times: type[Any] = Event
        self._pieces = 0  # decoded as a general lean type so far
        self._roles = np.empty(0, np.int8)
        self._counts = np.empty(0, np.int64)
        self._key, self._ts, self._dur = array("i"), array("q"), array("q")
        self._args: dict[str, tuple[array[int], list[Any]]] = {}
        self._point_key, self._point_ts = array("i"), array("q")
        self._point_ids: list[str | None] = []
        self._metadata: list[dict[str, Any]] = []
        self._repairs: dict[str, int] = {}
        fields = [key for key in self.wanted if not key.endswith("*")]
        names = {f"a{i}": key for i, key in enumerate(fields)}
        struct = msgspec.defstruct("Args", [(name, Any, None) for name in names], rename=names, gc=False)
        self._arg_fields = list(names.items())
        self._arg_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct)

    @property
    def types(self) -> Sequence[type[Any]]:
        """What a reader should decode events as for this builder, to begin with."""
        return FULL if self.wanted or self.with_points else LEAN

    def better_types(self, event_type: Any) -> Sequence[Any] | None:
        """Return what to decode events as from now on, if `event_type` served and a better one is known."""
        if event_type not in LEAN[:-1]:
            return None
        self._pieces += 1
        if self._pieces not in _LESSONS:
            return None
        with_names = self._pieces < _LESSONS[-2]
        self._learned = learn(self._ids, event_type, with_names=with_names)
        self._times = event_type
        return None if self._learned is None else (self._learned.union, event_type, Event)

    def add(self, events: Sequence[Any], event_type: type[Any], whole: Callable[[], list[Event]]) -> None:
        """Append the events of one piece.

        Parameters
        ----------
        event_type : what all of them were decoded as
        whole : decodes the piece again with all members; called where `events` lack some

        Raises
        ------
        InexactError
            Times need to be decoded as text; nothing was appended.
        """
        if self._learned is not None and event_type is self._learned.union:
            self._add_learned(events, self._learned, whole)
            return
        n = len(events)
        ids = np.fromiter(map(self._ids.__getitem__, map(_KEY, events)), np.int32, n)
        self._learn_roles()
        roles = self._roles[ids]
        ts = times_ns(map(_TS, events), n, event_type)
        dur = times_ns(map(_DUR, events), n, event_type)
        first = len(self._key)
        rows = self._add_slices(ids, roles, ts, dur)
        if (roles == _META).any():
            self._add_metadata(events if event_type not in LEAN[:-1] else whole())
        if self.with_points:
            self._add_points(events, ids, ts, np.flatnonzero((roles == _OTHER) & (ts != NO_TIME)))
        if self.wanted:
            self._add_args([events[i] for i in rows.tolist()], first)

    def _add_learned(
        self, events: Sequence[Any], learned: LearnedType, whole: Callable[[], list[Event]]
    ) -> None:
        """Append a piece whose events were decoded as the learned types."""
        slices = events
        others: Mapping[str | None, int] = {}
        if learned.phase_of:
            slices = [event for event in events if type(event) is learned.slice]
            if len(slices) < len(events):
                others = Counter(map(learned.phase_of.get, map(type, events)))
        n = len(slices)
        ids = np.fromiter(map(self._slice_ids.__getitem__, map(_SLICE_KEY, slices)), np.int32, n)
        ts = times_ns(map(_TS, slices), n, self._times)
        dur = times_ns(map(_DUR, slices), n, self._times)
        other_ids = {self._ids[phase, None, None, None, None]: n for phase, n in others.items() if phase}
        self._learn_roles()
        self._add_slices(ids, self._roles[ids], ts, dur)
        for i, count in other_ids.items():
            self._counts[i] += count
        if "M" in others:
            self._add_metadata(whole())

    def _add_slices(self, ids: Int32, roles: NDArray[np.int8], ts: Int64, dur: Int64) -> Int64:
        """Count events by key and append the X, B and E ones; return their rows in the piece."""
        self._counts = _grown(self._counts, len(self._ids)) + np.bincount(ids, minlength=len(self._ids))
        rows = self._timed_slices(roles, ts)
        self._key.frombytes(ids[rows].tobytes())
        self._ts.frombytes(ts[rows].tobytes())
        self._dur.frombytes(self._durations(dur[rows], roles[rows]).tobytes())
        return rows

    def rows(self) -> Rows:
        """Return what was gathered."""
        return Rows(
            keys=list(self._ids),
            counts=_grown(self._counts, len(self._ids)),
            key=np.frombuffer(self._key, np.int32),
            ts_ns=np.frombuffer(self._ts, np.int64),
            dur_ns=np.frombuffer(self._dur, np.int64),
            args={k: (np.frombuffer(r, np.int64), v) for k, (r, v) in self._args.items()},
            points=(
                np.frombuffer(self._point_key, np.int32),
                np.frombuffer(self._point_ts, np.int64),
                self._point_ids,
            ),
            metadata=self._metadata,
            repairs=self._repairs,
        )

    def _learn_roles(self) -> None:
        known = len(self._roles)
        if known < len(self._ids):
            new = [_ROLE.get(key[0], _OTHER) for key in list(self._ids)[known:]]
            self._roles = np.append(self._roles, np.array(new, np.int8))

    def _timed_slices(self, roles: NDArray[np.int8], ts: Int64) -> Int64:
        """Return the rows of the X, B and E events that have a time."""
        is_slice = roles <= _END
        untimed = is_slice & (ts == NO_TIME)
        if untimed.any():
            self._note("events without a time ignored", int(untimed.sum()))
        return np.flatnonzero(is_slice & ~untimed)

    def _durations(self, dur: Int64, roles: NDArray[np.int8]) -> Int64:
        """Return the durations of X events, 0 for B and E, and for what is no duration."""
        is_x = roles == _SLICE
        missing = is_x & ((dur == NO_TIME) | (dur > _LONGEST_NS))
        negative = is_x & (dur < 0) & ~missing
        if missing.any():
            self._note("X events without a duration taken as 0 long", int(missing.sum()))
        if negative.any():
            self._note("negative durations taken as 0", int(negative.sum()))
        return np.where(is_x & (dur > 0) & ~missing, dur, 0)

    def _note(self, what: str, n: int) -> None:
        self._repairs[what] = self._repairs.get(what, 0) + n

    def _add_points(self, events: Sequence[Event], ids: Int32, ts: Int64, rows: Int64) -> None:
        self._point_key.frombytes(ids[rows].tobytes())
        self._point_ts.frombytes(ts[rows].tobytes())
        self._point_ids.extend(_id_of(events[i]) for i in rows.tolist())

    def _add_metadata(self, events: Sequence[Event]) -> None:
        self._metadata.extend(
            {"name": event.name, "pid": event.pid, "tid": event.tid, "args": args_object(event.args)}
            for event in events
            if event.ph == "M"
        )

    def _add_args(self, events: Sequence[Event], first: int) -> None:
        for row, raw in enumerate(map(_ARGS, events), first):
            if self._prefixes:
                found = args_object(raw)
                for key, value in found.items():
                    if key in self.wanted or key.startswith(self._prefixes):
                        self._add_arg(key, row, value)
                continue
            text = bytes(raw)
            if not text:
                continue
            try:
                decoded = self._arg_decoder.decode(text)
            except UNDECODABLE:
                for key, value in args_object(raw).items():
                    if key in self.wanted:
                        self._add_arg(key, row, value)
                continue
            for name, key in self._arg_fields:
                value = getattr(decoded, name)
                if value is not None:
                    self._add_arg(key, row, value)

    def _add_arg(self, key: str, row: int, value: Any) -> None:
        rows, values = self._args.setdefault(key, (array("q"), []))
        rows.append(row)
        values.append(value)


def join(parts: Sequence[Rows]) -> Rows:
    """Return the rows of consecutive parts of one file as one."""
    if len(parts) == 1:
        return parts[0]
    ids = _Interner()
    maps = [np.array([ids[key] for key in part.keys], np.int32) for part in parts]
    counts = np.zeros(len(ids), np.int64)
    for part, new in zip(parts, maps, strict=True):
        counts[new] += part.counts
    args: dict[str, tuple[Int64, list[Any]]] = {}
    repairs: dict[str, int] = {}
    offset = 0
    for part in parts:
        for key, (rows, values) in part.args.items():
            old = args.get(key, (np.empty(0, np.int64), []))
            args[key] = (np.concatenate([old[0], rows + offset]), old[1] + values)
        for what, n in part.repairs.items():
            repairs[what] = repairs.get(what, 0) + n
        offset += len(part.key)
    return Rows(
        keys=list(ids),
        counts=counts,
        key=np.concatenate([new[part.key] for part, new in zip(parts, maps, strict=True)]),
        ts_ns=np.concatenate([part.ts_ns for part in parts]),
        dur_ns=np.concatenate([part.dur_ns for part in parts]),
        args=args,
        points=(
            np.concatenate([new[part.points[0]] for part, new in zip(parts, maps, strict=True)]),
            np.concatenate([part.points[1] for part in parts]),
            [point for part in parts for point in part.points[2]],
        ),
        metadata=[event for part in parts for event in part.metadata],
        repairs=repairs,
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """Slices and tables of one file before its dialect is known; the fields are those of `Trace`."""

    names: list[str]
    cats: list[str]
    tracks: list[Track]
    name_id: Int32
    cat_id: Int32
    track_id: Int32
    ts_ns: Int64
    dur_ns: Int64
    args: dict[str, ArgColumn]
    points: Points
    phases: dict[str, int]
    repairs: list[str]


def columns(rows: Rows, *, ends_by_name: bool = False, ends_behind: bool = False) -> Columns:
    """Split the interned keys into tables and pair B with E.

    `ends_by_name`: see `pairs.pair`; `ends_behind`: see `pairs.pair_neighbours`.
    """
    tables = _Tables(rows.keys)
    role = np.array([_ROLE.get(key[0], _OTHER) for key in rows.keys], np.int8)[rows.key]
    repairs = [f"{n:,} {what}" for what, n in rows.repairs.items()]
    if no_phase := sum(n for key, n in zip(rows.keys, rows.counts.tolist(), strict=True) if key[0] is None):
        repairs.append(f"{no_phase:,} list item(s) ignored that are no events")
    row, dur = np.arange(len(role)), rows.dur_ns
    if (role != _SLICE).any():
        bounds = np.flatnonzero(role != _SLICE)
        key = rows.key[bounds]
        is_begin, track, names = role[bounds] == _BEGIN, tables.track[key], tables.name_or_none[key]
        if ends_behind:
            found = pair_neighbours(is_begin, track, rows.ts_ns[bounds], names)
        else:
            found = pair(is_begin, track, rows.ts_ns[bounds], names if ends_by_name else None)
        begin, end = bounds[found.begin], bounds[found.end]
        dur = dur.copy()
        between = rows.ts_ns[end] - rows.ts_ns[begin]
        dur[begin] = np.where((between < 0) | (between > _LONGEST_NS), 0, between)
        if absurd := int(((between < 0) | (between > _LONGEST_NS)).sum()):
            repairs.append(f"{absurd:,} E events before their B, or decades after it, taken as 0 long")
        row = np.sort(np.concatenate([np.flatnonzero(role == _SLICE), begin]))
        dur = dur[row]
        if found.unclosed:
            repairs.append(f"{found.unclosed:,} B events never end and are left out")
        if found.unopened:
            repairs.append(f"{found.unopened:,} E events end nothing that was recorded and are left out")
    key = rows.key if len(row) == len(rows.key) else rows.key[row]
    new_row = np.full(len(role), -1, np.int64)
    new_row[row] = np.arange(len(row))
    return Columns(
        names=tables.names,
        cats=tables.cats,
        tracks=tables.tracks,
        name_id=tables.name[key],
        cat_id=tables.cat[key],
        track_id=tables.track[key],
        ts_ns=rows.ts_ns if len(row) == len(rows.key) else rows.ts_ns[row],
        dur_ns=dur,
        args={k: _moved(v, new_row) for k, v in rows.args.items()},
        points=_points(rows, tables),
        phases=_phases(rows),
        repairs=repairs,
    )


class _Tables:
    """The distinct names, categories and tracks of the keys, and each key's place in them."""

    def __init__(self, keys: Sequence[Key]) -> None:
        names: dict[str, int] = {}
        cats: dict[str, int] = {}
        tracks: dict[Track, int] = {}
        self.name = np.empty(len(keys), np.int32)
        self.cat = np.empty(len(keys), np.int32)
        self.track = np.empty(len(keys), np.int32)
        for i, (_, name, cat, pid, tid) in enumerate(keys):
            self.name[i] = names.setdefault(_text(name), len(names))
            self.cat[i] = cats.setdefault(_text(cat), len(cats))
            self.track[i] = tracks.setdefault(Track(pid, tid), len(tracks))
        self.name_or_none = np.where([key[1] is None for key in keys], -1, self.name).astype(np.int32)
        self.names, self.cats, self.tracks = list(names), list(cats), list(tracks)


def _points(rows: Rows, tables: _Tables) -> Points:
    key, ts_ns, ids = rows.points
    return Points(
        phase=[str(rows.keys[k][0]) for k in key.tolist()],
        name_id=tables.name[key],
        cat_id=tables.cat[key],
        track_id=tables.track[key],
        ts_ns=ts_ns,
        ids=ids,
    )


def _phases(rows: Rows) -> dict[str, int]:
    phases: dict[str, int] = {}
    for (phase, *_), n in zip(rows.keys, rows.counts.tolist(), strict=True):
        if phase is not None:
            phases[phase] = phases.get(phase, 0) + n
    return phases


def _moved(column: tuple[Int64, list[Any]], new_row: Int64) -> ArgColumn:
    rows = new_row[column[0]]
    kept = np.flatnonzero(rows >= 0)
    if len(kept) == len(rows):
        return ArgColumn(rows, column[1])
    return ArgColumn(rows[kept], [column[1][i] for i in kept.tolist()])


def _id_of(event: Event) -> str | None:
    if event.id is not None:
        return str(event.id)
    text = bytes(event.id2)
    return text.decode("utf-8", "replace") if text else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _grown(counts: Int64, n: int) -> Int64:
    return np.append(counts, np.zeros(n - len(counts), np.int64)) if len(counts) < n else counts
