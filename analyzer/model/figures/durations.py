"""Durations of operations and categories, in total and step by step, for each file and joined over files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int32, Int64, NDArray
from analyzer.base.arrays.intervals import innermost, union_length
from analyzer.base.arrays.numbering import narrowest, numbered, occurrence_number
from analyzer.base.errors import check_cells
from analyzer.base.names import OpName
from analyzer.model.figures.time_by_role import time_by_operation
from analyzer.reading import dialects
from analyzer.reading.dialects.roles import by_cat
from analyzer.reading.dialects.steps import Step, Steps
from analyzer.reading.dialects.system import DEVICE_CATS, STEP_MARK, STEP_MARKS
from analyzer.reading.formats.columns import Trace

#: Parts of names that differ from call to call, and their replacements.
_FOLDS = (
    (re.compile(STEP_MARK), STEP_MARKS),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}\b"), "0x…"),  # <function f at 0x7f63ad2b1510>
    (re.compile(r"#\d+\b"), "#*"),
    (re.compile(r"\b((?:\w*_)?(?:step|iteration|iter|batch|epoch)[ _#:=-]+)\d+\b", re.IGNORECASE), r"\1*"),
)
_BATCHES = 10  # samples of the occurrences of an operation where no step is marked


class OperationStats(Struct, frozen=True):
    """The durations of m operations by column, (m,) each; operations come by first appearance.

    Percentiles interpolate linearly; they are NaN where an operation's events are of several files.
    `own_ns` is the total without the slices inside on the same track.
    """

    operations: Sequence[tuple[str, str]]  # (name, category)
    count: Int64
    total_ns: Float64
    squares_ns2: Float64  # sum of the squared deviations from the mean
    min_ns: Int64
    max_ns: Int64
    own_ns: Float64
    p50_ns: Float64
    p95_ns: Float64
    p99_ns: Float64


class Stat(Struct, frozen=True):
    """The durations of one operation (population variance); `over_ranks` adds ranks and extremes."""

    name: str
    cat: str
    count: int
    total_ns: float
    min_ns: int
    max_ns: int
    mean_ns: float
    var_ns2: float
    own_ns: float
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    ranks: int = 1
    slowest_rank: str = ""
    slowest_mean_ns: float = 0.0
    fastest_mean_ns: float = 0.0


class _CategoryStat(Struct, frozen=True):
    """The slices of one category; nested time on a track counts once in the total."""

    cat: str
    count: int
    total_ns: int
    max_name: str  # the operation with the highest average
    max_avg_ns: float


def durations(trace: Trace) -> OperationStats:
    """Compute the statistics of every operation of a trace."""
    op, operations = operations_of_slices(trace)
    return operation_stats(operations, op, trace.dur_ns, _own_ns(trace))


def _own_ns(trace: Trace) -> Int64:
    """Compute the duration of each slice (n,) without the slices inside on its track.

    Work of a stream, and partitions of BytePS, which are tracks, may overlap and do not nest.
    """
    own_ns: Int64 = trace.dur_ns.copy()
    if not dialects.of(trace).names_by_track:
        rows = np.flatnonzero(~by_cat(trace, DEVICE_CATS.__contains__))
        owner, begin, end = innermost(trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows])
        own_ns[rows] = np.bincount(owner, end - begin, len(rows))
    return own_ns


def operation_stats(
    operations: Sequence[tuple[str, str]], op: Int32, dur_ns: Int64, own_ns: NDArray[Any]
) -> OperationStats:
    """Compute the statistics of m operations from the operation and times of each event, (n,) each."""
    count = np.bincount(op, minlength=len(operations))
    end = np.cumsum(count)
    start = end - count
    value = _sorted_by_op(op, dur_ns, len(operations))
    percentiles = [_quantile(value, start, count, q) for q in (0.50, 0.95, 0.99)]
    deviation = value.astype(np.float64)
    total = np.add.reduceat(deviation, start)
    deviation -= np.repeat(total / count, count)
    np.square(deviation, out=deviation)
    squares = np.add.reduceat(deviation, start)
    own = np.asarray(np.bincount(op, own_ns, len(operations)), np.float64)
    return OperationStats(operations, count, total, squares, value[start], value[end - 1], own, *percentiles)


def operations_of_slices(trace: Trace) -> tuple[Int32, list[tuple[str, str]]]:
    """Find each slice's operation (n,), numbered by first appearance, and the distinct (name, category).

    The name of a BytePS sub-task includes its partition, which the track may hold; a missing category is the
    kind of operation in the name.
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
    distinct, number = numbered(pairs)  # one key may be on several tracks
    return (op if len(distinct) == len(number) else number[op]), distinct


