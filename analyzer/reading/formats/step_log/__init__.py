"""Step logs: a row for each rank and step with a few durations, as JSON, CSV or TSV -> columns.

Facts by which the columns are told, as no two jobs name them alike:

- the step's number, the rank and the time of day by their names; durations by their unit (`_ms`, `_s`,
  `_sec`, …) or by a name that ends in ``time``; every other column of numbers is a value;
- the whole step is the duration that is at least the sum of the others in nearly all rows; without one,
  the difference of the times of day, which are those of the steps' ends;
- a duration that only grows from row to row, by as much as a step takes, counts from the start of the run: it
  is a value, or, where nothing else tells how long a step took, the clock of the rows;
- a row of one number, and a text that names it, is a part of such a row;
- a repeated step, as after a restart from a checkpoint, holds as it was written last.

In the trace a row is a slice; its other columns are the slice's arguments.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.errors import TraceError, counted, listed
from analyzer.reading.formats.columns import ArgColumn, Trace, Track
from analyzer.reading.formats.step_log.lines import Form, begun_in, cells_of, object_of
from analyzer.reading.formats.step_log.named_columns import (
    NEARLY_ALL,
    NS_OF,
    ROUNDING,
    STEP_NAME,
    Kinds,
    kinds_of,
    numbers_in,
    own_name,
    times_of_day_ns,
    whole_of,
    without_counters,
)
from analyzer.reading.formats.step_log.row_layouts import (
    Metrics,
    OwnColumns,
    RowsByRank,
    Wide,
    columns_by_rank,
)
from analyzer.reading.formats.stream import ByteStream
from analyzer.reading.formats.values import FARTHEST_NS

#: The dialect of these traces, and the name of the slice that is a whole step.
DIALECT, STEP = "step log", "step"
#: The argument of the slices that numbers the steps. Other numbers are arguments called as their columns,
#: durations in whole ns; the member `PARTS` of the header tells how these are called in tables.
NUMBER, PARTS = "step's number", "parts"
_EPOCH_NAME = re.compile(r"(?i)epoch(?:_?(?:num(?:ber)?|id|idx))?")
_LONG_STEP = re.compile(rf"{STEP_NAME.pattern}(?:[_ ]?(?:time|duration|latency|elapsed))?")
_UNITS = {"s": "seconds", "m": "milliseconds", "u": "microseconds", "n": "nanoseconds"}
_ROW_AFTER_ROW, _ONE_LINE = re.compile(rb"\}\s*,\s*\{"), bytes.maketrans(b"\r\n", b"  ")  # in an array
_LONGER = 2  # than the steps by their times of day no duration is
_HEAD_ROWS = 20  # of which the kinds of columns are told
_RESOLUTION = 0.05  # of a step: what times of day may differ from the end of the step before, and 2 ms
_RESOLUTION_NS = 2_000_000
_RANK = "rank"
_ROW, _BEGIN, _WHOLE, _TRACK = range(4)  # columns of slices, beside those that have names
_PAUSE_STEPS, _PAUSE_NS = 10, 60 * 10**9  # between two steps, from which a pause is told: longer than both


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` holds rows of steps."""
    return _form_of(b"\n".join(_blocks([head]))) is not None


