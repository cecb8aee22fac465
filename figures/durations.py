"""How long each operation and category takes, on a rank or over all: exact, or with a stated error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from msgspec import Struct, field

import dialects
from arrays import Int32, Int64, NDArray
from arrays.intervals import union_length
from arrays.numbering import numbered
from formats.columns import Trace
from opname import OpName

#: How far a quantile from a sketch is off at most, as a share of itself.
ERROR = 0.005
#: Operations with more events on a rank than this are sketched.
MOST_VALUES = 256
_GROWTH = 1 + ERROR
_MOST_TOTAL = 1 << 62  # nanoseconds: a sum beyond has no place in a file
_BLOCK = 4096  # statistics that are made at a time


class Stat(Struct, frozen=True):
    """The durations of one operation; the variance is the population's, percentiles interpolate linearly.

    Over several ranks (`over_ranks`) also on how many of them it is, and its averages on the extreme ones.
    """

    name: str
    cat: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    mean_ns: float
    var_ns2: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    ranks: int = 1
    slowest_rank: str = ""
    slowest_mean_ns: float = 0.0
    fastest_mean_ns: float = 0.0


#: The columns of `Stats`, as far as it has them.
_COLUMNS = Stat.__struct_fields__[2:]


class Stats(Sequence[Stat]):
    """The statistics of m operations, as columns; a `Stat` is made when it is asked for.

    Attributes
    ----------
    operations : (name, category) of each
    columns : (m,) each, by the names of the other members of `Stat`; those of ranks may lack
    """

    def __init__(self, operations: Sequence[tuple[str, str]], columns: Mapping[str, NDArray[Any]]) -> None:
        self.operations = operations
        self.columns = {name: columns[name] for name in _COLUMNS if name in columns}

    def __len__(self) -> int:
        return len(self.operations)

    @overload
    def __getitem__(self, at: int) -> Stat: ...
    @overload
    def __getitem__(self, at: slice) -> Stats: ...
    def __getitem__(self, at: int | slice) -> Stat | Stats:
        if isinstance(at, slice):
            return Stats(self.operations[at], {name: column[at] for name, column in self.columns.items()})
        return Stat(*self.operations[at], *(column[[at]].tolist()[0] for column in self.columns.values()))

    def __iter__(self) -> Iterator[Stat]:
        for begin in range(0, len(self), _BLOCK):
            columns = (column[begin : begin + _BLOCK].tolist() for column in self.columns.values())
            for pair, *row in zip(self.operations[begin : begin + _BLOCK], *columns, strict=True):
                yield Stat(*pair, *row)

    def take(self, rows: Int64) -> Stats:
        """Return the statistics at `rows` (k,)."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Stats([self.operations[i] for i in rows.tolist()], columns)


class CategoryStat(Struct, frozen=True):
    """The slices of one category. Where they nest on a track, the time is counted once in the total."""

    cat: str
    count: int
    total_ns: int
    max_name: str  # the operation with the highest average
    max_avg_ns: float


class Moments(Struct, frozen=True, array_like=True):
    """Exact figures of an operation whose durations are not all kept."""

    count: int
    total_ns: int
    squares_ns2: float  # sum of the squared deviations from the mean
    min_ns: int
    max_ns: int

    def __add__(self, other: Moments) -> Moments:
        """Return the figures of both together (Chan, Golub, LeVeque, COMPSTAT 1982)."""
        count = self.count + other.count
        apart = other.total_ns / other.count - self.total_ns / self.count
        return Moments(
            count,
            self.total_ns + other.total_ns,
            self.squares_ns2 + other.squares_ns2 + apart * apart * self.count * other.count / count,
            min(self.min_ns, other.min_ns),
            max(self.max_ns, other.max_ns),
        )


