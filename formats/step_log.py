"""Step logs: a row for each rank and step with a few durations, as JSON, CSV or TSV -> columns.

Facts by which the columns are told, as no two jobs name them alike:

- the step's number, the rank and the time of day by their names; durations by their unit (`_ms`, `_s`,
  `_sec`, …) or by a name that ends in ``time``; every other column of numbers is a value;
- the whole step is the duration that is at least the sum of the others in nearly all rows; without one,
  the difference of the times of day, which are those of the steps' ends;
- a row of one number, and a text that names it, is a part of such a row;
- a repeated step, as after a restart from a checkpoint, holds as it was written last.

In the trace a row is a slice; its other columns are the slice's arguments.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arrays import Float64, Int64, Mask, NDArray
from arrays.spill import Room, Spill, let_go
from errors import TraceError, counted, listed
from formats.columns import ArgColumn, Trace, Track
from formats.stream import ByteStream
from formats.values import FARTHEST_NS, clean_text

#: The dialect of these traces, and the name of the slice that is a whole step.
DIALECT, STEP = "step log", "step"
#: The argument of the slices that numbers the steps. Other numbers are arguments called as their columns,
#: durations in whole ns; the member `PARTS` of the header tells how these are called in tables.
NUMBER, PARTS = "step's number", "parts"

_STEP_NAME = re.compile(
    r"(?i)(?:global|train(?:ing)?)?[_ /.]?(?:step|iter(?:ation)?)(?:_?(?:num(?:ber)?|id|idx))?"
)
_EPOCH_NAME = re.compile(r"(?i)epoch(?:_?(?:num(?:ber)?|id|idx))?")
_RANK_NAME = re.compile(r"(?i)(?:global_?)?rank(?:_?id)?|process_?index")
#: Columns that tell ranks apart together where no other does: of a host, and within it.
_WHOSE = tuple(
    re.compile(rf"(?i){name}(?:_?(?:name|rank|id|index|idx))?")
    for name in ("(?:host|node|machine)", "(?:local|worker|process|proc|replica|gpu|device)")
)
#: A rank's own column, in rows of all ranks: ``rank3_data_ms``, ``data_ms/rank3``, ``rank3 - step_ms``.
_OF_RANK = re.compile(r"(?i)(?P<before>.*?)(?<![a-z])rank[ _:=#-]?(?P<rank>\d{1,7})(?!\d)(?P<after>.*)")
#: Columns of rows that hold one number each: what it is, and the number.
_METRIC_NAME = re.compile(
    r"(?i)(?:metric|variable|measure(?:ment)?|series|tag|key|phase|stage|part|section|timer|span|op(?:eration)?|event)"
    r"(?:_?name)?|name"
)
_MEASURE_NAME = re.compile(r"(?i)val(?:ue)?")
_TIME_NAME = re.compile(
    r"(?i)ts|_?time(?:stamp)?|date(?:time)?|wall[_ ]?time|epoch_?(?:s|time)|end(?:_?(?:ts|time(?:stamp)?))?"
)
_UNIT = r"(?P<unit>ms|msecs?|milliseconds?|us|usecs?|ns|s|secs?|seconds?)"
_DURATION = re.compile(rf"(?i)^(?:tim(?:e|ing)/)?(?P<name>.*?)[_ /.(\[-]*(?:\b|_){_UNIT}[)\]]?$")
_PER = re.compile(rf"(?i)^{_UNIT}(?:[_ ]per[_ ]|/)(?P<name>.+)$")
_RATE = re.compile(
    r"(?i)(?:/|(?:^|[_ /.-])"
    r"(?:per|tok|tokens?|samples?|images?|imgs?|examples?|seqs?|bytes|[kmgt]i?b|[a-z]?flops?))"
    r"[_ /.(\[-]*(?:s|secs?|seconds?)[)\]]?$"
)
_TIMED = re.compile(r"(?i)^tim(?:e|ing)/(?P<name>.+)$|^(?P<other>.+[_ ](?:time|duration|elapsed|latency))$")
_TIMED_IN = re.compile(rf"(?i)^(?P<name>.*(?:time|elapsed|duration|latency)s?[_ ]{_UNIT}[_ /].+)$")
_LONG_STEP = re.compile(rf"{_STEP_NAME.pattern}(?:[_ ]?(?:time|duration|latency|elapsed))?")
_PART_NAME = re.compile(
    r"(?i)data|load|fetch|input|comput|fwd|forward|bwd|backward|comm|reduce|gather|sync|wait|idle|barrier|opt|update|copy"
)
_UNITS = {"s": "seconds", "m": "milliseconds", "u": "microseconds", "n": "nanoseconds"}
_NS = {"n": 1, "u": 1_000, "m": 1_000_000, "s": 1_000_000_000}
_NEARLY_ALL, _ROUNDING = 0.95, 0.005  # of rows; of a step, which its parts may be longer by
_LONGEST_NAME = 300
_ROW_AFTER_ROW, _ONE_LINE = re.compile(rb"\}\s*,\s*\{"), bytes.maketrans(b"\r\n", b"  ")  # in an array
_BOM = b"\xef\xbb\xbf"
_MANY_ROWS = 100_000  # of which some tell the whole step
_PIECE_ROWS = 250_000  # that are sorted together
_PIECES = 4  # of which some rows are looked at together
_MOST_METRICS = 1_000  # beyond it the column names something else: each becomes a column of every step
_MOST = 1 << 31  # of ranks, and of numbers that are labels
_SHARED_STEPS = 0.5  # that two ranks have, at least
_LONGER = 2  # than the steps by their times of day no duration is
_HEAD_ROWS = 20  # of which the kinds of columns are told
_RESOLUTION = 0.05  # of a step: what times of day may differ from the end of the step before, and 2 ms
_RESOLUTION_NS = 2_000_000
_EARLIEST_NS = 10**17  # of times of day: 1973
_RANK = "rank"
_ROW, _BEGIN, _WHOLE, _TRACK = range(4)  # columns of slices, beside those that have names
_PAUSE_STEPS, _PAUSE_NS = 10, 60 * 10**9  # between two steps, from which a pause is told: longer than both


_OwnColumns = Mapping[int, Mapping[str, str]]  # of ranks: the names without the rank -> those in the file


class _Kinds(Struct, frozen=True):
    """Which column is what, None where no name says it.

    Durations are (name, ns of one, 0 where the name tells no unit), `values` other numbers; `labels` tell
    ranks apart where no column is a rank. Of `texts` are labels and times of day; in `nested` rows some lie
    in objects. Where a row holds one number, `metric` tells which, and `measure` is the number.
    Columns `unread` are called durations, and hold texts.
    """

    step: str | None
    rank: str | None
    time: str | None
    durations: Mapping[str, tuple[str, int]]
    values: Sequence[str]
    labels: Sequence[str] = ()
    texts: Sequence[str] = ()
    nested: bool = False
    metric: str | None = None
    measure: str = ""
    unread: Sequence[str] = ()


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` holds rows of steps."""
    return _form_of(b"\n".join(_blocks([head]))) is not None