def joined(parts: Sequence[OperationStats]) -> OperationStats:
    """Join the statistics of several files or ranks.

    Deviations are combined as by Chan, Golub, LeVeque (COMPSTAT 1982). Percentiles are kept if one part has
    the operation.
    """
    operations, op = numbered(pair for part in parts for pair in part.operations)
    m = len(operations)

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    def added(values: NDArray[Any]) -> Float64:
        return np.asarray(np.bincount(op, values, m), np.float64)

    count, total_ns = column("count"), column("total_ns")
    n_events, all_ns = added(count), added(total_ns)
    apart = total_ns / count - (all_ns / n_events)[op]
    least, most = np.full(m, np.iinfo(np.int64).max), np.zeros(m, np.int64)
    np.minimum.at(least, op, column("min_ns"))
    np.maximum.at(most, op, column("max_ns"))
    is_alone = np.bincount(op, minlength=m)[op] == 1
    return OperationStats(
        operations,
        n_events.astype(np.int64),
        all_ns,
        added(column("squares_ns2") + count * apart**2),
        least,
        most,
        added(column("own_ns")),
        *(added(np.where(is_alone, column(name), np.nan)) for name in ("p50_ns", "p95_ns", "p99_ns")),
    )


def rows_of(stats: OperationStats, prefix: str = "") -> list[Stat]:
    """Make a row for each operation; `prefix` goes before its name."""
    mean, variance = stats.total_ns / stats.count, stats.squares_ns2 / stats.count
    exact = (stats.count, stats.total_ns, stats.min_ns, stats.max_ns, mean, variance, stats.own_ns)
    percentiles = (
        [None if math.isnan(ns) else ns for ns in column.tolist()]
        for column in (stats.p50_ns, stats.p95_ns, stats.p99_ns)
    )
    rows = zip(stats.operations, *(column.tolist() for column in exact), *percentiles, strict=True)
    return [Stat(prefix + name, cat, *row) for (name, cat), *row in rows]


def over_ranks(ranks: Collection[tuple[str, OperationStats]]) -> list[Stat]:
    """Make a row for each operation over the named `ranks`, by first appearance."""
    means: dict[tuple[str, str], dict[str, float]] = {}
    for rank, stats in ranks:
        for pair, mean_ns in zip(stats.operations, (stats.total_ns / stats.count).tolist(), strict=True):
            means.setdefault(pair, {})[rank] = mean_ns
    rows = []
    for row in rows_of(joined([stats for _, stats in ranks])):
        of_ranks = means[row.name, row.cat]
        slowest, slowest_ns = max(of_ranks.items(), key=lambda item: item[1])
        extremes = {"slowest_mean_ns": slowest_ns, "fastest_mean_ns": min(of_ranks.values())}
        rows.append(replace(row, ranks=len(of_ranks), slowest_rank=slowest, **extremes))
    return rows


def category_totals(trace: Trace) -> Counter[str]:
    """Compute nanoseconds per category: on each track, the time in which a slice of it was open."""
    totals: Counter[str] = Counter()
    if len(trace) == 0:
        return totals
    cat_id, cats = _categories(trace)
    group, _ = _dense(_code((trace.track_id, len(trace.tracks)), (cat_id, len(cats))))
    order, end_ns = np.argsort(narrowest(group), kind="stable"), trace.end_ns
    for rows in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        totals[cats[cat_id[rows[0]]]] += union_length(trace.ts_ns[rows], end_ns[rows])
    return totals


