"""Chrome-trace files (JSON in its object, array and line forms) as slices with tables of distinct strings."""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int32, Int64, NDArray
from analyzer.base.arrays.numbering import numbered
from analyzer.base.errors import Note, NoteKind, counted
from analyzer.base.parallel import OnRead
from analyzer.reading.formats import native
from analyzer.reading.formats.builder import ALL, Builder, Scanned, pair
from analyzer.reading.formats.columns import ArgColumn, Points, Trace, Track
from analyzer.reading.formats.event import (
    BEGIN,
    END,
    LONGEST_NS,
    OTHER_PHASE,
    ROLE,
    SLICE,
    SPANS,
    EndRule,
    Key,
    decode_exact_events,
)
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.values import InexactError, all_fit, cleaned

_PHASES = frozenset("XBEiInsftMCbeSTpFPNODVvRc()=L")  # of the format, also of its older versions


def read_rows(
    path: Path,
    args: Collection[str] = (),
    points: bool = False,
    pieces: int | None = None,
    on_read: OnRead | None = None,
    scan: bool = False,
) -> Builder:
    """Load the events of a file; see `EventReader`. `scan`: in C if possible."""
    rows = Builder(args, points)
    in_c = scan and not (points and ALL in args)  # args of events that are not slices are decoded in Python
    library = native.library() if in_c else None
    scanner = None if library is None else native.scanner(library, args, points)
    reader = EventReader(path, scan=scanner, pieces=pieces, rows=rows)
    consumed = 0
    for part in reader.parts():
        if isinstance(part, Scanned):
            rows.add_scanned(part)
        else:
            try:
                rows.add(part[0])
            except InexactError:
                reader.use(decode_exact_events)
                rows.add(decode_exact_events(part[1]))
        if on_read is not None:
            on_read(reader.stream.consumed - consumed)
            consumed = reader.stream.consumed
    rows.header, rows.damage = reader.header, reader.damage
    return rows


def assemble(path: Path, rows: Builder, pairing: EndRule = EndRule.NESTED) -> Trace:
    """Make the trace of a whole file, its times as recorded; `dialects.finish` interprets them."""
    trace = columns(rows, pairing)
    repairs = (*rows.damage.phrases(), *trace.repairs)
    return replace(trace, path=str(path), header=rows.header, repairs=repairs)


def columns(rows: Builder, pairing: EndRule = EndRule.NESTED) -> Trace:
    """Split the interned keys into tables and pair B with E; the trace has no path and no dialect yet."""
    keys = rows.keys
    key, ts_ns = np.frombuffer(rows.key, np.int32), np.frombuffer(rows.ts_ns, np.int64)
    dur_ns = np.frombuffer(rows.dur_ns, np.int64)
    point_key = np.frombuffer(rows.point_key, np.int32)
    point_ts_ns = np.frombuffer(rows.point_ts_ns, np.int64)
    if has_only_spans(rows):
        key, ts_ns, dur_ns = _spans(keys, point_key, point_ts_ns, rows.point_ids)
        keys = [("X" if phase in SPANS else phase, *others) for phase, *others in keys]
    tables = _Tables(keys)
    kinds, kind = numbered(map(itemgetter(0), keys))
    role_of = np.array([ROLE.get(phase, OTHER_PHASE) for phase in kinds], np.int8)[kind]
    repairs = [f"{counted(n, noun)} {fate}" for (noun, fate), n in rows.repairs.items()]
    counts = np.bincount(kind, rows.counts, len(kinds)).astype(np.int64)
    phases: Counter[Any] = Counter(dict(zip(kinds, counts.tolist(), strict=True)))
    if odd := sum(n for phase, n in phases.items() if phase not in _PHASES):
        repairs.append(f"{counted(odd, 'event')} of phases that the format does not have ignored")
    if beyond := int(rows.counts[tables.is_beyond].sum()):
        repairs.append(f"{counted(beyond, 'event')} with an id of more than 64 bits: the id left out")
    args = {
        name: _fitting(name, np.frombuffer(of_rows, np.int64), values, repairs)
        for name, (of_rows, values) in rows.args.items()
    }
    if ((role_of == BEGIN) | (role_of == END)).any():
        begin, end, dur_ns = _paired(key, ts_ns, dur_ns, role_of[key], tables, pairing, repairs)
        kept = np.sort(np.concatenate([np.flatnonzero(role_of[key] == SLICE), begin]))
        key, ts_ns, dur_ns = key[kept], ts_ns[kept], dur_ns[kept]
        args = {name: _with_ends(column, begin, end).select(kept) for name, column in args.items()}
    return Trace(
        path="",
        dialect="",
        names=tables.names,
        cats=tables.cats,
        tracks=tables.tracks,
        name_id=tables.name[key],
        cat_id=tables.cat[key],
        track_id=tables.track[key],
        ts_ns=ts_ns,
        dur_ns=dur_ns,
        args=args,
        points=Points(
            phase=np.array([str(key[0]) for key in keys], np.object_)[point_key],
            name_id=tables.name[point_key],
            cat_id=tables.cat[point_key],
            track_id=tables.track[point_key],
            ts_ns=point_ts_ns,
            ids=np.array(rows.point_ids, np.object_),
            args=rows.point_args,
        ),
        metadata=rows.metadata,
        phases=dict(phases),
        repairs=repairs,
    )


def has_only_spans(rows: Builder) -> bool:
    """Check whether a file has no slices, but asynchronous spans, which are taken for them."""
    return not len(rows.key) and any(key[0] in SPANS for key in rows.keys)