def read(path: Path, rank_by: str | None = None, step_by: str | None = None) -> Trace:
    """Load one step log.

    Parameters
    ----------
    rank_by : the column that tells the ranks apart; None: the one that is called after ranks, or hosts
    step_by : a column that is kept, texts as well; rows that differ in it are not the same step again

    TraceError where it cannot be read, has no column `rank_by`, or no row has a step and how long it took.
    """
    stream = ByteStream(path)
    blocks = _blocks(stream)
    first = next(blocks, b"")
    form = _form_of(first, rank_by, step_by)
    if form is None:
        raise TraceError(f"{path}: not a step log: its rows lack a step's number or a duration")
    if rank_by is not None and not form.kinds.labels:
        columns = listed(form.kinds.columns, 20)
        raise TraceError(f"{path}: --rank_by {rank_by}: no column has this name; there are {columns}")
    apart = [name for name in form.kinds.values if name == step_by]
    whose = form.kinds.rank or form.kinds.labels
    rows = RowsByRank(form.names, whose) if form.kinds.metric is None else Metrics(form, whose, apart)
    for table in form.tables(itertools.chain([first], blocks)):
        rows.add(table)
    repairs = [stream.damage] if stream.damage is not None else []
    if form.lost:
        repairs.append(f"{counted(form.lost, 'damaged row')} left out")
    if form.odd:
        repairs.append(f"{counted(form.odd, 'cell')} without a number in columns of numbers: taken as empty")
    if form.kinds.unread:
        repairs.append(f"{listed(form.kinds.unread, 3)} left out: no plain numbers, such as 12.3")
    rows.end()
    if form.kinds.rank is None and rows.labels:
        repairs += rows.number(form.kinds.step, form.codes, is_asked=rank_by is not None)
    for name in apart:
        if name in form.codes:
            rows.translate(name, numbers_in([*form.codes[name]]))
    with np.errstate(over="ignore"):  # too long for a duration: left out
        return _trace(path, rows.kinds(path, form.kinds), rows, apart, repairs)


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines, many at a time; the last may be incomplete. Rows of a JSON array are lines."""
    rest, is_array = b"", None
    for piece in pieces:
        if is_array is None and (is_array := begun_in(piece).lstrip().startswith(b"[")):
            piece = begun_in(piece).lstrip()[1:]
        if is_array:
            piece = _ROW_AFTER_ROW.sub(b"}\n{", rest + piece.translate(_ONE_LINE))
            rest = b""
        end = piece.rfind(b"\n")
        if end >= 0:
            yield b"".join((rest, memoryview(piece)[:end]))
            rest = b""
        rest += piece[end + 1 :]
    if is_array:
        rest = rest.strip().removesuffix(b"]")
    if rest.strip():
        yield rest


def _form_of(head: bytes, rank_by: str | None = None, step_by: str | None = None) -> Form | Wide | None:
    """Choose the form in which the rows of a log that begins so are read; None where they are not steps."""
    lines = [line for line in begun_in(head).split(b"\n", 2 * _HEAD_ROWS) if line.strip()]
    shown = _shown_columns(b"\n".join(lines[: _HEAD_ROWS + 1]), rank_by, step_by)
    if shown is None:
        return None
    kinds, ranks, header, delimiter = shown
    if not ranks:
        return Form(kinds, header, delimiter)
    names = [name for name in (kinds.step, *kinds.durations, *kinds.values) if name is not None]
    every = dict.fromkeys(own.get(name, name) for own in ranks.values() for name in names)
    of_rows = replace(kinds, step=None, rank=None, durations={}, values=[*every], labels=())
    return Wide(Form(of_rows, header, delimiter), kinds, ranks)


@lru_cache(maxsize=8)  # a file is recognised, and then read
def _shown_columns(
    head: bytes, rank_by: str | None, step_by: str | None
) -> tuple[Kinds, OwnColumns, Sequence[str], str] | None:
    """Tell the columns that the first lines show, those of each rank, header and delimiter (of CSV)."""
    lines = head.split(b"\n")
    if lines[0].lstrip().startswith(b"{"):
        header, delimiter = [], ""
        rows = [row for line in lines if (row := object_of(line)) is not None]
    else:
        text = lines[0].decode("utf-8", "replace").strip()
        delimiter = max("\t,;", key=text.count)
        header = [name.strip() for name in cells_of(lines[0], delimiter)]
        if not 1 < len(header) == len(set(header)):
            return None
        table = [cells_of(line, delimiter) for line in lines[1:]]
        rows = [dict(zip(header, cells, strict=True)) for cells in table if len(cells) == len(header)]
    ranks = columns_by_rank(rows)
    own = {name for columns in ranks.values() for name in columns.values()}
    kinds = kinds_of(
        [
            {name: cell for name, cell in row.items() if name not in own}
            | {_RANK: rank, **{name: row.get(full) for name, full in columns.items()}}
            for row in rows
            for rank, columns in ranks.items()
        ]
        or rows,
        rank_by,
        step_by,
    )
    return None if kinds is None else (kinds, ranks, header, delimiter)


def _trace(path: Path, kinds: Kinds, rows: RowsByRank, apart: Sequence[str], damage: Sequence[str]) -> Trace:
    """Return the rows as slices, each rank's on a track of its own, in the order of the steps.

    Rows of one step that differ in one of the columns `apart` are not the same step again.
    """
    ranks = rows.ranks()
    unit = ""
    if ranks:
        kinds, unit = _with_units(kinds, rows.of(ranks[0]))
        kinds = without_counters(kinds, rows.of(ranks[0]))
    some = rows.some() if rows.n else dict.fromkeys(rows.names, np.empty(0))
    looked_at = [np.nan_to_num(some[name]) * unit for name, (_, unit) in kinds.durations.items()]
    at = whole_of(looked_at, list(kinds.durations))
    kinds, at = _without_again(kinds, at)
    parts = _names(kinds, at)
    made: list[dict[str | int, NDArray[Any]]] = []
    names, lost = list[int](), np.array([rows.lost, 0, 0, 0, 0])
    n, first = 0, slice(0)
    for rank in ranks:
        columns_of_rank, of_rank = _of_rank(rows.of(rank), kinds, at, apart)
        lost += of_rank
        if columns_of_rank is None:
            continue
        stop = n + len(columns_of_rank[NUMBER])
        columns_of_rank |= {_ROW: np.arange(n, stop), _TRACK: np.full(stop - n, len(names), np.int32)}
        made.append(columns_of_rank)
        names.append(rows.known.get(rank, rank))
        first, n = first if first.stop else slice(0, stop), stop
    if not n:
        raise TraceError(f"{path}: no row tells how long its step took")
    columns = {name: np.concatenate([columns_of_rank[name] for columns_of_rank in made]) for name in made[0]}
    begin, whole, number = (columns[name] for name in (_BEGIN, _WHOLE, NUMBER))
    is_back = np.append(np.diff(number[first]) < 1, True) if kinds.step else np.ones(1)
    turn = slice(0, 1 + int(is_back.argmax()))
    n_untold, n_again, n_timeless, n_cut, n_over = lost.tolist()
    n_added = sum(rows.added.values())
    remedy = " (--rank_by COLUMN tells ranks apart)" if kinds.rank is None and n_again + n_added >= n else ""
    notes = [
        *damage,
        unit,
        n_untold and f"{counted(n_untold, 'row')} without a step or its durations left out",
        n_again
        and f"{counted(n_again, 'row')} of steps that were run again; the last of a step holds{remedy}",
        n_added and f"{counted(n_added, 'row')} added to those of the same metric before them{remedy}",
        n_over and "each epoch begins the steps again: they are numbered over all epochs",
        n_timeless and f"{counted(n_timeless, 'row')} without a time of day",
        _missing(number[turn]),
        _pauses(number[turn], begin[turn], whole[turn]),
        n_cut and f"the parts of {counted(n_cut, 'step')} are longer than the step: cut at its end",
    ]
    none = np.zeros(n, np.int32)
    args = [*([NUMBER] if kinds.step else ()), *parts, *kinds.values]
    return Trace(
        path=str(path), dialect=DIALECT, names=[STEP], cats=[""],
        tracks=[Track(_known(rank), 0) for rank in names],
        name_id=none, cat_id=none, track_id=columns[_TRACK], ts_ns=begin, dur_ns=whole,
        args={name: ArgColumn(columns[_ROW], columns[name]) for name in args},
        header={PARTS: parts}, phases={"row": n}, rank=_known(names[0]) if len(names) == 1 else None,
        repairs=[note for note in notes if note],
    )  # fmt: skip


def _with_units(kinds: Kinds, columns: Mapping[str, Float64]) -> tuple[Kinds, str]:
    """Return the kinds with a unit of all durations, and what is assumed, in words.

    Where no name tells it, it is the largest in which none is longer than steps are by the times of day.
    """
    names = [name for name, (_, unit) in kinds.durations.items() if not unit]
    if not names:
        return kinds, ""
    longest = max(float(np.median(np.nan_to_num(columns[name]))) for name in names)
    unit, between = "s", 0.0
    if kinds.time is not None and kinds.step is not None and len(columns[kinds.time]) > 1:
        after, steps = np.diff(times_of_day_ns(columns[kinds.time])), np.diff(columns[kinds.step])
        between = float(np.median(after / np.where(steps > 0, steps, 1)))
    if between > 0:
        unit = next((one for one in _UNITS if longest * NS_OF[one] <= _LONGER * between), "n")
    durations = {name: (own, of or NS_OF[unit]) for name, (own, of) in kinds.durations.items()}
    how = f"{listed(names, 3)} taken for {_UNITS[unit]}"
    told = "as the times of day tell" if between > 0 else "as no unit is told"
    return replace(kinds, durations=durations), "" if between > 0 and unit == "s" else f"{how}, {told}"


def _of_rank(
    columns: Mapping[str, Float64], kinds: Kinds, at: int | None, apart: Sequence[str]
) -> tuple[dict[Any, NDArray[Any]] | None, Int64]:
    """Return the columns of a rank's slices, None where no row has a step and its durations.

    And how many rows have not, are of steps that were run again, have no time of day, are shorter than their
    parts; and whether steps are numbered over epochs. `at` is which of the durations is the whole step.
    """
    row = np.arange(len(next(iter(columns.values()))), dtype=np.float64)
    number = _over_epochs(columns[kinds.step], kinds, columns) if kinds.step else row
    is_told = (np.abs(number) < 1 << 53) & (np.rint(number) == number)  # not NaN
    spent = []
    for place, (name, (_, unit)) in enumerate(kinds.durations.items()):
        took = columns[name] * unit
        if place != at:  # a part that a row lacks took no time in its step
            took[np.isnan(took)] = 0
        is_told &= (took >= 0) & (took < FARTHEST_NS / 4)
        spent.append(took)
    rows = _last_of_each([number, *(columns[name] for name in apart)], np.flatnonzero(is_told))
    is_over = kinds.step is not None and number is not columns[kinds.step]
    lost = np.array([(~is_told).sum(), is_told.sum() - len(rows), 0, 0, is_over])
    if not len(rows):
        return None, lost
    if len(rows) < len(number) or (np.diff(rows) < 0).any():
        number, spent = number[rows], [took[rows] for took in spent]
        columns = {name: column[rows] for name, column in columns.items()}
    steps, told_ns = number.astype(np.int64), [took.astype(np.int64) for took in spent]
    whole_ns = end_ns = np.zeros(len(rows), np.int64)
    if at is not None:
        whole_ns = told_ns.pop(at)
    if kinds.time is not None:
        end_ns = kinds.ends_ns(columns)
        lost[2] = (end_ns == 0).sum()
    begin, whole = _placed(steps, end_ns, whole_ns, told_ns)
    left, rounding, is_cut = whole.copy(), whole * ROUNDING, np.zeros(len(whole), np.bool_)
    found: dict[Any, NDArray[Any]] = {NUMBER: steps, _BEGIN: begin, _WHOLE: whole}
    for name, part in zip(_names(kinds, at), told_ns, strict=True):
        is_cut |= part > left + rounding
        found[name] = np.minimum(part, left)
        left -= found[name]
    found |= {name: columns[name] for name in kinds.values}
    if not whole.all():
        kept = np.flatnonzero(whole)
        found = {name: column[kept] for name, column in found.items()}
        lost[0] += 0 if at is None else len(rows) - len(kept)
        is_cut = is_cut[kept]
    lost[3] = is_cut.sum()
    return found, lost


def _over_epochs(number: Float64, kinds: Kinds, columns: Mapping[str, Float64]) -> Float64:
    """Return the steps' numbers (n,), one after the other over the epochs where each begins them again."""
    for epoch in (columns[name] for name in kinds.values if _EPOCH_NAME.fullmatch(own_name(name))):
        rises = np.diff(epoch) > 0
        if rises.any() and (np.diff(number)[rises] < 0).all():
            first, last = np.nanmin(number), np.nanmax(number)
            return np.asarray(number + (epoch - np.nanmin(epoch)) * (last - first + 1))
    return number


