"""The events of a file as rows, with each distinct (phase, name, category, pid, tid) interned."""

from __future__ import annotations

import contextlib
import functools
import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter, is_not
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int32, Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.reading.formats.event import (
    END,
    KEY,
    LONGEST_NS,
    META,
    OTHER_PHASE,
    ROLE,
    SLICE,
    UNDECODABLE,
    EndRule,
    Event,
    Key,
    args_object,
)
from analyzer.reading.formats.repair import Damage
from analyzer.reading.formats.values import NO_TIME, cleaned, to_ns

_KEY = attrgetter(*KEY)
_KEYS = msgspec.json.Decoder(list[tuple[Any, ...]])
_TS = attrgetter("ts")
_DUR = attrgetter("dur")
#: A wanted key that stands for all arguments, also of events that are not slices.
ALL = "*"


class Scanned(Struct, frozen=True):
    """The events (n,) of one call of the scanner; the arrays are valid until the next call.

    Each JSON value in a text is ended by a comma.
    """

    new_keys: bytes  # JSON lists of the new keys; keys are numbered from 0
    key: Int32  # (n,)
    ts_ns: Int64  # (n,)
    dur_ns: Int64  # (n,)
    args_row: Int32  # (k,) the events with wanted args
    args: bytes  # their wanted args, as JSON objects
    ids: bytes  # ids of the events that are not slices, as JSON values


