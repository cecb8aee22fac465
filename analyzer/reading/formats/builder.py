"""Events to rows: every distinct (phase, name, category, pid, tid) is interned once, by one look-up."""

from __future__ import annotations

import contextlib
import functools
import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from operator import attrgetter, is_not
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int32, Int64, NDArray
from analyzer.reading.formats.event import KEY, UNDECODABLE, Event, args_object
from analyzer.reading.formats.rows import END, LONGEST_NS, META, OTHER_PHASE, ROLE, SLICE, Rows, numbers
from analyzer.reading.formats.values import NO_TIME, cleaned, to_ns

_KEY = attrgetter(*KEY)
_KEYS = msgspec.json.Decoder(list[tuple[Any, ...]])
_TS = attrgetter("ts")
_DUR = attrgetter("dur")
#: As a wanted key: every argument, also those of events that are not slices.
ALL = "*"


class Scanned(Struct, frozen=True):
    """The events that one call of the scanner found; the arrays are valid until the next call.

    Attributes
    ----------
    new_keys : JSON lists of the keys that were new, each ended by a comma; the scanner numbers keys from 0
    key, ts_ns, dur_ns : (n,) the numbers of the events' keys, and their times
    args_row : (k,) the events that have wanted args
    args : their wanted args (k), as JSON objects, each ended by a comma
    ids : the ids of the events that are not slices, as JSON values, each ended by a comma
    """

    new_keys: bytes
    key: Int32
    ts_ns: Int64
    dur_ns: Int64
    args_row: Int32
    args: bytes
    ids: bytes


