"""The rows of a file, and their conversion to slices with tables of distinct strings."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int32, Int64, Mask, NDArray
from analyzer.base.arrays.numbering import numbered, unique
from analyzer.base.errors import Note, NoteKind, counted
from analyzer.reading.formats.columns import ArgColumn, Points, Trace, Track
from analyzer.reading.formats.values import all_fit, cleaned

Key = tuple[Any, Any, Any, Any, Any]  # ph, name, cat, pid, tid
SLICE, BEGIN, END, META, OTHER_PHASE = range(5)
_PHASES = frozenset("XBEiInsftMCbeSTpFPNODVvRc()=L")  # of the format, also of its older versions
ROLE = {"X": SLICE, "B": BEGIN, "E": END, "M": META}
SPANS = {"b": BEGIN, "S": BEGIN, "e": END, "F": END}  # of asynchronous spans, now and in older files
LONGEST_NS = 1 << 61  # 73 years: no slice is longer; the duration of an X event without a sound one


class EndRule(Enum):
    """The begin that an end closes."""

    NESTED = "the innermost open begin of its track"
    #: For files that begin inside a nest (Composer): their first ends have no begins. Elsewhere an end's name
    #: is not reliable.
    NESTED_BY_NAME = "the innermost open begin of its name, or none"
    #: For MXNet's profiler, whose operations on one thread may overlap: an asynchronous operation ends long
    #: after the next has begun.
    NEIGHBOURS = "the begin right before it in the file, of its track and name; else the innermost open begin"


def numbers() -> defaultdict[Key, int]:
    """Make a dictionary that numbers keys in order of their first look-up."""
    return defaultdict(itertools.count().__next__)


class Rows(Struct):
    """The rows of a file.

    `key`, `ts_ns`, `dur_ns` are the X, B and E events; `args` has for each wanted key the rows with it and
    their values; `points` the other timed events if requested.
    """

    keys: list[Key]
    counts: Int64  # (len(keys),) events of each key
    key: Int32
    ts_ns: Int64
    dur_ns: Int64
    args: dict[str, tuple[Int64, list[Any]]]
    points: tuple[Int32, Int64, list[str | None], list[dict[str, Any]]]
    metadata: list[dict[str, Any]]
    repairs: Counter[tuple[str, str]] = field(default_factory=Counter)  # by noun and fate


def columns(rows: Rows, pairing: EndRule = EndRule.NESTED) -> Trace:
    """Split the interned keys into tables and pair B with E; the trace has no path and no dialect yet."""
    tables = _Tables(rows.keys)
    kinds, kind = numbered(map(itemgetter(0), rows.keys))
    role_of = np.array([ROLE.get(phase, OTHER_PHASE) for phase in kinds], np.int8)[kind]
    repairs = [f"{counted(n, noun)} {fate}" for (noun, fate), n in rows.repairs.items()]
    counts = np.bincount(kind, rows.counts, len(kinds)).astype(np.int64)
    phases: Counter[Any] = Counter(dict(zip(kinds, counts.tolist(), strict=True)))
    if odd := sum(n for phase, n in phases.items() if phase not in _PHASES):
        repairs.append(f"{counted(odd, 'event')} of phases that the format does not have ignored")
    if beyond := int(rows.counts[tables.is_beyond].sum()):
        repairs.append(f"{counted(beyond, 'event')} with an id of more than 64 bits: the id left out")
    args = {name: _fitting(name, *column, repairs) for name, column in rows.args.items()}
    key, ts_ns, dur_ns = rows.key, rows.ts_ns, rows.dur_ns
    if ((role_of == BEGIN) | (role_of == END)).any():
        role = role_of[rows.key]
        begin, end, dur_ns = _paired(rows, role, tables, pairing, repairs)
        kept = np.sort(np.concatenate([np.flatnonzero(role == SLICE), begin]))
        key, ts_ns, dur_ns = rows.key[kept], rows.ts_ns[kept], dur_ns[kept]
        args = {name: _with_ends(column, begin, end).select(kept) for name, column in args.items()}
    point_key, point_ts_ns, point_ids, point_args = rows.points
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
            phase=np.array([str(key[0]) for key in rows.keys], np.object_)[point_key],
            name_id=tables.name[point_key],
            cat_id=tables.cat[point_key],
            track_id=tables.track[point_key],
            ts_ns=point_ts_ns,
            ids=np.array(point_ids, np.object_),
            args=point_args,
        ),
        metadata=rows.metadata,
        phases=dict(phases),
        repairs=repairs,
    )


def with_spans(rows: Rows) -> Rows:
    """Take asynchronous spans, whose begins and ends share an id, for the slices of a file without others."""
    key, ts_ns, ids, _ = rows.points
    kinds = [rows.keys[i] for i in key.tolist()]
    order = np.flatnonzero([kind[0] in SPANS for kind in kinds])
    is_begin = np.array([SPANS.get(kind[0]) == BEGIN for kind in kinds], np.bool_)
    _, span = numbered((*kind[2:4], span_id) for kind, span_id in zip(kinds, ids, strict=True))
    _, name = numbered(str(kind[1]) for kind in kinds)
    pairs = pair(is_begin[order], span[order], ts_ns[order], name[order], EndRule.NESTED_BY_NAME)
    begin, end = (order[index] for index in pairs)
    keys = [("X" if phase in SPANS else phase, *others) for phase, *others in rows.keys]
    dur_ns = np.maximum(ts_ns[end] - ts_ns[begin], 0)
    return replace(rows, keys=keys, key=key[begin], ts_ns=ts_ns[begin], dur_ns=dur_ns)


def with_known_durations(trace: Trace) -> Trace:
    """Take X events without a duration, or with one that cannot be, as 0 long."""
    unknown = trace.dur_ns == LONGEST_NS
    if not unknown.any():
        return trace
    note = f"{counted(int(unknown.sum()), 'X event')} without a sound duration taken as 0 long"
    return replace(trace, dur_ns=np.where(unknown, 0, trace.dur_ns), repairs=[*trace.repairs, note])


def _paired(
    rows: Rows, role: NDArray[np.int8], tables: _Tables, pairing: EndRule, repairs: list[str]
) -> tuple[Int64, Int64, Int64]:
    """Rows of begins (k,) and of their ends (k,), and the durations of all rows."""
    bounds = np.flatnonzero(role != SLICE)
    key, is_begin = rows.key[bounds], role[bounds] == BEGIN
    places = pair(is_begin, tables.track[key], rows.ts_ns[bounds], tables.name_or_none[key], pairing)
    begin, end = (bounds[index] for index in places)
    n_begins = int(is_begin.sum())
    between = rows.ts_ns[end] - rows.ts_ns[begin]
    is_absurd = (between < 0) | (between > LONGEST_NS)
    dur_ns = rows.dur_ns.copy()
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
    if rule is EndRule.NESTED_BY_NAME and wrong.any():  # the slow way, for these tracks only
        bad_tracks = unique(track[inner_begin[wrong]])
        right = ~np.isin(track[inner_begin], bad_tracks)
        begin, end = _by_stack(order[np.isin(track[order], bad_tracks)], is_begin, track, name)
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


def _by_stack(order: Int64, is_begin: Mask, track: Int32, name: Int32) -> tuple[Int64, Int64]:
    open_rows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    end_of: dict[int, int] = {}  # a closed begin may still lie on the other stack
    keys = zip(order.tolist(), track[order].tolist(), name[order].tolist(), strict=True)
    for row, track_id, name_id in keys:
        if is_begin[row]:
            open_rows[track_id, -1].append(row)
            open_rows[track_id, name_id].append(row)
            continue
        stack = open_rows[track_id, name_id]
        while stack and stack[-1] in end_of:
            stack.pop()
        if stack:
            end_of[stack.pop()] = row
    return np.array([*end_of], np.int64), np.array([*end_of.values()], np.int64)