class Durations(Struct, frozen=True):
    """The durations of the events of m operations, which come by first appearance.

    Operation i has the values from ``start[i]`` to ``start[i + 1]``, ascending. Each is one event, or with
    `weight` so many. `moments` has those operations whose values only stand for their durations (a sketch).
    """

    operations: Sequence[tuple[str, str]]  # (name, category)
    value_ns: Int64  # (v,)
    start: Int64  # (m + 1,)
    weight: Int64 | None = None  # (v,)
    moments: Mapping[int, Moments] = field(default_factory=dict)

    @property
    def weights(self) -> Int64:
        """How many events each value stands for (v,)."""
        return np.ones(len(self.value_ns), np.int64) if self.weight is None else self.weight

    @property
    def count(self) -> Int64:
        """Events of each operation (m,)."""
        if self.weight is None:
            return np.diff(self.start)
        return np.add.reduceat(self.weight, self.start[:-1])

    def moments_of(self, i: int) -> Moments:
        """Return the exact figures of operation i."""
        if i in self.moments:
            return self.moments[i]
        values = self.value_ns[self.start[i] : self.start[i + 1]]
        total = sum(values.tolist())
        squares = float(np.square(values - total / len(values)).sum())
        return Moments(len(values), total, squares, int(values[0]), int(values[-1]))


NO_DURATIONS = Durations((), np.empty(0, np.int64), np.zeros(1, np.int64))


def durations(trace: Trace) -> Durations:
    """Return the durations of every operation of a trace."""
    op, operations = operations_of_slices(trace)
    return _sorted(op, trace.dur_ns, operations) if operations else NO_DURATIONS


def operations_of_slices(trace: Trace) -> tuple[Int32, list[tuple[str, str]]]:
    """Return each slice's operation (n,), numbered by first appearance, and their (name, category).

    An operation is a distinct (name, category). The name of a BytePS sub-task has its partition, which the
    track may hold; a category that is not recorded is the kind of operation that the name tells.
    """
    if len(trace) == 0:
        return np.empty(0, np.int32), []
    system = dialects.of(trace)
    staged = np.array([system.names_by_track and _lacks_key(name) for name in trace.names], np.bool_)
    cat_id, cats = _categories(trace)
    parts = [(trace.name_id, len(trace.names)), (cat_id, len(cats))]
    if staged.any():
        parts.append((np.where(staged[trace.name_id], trace.track_id + 1, 0), len(trace.tracks) + 1))
    op, first = _dense(_code(*parts))
    names = [trace.names[i] for i in trace.name_id[first].tolist()]
    for i in np.flatnonzero(staged[trace.name_id[first]]).tolist():
        names[i] = system.operation(names[i], trace.tracks[trace.track_id[first[i]]].tid)
    pairs = zip(names, map(cats.__getitem__, cat_id[first].tolist()), strict=True)
    distinct, place = numbered(pairs)  # one key may be on several tracks
    return (op if len(distinct) == len(place) else place[op]), distinct


def joined(parts: Sequence[Durations]) -> Durations:
    """Return the durations of several traces, ranks say, as those of one."""
    if len(parts) == 1:
        return parts[0]
    number: dict[tuple[str, str], int] = {}
    places = [[number.setdefault(pair, len(number)) for pair in part.operations] for part in parts]
    if not number:
        return NO_DURATIONS
    pairs = list(zip(parts, places, strict=True))
    op = np.concatenate([np.repeat(np.array(place, np.int32), np.diff(part.start)) for part, place in pairs])
    value = np.concatenate([part.value_ns for part in parts])
    if all(part.weight is None for part in parts):
        return _sorted(op, value, list(number))
    moments: dict[int, Moments] = {}
    sketched = {place[i] for part, place in pairs for i in part.moments}
    for part, place in pairs:
        for i, into in enumerate(place):
            if into in sketched:
                more = part.moments_of(i)
                moments[into] = moments[into] + more if into in moments else more
    order = np.lexsort((value, op))
    weight = np.concatenate([part.weights for part in parts])[order]
    return Durations(list(number), value[order], _starts(op, len(number)), weight, moments)