class Builder:
    """Gathers pieces of events into `Rows`."""

    def __init__(self, wanted: Collection[str] = (), points: bool = False) -> None:
        self.wanted = frozenset(wanted)
        self.with_points = points
        self._prefixes = tuple(key[:-1] for key in wanted if key.endswith("*"))
        self._ids = numbers()
        self._scanned_ids = np.empty(0, np.int32)  # of the keys as the scanner numbers them
        self._kinds = np.empty(0, np.int8)
        self._counts = np.empty(0, np.int64)
        self._key, self._ts, self._dur = array("i"), array("q"), array("q")
        self._args: defaultdict[str, tuple[array[int], list[Any]]] = defaultdict(lambda: (array("q"), []))
        self._point_key, self._point_ts = array("i"), array("q")
        self._point_ids: list[str | None] = []
        self._point_args: list[dict[str, Any]] = []
        self._metadata: list[dict[str, Any]] = []
        self._repairs: Counter[tuple[str, str]] = Counter()
        self._arg_fields, self._arg_decoder, self._args_decoder = _decoders(self.wanted)

    def add(self, events: Sequence[Event]) -> None:
        """Append the events of one piece.

        Raises InexactError, and appends nothing, where times need to be decoded as text.
        """
        n = len(events)
        ids = np.fromiter(map(self._ids.__getitem__, map(_KEY, events)), np.int32, n)
        self._learn_roles()
        kinds = self._kinds[ids]
        ts, dur = to_ns(list(map(_TS, events))), to_ns(list(map(_DUR, events)))
        first = len(self._key)
        rows = self._add_slices(ids, kinds, ts, dur)
        if (kinds == META).any():
            self._add_metadata(events)
        if self.with_points:
            points = np.flatnonzero((kinds == OTHER_PHASE) & (ts != NO_TIME))
            self._point_key.frombytes(ids[points].tobytes())
            self._point_ts.frombytes(ts[points].tobytes())
            timed = [events[i] for i in points.tolist()]
            self._point_ids.extend(map(_id_of, timed))
            if ALL in self.wanted:
                self._point_args.extend(self._decode_args(timed))
        if self.wanted:
            args = self._decode_args([events[i] for i in rows.tolist()])
            self._add_args(range(first, first + len(rows)), args)

    def add_scanned(self, found: Scanned) -> None:
        """Append the events that the scanner found."""
        if found.new_keys:
            keys = _KEYS.decode(_as_list(found.new_keys))
            new = np.fromiter(map(self._ids.__getitem__, keys), np.int32, len(keys))
            self._scanned_ids = np.append(self._scanned_ids, new)
        ids, ts = self._scanned_ids[found.key], found.ts_ns
        self._learn_roles()
        kinds = self._kinds[ids]
        first = len(self._key)
        rows = self._add_slices(ids, kinds, ts, found.dur_ns)
        if found.ids:
            points = np.flatnonzero(kinds == OTHER_PHASE)
            timed = ts[points] != NO_TIME
            values = itertools.compress(msgspec.json.decode(_as_list(found.ids)), timed.tolist())
            self._point_key.frombytes(ids[points[timed]].tobytes())
            self._point_ts.frombytes(ts[points[timed]].tobytes())
            self._point_ids += [None if value is None else str(value) for value in values]
        if found.args:
            place = np.full(len(ids), -1, np.int64)
            place[rows] = np.arange(first, first + len(rows))
            args_row = place[found.args_row]
            self._add_args(args_row.tolist(), self._args_decoder.decode(_as_list(found.args)))

    def _add_slices(self, ids: Int32, kinds: NDArray[np.int8], ts: Int64, dur: Int64) -> Int64:
        """Count events by key and append the X, B and E ones that have a time; return their rows."""
        self._counts = _grown(self._counts, len(self._ids)) + np.bincount(ids, minlength=len(self._ids))
        is_slice = kinds <= END
        rows = np.flatnonzero(is_slice & (ts != NO_TIME))
        if untimed := int(np.count_nonzero(is_slice)) - len(rows):
            self._repairs["event", "without a time ignored"] += untimed
        if len(rows) < len(ids):
            ids, kinds, ts, dur = ids[rows], kinds[rows], ts[rows], dur[rows]
        if kinds.any() or dur.min(initial=0) < 0 or dur.max(initial=0) > LONGEST_NS:  # SLICE is 0
            is_x = kinds == SLICE
            dur = np.where(is_x, np.where((dur < 0) | (dur > LONGEST_NS), LONGEST_NS, dur), 0)
        self._key.frombytes(ids.view(np.uint8).data)
        self._ts.frombytes(ts.view(np.uint8).data)
        self._dur.frombytes(dur.view(np.uint8).data)
        return rows

    def rows(self) -> Rows:
        """Return the rows gathered so far."""
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
                self._point_args,
            ),
            metadata=self._metadata,
            repairs=self._repairs,
        )

    def _learn_roles(self) -> None:
        known, n = len(self._kinds), len(self._ids)
        if known < n:
            new = [ROLE.get(key[0], OTHER_PHASE) for key in itertools.islice(reversed(self._ids), n - known)]
            self._kinds = np.append(self._kinds, np.array(new[::-1], np.int8))

    def _add_metadata(self, events: Sequence[Event]) -> None:
        self._metadata.extend(
            {
                "name": cleaned(event.name),
                "pid": cleaned(event.pid),
                "tid": cleaned(event.tid),
                "args": cleaned(args_object(event.args)),
            }
            for event in events
            if event.ph == "M"
        )

    def _decode_args(self, events: Sequence[Event]) -> Sequence[Any]:
        """Return the `args` of events with the wanted keys: all of them structs, or dictionaries."""
        texts = [bytes(event.args) or b"{}" for event in events]
        if not self._prefixes:
            with contextlib.suppress(*UNDECODABLE):
                return list(map(self._arg_decoder.decode, texts))
        return list(map(args_object, texts))

    def _add_args(self, rows: Sequence[int], args: Sequence[Any]) -> None:
        """Append the wanted args of `rows`, each a struct or a dictionary; a negative row is skipped."""
        if rows and min(rows) < 0:
            kept = [row >= 0 for row in rows]
            rows, args = list(itertools.compress(rows, kept)), list(itertools.compress(args, kept))
        if args and not isinstance(args[0], dict):
            for name, key in self._arg_fields:
                values = list(map(attrgetter(name), args))
                present = list(map(is_not, values, itertools.repeat(None)))
                if any(present):
                    told_rows, told = self._args[key]
                    told_rows.extend(itertools.compress(rows, present))
                    told.extend(itertools.compress(values, present))
            return
        places: dict[str, tuple[array[int], list[Any]] | None] = {}
        for row, members in zip(rows, args, strict=True):
            for key, value in members.items():
                if value is None:
                    continue
                if key not in places:
                    is_wanted = key in self.wanted or key.startswith(self._prefixes)
                    places[key] = self._args[key] if is_wanted else None
                if (place := places[key]) is not None:
                    place[0].append(row)
                    place[1].append(value)


_Decoders = tuple[list[tuple[str, str]], "msgspec.json.Decoder[Any]", "msgspec.json.Decoder[Any]"]


@functools.lru_cache(maxsize=16)  # of all the files of a job the same
def _decoders(wanted: frozenset[str]) -> _Decoders:
    """Return the members for wanted args and their keys, and what decodes args and lists of them."""
    names = {f"a{i}": key for i, key in enumerate(key for key in wanted if not key.endswith("*"))}
    struct = msgspec.defstruct("Args", [(name, Any, None) for name in names], rename=names, gc=False)
    listed = dict if any(key.endswith("*") for key in wanted) else struct
    of_list = GenericAlias(list, (listed,))
    return list(names.items()), msgspec.json.Decoder(struct), msgspec.json.Decoder(of_list)


def _as_list(items: bytes) -> bytes:
    """Return JSON values, each ended by a comma, as a JSON list."""
    return b"[" + items[:-1] + b"]"


def _id_of(event: Event) -> str | None:
    if (value := cleaned(event.id)) is not None:
        return str(value)
    text = bytes(event.id2)
    return text.decode("utf-8", "replace") if text else None


def _grown(counts: Int64, n: int) -> Int64:
    return np.append(counts, np.zeros(n - len(counts), np.int64)) if len(counts) < n else counts