def _spans(
    keys: Sequence[Key], key: Int32, ts_ns: Int64, ids: Sequence[str | None]
) -> tuple[Int32, Int64, Int64]:
    """Key, begin and length of asynchronous spans, whose begins and ends share an id."""
    kinds = [keys[i] for i in key.tolist()]
    order = np.flatnonzero([kind[0] in SPANS for kind in kinds])
    is_begin = np.array([SPANS.get(kind[0]) == BEGIN for kind in kinds], np.bool_)
    _, span = numbered((*kind[2:4], span_id) for kind, span_id in zip(kinds, ids, strict=True))
    _, name = numbered(str(kind[1]) for kind in kinds)
    pairs = pair(is_begin[order], span[order], ts_ns[order], name[order], EndRule.NESTED_BY_NAME)
    begin, end = (order[index] for index in pairs)
    return key[begin], ts_ns[begin], np.maximum(ts_ns[end] - ts_ns[begin], 0)


def with_known_durations(trace: Trace) -> Trace:
    """Take X events without a duration, or with one that cannot be, as 0 long."""
    unknown = trace.dur_ns == LONGEST_NS
    if not unknown.any():
        return trace
    note = f"{counted(int(unknown.sum()), 'X event')} without a sound duration taken as 0 long"
    return replace(trace, dur_ns=np.where(unknown, 0, trace.dur_ns), repairs=[*trace.repairs, note])


def _paired(
    key: Int32,
    ts_ns: Int64,
    dur_ns: Int64,
    role: NDArray[np.int8],
    tables: _Tables,
    pairing: EndRule,
    repairs: list[str],
) -> tuple[Int64, Int64, Int64]:
    """Rows of begins (k,) and of their ends (k,), and the durations of all rows."""
    bounds = np.flatnonzero(role != SLICE)
    key, is_begin = key[bounds], role[bounds] == BEGIN
    places = pair(is_begin, tables.track[key], ts_ns[bounds], tables.name_or_none[key], pairing)
    begin, end = (bounds[index] for index in places)
    n_begins = int(is_begin.sum())
    between = ts_ns[end] - ts_ns[begin]
    is_absurd = (between < 0) | (between > LONGEST_NS)
    dur_ns = dur_ns.copy()
    dur_ns[begin] = np.where(is_absurd, 0, between)
    for n, phase, fate, kind in (
        (int(is_absurd.sum()), "E", "before the B, or decades after it: taken as 0 long", NoteKind.OTHER),
        (n_begins - len(begin), "B", "without an end left out", NoteKind.WHOLE),
        (len(bounds) - n_begins - len(end), "E", "without a beginning left out", NoteKind.WHOLE),
    ):
        if n:
            repairs.append(Note(f"{counted(n, f'{phase} event')} {fate}", kind))
    return begin, end, dur_ns


def _with_ends(column: ArgColumn, begin: Int64, end: Int64) -> ArgColumn:
    """Take the argument of a slice from its begin, else from its end."""
    begin_of = dict(zip(end.tolist(), begin.tolist(), strict=True))
    recorded = column.as_dict()
    values = {begin_of[row]: value for row, value in recorded.items() if row in begin_of}
    values |= {row: value for row, value in recorded.items() if row not in begin_of}
    rows = sorted(values)
    return ArgColumn(np.array(rows, np.int64), [values[row] for row in rows])


class _Tables:
    """The distinct names, categories and tracks of the keys, and each key's index in them."""

    def __init__(self, keys: Sequence[Key]) -> None:
        _, names, cats, pids, tids = zip(*keys, strict=True) if keys else ((),) * 5
        self.is_beyond = np.zeros(len(keys), np.bool_)  # keys with an integer of more than 64 bits
        self.names, self.name = numbered(_texts(self._clean(names)))
        self.cats, self.cat = numbered(_texts(self._clean(cats)))
        pairs, self.track = numbered(zip(self._clean(pids), self._clean(tids), strict=True))
        self.tracks = [Track(*pair) for pair in pairs]
        self.name_or_none = self.name
        if None in names:
            self.name_or_none = np.where([name is None for name in names], -1, self.name).astype(np.int32)

    def _clean(self, values: Sequence[Any]) -> Sequence[Any]:
        """Bring one member of all keys within the border of `formats.values`."""
        if all_fit(values):
            return values
        clean = [cleaned(value) for value in values]
        self.is_beyond |= [new is None and old is not None for old, new in zip(values, clean, strict=True)]
        return clean


def _fitting(name: str, rows: Int64, values: list[Any], repairs: list[str]) -> ArgColumn:
    """Keep the values of an argument within the border of `formats.values`, and their rows."""
    if set(map(type, values)) == {int}:
        with contextlib.suppress(OverflowError):  # beyond 63 bits
            return ArgColumn(rows, array("q", values))
    if all_fit(values):
        return ArgColumn(rows, values)
    clean = [cleaned(value) for value in values]
    kept = [i for i, value in enumerate(clean) if value is not None or values[i] is None]
    if len(kept) < len(values):
        repairs.append(f"{counted(len(values) - len(kept), 'value')} of {name} without a meaning left out")
    return ArgColumn(rows[kept], [clean[i] for i in kept])


def _texts(values: Sequence[Any]) -> Sequence[str]:
    if set(map(type, values)) == {str}:
        return values
    return ["" if value is None else str(value) for value in values]