def statistics(durations: Durations, prefix: str = "") -> Stats:
    """Return the statistics of every operation, in order; `prefix` goes before each name."""
    if not durations.operations:
        return Stats((), dict.fromkeys(_COLUMNS, np.empty(0)))
    start, count, values, weight = durations.start[:-1], durations.count, durations.value_ns, durations.weight
    fits = int(values.max()) < (1 << 62) // int(count.sum())
    summed = values if fits else values.astype(np.float64)
    total = np.add.reduceat(summed if weight is None else summed * weight, start)
    mean = total / count
    deviation = np.repeat(mean, np.diff(durations.start))
    np.subtract(values, deviation, out=deviation)
    np.square(deviation, out=deviation)
    if weight is not None:
        deviation *= weight
    var = np.add.reduceat(deviation, start) / count
    columns = {
        "count": count,
        "total_ns": total,
        "min_ns": values[start],
        "max_ns": values[durations.start[1:] - 1],
        "mean_ns": mean,
        "var_ns2": var,
        **{f"p{100 * q:.0f}_ns": _quantile(durations, count, q) for q in (0.50, 0.95, 0.99)},
    }
    if durations.moments:
        _correct(columns, durations.moments)
    pairs = durations.operations
    return Stats([(prefix + name, cat) for name, cat in pairs] if prefix else pairs, columns)


def all_of(parts: Sequence[Stats]) -> Stats:
    """Return the statistics of several ranks, one after another."""
    parts = list(filter(len, parts)) or parts[:1]  # of none the columns may be others
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for name in parts[0].columns:
        of_parts = [part.columns[name] for part in parts]
        alike = len({column.dtype for column in of_parts}) == 1  # else each number keeps its type
        columns[name] = np.concatenate(of_parts if alike else [column.astype(object) for column in of_parts])
    return Stats([pair for part in parts for pair in part.operations], columns)


def longest_first(stats: Stats) -> Stats:
    """Return the statistics by their means, the largest first."""
    return stats.take(np.argsort(-stats.columns["mean_ns"], kind="stable"))


def _correct(columns: dict[str, NDArray[Any]], moments: Mapping[int, Moments]) -> None:
    """Put what is known exactly of some operations into the columns of `Stats`."""
    columns["total_ns"] = columns["total_ns"].astype(object)  # exact beyond 64 bits too
    for i, known in moments.items():
        for name in ("total_ns", "min_ns", "max_ns"):
            columns[name][i] = getattr(known, name)
        columns["mean_ns"][i] = known.total_ns / known.count
        columns["var_ns2"][i] = known.squares_ns2 / known.count


def category_totals(trace: Trace) -> Counter[str]:
    """Return nanoseconds per category: on each track, the time in which a slice of it was open."""
    totals: Counter[str] = Counter()
    if len(trace) == 0:
        return totals
    cat_id, cats = _categories(trace)
    group, _ = _dense(_code((trace.track_id, len(trace.tracks)), (cat_id, len(cats))))
    counts = np.bincount(group)
    bounds = np.cumsum(counts) - counts
    order, start = _time_order(group, trace.ts_ns, bounds)
    end = trace.dur_ns[order]
    sums = np.add.reduceat(end, bounds)
    end += start
    nests = np.zeros(len(start), np.bool_)
    nests[1:] = start[1:] < end[:-1]
    nests[bounds] = False
    has_nests = np.logical_or.reduceat(nests, bounds)
    for i, begin in enumerate(bounds.tolist()):
        stop = int(bounds[i + 1]) if i + 1 < len(bounds) else len(start)
        ns = union_length(start[begin:stop], end[begin:stop]) if has_nests[i] else int(sums[i])
        totals[cats[cat_id[order[begin]]]] += ns
    return totals


