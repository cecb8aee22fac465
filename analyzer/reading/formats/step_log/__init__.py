"""Step logs (JSON lines, a JSON array, CSV or TSV with a row for each rank and step) as columns.

No two jobs name their columns alike, so columns are recognised by these facts:

- the step's number, the rank and the time of day by their names; durations by their unit (`_ms`, `_s`,
  `_sec`, …) or by a name that ends in ``time``; every other column of numbers is a value;
- the whole step is the duration that is at least the sum of the others in nearly all rows; without one,
  the difference of the times of day, which are those of the steps' ends;
- a duration that only grows from row to row, by as much as a step takes, counts from the start of the run: it
  is a value, or the clock of the rows if no other column has the length of a step;
- a row with one number and a text that names it is a part of a step's row;
- of a repeated step, as after a restart from a checkpoint, the last row counts.

In the trace a row is a slice; its other columns are the slice's arguments.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.errors import Note, NoteKind, TraceError, counted, listed
from analyzer.reading.formats.columns import ArgColumn, Trace, Track, concatenate
from analyzer.reading.formats.step_log import text_lines
from analyzer.reading.formats.step_log.lines import Form, begun_in, cells_of, object_of
from analyzer.reading.formats.step_log.named_columns import (
    NEARLY_ALL_ROWS,
    NS_OF,
    ROUNDING,
    STEP_NAME,
    Kinds,
    kinds_of,
    local_name,
    numbers_in,
    seconds_of,
    times_of_day_ns,
    whole_of,
    without_counters,
)
from analyzer.reading.formats.step_log.row_layouts import Metrics, RowsByRank, columns_by_rank
from analyzer.reading.formats.stream import ByteStream
from analyzer.reading.formats.values import FARTHEST_NS

#: The dialect of these traces, and the name of the slice that is a whole step.
DIALECT, STEP = "step log", "step"
#: The argument of the slices that numbers the steps. Other numbers are arguments named after their columns,
#: durations in whole ns; the member `PARTS` of the header has the names of durations for tables.
NUMBER, PARTS = "step's number", "parts"
_EPOCH_NAME = re.compile(r"(?i)epoch(?:_?(?:num(?:ber)?|id|idx))?")
_LONG_STEP = re.compile(rf"{STEP_NAME.pattern}(?:[_ ]?(?:time|duration|latency|elapsed))?")
_UNITS = {"s": "seconds", "m": "milliseconds", "u": "microseconds", "n": "nanoseconds"}
_BETWEEN_ROWS, _TO_ONE_LINE = re.compile(rb"\}\s*,\s*\{"), bytes.maketrans(b"\r\n", b"  ")  # of an array
_LONGER = 2  # a duration is at most this many times the steps by their times of day
_HEAD_ROWS = 20  # rows by which the kinds of columns are recognised
_RESOLUTION, _RESOLUTION_NS = 0.05, 2_000_000  # rounding of times of day: of a step, and at least
_RANK = "rank"


def recognises(head: bytes) -> bool:
    """Check whether a file that begins with `head` holds rows of steps."""
    return _form_of(b"\n".join(_blocks([head]))) is not None


def read(path: Path, rank_by: str | None = None, step_by: str | None = None) -> Trace:
    """Load one step log.

    Parameters
    ----------
    rank_by : the column of the ranks; None: the column whose name says rank, or host
    step_by : a column to keep, even of texts; rows that differ in it are different steps

    TraceError if it cannot be read, has no column `rank_by`, or no row has a step and a duration.
    """
    stream = ByteStream(path)
    blocks = _blocks(stream)
    first = next(blocks, b"")
    form = _form_of(first, rank_by, step_by)
    if form is None:
        raise TraceError(f"{path}: not a step log: its rows lack a step's number or a duration")
    kinds = form.kinds
    if rank_by is not None and not kinds.labels:
        names = listed(kinds.columns, 20)
        raise TraceError(f"{path}: --rank_by {rank_by}: no column has this name; there are {names}")
    apart = [name for name in kinds.values if name == step_by]
    columns = form.columns(itertools.chain([first], blocks))
    rows = RowsByRank(form, columns) if kinds.metric is None else Metrics(form, columns, apart)
    repairs = [stream.damage] if stream.damage is not None else []
    if form.lost:
        repairs.append(f"{counted(form.lost, 'damaged row')} left out")
    if form.odd:
        repairs.append(f"{counted(form.odd, 'cell')} without a number in columns of numbers: taken as empty")
    if kinds.unread:
        repairs.append(f"{listed(kinds.unread, 3)} left out: no plain numbers, such as 12.3")
    if kinds.rank is None and rows.labels:
        repairs += rows.number(kinds.step, form.codes, is_asked=rank_by is not None)
    for name in apart:
        if name in form.codes:
            rows.translate(name, numbers_in([*form.codes[name]]))
    with np.errstate(over="ignore"):  # a duration that overflows is left out
        return _trace(path, rows.kinds(path, kinds), rows, apart, repairs)


def step_reader(head: bytes) -> Callable[[bytes], int | None] | None:
    """Make the function that reads the step's number in a line; None unless `head` tells the form of the log.

    Where each epoch begins the steps again, they are numbered over all epochs.
    """
    if text_lines.recognises(head):
        return lambda line: next(reversed(text_lines.steps_in(line)), None)
    form = _form_of(head)
    if form is None or form.kinds.step is None:
        return None
    step, header = form.kinds.step, form.header
    epochs = [name for name in form.kinds.values if _EPOCH_NAME.fullmatch(local_name(name))]

    def read_step(line: bytes) -> int | None:
        cells = dict(zip(header, cells_of(line, form.delimiter))) if header else object_of(line) or {}  # noqa: B905
        numbers = [seconds_of(cells.get(name)) for name in (*epochs[:1], step)]
        if not all(abs(number) < 1 << 31 for number in numbers):  # not NaN
            return None
        return int(sum(number * (1 << 31) ** place for place, number in enumerate(reversed(numbers))))

    return read_step


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines; the last line may be incomplete. Lines of programs become rows."""
    rest = iter(pieces)
    first = next(rest, b"")
    is_text = text_lines.recognises(first)
    blocks = _of_lines(itertools.chain([first], rest), may_be_array=not is_text)
    return text_lines.rows(blocks) if is_text else blocks


