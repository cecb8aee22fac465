"""Step logs: a row for each rank and step with a few durations, as JSON lines, CSV or TSV -> columns.

Facts by which the columns are told, as no two jobs name them alike:

- the step's number, the rank and the time of day by their names; durations by their unit (`_ms`, `_s`,
  `_sec`, …) or by a name that ends in ``time``; every other column of numbers is a value;
- the whole step is the duration that is at least the sum of the others in nearly all rows; without one,
  the difference of the times of day, which are those of the steps' ends;
- a repeated step, as after a restart from a checkpoint, holds as it was written last.

In the trace a row is a slice `STEP`, and in it the parts one after the other, in the order of the columns.
What no column holds is what they leave of the step.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arrays import Float64, Int64, NDArray
from arrays.numbering import numbered
from errors import TraceError, counted
from formats.columns import ArgColumn, Trace, Track
from formats.stream import ByteStream
from formats.values import FARTHEST_NS, clean_text

#: The dialect of these traces, and the name of the slice that is a whole step.
DIALECT, STEP = "step log", "step"
#: The arguments of the steps' slices: the number of the step, and after `VALUE` the name of any other column.
NUMBER, VALUE = "step", "value "

_STEP_NAME = re.compile(
    r"(?i)(?:global|train(?:ing)?)?[_ /.]?(?:step|iter(?:ation)?)(?:_?(?:num(?:ber)?|id|idx))?"
)
_RANK_NAME = re.compile(r"(?i)(?:global_?)?rank(?:_?id)?")
_TIME_NAME = re.compile(r"(?i)ts|time|timestamp|date|datetime|wall_?time|_timestamp|epoch_?(?:s|time)")
_UNIT = r"(?P<unit>ms|msecs?|milliseconds|us|usecs?|ns|s|secs?|seconds)"
_DURATION = re.compile(rf"(?i)^(?:tim(?:e|ing)/)?(?P<name>.*?)[_ /.(-]*(?:\b|_){_UNIT}\)?$")
_TIMED = re.compile(r"(?i)^tim(?:e|ing)/(?P<name>.+)$|^(?P<other>.+[_ ](?:time|duration|elapsed|latency))$")
_NS = {"n": 1, "u": 1_000, "m": 1_000_000, "s": 1_000_000_000}
_NEARLY_ALL, _ROUNDING = 0.95, 0.005  # of rows; of a step, which its parts may be longer by
_LONGEST_NAME = 300
_HEAD_ROWS = 50  # of which the kinds of columns are told
_RESOLUTION = 0.05  # of a step: what times of day may differ from the end of the step before, and 2 ms
_RESOLUTION_NS = 2_000_000
_EARLIEST_NS = 10**17  # of times of day: 1973


class _Kinds(Struct, frozen=True):
    """Which column is what: durations are (name, ns of one) by column; `values` are other numbers."""

    step: str
    rank: str | None
    time: str | None
    durations: Mapping[str, tuple[str, int]]
    values: Sequence[str]


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` holds rows of steps."""
    lines = [line for line in head.split(b"\n") if line.strip()][: _HEAD_ROWS + 1]
    form = _form_of(lines)
    return form is not None and _kinds(form.objects(lines)) is not None


def read(path: Path) -> Trace:
    """Load one step log.

    Raises
    ------
    TraceError
        It cannot be read, or no row has a step and how long it took.
    """
    stream = ByteStream(path)
    blocks = _blocks(stream)
    first = next(blocks, [])
    form = _form_of(first)
    kinds = None if form is None else _kinds(form.objects(first[: _HEAD_ROWS + 1]))
    if form is None or kinds is None:
        raise TraceError(f"{path}: not a step log: its rows lack a step's number or a duration")
    names = [kinds.step, *kinds.durations, *kinds.values, *filter(None, (kinds.rank, kinds.time))]
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    form.use(names)
    for block in itertools.chain([first[form.head_lines :]], blocks):
        for name, column in zip(names, form.columns(block), strict=True):
            parts[name].append(_times_ns(column) if name == kinds.time else _floats(column))
    table = _Table.of(kinds, {name: np.concatenate(columns) for name, columns in parts.items()})
    repairs = [stream.damage] if stream.damage is not None else []
    if form.lost:
        repairs.append(f"{counted(form.lost, 'damaged row')} left out")
    return _trace(path, kinds, table, repairs)


# ---- rows


def _blocks(stream: ByteStream) -> Iterator[list[bytes]]:
    """Yield the lines, some at a time; the last may be incomplete."""
    rest = b""
    for piece in stream:
        *whole, rest = (rest + piece).split(b"\n")
        if lines := [line for line in whole if line.strip()]:
            yield lines
    if rest.strip():
        yield [rest]


