"""How long each operation takes: exact figures per (name, category), and per category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dialects.byteps import with_key
from formats.columns import Int32, Int64, Trace
from intervals import union_length
from opname import OpName


@dataclass(frozen=True, slots=True)
class Stat:
    """The durations of one operation; the variance is the population's, percentiles interpolate linearly."""

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


@dataclass(frozen=True, slots=True)
class CategoryStat:
    """The slices of one category. Where they nest on a track, the time is counted once in the total."""

    cat: str
    count: int
    total_ns: int
    max_name: str  # the operation with the highest average
    max_avg_ns: float


def statistics(trace: Trace, prefix: str = "") -> list[Stat]:
    """Return the duration statistics of every operation, in order of first appearance.

    An operation is a distinct (name, category); a BytePS sub-task's name carries its partition key,
    which its track holds. `prefix` goes before each name.
    """
    if len(trace) == 0:
        return []
    op, name_cat = _operations(trace)
    count = np.bincount(op, minlength=len(name_cat))
    start = np.cumsum(count) - count
    dur = _sorted_by_op(op, trace.dur_ns, len(name_cat))
    fits = int(dur.max()) < (1 << 62) // len(dur)
    total = np.add.reduceat(dur if fits else dur.astype(np.float64), start)
    mean = total / count
    deviation = np.repeat(mean, count)
    np.subtract(dur, deviation, out=deviation)
    var = np.add.reduceat(np.square(deviation, out=deviation), start) / count
    quantiles = [_quantile(dur, start, count, q) for q in (0.50, 0.95, 0.99)]
    figures = (count, total, dur[start], dur[start + count - 1], mean, var, *quantiles)
    return [
        Stat(prefix + name, cat, *values)
        for (name, cat), *values in zip(name_cat, *(column.tolist() for column in figures), strict=True)
    ]


def categories(traces: Sequence[Trace], stats: Sequence[Stat]) -> list[CategoryStat]:
    """Return the statistics per category of traces whose operations have the statistics `stats`."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for trace in traces:
        total.update(_category_totals(trace))
    best: dict[str, Stat] = {}
    for stat in stats:
        count[stat.cat] += stat.count
        if stat.cat not in best or stat.mean_ns > best[stat.cat].mean_ns:
            best[stat.cat] = stat
    return [CategoryStat(cat, count[cat], total[cat], top.name, top.mean_ns) for cat, top in best.items()]


def _operations(trace: Trace) -> tuple[Int32, list[tuple[str, str]]]:
    """Return each slice's operation (n,), numbered by first appearance, and their (name, category)."""
    staged = np.array([_lacks_key(name) for name in trace.names], np.bool_)
    cat_id, cats = _categories(trace)
    code = trace.name_id.astype(np.int64)
    code *= len(cats)
    code += cat_id
    if staged.any():
        code *= len(trace.tracks) + 1
        code += np.where(staged[trace.name_id], trace.track_id + 1, 0)
    op, first = _dense(code)
    names = [trace.names[i] for i in trace.name_id[first].tolist()]
    for i in np.flatnonzero(staged[trace.name_id[first]]).tolist():
        names[i] = with_key(names[i], trace.tracks[trace.track_id[first[i]]].tid)
    pairs = list(zip(names, map(cats.__getitem__, cat_id[first].tolist()), strict=True))
    distinct = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    if len(distinct) < len(pairs):  # one key on several tracks
        op = np.array([distinct[pair] for pair in pairs], np.int32)[op]
    return op, list(distinct)


def _categories(trace: Trace) -> tuple[Int32, list[str]]:
    """Return the category of each slice (n,) and their names: by the operation's where it has none."""
    number = {cat: i for i, cat in enumerate(trace.cats)}
    if "" not in number:
        return trace.cat_id, list(number)
    derived = [number.setdefault(OpName.parse(name).cat or "", len(number)) for name in trace.names]
    has_none = trace.cat_id == number[""]
    return np.where(has_none, np.array(derived, np.int32)[trace.name_id], trace.cat_id), list(number)


def _dense(code: Int64) -> tuple[Int32, Int64]:
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
    """Whether the name is a stage of a communication without its partition key."""
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


def _quantile(dur: Int64, start: Int64, count: Int64, q: float) -> NDArray[np.float64]:
    """Return the q-quantile of each run of sorted durations, by linear interpolation (Hyndman & Fan 7)."""
    at = q * (count - 1)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, count - 1)
    below, above = dur[start + low], dur[start + high]
    out: NDArray[np.float64] = below + (above - below) * (at - low)
    return out


def _category_totals(trace: Trace) -> Counter[str]:
    """Return nanoseconds per category: on each track, the time in which a slice of it was open."""
    totals: Counter[str] = Counter()
    if len(trace) == 0:
        return totals
    cat_id, cats = _categories(trace)
    code = trace.track_id.astype(np.int64)
    code *= len(cats)
    code += cat_id
    group, _ = _dense(code)
    del code
    counts = np.bincount(group)
    bounds = np.cumsum(counts) - counts
    order = _time_order(group, trace.ts_ns)
    start, end = trace.ts_ns[order], trace.dur_ns[order]
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


def _time_order(group: Int32, ts_ns: Int64) -> Int64:
    """Return the rows by group, then time: by one key where both fit into 63 bits, which is faster."""
    since = ts_ns - ts_ns.min()
    bits = int(since.max()).bit_length()
    if bits + int(group.max()).bit_length() >= 63:
        return np.lexsort((ts_ns, group))
    since |= group.astype(np.int64) << bits
    return np.argsort(since)