def categories(total_ns: Mapping[str, int], stats: Stats) -> list[CategoryStat]:
    """Return the statistics per category, given its `category_totals` and the operations' statistics."""
    count: Counter[str] = Counter()
    best: dict[str, tuple[float, str]] = {}
    counts, means = (stats.columns[name].tolist() for name in ("count", "mean_ns"))
    for (name, cat), n, mean_ns in zip(stats.operations, counts, means, strict=True):
        count[cat] += n
        if cat not in best or mean_ns > best[cat][0]:
            best[cat] = mean_ns, name
    return [CategoryStat(cat, count[cat], total_ns[cat], name, mean) for cat, (mean, name) in best.items()]


def _sorted(op: Int32, dur: Int64, operations: Sequence[tuple[str, str]]) -> Durations:
    return Durations(operations, _sorted_by_op(op, dur, len(operations)), _starts(op, len(operations)))


def _starts(op: Int32, n_ops: int) -> Int64:
    return np.concatenate([[0], np.cumsum(np.bincount(op, minlength=n_ops))])


def _categories(trace: Trace) -> tuple[Int32, list[str]]:
    """Return the category of each slice (n,) and their names: by the operation's where it has none."""
    number = {cat: i for i, cat in enumerate(trace.cats)}
    if "" not in number:
        return trace.cat_id, list(number)
    derived = [number.setdefault(OpName.parse(name).cat or "", len(number)) for name in trace.names]
    has_none = trace.cat_id == number[""]
    return np.where(has_none, np.array(derived, np.int32)[trace.name_id], trace.cat_id), list(number)


def _code(*parts: tuple[Int32, int]) -> NDArray[np.integer]:
    """Return one number (n,) for the numbers of each row, each below its limit; in 32 bits if it fits."""
    dtype = np.int32 if math.prod(n for _, n in parts) < 1 << 31 else np.int64
    code: NDArray[np.integer] = parts[0][0].astype(dtype)
    for ids, n in parts[1:]:
        code *= n
        code += ids
    return code