def _of_lines(pieces: Iterable[bytes], *, may_be_array: bool) -> Iterator[bytes]:
    """Yield blocks of whole lines; the rows of a JSON array become lines."""
    rest, is_array = b"", None if may_be_array else False
    for piece in pieces:
        if is_array is None and (is_array := begun_in(piece).lstrip().startswith(b"[")):
            piece = begun_in(piece).lstrip()[1:]
        if is_array:
            piece = _BETWEEN_ROWS.sub(b"}\n{", rest + piece.translate(_TO_ONE_LINE))
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


def _form_of(head: bytes, rank_by: str | None = None, step_by: str | None = None) -> Form | None:
    """Recognise the form of a log by its beginning; None if its rows are not steps."""
    lines = [line for line in begun_in(head).split(b"\n", 2 * _HEAD_ROWS) if line.strip()]
    lines = lines[: _HEAD_ROWS + 1]
    if not lines:
        return None
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
    by_rank = columns_by_rank(rows)
    of_one_rank = {full for columns in by_rank.values() for full in columns.values()}
    rows_of_ranks = [
        {name: cell for name, cell in row.items() if name not in of_one_rank}
        | {_RANK: rank, **{name: row.get(full) for name, full in columns.items()}}
        for row in rows
        for rank, columns in by_rank.items()
    ]
    kinds = kinds_of(rows_of_ranks or rows, rank_by, step_by)
    return None if kinds is None else Form(kinds, header, delimiter, by_rank)


def _trace(path: Path, kinds: Kinds, rows: RowsByRank, apart: Sequence[str], damage: Sequence[str]) -> Trace:
    """Make slices of the rows, each rank's on a track of its own, in the order of the steps.

    Rows of one step that differ in a column of `apart` are different steps.
    """
    if not rows.ranks():
        raise TraceError(f"{path}: no row tells how long its step took")
    first = rows.of(rows.ranks()[0])
    kinds, unit = _with_units(kinds, first)
    kinds = without_counters(kinds, first)
    sample = rows.sample()
    whole = whole_of({name: np.nan_to_num(sample[name]) * ns for name, (_, ns) in kinds.durations.items()})
    kinds = _without_copies(kinds, whole)
    parts = _part_names(kinds, whole)
    lost = Counter({"untold": rows.lost})
    traces = []
    for rank in rows.ranks():
        pid = rows.known.get(rank, rank)
        if (steps := _steps_of(rows.of(rank), kinds, whole, apart, lost)) is not None:
            traces.append(replace(steps, tracks=[Track(None if pid < 0 else pid, 0)]))
    if not traces:
        raise TraceError(f"{path}: no row tells how long its step took")
    trace, n_added = concatenate(traces), sum(rows.added.values())
    number = np.asarray(traces[0].args[NUMBER].values) if kinds.step else np.zeros(1)
    is_repeated = kinds.rank is None and lost["again"] + n_added >= len(trace)
    remedy = " (--rank_by COLUMN tells ranks apart)" if is_repeated else ""
    if lost["untold"]:
        damage = [*damage, f"{counted(lost['untold'], 'row')} without a step or its durations left out"]
    notes = [
        *damage,
        unit,
        lost["again"]
        and f"{counted(lost['again'], 'row')} of steps that were run again; the last of a step holds{remedy}",
        n_added and f"{counted(n_added, 'row')} added to those of the same metric before them{remedy}",
        lost["epochs"] and "each epoch begins the steps again: they are numbered over all epochs",
        lost["timeless"] and f"{counted(lost['timeless'], 'row')} without a time of day",
        _missing(number),
        lost["cut"]
        and f"the parts of {counted(lost['cut'], 'step')} are longer than the step: cut at its end",
    ]
    return replace(
        trace, path=str(path), header={PARTS: parts}, phases={"row": len(trace)},
        rank=trace.tracks[0].pid if len(traces) == 1 else None,
        repairs=[note if note in damage else Note(note, NoteKind.WHOLE) for note in notes if note],
    )  # fmt: skip