def _form_of(lines: Sequence[bytes]) -> _JsonLines | _Csv | None:
    """Return how the rows of a log that begins so are read; None where it is neither of the two."""
    if not lines:
        return None
    first = lines[0].removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"{"):
        return _JsonLines()
    text = first.decode("utf-8", "replace").strip()
    delimiter = max("\t,;", key=text.count)
    try:
        (names,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return None
    return _Csv([name.strip() for name in names], delimiter) if 1 < len(names) == len(set(names)) else None


class _JsonLines:
    """An object per line; `lost` counts lines that are not."""

    head_lines = 0

    def __init__(self) -> None:
        self.lost = 0

    def objects(self, lines: Sequence[bytes]) -> list[Mapping[str, Any]]:
        """Return the objects of whole lines."""
        return [row for line in lines if (row := _object(line)) is not None]

    def use(self, names: Sequence[str]) -> None:
        """Let `columns` be those of these names."""
        self._names = names
        fields = [(f"f{i}", float | str | bool | None, None) for i in range(len(names))]
        self._row = msgspec.defstruct("Row", fields)
        self._cells = attrgetter(*(name for name, *_ in fields))  # a step and how long it took, at least
        self._decoder = None
        with contextlib.suppress(ValueError):  # no field may have a name with a quote or a control character
            typed = msgspec.defstruct("Row", fields, rename={f"f{i}": name for i, name in enumerate(names)})
            self._decoder = msgspec.json.Decoder(typed)

    def columns(self, lines: Sequence[bytes]) -> list[Sequence[Any]]:
        """Return the values of each column, None where it is missing."""
        rows = None
        with contextlib.suppress(ValueError, RecursionError):
            rows = self._decoder and self._decoder.decode_lines(b"\n".join(lines))
        if rows is None:
            found = map(_object, lines)
            rows = [self._row(*map(row.get, self._names)) for row in found if row is not None]
            self.lost += len(lines) - len(rows)
        return _transposed(map(self._cells, rows), len(self._names))


class _Csv:
    """Cells between delimiters, names in the first line; `lost` counts lines with other numbers of cells."""

    head_lines = 1

    def __init__(self, names: Sequence[str], delimiter: str) -> None:
        self.lost = 0
        self._names, self._delimiter = names, delimiter

    def objects(self, lines: Sequence[bytes]) -> list[Mapping[str, Any]]:
        """Return the rows after the first line."""
        return [dict(zip(self._names, row, strict=True)) for row in self._rows(lines[1:])]

    def use(self, names: Sequence[str]) -> None:
        """Let `columns` be those of these names."""
        self._wanted = [self._names.index(name) for name in names]

    def columns(self, lines: Sequence[bytes]) -> list[Sequence[Any]]:
        """Return the values of each column."""
        rows = self._rows(lines)
        self.lost += len(lines) - len(rows)
        columns = _transposed(rows, len(self._names))
        return [columns[at] for at in self._wanted]

    def _rows(self, lines: Sequence[bytes]) -> list[list[str]]:
        text = b"\n".join(lines).decode("utf-8", "replace").replace("\0", "\ufffd").splitlines()
        try:
            return [
                row for row in csv.reader(text, delimiter=self._delimiter) if len(row) == len(self._names)
            ]
        except csv.Error:  # a cell without an end
            return []


def _object(line: bytes) -> Mapping[str, Any] | None:
    """Return the object of a line, in which NaN may stand; None where it is damaged."""
    try:
        row = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _transposed(rows: Iterable[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * width


# ---- columns


def _kinds(rows: Sequence[Mapping[str, Any]]) -> _Kinds | None:
    """Return which columns these rows have; None where they are not steps."""
    named = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in named if clean_text(name) == name]  # others cannot be written
    numeric = {
        name
        for name in names
        if all(_is_number(row.get(name)) for row in rows if row.get(name) not in (None, ""))
    }
    step = next((name for name in names if name in numeric and _STEP_NAME.fullmatch(name)), None)
    if step is None or "ph" in names:
        return None
    rank = next((name for name in names if name in numeric and _RANK_NAME.fullmatch(name)), None)
    time = next((name for name in names if _TIME_NAME.fullmatch(name) and _are_times(rows, name)), None)
    durations = {}
    for name in names:
        if name in numeric and name not in (step, rank, time) and (duration := _duration(name)):
            durations[name] = duration
    if not durations and time is None:
        return None
    known = {step, rank, time, *durations}
    values = [name for name in names if name in numeric and name not in known]
    return _Kinds(step, rank, time, durations, values)


def _duration(name: str) -> tuple[str, int] | None:
    """Return the name of a column of durations and its unit in ns; None for any other column."""
    if len(name) > _LONGEST_NAME:  # the patterns take its square
        return None
    if match := _DURATION.match(name):
        return match["name"].strip("_ /.-(") or name, _NS[match["unit"][0].lower()]
    match = _TIMED.match(name)
    return (match["name"] or match["other"], _NS["s"]) if match else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return True
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _are_times(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column has times of day: seconds to nanoseconds since the epoch, or ISO 8601."""
    return bool(rows) and bool(_times_ns([row.get(name) for row in rows]).all())


def _times_ns(values: Sequence[Any]) -> Int64:
    """Return times of day (n,) in ns since the epoch, to a microsecond; 0 for anything else."""
    numbers = _floats(values)
    found = np.zeros(len(numbers), np.int64)
    for unit_ns in (_NS["s"], _NS["m"], _NS["u"], _NS["n"]):
        is_time = (numbers * unit_ns >= _EARLIEST_NS) & (numbers * unit_ns <= FARTHEST_NS) & (found == 0)
        found[is_time] = np.rint(numbers[is_time] * (unit_ns / 1_000)).astype(np.int64) * 1_000
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        try:
            moment = datetime.fromisoformat(str(values[row]).replace("Z", "+00:00"))
            at_ns = round(moment.timestamp() * 1e6) * 1_000
        except (ValueError, OverflowError):
            continue
        found[row] = at_ns if _EARLIEST_NS <= at_ns <= FARTHEST_NS else 0
    return found


class _Table(Struct, frozen=True):
    """The rows that count, sorted by rank and step (n,): numbers, ranks, ends and durations, ns."""

    number: Int64
    rank: Int64  # -1 where it is unknown
    end_ns: Int64
    whole_ns: Int64
    parts_ns: Int64  # (n, parts)
    names: Sequence[str]
    values: Mapping[str, Float64]
    repairs: Sequence[str]

    @classmethod
    def of(cls, kinds: _Kinds, columns: Mapping[str, NDArray[Any]]) -> _Table:
        """Return the table of the columns, a later row of a rank's step in place of the earlier."""
        number: Float64 = columns[kinds.step]
        rank = np.full(len(number), -1.0) if kinds.rank is None else columns[kinds.rank]
        spans = [columns[name] * unit for name, (_, unit) in kinds.durations.items()]
        spent = np.array(spans).T.reshape(len(number), len(spans))
        is_told = (
            (np.abs(number) < 1 << 53) & (np.abs(rank) < 1 << 31) & (np.rint(number) == number)
        )  # not NaN
        is_told &= (spent < FARTHEST_NS / 4).all(1) & (spent >= 0).all(1)
        end = np.zeros(len(number), np.int64) if kinds.time is None else columns[kinds.time]
        repairs = []
        if n := int((~is_told).sum()):
            repairs.append(f"{counted(n, 'row')} without a step or its durations left out")
        rows = np.flatnonzero(is_told)
        order = rows[np.lexsort((rows, number[rows], rank[rows]))]
        last = np.ones(len(order), np.bool_)
        last[:-1] = (np.diff(number[order]) != 0) | (np.diff(rank[order]) != 0)
        if n := int((~last).sum()):
            repairs.append(f"{counted(n, 'row')} of steps that were run again; the last of a step holds")
        kept = order[last]
        values = {name: columns[name][kept] for name in kinds.values}
        short = [name for name, _ in kinds.durations.values()]
        names = [
            full if own == STEP or short.count(own) > 1 else own
            for full, own in zip(kinds.durations, short, strict=True)
        ]
        at = _whole(spent[kept], list(kinds.durations))
        whole = np.zeros(len(kept)) if at is None else spent[kept, at]
        parts = [i for i in range(len(names)) if i != at]
        return cls(
            number[kept].astype(np.int64), rank[kept].astype(np.int64), end[kept], whole.astype(np.int64),
            spent[kept][:, parts].astype(np.int64), [names[i] for i in parts], values, repairs,
        )  # fmt: skip


def _floats(values: Sequence[Any]) -> Float64:
    """Return a column as numbers; NaN for any other value."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([float(value) if _is_number(value) else np.nan for value in values])


def _whole(spent: Float64, names: Sequence[str]) -> int | None:
    """Return which column is the whole step: at least the sum of the others in nearly all rows."""
    if not len(spent) or not spent.shape[1]:
        return None
    if spent.shape[1] == 1:
        return 0
    total = spent.sum(1, keepdims=True)
    covers = (2 * spent >= total * (1 - _ROUNDING)).mean(0)
    median = np.median(spent, axis=0)
    at = int(np.argmax(median))
    named = bool(_STEP_NAME.search(names[at])) or "total" in names[at].lower()
    return at if covers[at] >= _NEARLY_ALL or named else None


# ---- slices


def _trace(path: Path, kinds: _Kinds, table: _Table, repairs: Sequence[str]) -> Trace:
    """Return the rows as slices: each rank's steps on a track of its own."""
    ranks, track = numbered(table.rank.tolist())
    begins, wholes, kept = [], [], []
    for rank in ranks:
        rows = np.flatnonzero(table.rank == rank)
        begin, whole = _placed(
            table.number[rows], table.end_ns[rows], table.whole_ns[rows], table.parts_ns[rows]
        )
        is_known = whole > 0
        begins.append(begin[is_known])
        wholes.append(whole[is_known])
        kept.append(rows[is_known])
    if not any(map(len, kept)):
        raise TraceError(f"{path}: no row tells how long its step took")
    rows, begin, whole = map(np.concatenate, (kept, begins, wholes))
    notes = [*repairs, *table.repairs]
    if gap := _missing(table.number[rows], table.rank[rows]):
        notes.append(gap)
    n_parts = table.parts_ns.shape[1]
    summed = np.cumsum(np.column_stack([np.zeros(len(rows), np.int64), table.parts_ns[rows]]), axis=1)
    if n := int((summed[:, -1] > whole * (1 + _ROUNDING)).sum()):
        notes.append(f"the parts of {counted(n, 'step')} are longer than the step: cut at its end")
    bounds = np.minimum(summed, whole[:, None])
    name_id = np.tile(np.arange(1 + n_parts, dtype=np.int32), len(rows))
    ts_ns = np.column_stack([begin, begin[:, None] + bounds[:, :-1]]).ravel()
    dur_ns = np.column_stack([whole, np.diff(bounds, axis=1)]).ravel()
    is_run = dur_ns > 0
    step_rows = np.flatnonzero((name_id == 0)[is_run])
    args = {NUMBER: ArgColumn(step_rows, array("q", table.number[rows].tobytes()))}
    args |= {VALUE + name: ArgColumn(step_rows, value[rows].tolist()) for name, value in table.values.items()}
    return Trace(
        path=str(path), dialect=DIALECT, names=[STEP, *table.names], cats=[""],
        tracks=[Track(_known(rank), 0) for rank in ranks],
        name_id=name_id[is_run], cat_id=np.zeros(int(is_run.sum()), np.int32),
        track_id=np.repeat(track[rows], 1 + n_parts).astype(np.int32)[is_run],
        ts_ns=ts_ns[is_run], dur_ns=dur_ns[is_run], args=args,
        phases={"row": len(rows)}, rank=_known(ranks[0]) if len(ranks) == 1 else None,
        repairs=notes,
    )  # fmt: skip


def _known(rank: int) -> int | None:
    return None if rank < 0 else rank


def _placed(number: Int64, end_ns: Int64, whole_ns: Int64, parts_ns: Int64) -> tuple[Int64, Int64]:
    """Return begin and length (n,) of a rank's steps; 0 long where that is not known.

    Steps follow each other; where the times of day, which are rounded, tell of more than rounding
    between two of them, so much passed there.
    """
    if not whole_ns.any():
        follows = np.diff(number, prepend=number[:1] - 2) == 1
        whole_ns = np.where(follows, np.diff(end_ns, prepend=end_ns[:1]), 0)
        if not end_ns.any():
            whole_ns = parts_ns.sum(1)
    if not end_ns.any():
        return np.cumsum(whole_ns) - whole_ns, whole_ns
    gaps = np.diff(end_ns - whole_ns, prepend=(end_ns - whole_ns)[:1])[1:] - whole_ns[:-1]
    rounding = np.maximum(_RESOLUTION_NS, _RESOLUTION * np.median(whole_ns))
    gaps = np.where(gaps > rounding, gaps, 0)
    begin = (end_ns - whole_ns)[:1] + np.concatenate([[0], np.cumsum(whole_ns[:-1] + gaps)])
    return begin.astype(np.int64), whole_ns.astype(np.int64)


def _missing(number: Int64, rank: Int64) -> str:
    """Return how many steps are not in the log, in words; "" where all are, or every n-th is logged."""
    one = number[rank == rank[0]]
    steps = np.diff(one)
    if not len(steps):
        return ""
    usual = int(np.median(steps))
    if len(steps) > 1 and usual > 1 and (steps % usual == 0).mean() >= _NEARLY_ALL:
        return f"one step of {usual} is in the log"
    left = int((steps - 1).sum())
    return f"{counted(left, 'step')} between the first and the last not in the log" if left else ""
