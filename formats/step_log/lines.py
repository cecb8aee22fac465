"""The lines of a step log, as JSON, CSV or TSV -> a table of numbers, a row for each."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import CDLL
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from arrays import Float64
from formats.native.row_reader import RowReader
from formats.step_log.named_columns import LONGEST_NAME, Kinds, all_seconds, is_odd, number_of, seconds_of
from formats.values import clean_text

BOM = b"\xef\xbb\xbf"


def begun_in(head: bytes) -> bytes:
    """Return a file's beginning without the mark of its byte order and lines of comments."""
    return re.sub(rb"\A(?:[ \t\r]*(?:#[^\n]*)?\n)+", b"", head.removeprefix(BOM))


def object_of(line: bytes) -> Mapping[str, Any] | None:
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


def cells_of(line: bytes, delimiter: str) -> list[str]:
    """Return the cells of a line; none where one has no end."""
    text = line.decode("utf-8", "replace").replace("\0", "\ufffd").strip("\r")
    try:
        (cells,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return []
    return cells


class Form:
    """How rows are written; `names` are the columns of `table`, those of texts last.

    `lost` counts rows that are damaged, `odd` cells without a number in columns of numbers. Labels that are
    texts have `codes`. A CSV file has a `header`, and a `delimiter` between its cells.
    """

    def __init__(self, kinds: Kinds, header: Sequence[str], delimiter: str) -> None:
        self.kinds, self.header, self.delimiter = kinds, header, delimiter
        names = filter(None, (kinds.step, *kinds.durations, *kinds.values, kinds.rank, kinds.time))
        self.names = [*(name for name in names if name not in kinds.texts), *kinds.texts]
        self.n_numbers = len(self.names) - len(kinds.texts)
        self.lost = self.odd = 0
        coded = {*kinds.labels, kinds.metric}
        self.codes: dict[str, dict[str, int]] = {name: {} for name in kinds.texts if name in coded}
        self._in_c: RowReader | None = None

    def read_in_c(self, library: CDLL) -> None:
        """Read lines that are plain by the library in C, with the same result."""
        if not self.kinds.nested:
            self._in_c = RowReader(library, self.names, len(self.kinds.texts), self.header, self.delimiter)

    def body(self, first: bytes) -> bytes:
        """Return the rows of the first lines of a file."""
        return begun_in(first)

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the cells of a line by their columns; None where it is damaged."""
        raise NotImplementedError

    def fast(self, lines: bytes) -> Float64:
        """Return the numbers (rows, columns) of lines of which none is damaged; ValueError of others."""
        raise NotImplementedError

    def table(self, lines: bytes) -> Float64:
        """Return the numbers (rows, columns), seconds of times of day; NaN of other cells."""
        if self._in_c is not None and (plain := self._in_c.read(lines)) is not None:
            numbers, texts = plain
            for at, name in enumerate(self.kinds.texts):
                numbers[:, self.n_numbers + at] = self.coded(name, texts[at :: len(self.kinds.texts)])
            return numbers
        with contextlib.suppress(ValueError, RecursionError):
            return self.fast(lines)
        rows = []
        for line in filter(bytes.strip, lines.split(b"\n")):
            if (row := self.row(line)) is None:
                self.lost += 1
                continue
            names = self.names[: self.n_numbers]
            cells = [number_of(row.get(name)) for name in names if name != self.kinds.time]
            cells += [seconds_of(row.get(name)) for name in names if name == self.kinds.time]
            rows.append([*cells, *(self.coded(name, [row.get(name)])[0] for name in self.kinds.texts)])
            self.odd += sum(is_odd(row.get(name)) for name in names if name != self.kinds.time)
        return np.array(rows, np.float64).reshape(-1, len(self.names))

    def coded(self, name: str, texts: Sequence[Any]) -> Float64:
        """Return the cells of a column of texts as numbers."""
        if name not in self.codes:
            return all_seconds(texts)
        codes = self.codes[name]
        cells = [None if text is None else str(text) for text in texts]
        code_of = {
            cell: codes.setdefault(clean_text(cell[:LONGEST_NAME]), len(codes))
            for cell in dict.fromkeys(cells)
            if cell is not None
        }
        return np.array([np.nan if cell is None else code_of[cell] for cell in cells], np.float64)


class JsonLines(Form):
    """An object per line."""

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the object of a line."""
        return object_of(line)

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


class Csv(Form):
    """Cells between delimiters, their names in the first line."""

    def body(self, first: bytes) -> bytes:
        """Return the rows after the names."""
        return begun_in(first).partition(b"\n")[2]

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """Return the cells of a line; None where it has more or fewer than the header, or is it again."""
        cells = cells_of(line, self.delimiter)
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