def _dense(code: NDArray[np.integer]) -> tuple[Int32, Int64]:
    """Renumber codes (n,) by first appearance; return also the row of each number's first one."""
    if int(code.max()) >= 4 * len(code) + (1 << 20):  # else a table of all codes is faster than sorting
        code = np.unique(code, return_inverse=True)[1]
    first_row = np.full(int(code.max()) + 1, -1, np.int64)
    first_row[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    used = np.flatnonzero(first_row >= 0)
    used = used[np.argsort(first_row[used])]
    number = np.empty(len(first_row), np.int32)
    number[used] = np.arange(len(used))
    return number[code], first_row[used]


def _lacks_key(name: str) -> bool:
    if "Comm." not in name:  # at once, because names can be many
        return False
    parsed = OpName.parse(name)
    return parsed.queue is not None and parsed.key is None


def _sorted_by_op(op: Int32, dur: Int64, n_ops: int) -> Int64:
    """Return the durations sorted by (operation, duration); by one key in 63 bits if they fit."""
    bits = int(dur.max()).bit_length()
    if bits + n_ops.bit_length() >= 63:
        return dur[np.lexsort((dur, op))]
    key = op.astype(np.int64)  # in place from here on: a trace may have millions of rows
    key <<= bits
    key |= dur
    key.sort()
    key &= (1 << bits) - 1
    return key


def _quantile(durations: Durations, count: Int64, q: float) -> NDArray[np.float64]:
    """Return the q-quantile of each operation (m,), by linear interpolation (Hyndman & Fan 7)."""
    at = q * (count - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = (_nth(durations, count, place) for place in (low, high))
    out: NDArray[np.float64] = below + (above - below) * (at - low)
    return out


def _nth(durations: Durations, count: Int64, place: Int64) -> Int64:
    """Return the value at each operation's `place` (m,), from 0, among its `count` events."""
    at: Int64 = durations.start[:-1] + place
    if durations.weight is not None:
        before = np.cumsum(count) - count
        at = np.searchsorted(np.cumsum(durations.weight), before + place, side="right")
    return durations.value_ns[at]


def _time_order(group: Int32, ts_ns: Int64, bounds: Int64) -> tuple[Int64, Int64]:
    """Return the rows by group, then time, and their times (n,); the groups begin at `bounds` (m,).

    Grouping by 16 bits takes a tenth of sorting by time as well, which many tracks do not need.
    """
    if len(bounds) > 1 << 16:
        order = np.lexsort((ts_ns, group))
        return order, ts_ns[order]
    order = np.argsort(group.astype(np.uint16), kind="stable")
    ordered = ts_ns[order]
    is_earlier = ordered[1:] < ordered[:-1]
    is_earlier[bounds[1:] - 1] = False
    for i in np.flatnonzero(np.bincount(group[order[1:][is_earlier]])).tolist():
        own = slice(bounds[i], bounds[i + 1] if i + 1 < len(bounds) else None)
        by_time = np.argsort(ordered[own], kind="stable")
        order[own], ordered[own] = order[own][by_time], ordered[own][by_time]
    return order, ordered


def sketched(durations: Durations) -> Durations:
    """Return the durations with those of operations that have more than `MOST_VALUES` events sketched.

    Their count, sum, variance and extremes stay exact (`Durations.moments`). The sketch is that of
    logarithmic buckets (DDSketch: Masson, Rim, Lee, PVLDB 12, 2019): a bucket reaches from a power of
    `_GROWTH` to the next, and all of its durations are taken for the middle between the least and the
    greatest of them. Each is then off by at most half the bucket's width and, by rounding, half a
    nanosecond: together at most `ERROR` of itself, as a bucket below 200 ns holds one whole number only.
    So is every quantile, since the order of the values stays; also that of several ranks together.
    """
    many = np.diff(durations.start) > MOST_VALUES
    if durations.weight is not None or not many.any():
        return durations
    many &= np.add.reduceat(durations.value_ns.astype(np.float64), durations.start[:-1]) < _MOST_TOTAL
    op = np.repeat(np.arange(len(many)), np.diff(durations.start))
    value = durations.value_ns
    bucket = np.where(value > 0, np.floor(np.log(np.maximum(value, 1)) / np.log(_GROWTH)), -1.0)
    first = np.ones(len(value), np.bool_)  # of its bucket; where all are kept each value has its own
    first[1:] = ~many[op[1:]] | (op[1:] != op[:-1]) | (bucket[1:] != bucket[:-1])
    at = np.flatnonzero(first)
    last = np.append(at[1:], len(value)) - 1
    middle = value[at] + (value[last] - value[at]) // 2
    start = np.searchsorted(at, durations.start)
    moments = {i: durations.moments_of(i) for i in np.flatnonzero(many).tolist()}
    return Durations(durations.operations, middle, start, last - at + 1, moments)


def over_ranks(ranks: Collection[tuple[str, Durations]]) -> Stats:
    """Return the statistics of each operation over `ranks`, each with its name, by first appearance.

    Of ranks that are equally slow, the first one is named.
    """
    stats = statistics(joined([durations for _, durations in ranks]))
    means: dict[tuple[str, str], dict[str, float]] = {pair: {} for pair in stats.operations}
    for rank, durations in ranks:
        own = statistics(durations)
        for pair, mean_ns in zip(own.operations, own.columns["mean_ns"].tolist(), strict=True):
            means[pair][rank] = mean_ns
    rows = [
        (len(one), slowest := max(one, key=one.__getitem__), one[slowest], min(one.values()))
        for one in means.values()
    ]
    more = zip(*rows, strict=True) if rows else ((),) * 4
    columns = {name: np.array(column) for name, column in zip(_COLUMNS[-4:], more, strict=True)}
    return Stats(stats.operations, stats.columns | columns)