def read(path: Path, asked: Collection[str] = ()) -> Trace:
    """Load one step log; where no column is called after ranks, one of those `asked` for may tell them.

    Raises
    ------
    TraceError
        It cannot be read, or no row has a step and how long it took.
    """
    stream = ByteStream(path)
    blocks = _blocks(stream)
    first = next(blocks, b"")
    form = _form_of(first)
    if form is None:
        raise TraceError(f"{path}: not a step log: its rows lack a step's number or a duration")
    apart = [name for name in asked if name in form.kinds.values and form.kinds.rank is None]
    whose = () if apart else form.kinds.rank or form.kinds.labels
    rows = _RowsByRank(form.names, whose) if form.kinds.metric is None else _Metrics(form, whose, apart)
    for block in itertools.chain([form.body(first)], blocks):
        rows.add(form.table(block))
    repairs = [stream.damage] if stream.damage is not None else []
    if form.lost:
        repairs.append(f"{counted(form.lost, 'damaged row')} left out")
    if form.odd:
        repairs.append(f"{counted(form.odd, 'cell')} without a number in columns of numbers: taken as empty")
    if form.kinds.unread:
        repairs.append(f"{listed(form.kinds.unread, 3)} left out: no plain numbers, such as 12.3")
    rows.end()
    if form.kinds.rank is None and rows.labels:
        repairs += rows.number(form.kinds.step, form.codes)
    with np.errstate(over="ignore"):  # too long for a duration: left out
        return _trace(path, rows.kinds(path, form.kinds), rows, apart, repairs)


# ---- rows


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines, many at a time; the last may be incomplete. Rows of a JSON array are lines."""
    rest, is_array = b"", None
    for piece in pieces:
        if is_array is None and (is_array := _begun(piece).lstrip().startswith(b"[")):
            piece = _begun(piece).lstrip()[1:]
        text = rest + (piece.translate(_ONE_LINE) if is_array else piece)
        if is_array:
            text = _ROW_AFTER_ROW.sub(b"}\n{", text)
        whole, newline, rest = text.rpartition(b"\n")
        if newline:
            yield whole
    if is_array:
        rest = rest.strip().removesuffix(b"]")
    if rest.strip():
        yield rest


def _form_of(head: bytes) -> _Form | _Wide | None:
    """Return how the rows of a log that begins so are read; None where they are not steps."""
    lines = [line for line in _begun(head).split(b"\n", 2 * _HEAD_ROWS) if line.strip()]
    told = _told(b"\n".join(lines[: _HEAD_ROWS + 1]))
    if told is None:
        return None
    form, kinds, ranks, header, delimiter = told
    if not ranks:
        return form(kinds, header, delimiter)
    names = [name for name in (kinds.step, *kinds.durations, *kinds.values) if name is not None]
    every = dict.fromkeys(own.get(name, name) for own in ranks.values() for name in names)
    of_rows = replace(kinds, step=None, rank=None, durations={}, values=[*every], labels=())
    return _Wide(form(of_rows, header, delimiter), kinds, ranks)


def _begun(head: bytes) -> bytes:
    """Return a file's beginning without the mark of its byte order and lines of comments."""
    return re.sub(rb"\A(?:[ \t\r]*(?:#[^\n]*)?\n)+", b"", head.removeprefix(_BOM))