def _last_of_each(keys: Sequence[Float64], rows: Int64) -> Int64:
    """Return the `rows` sorted by `keys`, the last first; of those with the same the one written last."""
    if len(keys) == 1 and (np.diff(keys[0][rows]) > 0).all():  # as nearly all logs are written
        return rows
    rows = rows[np.lexsort((rows, *(key[rows] for key in keys)))]
    differs = np.any([np.diff(key[rows]) != 0 for key in keys], axis=0)
    return np.asarray(rows[np.append(differs, True)] if len(rows) else rows)


def _without_again(kinds: Kinds, at: int | None) -> tuple[Kinds, int | None]:
    """Return the kinds without parts that are called like the step, as it is, and the place of the step."""
    called = [name for name, (own, _) in kinds.durations.items() if _LONG_STEP.fullmatch(own_name(own))]
    whole = None if at is None else [*kinds.durations][at]
    if whole not in called or len(called) == 1:
        return kinds, at
    durations = {name: one for name, one in kinds.durations.items() if name == whole or name not in called}
    values = [*kinds.values, *(name for name in called if name != whole)]
    return replace(kinds, durations=durations, values=values), [*durations].index(str(whole))


def _names(kinds: Kinds, whole: int | None) -> dict[str, str]:
    """Return the columns of the parts and their names, in full where two are alike without their unit."""
    short = [name for name, _ in kinds.durations.values()]
    names = [
        full if own == STEP or short.count(own) > 1 else own
        for full, own in zip(kinds.durations, short, strict=True)
    ]
    pairs = enumerate(zip(kinds.durations, names, strict=True))
    return {column: name for place, (column, name) in pairs if place != whole}