def _with_units(kinds: Kinds, columns: Mapping[str, Float64]) -> tuple[Kinds, str]:
    """Give all durations a unit; also a note on the unit that was assumed.

    It is the largest unit in which no duration is longer than the steps by the times of day, else a second.
    """
    names = [name for name, (_, unit_ns) in kinds.durations.items() if not unit_ns]
    if not names:
        return kinds, ""
    unit, between = "s", 0.0
    if kinds.time is not None and kinds.step is not None and len(columns[kinds.time]) > 1:
        after, steps = np.diff(times_of_day_ns(columns[kinds.time])), np.diff(columns[kinds.step])
        between = float(np.median(after / np.where(steps > 0, steps, 1)))
    if between > 0:
        longest = max(float(np.median(np.nan_to_num(columns[name]))) for name in names)
        unit = next((unit for unit in _UNITS if longest * NS_OF[unit] <= _LONGER * between), "n")
    durations = {name: (short, unit_ns or NS_OF[unit]) for name, (short, unit_ns) in kinds.durations.items()}
    why = "as the times of day tell" if between > 0 else "as no unit is told"
    note = "" if between > 0 and unit == "s" else f"{listed(names, 3)} taken for {_UNITS[unit]}, {why}"
    return replace(kinds, durations=durations), note


def _steps_of(
    columns: Mapping[str, Float64], kinds: Kinds, whole: str | None, apart: Sequence[str], lost: Counter[str]
) -> Trace | None:
    """Make slices of a rank's rows, and count in `lost` the rows with flaws; None if none is a step."""
    row = np.arange(len(next(iter(columns.values()))), dtype=np.float64)
    number = _over_epochs(columns[kinds.step], kinds, columns) if kinds.step else row
    is_step = (np.abs(number) < 1 << 53) & (np.rint(number) == number)  # not NaN
    spent = {}
    for name, (_, unit_ns) in kinds.durations.items():
        spent[name] = columns[name] * unit_ns
        if name != whole:  # a part that a row lacks took no time in its step
            spent[name][np.isnan(spent[name])] = 0
        is_step &= (spent[name] >= 0) & (spent[name] < FARTHEST_NS / 4)
    rows = _last_of_each([number, *(columns[name] for name in apart)], np.flatnonzero(is_step))
    lost["untold"] += int((~is_step).sum())
    lost["again"] += int(is_step.sum()) - len(rows)
    lost["epochs"] += kinds.step is not None and number is not columns[kinds.step]
    if not len(rows):
        return None
    if len(rows) < len(number) or (np.diff(rows) < 0).any():
        number, spent = number[rows], {name: took[rows] for name, took in spent.items()}
        columns = {name: column[rows] for name, column in columns.items()}
    steps = number.astype(np.int64)
    parts_ns = {name: took.astype(np.int64) for name, took in spent.items()}
    recorded_ns = end_ns = np.zeros(len(rows), np.int64)
    if whole is not None:
        recorded_ns = parts_ns.pop(whole)
    if kinds.time is not None:
        end_ns = kinds.ends_ns(columns)
        lost["timeless"] += int((end_ns == 0).sum())
    begin_ns, whole_ns = _placed(steps, end_ns, recorded_ns, [*parts_ns.values()])
    left, is_cut = whole_ns.copy(), np.zeros(len(rows), np.bool_)
    kept_ns: dict[str, NDArray[Any]] = {}
    for name, part in parts_ns.items():
        is_cut |= part > left + whole_ns * ROUNDING
        kept_ns[name] = np.minimum(part, left)
        left -= kept_ns[name]
    has_length = whole_ns > 0
    lost["untold"] += 0 if whole is None and has_length.any() else int((~has_length).sum())
    if not has_length.any():
        return None
    lost["cut"] += int((is_cut & has_length).sum())
    args = {NUMBER: steps} if kinds.step else {}
    args |= kept_ns | {name: columns[name] for name in kinds.values}
    n = int(has_length.sum())
    no_id = np.zeros(n, np.int32)
    return Trace(
        "", DIALECT, [STEP], [""], [], no_id, no_id, no_id, begin_ns[has_length],
        whole_ns[has_length],
        {name: ArgColumn(np.arange(n), column[has_length]) for name, column in args.items()},
    )  # fmt: skip