@lru_cache(maxsize=8)  # a file is recognised, and then read
def _told(head: bytes) -> tuple[type[_Form], _Kinds, _OwnColumns, Sequence[str], str] | None:
    """Return form and columns that the first lines show, those of each rank, header, delimiter."""
    lines = head.split(b"\n")
    if lines[0].lstrip().startswith(b"{"):
        form: type[_Form] = _JsonLines
        header, delimiter = [], ""
        rows = [row for line in lines if (row := _object(line)) is not None]
    else:
        form, text = _Csv, lines[0].decode("utf-8", "replace").strip()
        delimiter = max("\t,;", key=text.count)
        header = [name.strip() for name in _cells(lines[0], delimiter)]
        if not 1 < len(header) == len(set(header)):
            return None
        table = [_cells(line, delimiter) for line in lines[1:]]
        rows = [dict(zip(header, cells, strict=True)) for cells in table if len(cells) == len(header)]
    ranks = _columns_by_rank(rows)
    own = {name for columns in ranks.values() for name in columns.values()}
    kinds = _kinds(
        [
            {name: cell for name, cell in row.items() if name not in own}
            | {_RANK: rank, **{name: row.get(full) for name, full in columns.items()}}
            for row in rows
            for rank, columns in ranks.items()
        ]
        or rows
    )
    return None if kinds is None else (form, kinds, ranks, header, delimiter)