def categories(total_ns: Mapping[str, int], rows: Iterable[Stat]) -> list[_CategoryStat]:
    """Compute the statistics per category from its `category_totals` and the operations' rows."""
    rows_of_cat: dict[str, list[Stat]] = {}
    for row in rows:
        rows_of_cat.setdefault(row.cat, []).append(row)
    stats = []
    for cat, of_cat in rows_of_cat.items():
        longest = max(of_cat, key=lambda row: row.mean_ns)
        count = sum(row.count for row in of_cat)
        stats.append(_CategoryStat(cat, count, total_ns[cat], longest.name, longest.mean_ns))
    return stats


def _categories(trace: Trace) -> tuple[Int32, list[str]]:
    """Find the category of each slice (n,), by its name if none is recorded, and the categories."""
    number = {cat: i for i, cat in enumerate(trace.cats)}
    if "" not in number:
        return trace.cat_id, list(number)
    derived = [number.setdefault(OpName.parse(name).cat or "", len(number)) for name in trace.names]
    has_none = trace.cat_id == number[""]
    return np.where(has_none, np.array(derived, np.int32)[trace.name_id], trace.cat_id), list(number)


def _code(*parts: tuple[Int32, int]) -> NDArray[np.integer]:
    """Pack the numbers of each row, each below its limit, into one (n,); in 32 bits if it fits."""
    dtype = np.int32 if math.prod(n for _, n in parts) < 1 << 31 else np.int64
    code: NDArray[np.integer] = parts[0][0].astype(dtype)
    for ids, n in parts[1:]:
        code *= n
        code += ids
    return code


def _dense(code: NDArray[np.integer]) -> tuple[Int32, Int64]:
    """Renumber codes (n,) by first appearance; return also the first row of each number."""
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
    return "Comm." in name and (op := OpName.parse(name)).queue is not None and op.key is None


def _sorted_by_op(op: Int32, dur: Int64, n_ops: int) -> Int64:
    """Sort durations by (operation, duration), by one key in 63 bits if they fit."""
    bits = int(dur.max(initial=0)).bit_length()
    if bits + n_ops.bit_length() >= 63:
        return dur[np.lexsort((dur, op))]
    key = op.astype(np.int64)  # in place from here on: a trace may have millions of rows
    key <<= bits
    key |= dur
    key.sort()
    key &= (1 << bits) - 1
    return key


def _quantile(value: Int64, start: Int64, count: Int64, q: float) -> Float64:
    """Compute the q-quantile of each operation's sorted values from `start` (m,) on (Hyndman & Fan 7)."""
    position = q * (count - 1)
    low = np.floor(position).astype(np.int64)
    below, above = value[start + low], value[start + np.minimum(low + 1, count - 1)]
    return np.asarray(below + (above - below) * (position - low))


#: The durations of no operation.
NO_DURATIONS = operation_stats((), np.empty(0, np.int32), *np.empty((2, 0), np.int64))


# ---- step by step


class OpKey(NamedTuple):
    """An operation of a run: ranks merged, workers told apart by ``wk<i>.`` where there are several."""

    name: str
    cat: str


class Operations(Struct, frozen=True):
    """The m operations of a rank, or of several together, in each of k steps; by first appearance."""

    keys: Sequence[OpKey]
    count: Int64  # (m, k) events
    total_ns: Float64  # (m, k) sum of their durations
    labels: Sequence[int] = ()  # (k',) of the whole steps
    #: (k', m + 1) share of each operation, and last of no operation, in the whole steps: the mean over ranks.
    spent_ns: Float64 = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def mean_ns(self) -> Float64:
        """Average duration of each operation's events (m,)."""
        return np.asarray(self.total_ns.sum(1) / np.maximum(self.count.sum(1), 1))