class Builder:
    """Collects the events of a file: each distinct key has a number, each slice (X, B and E) is a row.

    `key`, `ts_ns` and `dur_ns` have the slices; `args` has for each wanted key the rows with it and their
    values; `point_*` have the other timed events, if requested. `header` and `damage` are the file's.
    """

    def __init__(self, wanted: Collection[str] = (), points: bool = False) -> None:
        self.wanted = frozenset(wanted)
        self.with_points = points
        self.header: dict[str, Any] = {}
        self.damage = Damage()
        self.counts = np.empty(0, np.int64)  # events of each key
        self.key, self.ts_ns, self.dur_ns = array("i"), array("q"), array("q")
        self.args: defaultdict[str, tuple[array[int], list[Any]]] = defaultdict(lambda: (array("q"), []))
        self.point_key, self.point_ts_ns = array("i"), array("q")
        self.point_ids: list[str | None] = []
        self.point_args: list[dict[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []
        self.repairs: Counter[tuple[str, str]] = Counter()  # by noun and fate
        self._prefixes = tuple(key[:-1] for key in wanted if key.endswith("*"))
        self._ids: defaultdict[Key, int] = defaultdict(itertools.count().__next__)
        self._scanned_ids = np.empty(0, np.int32)  # of the keys as the scanner numbers them
        self._kinds = np.empty(0, np.int8)
        self._arg_fields, self._arg_decoder, self._args_decoder = _decoders(self.wanted)

    @property
    def keys(self) -> list[Key]:
        """The distinct keys, in the order of their numbers."""
        return list(self._ids)

    def add(self, events: Sequence[Event]) -> None:
        """Append the events of one piece.

        InexactError, without appending anything, if times must be decoded as text.
        """
        n = len(events)
        ids = np.fromiter(map(self._ids.__getitem__, map(_KEY, events)), np.int32, n)
        self._learn_roles()
        kinds = self._kinds[ids]
        ts, dur = to_ns(list(map(_TS, events))), to_ns(list(map(_DUR, events)))
        first = len(self.key)
        rows = self._add_slices(ids, kinds, ts, dur)
        if (kinds == META).any():
            for event in events:
                if event.ph == "M":
                    members = {key: getattr(event, key) for key in ("name", "pid", "tid")}
                    self.metadata.append(cleaned({**members, "args": args_object(event.args)}))
        if self.with_points:
            points = np.flatnonzero((kinds == OTHER_PHASE) & (ts != NO_TIME))
            timed = [events[i] for i in points.tolist()]
            self._add_points(ids[points], ts[points], map(_id_of, timed))
            if ALL in self.wanted:
                self.point_args.extend(self._decode_args(timed))
        if self.wanted:
            args = self._decode_args([events[i] for i in rows.tolist()])
            self._add_args(range(first, first + len(rows)), args)

    def add_scanned(self, scanned: Scanned) -> None:
        """Append events of the scanner."""
        keys = _KEYS.decode(_as_list(scanned.new_keys)) if scanned.new_keys else ()
        ids = msgspec.json.decode(_as_list(scanned.ids)) if scanned.ids else ()
        args = self._args_decoder.decode(_as_list(scanned.args)) if scanned.args else ()
        self.add_columns(keys, scanned.key, (scanned.ts_ns, scanned.dur_ns), ids, scanned.args_row, args)

    def add_columns(
        self,
        new_keys: Sequence[Key],
        key: Int32,
        times: tuple[Int64, Int64],
        point_ids: Sequence[Any],
        args_row: NDArray[np.integer],
        args: Sequence[Any],
    ) -> None:
        """Append events (n,): their keys, times and durations, ids of points, and wanted args of some."""
        new = np.fromiter(map(self._ids.__getitem__, new_keys), np.int32, len(new_keys))
        self._scanned_ids = np.append(self._scanned_ids, new)
        ids, ts = self._scanned_ids[key], times[0]
        self._learn_roles()
        kinds = self._kinds[ids]
        first = len(self.key)
        rows = self._add_slices(ids, kinds, *times)
        if point_ids:
            points = np.flatnonzero(kinds == OTHER_PHASE)
            timed = ts[points] != NO_TIME
            values = itertools.compress(point_ids, timed.tolist())
            texts = (None if value is None else str(value) for value in values)
            self._add_points(ids[points[timed]], ts[points[timed]], texts)
        if args:
            index = np.full(len(ids), -1, np.int64)
            index[rows] = np.arange(first, first + len(rows))
            self._add_args(index[args_row].tolist(), args)

    def wants(self, key: str) -> bool:
        """Check whether an argument is wanted."""
        return key in self.wanted or key.startswith(self._prefixes)

    def _add_points(self, ids: Int32, ts: Int64, texts: Iterable[str | None]) -> None:
        self.point_key.frombytes(ids.tobytes())
        self.point_ts_ns.frombytes(ts.tobytes())
        self.point_ids.extend(texts)

    def _add_slices(self, ids: Int32, kinds: NDArray[np.int8], ts: Int64, dur: Int64) -> Int64:
        """Count events by key and append the X, B and E events with a time; return their rows."""
        new = np.bincount(ids, minlength=len(self._ids))
        new[: len(self.counts)] += self.counts
        self.counts = new
        is_slice = kinds <= END
        rows = np.flatnonzero(is_slice & (ts != NO_TIME))
        if untimed := int(np.count_nonzero(is_slice)) - len(rows):
            self.repairs["event", "without a time ignored"] += untimed
        if len(rows) < len(ids):
            ids, kinds, ts, dur = ids[rows], kinds[rows], ts[rows], dur[rows]
        if kinds.any() or dur.min(initial=0) < 0 or dur.max(initial=0) > LONGEST_NS:  # SLICE is 0
            is_x = kinds == SLICE
            dur = np.where(is_x, np.where((dur < 0) | (dur > LONGEST_NS), LONGEST_NS, dur), 0)
        self.key.frombytes(ids.view(np.uint8).data)
        self.ts_ns.frombytes(ts.view(np.uint8).data)
        self.dur_ns.frombytes(dur.view(np.uint8).data)
        return rows

    def _learn_roles(self) -> None:
        known, n = len(self._kinds), len(self._ids)
        if known < n:
            new = [ROLE.get(key[0], OTHER_PHASE) for key in itertools.islice(reversed(self._ids), n - known)]
            self._kinds = np.append(self._kinds, np.array(new[::-1], np.int8))

    def _decode_args(self, events: Sequence[Event]) -> Sequence[Any]:
        """Decode the wanted args of events: to structs if the keys are known, else to dictionaries."""
        texts = [bytes(event.args) or b"{}" for event in events]
        if not self._prefixes:
            with contextlib.suppress(*UNDECODABLE):
                return list(map(self._arg_decoder.decode, texts))
        return list(map(args_object, texts))

    def _add_args(self, rows: Sequence[int], args: Sequence[Any]) -> None:
        """Append the wanted args of `rows`, structs or dictionaries; skip negative rows."""
        if rows and min(rows) < 0:
            kept = [row >= 0 for row in rows]
            rows, args = list(itertools.compress(rows, kept)), list(itertools.compress(args, kept))
        if args and not isinstance(args[0], dict):
            for name, key in self._arg_fields:
                values = list(map(attrgetter(name), args))
                present = list(map(is_not, values, itertools.repeat(None)))
                if any(present):
                    of_rows, recorded = self.args[key]
                    of_rows.extend(itertools.compress(rows, present))
                    recorded.extend(itertools.compress(values, present))
            return
        columns: dict[str, tuple[array[int], list[Any]] | None] = {}
        for row, members in zip(rows, args, strict=True):
            for key, value in members.items():
                if value is None:
                    continue
                if key not in columns:
                    columns[key] = self.args[key] if self.wants(key) else None
                if (column := columns[key]) is not None:
                    column[0].append(row)
                    column[1].append(value)


_Decoders = tuple[list[tuple[str, str]], "msgspec.json.Decoder[Any]", "msgspec.json.Decoder[Any]"]


@functools.lru_cache(maxsize=16)  # equal for all files of a job
def _decoders(wanted: frozenset[str]) -> _Decoders:
    """Make the members for wanted args with their keys, and the decoders of args and of lists of them."""
    names = {f"a{i}": key for i, key in enumerate(key for key in wanted if not key.endswith("*"))}
    struct = msgspec.defstruct("Args", [(name, Any, None) for name in names], rename=names, gc=False)
    listed = dict if any(key.endswith("*") for key in wanted) else struct
    of_list = GenericAlias(list, (listed,))
    return list(names.items()), msgspec.json.Decoder(struct), msgspec.json.Decoder(of_list)


def _as_list(items: bytes) -> bytes:
    """Make a JSON list of JSON values that are each ended by a comma."""
    return b"[" + items[:-1] + b"]"


def _id_of(event: Event) -> str | None:
    if (value := cleaned(event.id)) is not None:
        return str(value)
    text = bytes(event.id2)
    return text.decode("utf-8", "replace") if text else None


# ---- slices that are recorded as two events


def pair(
    is_begin: Mask, track: Int32, ts_ns: Int64, name: Int32, rule: EndRule = EndRule.NESTED
) -> tuple[Int64, Int64]:
    """Rows (k,) of begins and of the ends that close them, by begin, among B and E rows (n,) in file order.

    An end with the `name` -1 may close a begin of any name.
    """
    rows = np.arange(len(track))
    begin = end = rows[:0]
    if rule is EndRule.NEIGHBOURS:
        same = (track[:-1] == track[1:]) & ((name[1:] < 0) | (name[:-1] == name[1:]))
        begin = np.flatnonzero(is_begin[:-1] & ~is_begin[1:] & same)
        end = begin + 1
        rows = np.delete(rows, np.concatenate([begin, end]))
    order = rows[_time_order(is_begin[rows], track[rows], ts_ns[rows])]
    inner_begin, inner_end = _nest(order, is_begin, track)
    wrong = (name[inner_end] >= 0) & (name[inner_begin] != name[inner_end])
    if rule is EndRule.NESTED_BY_NAME and wrong.any():
        bad_tracks = unique(track[inner_begin[wrong]])
        right = ~np.isin(track[inner_begin], bad_tracks)
        _, apart = numbered(zip(track.tolist(), name.tolist(), strict=True))
        order = order[np.isin(track[order], bad_tracks)]
        begin, end = _nest(order[np.argsort(apart[order], kind="stable")], is_begin, apart)
        inner_begin, inner_end = inner_begin[right], inner_end[right]
    begin, end = np.concatenate([begin, inner_begin]), np.concatenate([end, inner_end])
    by_begin = np.argsort(begin, kind="stable")
    return begin[by_begin], end[by_begin]


def _time_order(is_begin: Mask, track: Int32, ts_ns: Int64) -> Int64:
    """Order the rows by track, then time; at one instant as in the file.

    In a track that is not in time order, an end goes before the begins of its instant unless it directly
    follows its own begin (a slice of no length).
    """
    n = len(track)
    by_track = np.argsort(track, kind="stable")
    same = track[by_track][1:] == track[by_track][:-1]
    step = np.diff(ts_ns[by_track])
    late = np.ones(n, np.bool_)
    backwards = same & (step < 0)
    if backwards.any():
        unsorted = np.isin(track, unique(track[by_track[1:][backwards]]))
        closes_own = np.zeros(n, np.bool_)
        closes_own[by_track[1:]] = same & (step == 0) & is_begin[by_track[:-1]]
        late = ~unsorted | is_begin | closes_own
    return np.lexsort((np.arange(n), late, ts_ns, track))


def _nest(order: Int64, is_begin: Mask, track: Int32) -> tuple[Int64, Int64]:
    """Match by depth: in a track, the end that leaves a depth closes the begin that entered it.

    At each depth begins and ends alternate; an end that closes nothing is the first at a new depth.
    """
    step = np.where(is_begin[order], 1, -1)
    level = np.cumsum(step) + (step < 0)
    sequence = np.lexsort((np.arange(len(order)), level, track[order]))
    rows, level = order[sequence], level[sequence]
    opens = is_begin[rows[:-1]] & ~is_begin[rows[1:]]
    opens &= (track[rows[:-1]] == track[rows[1:]]) & (level[:-1] == level[1:])
    first = np.flatnonzero(opens)
    return rows[first], rows[first + 1]