def _columns_by_rank(rows: Sequence[Mapping[str, Any]]) -> _OwnColumns:
    """Return the columns of numbers that each rank has of its own, by what they are called without the rank.

    None where they are not of several ranks, which all have the same, durations among them.
    """
    found: dict[int, dict[str, str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if len(name) > _LONGEST_NAME or not (match := _OF_RANK.fullmatch(name)):
            continue
        parts = [match[part].strip(" _-:./") for part in ("before", "after")]
        if any(parts) and _are_numbers([row.get(name) for row in rows]):
            found.setdefault(int(match["rank"]), {})["_".join(filter(None, parts))] = name
    alike = {frozenset(own) for own in found.values()}
    return found if len(found) > 1 and len(alike) == 1 and any(map(_duration, *alike)) else {}


def _object(line: bytes) -> Mapping[str, Any] | None:
    """Return the object of a line, in which NaN may stand; None where it is damaged.

    Members of objects in it are its own: ``{"time": {"data": 2}}`` has ``time/data``.
    """
    try:
        row = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
        return dict(_members(row)) if isinstance(row, dict) else None
    except (ValueError, RecursionError):
        return None


def _members(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, cell in row.items():
        yield name, cell
        if isinstance(cell, dict):
            yield from ((f"{name}/{inner}", one) for inner, one in _members(cell))


def _cells(line: bytes, delimiter: str) -> list[str]:
    """Return the cells of a line; none where one has no end."""
    text = line.decode("utf-8", "replace").replace("\0", "\ufffd").strip("\r")
    try:
        (cells,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return []
    return cells


class _Form:
    """How rows are written; `names` are the columns of `table`, those of texts last.

    `lost` counts rows that are damaged, `odd` cells without a number in columns of numbers. Labels that are
    texts have `codes`. A CSV file has a `header`, and a `delimiter` between its cells.
    """

    def __init__(self, kinds: _Kinds, header: Sequence[str], delimiter: str) -> None:
        self.kinds, self.header, self.delimiter = kinds, header, delimiter
        names = filter(None, (kinds.step, *kinds.durations, *kinds.values, kinds.rank, kinds.time))
        self.names = [*(name for name in names if name not in kinds.texts), *kinds.texts]
        self.n_numbers = len(self.names) - len(kinds.texts)
        self.lost = self.odd = 0
        coded = {*kinds.labels, kinds.metric}
        self.codes: dict[str, dict[str, int]] = {name: {} for name in kinds.texts if name in coded}

    def body(self, first: bytes) -> bytes:
        """Return the rows of the first lines of a file."""
        return _begun(first)

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the cells of a line by their columns; None where it is damaged."""
        raise NotImplementedError

    def fast(self, lines: bytes) -> Float64:
        """Return the numbers (rows, columns) of lines of which none is damaged; ValueError of others."""
        raise NotImplementedError

    def table(self, lines: bytes) -> Float64:
        """Return the numbers (rows, columns), seconds of times of day; NaN of other cells."""
        with contextlib.suppress(ValueError, RecursionError):
            return self.fast(lines)
        table = []
        for line in filter(bytes.strip, lines.split(b"\n")):
            if (row := self.row(line)) is None:
                self.lost += 1
                continue
            numbers, texts = self.names[: self.n_numbers], self.kinds.texts
            cells = [_number(row.get(name)) for name in numbers if name != self.kinds.time]
            cells += [_seconds(row.get(name)) for name in numbers if name == self.kinds.time]
            table.append([*cells, *(self.coded(name, [row.get(name)])[0] for name in texts)])
            self.odd += sum(_is_odd(row.get(name)) for name in numbers if name != self.kinds.time)
        return np.array(table, np.float64).reshape(-1, len(self.names))

    def coded(self, name: str, texts: Sequence[Any]) -> Float64:
        """Return the cells of a column of texts as numbers."""
        if name not in self.codes:
            return _all_seconds(texts)
        codes = self.codes[name]
        codings = [
            np.nan if text is None else codes.setdefault(clean_text(str(text)[:_LONGEST_NAME]), len(codes))
            for text in texts
        ]
        return np.array(codings, np.float64)


class _Wide:
    """Rows of all ranks at once, as a row for each rank."""

    def __init__(self, form: _Form, kinds: _Kinds, ranks: _OwnColumns) -> None:
        self.form, self.kinds, self.ranks = form, kinds, ranks
        names = (kinds.step, *kinds.durations, *kinds.values, kinds.rank, kinds.time, kinds.metric)
        self.names = [name for name in names if name is not None]
        self.body, self.codes = form.body, form.codes

    @property
    def lost(self) -> int:
        """See `_Form`."""
        return self.form.lost

    @property
    def odd(self) -> int:
        """See `_Form`."""
        return self.form.odd

    def table(self, lines: bytes) -> Float64:
        """Return the numbers (rows of ranks, columns); see `_Form.table`."""
        every = dict(zip(self.form.names, self.form.table(lines).T, strict=True))
        of_ranks = [
            np.broadcast_arrays(
                *(every[own[name]] if name in own else every.get(name, rank) for name in self.names)
            )
            for rank, own in self.ranks.items()
        ]
        table: Float64 = np.concatenate(of_ranks, axis=1, dtype=np.float64).T
        return table


class _JsonLines(_Form):
    """An object per line."""

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the object of a line."""
        return _object(line)

    def fast(self, lines: bytes) -> Float64:
        """Return the numbers of lines that are objects."""
        if self.kinds.nested:
            raise ValueError("members of members")
        decoder, cells = _decoder_of(tuple(self.names), len(self.kinds.texts))
        rows, width = decoder.decode_lines(lines), len(self.names)
        if not self.kinds.texts:
            with contextlib.suppress(TypeError):  # null
                flat = itertools.chain.from_iterable(map(cells, rows))
                return np.fromiter(flat, np.float64, len(rows) * width).reshape(-1, width)
        table = list(itertools.chain.from_iterable(map(cells, rows)))
        for at, name in enumerate(self.kinds.texts, self.n_numbers):
            table[at::width] = self.coded(name, table[at::width]).tolist()
        return np.array(table, np.float64).reshape(-1, width)


@lru_cache(maxsize=8)
def _decoder_of(names: Sequence[str], n_texts: int) -> tuple[msgspec.json.Decoder[Any], Callable[[Any], Any]]:
    """Return a decoder of objects with these members as structs, and a function from these to the members.

    The last are texts. ValueError for names with a quote or a control character.
    """
    fields = [f"f{i}" for i in range(len(names))]
    members: list[Any] = [(name, float | None, np.nan) for name in fields]
    if n_texts:
        members[-n_texts:] = [(name, str | None, None) for name in fields[-n_texts:]]
    row = msgspec.defstruct("Row", members, rename=dict(zip(fields, names, strict=True)), gc=False)
    return msgspec.json.Decoder(row), attrgetter(*fields)  # a step and how long it took, at least


class _Csv(_Form):
    """Cells between delimiters, their names in the first line."""

    def body(self, first: bytes) -> bytes:
        """Return the rows after the names."""
        return _begun(first).partition(b"\n")[2]

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the cells of a line; None where it has more or fewer than the header, or is it again."""
        cells = _cells(line, self.delimiter)
        if len(cells) != len(self.header) or cells == self.header:
            return None
        return dict(zip(self.header, cells, strict=True))

    def fast(self, lines: bytes) -> Float64:
        """Return the numbers of lines with as many cells as the header has."""
        delimiter = self.delimiter.encode()
        if lines.count(delimiter) != (lines.count(b"\n") + 1) * (len(self.header) - 1):
            raise ValueError("rows of other lengths")
        try:
            return self._loaded(lines)
        except ValueError:  # cells without anything, as it may be
            for empty in (2 * delimiter, 2 * delimiter, delimiter + b"\n", b"\n" + delimiter):
                lines = lines.replace(empty, empty[:1] + b"nan" + empty[1:])
            return self._loaded(lines)

    def _loaded(self, lines: bytes) -> Float64:
        read = partial(np.loadtxt, delimiter=self.delimiter, comments=None, quotechar='"', ndmin=2)
        columns = [self.header.index(name) for name in self.names]
        table: Float64 = read(io.BytesIO(lines), usecols=columns[: self.n_numbers])
        if len(table) != lines.count(b"\n") + 1:
            raise ValueError("a quote without an end: what follows is within it")
        if not self.kinds.texts:
            return table
        texts = read(io.BytesIO(lines), usecols=columns[self.n_numbers :], dtype="U300").T.tolist()
        return np.column_stack([table, *map(self.coded, self.kinds.texts, texts)])


# ---- columns


def _kinds(rows: Sequence[Mapping[str, Any]]) -> _Kinds | None:
    """Return which columns these rows have; None where they are not steps."""
    named = dict.fromkeys(name for row in rows for name in row)
    if "ph" in named:
        return None
    # others cannot be written; one without a name is the index of a table; W&B has bounds beside its columns
    names = [
        name
        for name in named
        if name.strip() and clean_text(name) == name
        if not (name.endswith(("__MIN", "__MAX")) and name[:-5] in named)
    ]
    cells = {name: [row.get(name) for row in rows] for name in names}
    numeric = {name for name in names if _are_numbers(cells[name])}
    times = {name for name in names if _are_times(rows, name)}
    own = {name: _own_name(name) for name in sorted(names, key=lambda name: name.count("/"))}
    step, rank = (
        next((name for name in own if name in numeric and rule.fullmatch(own[name])), None)
        for rule in (_STEP_NAME, _RANK_NAME)
    )
    time = next((name for name in own if name in times and _TIME_NAME.fullmatch(own[name])), None)
    durations = {}
    for name in names:
        duration = _duration(name) if name in numeric and name not in (step, rank, time) else None
        if duration is not None and (duration[1] or name not in times):
            durations[name] = duration
    known = {step, rank, time, *durations}
    values = [name for name in names if name in numeric and name not in known]
    texts = {name for name in names if _in_most([isinstance(one, str) for one in cells[name]])} - numeric
    metric = next((name for name in own if name in texts and _METRIC_NAME.fullmatch(own[name])), None)
    is_again = any(len({*map(str, cells[name])}) < len(rows) for name in (step, metric) if name is not None)
    measure = _measure(durations, values) if None not in (step, metric) and is_again else ""
    metric = metric if measure else None
    if metric is None and ((not durations and None in (step, time)) or (step is None and len(rows) < 2)):
        return None
    labels = [
        next((name for name in own if name in texts | {*values} and rule.fullmatch(own[name])), None)
        for rule in _WHOSE
    ]
    return _Kinds(
        step, rank, time, durations, values,
        labels=[] if rank else [name for name in labels if name],
        texts=[name for name in names if name in texts & {time, metric, *(() if rank else labels)}],
        nested=any(isinstance(cell, dict) for own in cells.values() for cell in own),
        metric=metric,
        measure=measure,
        unread=[name for name in names if name in texts - times and _duration(name)],
    )  # fmt: skip


def _measure(durations: Collection[str], values: Collection[str]) -> str:
    """Return the column that holds the only measured number of a row: by its name, or the only duration."""
    called = [name for name in values if _MEASURE_NAME.fullmatch(_own_name(name))]
    took = [*durations, *(name for name in values if _duration(f"it {name}"))]
    return next((some[0] for some in (called, took) if len(some) == 1), "")


def _own_name(name: str) -> str:
    """Return a name without the objects, or the groups of columns, in which it lies."""
    return _words_apart(name if name.lower().startswith(("time/", "timing/")) else name.rpartition("/")[2])


def _duration(name: str) -> tuple[str, int] | None:
    """Return the name of a column of durations and its unit (ns, or 0); None for any other column."""
    if len(name) > _LONGEST_NAME:  # the patterns take its square
        return None
    name = _words_apart(name)
    if _RATE.search(name) and not _TIMED.match(name):
        return None
    if match := _PER.match(name) or _DURATION.match(name) or _TIMED_IN.match(name):
        return match["name"].strip("_ /.-(") or name, _NS[match["unit"][0].lower()]
    match = _TIMED.match(name)
    return (match["name"] or match["other"], 0) if match else None


def _words_apart(name: str) -> str:
    """Return a name with its words apart.

    >>> _words_apart("stepTimeMs")
    'step_Time_Ms'
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name)


def _are_numbers(cells: Sequence[Any]) -> bool:
    """Whether most of the cells that hold something hold a number: one that is damaged costs no column."""
    return _in_most([not _is_odd(cell) for cell in cells if cell not in (None, "")])


def _in_most(which: Sequence[bool]) -> bool:
    return 2 * sum(which) > len(which)


def _is_odd(cell: Any) -> bool:
    """Whether a cell holds something, and not a number."""
    return cell not in (None, "") and bool(np.isnan(_number(cell))) and str(cell).lower() != "nan"


def _number(cell: Any) -> float:
    """Return a cell as a number; NaN for anything else."""
    try:
        return np.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _seconds(cell: Any) -> float:
    """Return a time of day as a number: ISO 8601 in seconds since the epoch; NaN for anything else."""
    number = _number(cell)
    if not np.isnan(number):
        return number
    try:
        moment = datetime.fromisoformat(str(cell).replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return np.nan


def _all_seconds(texts: Sequence[str | None]) -> Float64:
    """Return many times of day as numbers; see `_seconds`."""
    try:  # text of the universal time, as nearly all is
        plain = "\n".join(texts).replace("Z", "").replace("+00:00", "")  # type: ignore[arg-type]
        if "+" in plain or plain.count("-") != 2 * len(texts):
            raise ValueError("of another zone")
        return np.array(plain.split("\n"), "datetime64[us]").astype(np.int64) / 1e6
    except (TypeError, ValueError):
        return np.array(list(map(_seconds, texts)), np.float64)


def _are_times(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether most cells of a column are times of day: seconds to ns since the epoch, or ISO 8601."""
    return _in_most((_times_ns(np.array([_seconds(row.get(name)) for row in rows])) > 0).tolist())


def _times_ns(numbers: Float64) -> Int64:
    """Return times of day (n,) in ns since the epoch, to a microsecond; 0 for anything else."""
    found = np.zeros(len(numbers), np.int64)
    for unit_ns in (_NS["s"], _NS["m"], _NS["u"], _NS["n"]):
        is_time = (numbers >= _EARLIEST_NS / unit_ns) & (numbers <= FARTHEST_NS / unit_ns) & (found == 0)
        found[is_time] = np.rint(numbers[is_time] * (unit_ns / 1_000)).astype(np.int64) * 1_000
    return found


def _whole(spent: Sequence[Float64], names: Sequence[str]) -> int | None:
    """Return which column is the whole step: by name, or at least the sum of the others in most rows."""
    if len(spent) < 2 or not len(spent[0]):
        return 0 if len(spent) == 1 else None
    at = int(np.argmax([np.median(column) for column in spent]))
    named = bool(_STEP_NAME.search(names[at])) or "total" in names[at].lower()
    covers = 2 * spent[at] >= sum(spent) * (1 - _ROUNDING)  # as a long wait for a late rank does, too
    is_whole = covers.mean() >= _NEARLY_ALL and not _PART_NAME.search(names[at])
    return at if named or is_whole else None


# ---- slices


class _RowsByRank:
    """The numbers in rows of a log, by their rank; what memory should not hold is put aside.

    `n` counts the rows, `lost` those of which the rank is damaged, `added` those added to others, by rank.
    """

    def __init__(self, names: Sequence[str], whose: str | Sequence[str]) -> None:
        self.names, self.n, self.lost = names, 0, 0
        self.is_rank = isinstance(whose, str)  # else labels may tell ranks
        self.labels = [whose] if isinstance(whose, str) else whose
        self.added: dict[int, int] = {}
        self.known: dict[int, int] = {}  # the rank of each number in the rows, where that is another one
        self._blocks: list[Float64] = []  # (rows, columns) that are in no piece yet
        self._pieces: list[tuple[Int64, Int64, Float64]] = []  # ranks, where the rows of each begin, rows
        self._spill = Spill()

    def add(self, table: Float64) -> None:
        """Add rows (n, columns)."""
        self._blocks.append(table)
        if sum(map(len, self._blocks)) >= _PIECE_ROWS:
            self._end_piece()

    def _end_piece(self) -> None:
        table = np.concatenate(self._blocks)
        self._blocks = []
        rank = np.full(len(table), -1.0)
        if self.is_rank:
            rank = table[:, self.names.index(self.labels[0])]
        elif self.labels:  # maybe measurements, which a row may lack: it stays
            labels = [
                np.rint(np.nan_to_num(table[:, self.names.index(name)], nan=-1)) for name in self.labels
            ]
            host, local = (np.clip(label, -1, _MOST) for label in (0 * labels[-1], *labels)[-2:])
            rank = host * _MOST + local
        is_known = (np.abs(rank) < _MOST) & (np.rint(rank) == rank)  # not NaN
        if self.is_rank and not is_known.all():
            self.lost += int((~is_known).sum())
            table, rank = table[is_known], rank[is_known]
        if (np.diff(rank) < 0).any():
            order = np.argsort(rank, kind="stable")
            table, rank = table.take(order, axis=0), rank[order]
        first = np.flatnonzero(np.diff(rank, prepend=np.nan))
        bounds = np.append(first, len(rank))
        self._pieces.append((rank[first].astype(np.int64), bounds, *self._spill.put_arrays([table])))
        self.n += len(rank)

    def end(self) -> None:
        """Know that no rows are added after."""
        if self._blocks:
            self._end_piece()

    def ranks(self) -> list[int]:
        """Return the numbers of the ranks in the rows, in the order of the ranks."""
        found = {rank for ranks, _, _ in self._pieces for rank in ranks.tolist()}
        return sorted(found, key=lambda rank: self.known.get(rank, rank))

    def kinds(self, path: Path, of_file: _Kinds) -> _Kinds:
        """Return which of the rows' columns is what; `of_file` are those of the columns in the file."""
        return of_file

    def number(self, step: str | None, codes: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Give the ranks that labels tell their numbers, and return a note.

        They are one rank where each has steps of its own, as where the label is a measurement.
        """
        ranks = self.ranks()
        one, other = (self.of(rank)[step] if step else np.zeros(0) for rank in (ranks * 2)[:2])
        if len(ranks) < 2 or not np.isin(one, other).mean() >= _SHARED_STEPS:
            unknown = np.array([-1])
            self._pieces = [(unknown, np.array([0, len(table)]), table) for _, _, table in self._pieces]
            return []
        texts = [{code: text for text, code in codes.get(name, {}).items()} for name in self.labels]

        def told(rank: int) -> str:
            labels = divmod(rank, _MOST)[-len(texts) :]
            return " ".join(one.get(label, str(label)) for one, label in zip(texts, labels, strict=True))

        def natural(rank: int) -> list[Any]:
            parts = re.split(r"(\d+)", told(rank))
            return [int(part) if at % 2 else part for at, part in enumerate(parts)]

        ranks.sort(key=natural)
        if len(texts) > 1 or codes:
            self.known = {rank: place for place, rank in enumerate(ranks)}
        first, last = (f"rank {self.known.get(rank, rank)} is {told(rank)}" for rank in (ranks[0], ranks[-1]))
        return [f"ranks are told apart by {' and '.join(self.labels)}: {first}, {last}"]

    def some(self) -> dict[str, Float64]:
        """Return the columns of enough rows of all ranks to tell what they are."""
        every = 1 + self.n // _MANY_ROWS
        return self._columns(lambda _, __: [slice(None, None, every)])

    def of(self, rank: int) -> dict[str, Float64]:
        """Return the columns of a rank's rows, in the order of the file."""
        return self._columns(
            lambda ranks, first: [
                slice(*first[at : at + 2].tolist()) for at in np.flatnonzero(ranks == rank).tolist()
            ]
        )

    def _columns(self, rows: Callable[[Int64, Int64], Iterable[slice]]) -> dict[str, Float64]:
        """Return the columns of the rows that a function takes from each piece."""
        parts = []
        for begin in range(0, len(self._pieces), _PIECES):
            some = self._pieces[begin : begin + _PIECES]
            parts += [table[own].copy() for ranks, first, table in some for own in rows(ranks, first)]
            let_go([table for _, _, table in some])
        return dict(zip(self.names, np.concatenate(parts).T.copy(), strict=True))


class _Metrics(_RowsByRank):
    """Rows of one number each, which a metric names, as a row of all metrics for each step."""

    def __init__(self, form: _Form | _Wide, whose: str | Sequence[str], apart: Sequence[str]) -> None:
        super().__init__(form.names, whose)
        self._metric, self._measure = str(form.kinds.metric), form.kinds.measure
        self._keys = [str(form.kinds.step), *apart]
        self._codes = form.codes[self._metric]

    def add(self, table: Float64) -> None:
        """Add rows (n, columns); those without a metric are lost."""
        is_named = ~np.isnan(table[:, self.names.index(self._metric)])
        self.lost += int((~is_named).sum())
        super().add(table[is_named])

    def metrics(self) -> list[str]:
        """Return the names of the metrics as columns, in the order of their codes."""
        return [name if name not in self.names else f"{name} {self._measure}" for name in self._codes]

    def kinds(self, path: Path, of_file: _Kinds) -> _Kinds:
        """Return the metrics that are durations, by their names or that of the number, and all others."""
        if len(self._codes) > _MOST_METRICS:
            raise TraceError(
                f"{path}: column {self._metric} has more than {_MOST_METRICS:,} names of metrics"
            )
        in_all = _duration(f"it {self._measure}")
        found = {name: _duration(name) for name in self.metrics() if name}
        if in_all is not None:
            found = {name: one if one and one[1] else (name, in_all[1]) for name, one in found.items()}
        durations = {name: one for name, one in found.items() if one is not None}
        if not durations:
            raise TraceError(
                f"{path}: which of its metrics are durations is not told: call them such as forward_ms, "
                f"or column {self._measure} such as value_ms"
            )
        values = [name for name in of_file.values if name != self._measure]
        values += [name for name in found if name not in durations]
        return replace(of_file, durations=durations, values=values)

    def of(self, rank: int) -> dict[str, Float64]:
        """Return the columns of a rank's steps, in the order of the file.

        Numbers of one metric that follow each other in a step are added up. What comes after other steps is
        the step run again, and a row of its own.
        """
        columns = super().of(rank)
        keys, metric = [columns[name] for name in self._keys], columns[self._metric]
        visit = np.cumsum(_changes(keys))
        order = np.lexsort((visit, metric, *keys))
        is_first = _changes([key[order] for key in (visit, metric, *keys)])
        total = np.add.reduceat(columns[self._measure][order], np.flatnonzero(is_first))
        last = order[np.append(is_first[1:], True)]  # of each sum: its last row
        self.added[rank] = len(order) - len(last)
        keys, metric, at = [key[last] for key in keys], metric[last], np.arange(len(last))
        again = at - np.maximum.accumulate(np.where(_changes([metric, *keys]), at, 0))
        order = np.lexsort((last, again, *keys))
        is_first = _changes([key[order] for key in (again, *keys)])
        table = np.full((len(self._codes), int(is_first.sum())), np.nan)
        table[metric[order].astype(np.int64), np.cumsum(is_first) - 1] = total[order]
        last = last[order][np.append(is_first[1:], True)]
        in_file = np.argsort(last)
        found = {name: column[last[in_file]] for name, column in columns.items()}
        return found | dict(zip(self.metrics(), table[:, in_file], strict=True))

    def some(self) -> dict[str, Float64]:
        """Return the columns of the first rank, which tell what they are."""
        return self.of(self.ranks()[0])


def _changes(keys: Sequence[NDArray[Any]]) -> Mask:
    """Return which rows (n,) have another key than the one before; the first one has."""
    return np.asarray(np.any([np.diff(key, prepend=np.nan) != 0 for key in keys], axis=0))


def _trace(
    path: Path, kinds: _Kinds, rows: _RowsByRank, apart: Sequence[str], damage: Sequence[str]
) -> Trace:
    """Return the rows as slices, each rank's on a track of its own, in the order of the steps.

    Rows of one step that differ in one of the columns `apart` are not the same step again.
    """
    ranks = rows.ranks()
    kinds, unit = _with_units(kinds, rows.of(ranks[0])) if ranks else (kinds, "")
    some = rows.some() if rows.n else dict.fromkeys(rows.names, np.empty(0))
    looked_at = [np.nan_to_num(some[name]) * unit for name, (_, unit) in kinds.durations.items()]
    at = _whole(looked_at, list(kinds.durations))
    kinds, at = _without_again(kinds, at)
    parts = _names(kinds, at)
    room, told, lost = None, list[int](), np.array([rows.lost, 0, 0, 0, 0])
    n, first = 0, slice(0)
    for rank in ranks:
        own, of_rank = _of_rank(rows.of(rank), kinds, at, apart)
        lost += of_rank
        if own is None:
            continue
        stop = n + len(own[NUMBER])
        own |= {_ROW: np.arange(n, stop), _TRACK: np.full(stop - n, len(told), np.int32)}
        if room is None:
            names, room = list(own), Room(rows.n, [column.dtype for column in own.values()])
        room.add(own.values())
        told.append(rows.known.get(rank, rank))
        first, n = first if first.stop else slice(0, stop), stop
    if room is None or not n:
        raise TraceError(f"{path}: no row tells how long its step took")
    columns = {name: column[:n] for name, column in zip(names, room.arrays, strict=True)}
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
        tracks=[Track(_known(rank), 0) for rank in told],
        name_id=none, cat_id=none, track_id=columns[_TRACK], ts_ns=begin, dur_ns=whole,
        args={name: ArgColumn(columns[_ROW], columns[name]) for name in args},
        header={PARTS: parts}, phases={"row": n}, rank=_known(told[0]) if len(told) == 1 else None,
        repairs=[note for note in notes if note],
    )  # fmt: skip


def _with_units(kinds: _Kinds, columns: Mapping[str, Float64]) -> tuple[_Kinds, str]:
    """Return the kinds with a unit of all durations, and what is assumed, in words.

    Where no name tells it, it is the largest in which none is longer than steps are by the times of day.
    """
    names = [name for name, (_, unit) in kinds.durations.items() if not unit]
    if not names:
        return kinds, ""
    longest = max(float(np.median(np.nan_to_num(columns[name]))) for name in names)
    unit, between = "s", 0.0
    if kinds.time is not None and kinds.step is not None and len(columns[kinds.time]) > 1:
        after, steps = np.diff(_times_ns(columns[kinds.time])), np.diff(columns[kinds.step])
        between = float(np.median(after / np.where(steps > 0, steps, 1)))
    if between > 0:
        unit = next((one for one in _UNITS if longest * _NS[one] <= _LONGER * between), "n")
    durations = {name: (own, of or _NS[unit]) for name, (own, of) in kinds.durations.items()}
    how = f"{listed(names, 3)} taken for {_UNITS[unit]}"
    told = "as the times of day tell" if between > 0 else "as no unit is told"
    return replace(kinds, durations=durations), "" if between > 0 and unit == "s" else f"{how}, {told}"


def _of_rank(
    columns: Mapping[str, Float64], kinds: _Kinds, at: int | None, apart: Sequence[str]
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
            np.nan_to_num(took, copy=False)
        is_told &= (took >= 0) & (took < FARTHEST_NS / 4)
        spent.append(took)
    rows = _last_of_each([number, *(columns[name] for name in apart)], np.flatnonzero(is_told))
    is_over = kinds.step is not None and number is not columns[kinds.step]
    lost = np.array([(~is_told).sum(), is_told.sum() - len(rows), 0, 0, is_over])
    if not len(rows):
        return None, lost
    steps, told_ns = number[rows].astype(np.int64), [took[rows].astype(np.int64) for took in spent]
    whole_ns = end_ns = np.zeros(len(rows), np.int64)
    if at is not None:
        whole_ns = told_ns.pop(at)
    if kinds.time is not None:
        end_ns = _times_ns(columns[kinds.time][rows])
        lost[2] = (end_ns == 0).sum()
    begin, whole = _placed(steps, end_ns, whole_ns, told_ns)
    kept = np.flatnonzero(whole)
    if at is not None:
        lost[0] += len(rows) - len(kept)
    left, is_cut = whole.copy(), np.zeros(len(whole), np.bool_)
    found: dict[Any, NDArray[Any]] = {NUMBER: steps[kept], _BEGIN: begin[kept], _WHOLE: whole[kept]}
    for name, part in zip(_names(kinds, at), told_ns, strict=True):
        is_cut |= part > left + whole * _ROUNDING
        part = np.minimum(part, left)
        left -= part
        found[name] = part[kept]
    lost[3] = is_cut[kept].sum()
    return found | {name: columns[name][rows[kept]] for name in kinds.values}, lost


def _over_epochs(number: Float64, kinds: _Kinds, columns: Mapping[str, Float64]) -> Float64:
    """Return the steps' numbers (n,), one after the other over the epochs where each begins them again."""
    for epoch in (columns[name] for name in kinds.values if _EPOCH_NAME.fullmatch(_own_name(name))):
        rises = np.diff(epoch) > 0
        if rises.any() and (np.diff(number)[rises] < 0).all():
            first, last = np.nanmin(number), np.nanmax(number)
            return np.asarray(number + (epoch - np.nanmin(epoch)) * (last - first + 1))
    return number


def _last_of_each(keys: Sequence[Float64], rows: Int64) -> Int64:
    """Return the `rows` sorted by `keys`, the last first; of those with the same the one written last."""
    rows = rows[np.lexsort((rows, *(key[rows] for key in keys)))]
    differs = np.any([np.diff(key[rows]) != 0 for key in keys], axis=0)
    return np.asarray(rows[np.append(differs, True)] if len(rows) else rows)


def _without_again(kinds: _Kinds, at: int | None) -> tuple[_Kinds, int | None]:
    """Return the kinds without parts that are called like the step, as it is, and the place of the step."""
    called = [name for name, (own, _) in kinds.durations.items() if _LONG_STEP.fullmatch(_own_name(own))]
    whole = None if at is None else [*kinds.durations][at]
    if whole not in called or len(called) == 1:
        return kinds, at
    durations = {name: one for name, one in kinds.durations.items() if name == whole or name not in called}
    values = [*kinds.values, *(name for name in called if name != whole)]
    return replace(kinds, durations=durations, values=values), [*durations].index(str(whole))


def _names(kinds: _Kinds, whole: int | None) -> dict[str, str]:
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
    """Return how many steps are not in the log, in words; "" where all are, or every n-th is logged."""
    steps = np.diff(number)
    if not len(steps):
        return ""
    usual = int(np.median(steps))
    if len(steps) > 1 and usual > 1 and (steps % usual == 0).mean() >= _NEARLY_ALL:
        return f"one step of {usual} is in the log"
    left = int((steps - 1).sum())
    return f"{counted(left, 'step')} between the first and the last not in the log" if left else ""


def _pauses(number: Int64, begin: Int64, whole: Int64) -> str:
    """Return how often, how long and where at most nothing ran between two steps, in words; "" for never."""
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