def operations_of(trace: Trace, steps: Steps, roles: NDArray[np.int8] | None = None) -> Operations:
    """Tabulate the operations of one rank, step by step; with `roles` (n,) also their shares of steps.

    An event belongs to the step in which it begins (before the first: the first). BytePS's communications
    overlap the next step, so there the n-th event of a name on a track is the n-th step's. Without marked
    steps, the occurrences of each operation are cut into at most ten stretches of equal length, in order of
    time ("batch means": Law and Kelton, Simulation Modeling and Analysis). TraceError as `check_cells`.
    """
    bounds = sorted((*steps.whole, *steps.partial), key=lambda step: step.start_ns)
    keys, ids = op_ids(trace)
    step = _step_ids(trace, bounds, ids)
    m, k = len(keys), 1 + int(step.max(initial=0))
    check_cells(trace.path, m, k, len(ids))
    cell = ids * k + step
    count = np.bincount(cell, minlength=m * k).reshape(m, k)
    total_ns = np.bincount(cell, trace.dur_ns, m * k).reshape(m, k).astype(np.float64)
    if roles is None:
        return Operations(keys, count, total_ns)
    labels = [step.label for step in steps.whole]
    spent_ns = time_by_operation(trace, roles, steps.whole, ids, m)
    return Operations(keys, count, total_ns, labels, spent_ns)


def merged(parts: Sequence[Operations], prefixes: Sequence[str], *, path: object = "") -> Operations:
    """Merge the operations of several ranks, with prefixes of their names; TraceError as `check_cells`."""
    named = list(zip(parts, prefixes, strict=True))
    keys, row = numbered(OpKey(prefix + key.name, key.cat) for part, prefix in named for key in part.keys)
    m, k = len(keys), max(part.count.shape[1] for part in parts)
    check_cells(path, m, k, sum(int(part.count.sum()) for part in parts))
    if len(parts) == 1 and m == len(parts[0].keys):
        return replace(parts[0], keys=keys)
    count, total_ns = np.zeros((m, k), np.int64), np.zeros((m, k))
    spent: dict[int, list[Float64]] = {}
    ends = np.cumsum([len(part.keys) for part in parts])
    for part, rows in zip(parts, np.split(row, ends[:-1]), strict=True):
        count[rows, : part.count.shape[1]] += part.count
        total_ns[rows, : part.count.shape[1]] += part.total_ns
        for label, of_part in zip(part.labels, part.spent_ns, strict=True):
            of_all = np.zeros(m + 1)
            of_all[np.append(rows, m)] = of_part
            spent.setdefault(label, []).append(of_all)
    labels = sorted(spent)
    means = np.array([sum(spent[label]) / len(spent[label]) for label in labels]).reshape(-1, m + 1)
    return Operations(keys, count, total_ns, labels, means)


def op_ids(trace: Trace) -> tuple[list[OpKey], Int64]:
    """Find the operations of a rank, comparable between runs, and the operation of each slice (n,).

    By first appearance; names are without their rank and parts that change from call to call.
    """
    of_slice, pairs = operations_of_slices(trace)
    is_parsed = dialects.of(trace).names_by_track
    names = (str(OpName.parse(name).bare()) if is_parsed else folded(name) for name, _ in pairs)
    keys, number = numbered(map(OpKey, names, (cat for _, cat in pairs)))
    return keys, number.astype(np.int64)[of_slice]


@lru_cache(maxsize=65536)
def folded(name: str) -> str:
    """Replace the parts of a name that change from call to call: addresses and numbers of steps."""
    for pattern, instead in _FOLDS:
        name = pattern.sub(instead, name)
    return name


def _step_ids(trace: Trace, bounds: Sequence[Step], ids: Int64) -> Int64:
    """Find the step of each slice (n,), by its start and by turns; see `operations_of`."""
    if bounds:
        starts = np.array([step.start_ns for step in bounds], np.int64)
        inside = np.maximum(np.searchsorted(starts, trace.ts_ns, side="right") - 1, 0)
    else:
        n_turns = np.bincount(ids)[ids]
        inside = _turns(ids, trace.ts_ns) * np.minimum(n_turns, _BATCHES) // n_turns
    by_turn = dialects.of(trace).runs_into_next_step(trace)
    if not by_turn.any():
        return inside
    series = trace.name_id.astype(np.int64) * len(trace.tracks) + trace.track_id
    return np.where(by_turn, _turns(series, trace.ts_ns), inside)


def _turns(series: Int64, ts_ns: Int64) -> Int64:
    """Index each event within its series, by time."""
    order = np.argsort(ts_ns, kind="stable")
    turn = np.empty(len(series), np.int64)
    turn[order] = occurrence_number(series[order])
    return turn