def _known(rank: int) -> int | None:
    return None if rank < 0 else rank


def _placed(number: Int64, end_ns: Int64, whole_ns: Int64, parts_ns: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Return begin and length (n,) of a rank's steps; 0 long where that is not known.

    Steps follow each other; where the times of day, which are rounded, tell of more than rounding
    between two of them, so much passed there.
    """
    if not whole_ns.any():
        after = np.diff(number, prepend=number[:1])
        usual = int(np.median(after[1:])) if len(after) > 1 else 1
        before = np.append(end_ns[:1], end_ns[:-1])
        took = (end_ns - before) // usual
        whole_ns = np.where((after == usual) & (took > 0) & (before > 0), took, 0)
        if not end_ns.any():
            whole_ns = sum(parts_ns, start=np.zeros(len(number), np.int64))
    if not end_ns.any():
        return np.cumsum(whole_ns) - whole_ns, whole_ns
    gaps = np.diff(end_ns - whole_ns, prepend=(end_ns - whole_ns)[:1])[1:] - whole_ns[:-1]
    rounding = np.maximum(_RESOLUTION_NS, _RESOLUTION * np.median(whole_ns))
    gaps = np.where((gaps > rounding) & (end_ns[:-1] > 0) & (end_ns[1:] > 0), gaps, 0)
    after_first = np.concatenate([[0], np.cumsum(whole_ns[:-1] + gaps)])
    at = int((end_ns > 0).argmax())
    begin = after_first + (end_ns[at] - whole_ns[at] - after_first[at])
    return begin.astype(np.int64), whole_ns.astype(np.int64)


def _missing(number: Int64) -> str:
    """Count the steps that are not in the log, in words; "" where all are, or every n-th is logged."""
    steps = np.diff(number)
    if not len(steps):
        return ""
    usual = int(np.median(steps))
    if len(steps) > 1 and usual > 1 and (steps % usual == 0).mean() >= NEARLY_ALL:
        return f"one step of {usual} is in the log"
    left = int((steps - 1).sum())
    return f"{counted(left, 'step')} between the first and the last not in the log" if left else ""


def _pauses(number: Int64, begin: Int64, whole: Int64) -> str:
    """Describe the pauses between steps: their number, and the longest with its place; "" for none."""
    after, usual = np.diff(number), np.median(whole)
    between = np.diff(begin) - whole[:-1] - (after - np.median(after) if len(after) else 0) * usual
    far = np.flatnonzero(between > max(_PAUSE_NS, _PAUSE_STEPS * usual))
    if not len(far):
        return ""
    longest = far[between[far].argmax()]
    return (
        f"{counted(len(far), 'pause')} between steps, as of a restart; the longest takes "
        f"{between[longest] / 1e9:,.0f} s after step {number[longest]}"
    )