def _over_epochs(number: Float64, kinds: Kinds, columns: Mapping[str, Float64]) -> Float64:
    """Count the steps (n,) over all epochs, if each epoch begins the numbers again."""
    for epoch in (columns[name] for name in kinds.values if _EPOCH_NAME.fullmatch(local_name(name))):
        rises = np.diff(epoch) > 0
        if rises.any() and (np.diff(number)[rises] < 0).all():
            first, last = np.nanmin(number), np.nanmax(number)
            return np.asarray(number + (epoch - np.nanmin(epoch)) * (last - first + 1))
    return number


def _last_of_each(keys: Sequence[Float64], rows: Int64) -> Int64:
    """Sort `rows` by `keys`, the last key first; of rows with equal keys, keep the one written last."""
    if len(keys) == 1 and (np.diff(keys[0][rows]) > 0).all():  # as nearly all logs are written
        return rows
    rows = rows[np.lexsort((rows, *(key[rows] for key in keys)))]
    differs = np.any([np.diff(key[rows]) != 0 for key in keys], axis=0)
    return np.asarray(rows[np.append(differs, True)] if len(rows) else rows)


def _without_copies(kinds: Kinds, whole: str | None) -> Kinds:
    """Make values of the durations that are named after the step, beside the whole step."""
    called = [name for name, (short, _) in kinds.durations.items() if _LONG_STEP.fullmatch(local_name(short))]
    copies = [name for name in called if name != whole] if whole in called else []
    durations = {name: duration for name, duration in kinds.durations.items() if name not in copies}
    return replace(kinds, durations=durations, values=[*kinds.values, *copies])


def _part_names(kinds: Kinds, whole: str | None) -> dict[str, str]:
    """Name the columns of the parts without their unit; in full where two names would be alike."""
    shorts = [short for short, _ in kinds.durations.values()]
    return {
        name: name if short == STEP or shorts.count(short) > 1 else short
        for name, short in zip(kinds.durations, shorts, strict=True)
        if name != whole
    }


def _placed(number: Int64, end_ns: Int64, whole_ns: Int64, parts_ns: Sequence[Int64]) -> tuple[Int64, Int64]:
    """Begin and length (n,) of a rank's steps; the length is 0 where it is not known.

    Steps follow each other. A gap is left only where the times of day, which are rounded, differ by more than
    the rounding.
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
    gaps = np.diff(end_ns - whole_ns) - whole_ns[:-1]
    rounding = np.maximum(_RESOLUTION_NS, _RESOLUTION * np.median(whole_ns))
    gaps = np.where((gaps > rounding) & (end_ns[:-1] > 0) & (end_ns[1:] > 0), gaps, 0)
    after_first = np.concatenate([[0], np.cumsum(whole_ns[:-1] + gaps)])
    anchor = int((end_ns > 0).argmax())
    begin = after_first + (end_ns[anchor] - whole_ns[anchor] - after_first[anchor])
    return begin.astype(np.int64), whole_ns.astype(np.int64)


def _missing(number: NDArray[Any]) -> str:
    """Count the missing steps in words, up to a restart; "" if none is missing, or every n-th is logged."""
    steps = np.diff(number)
    steps = steps[: int(np.append(steps < 1, True).argmax())]
    if not len(steps):
        return ""
    usual = int(np.median(steps))
    if len(steps) > 1 and usual > 1 and (steps % usual == 0).mean() >= NEARLY_ALL_ROWS:
        return f"one step of {usual} is in the log"
    left = int((steps - 1).sum())
    return f"{counted(left, 'step')} between the first and the last not in the log" if left else ""
