"""The rows of a step log, as JSON, CSV or TSV -> tables of numbers, a row for each; read by DuckDB."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analyzer.base.arrays import Float64
from analyzer.base.outputs.atomic import temporary_directory
from analyzer.reading.formats.step_log.named_columns import LONGEST_NAME, Kinds
from analyzer.reading.formats.values import clean_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BOM = b"\xef\xbb\xbf"
_BLOCK_ROWS = 250_000  # that are held as Python's objects at a time
_MEMORY = "256MB"  # of DuckDB; the rest of its table is on the disk
_LONGEST_ROW = 1 << 24  # bytes


def begun_in(head: bytes) -> bytes:
    """Strip the mark of the byte order and lines of comments from a file's beginning."""
    return re.sub(rb"\A(?:[ \t\r]*(?:#[^\n]*)?\n)+", b"", head.removeprefix(BOM))


def object_of(line: bytes) -> Mapping[str, Any] | None:
    """Decode the object of a line, in which NaN may stand; None where it is damaged.

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
            yield from ((f"{name}/{inner}", value) for inner, value in _members(cell))


def cells_of(line: bytes, delimiter: str) -> list[str]:
    """Split a line into its cells; [] where a quote has no end."""
    text = line.decode("utf-8", "replace").replace("\0", "\ufffd").strip("\r")
    try:
        (cells,) = csv.reader([text], delimiter=delimiter)
    except (csv.Error, ValueError):
        return []
    return cells


class Form:
    """The columns of a log and how its rows are written; `names` are those of tables, labels last.

    `lost` counts rows that are damaged, `odd` cells without a number in columns of numbers. Labels that are
    texts have `codes`. A CSV file has a `header`, and a `delimiter` between its cells; JSON has neither.
    """

    def __init__(self, kinds: Kinds, header: Sequence[str], delimiter: str) -> None:
        self.kinds, self.header, self.delimiter = kinds, header, delimiter
        coded = {*kinds.labels, *kinds.values, kinds.metric}
        self.codes: dict[str, dict[str, int]] = {name: {} for name in kinds.texts if name in coded}
        names = filter(
            None, (kinds.step, *kinds.durations, *kinds.values, *kinds.labels, kinds.rank, kinds.time)
        )
        self.names = [*dict.fromkeys(name for name in names if name not in self.codes), *self.codes]
        self.lost = self.odd = 0

    def tables(self, blocks: Iterable[bytes]) -> Iterator[Float64]:
        """Yield the numbers (rows, columns) of lines, seconds of times of day; NaN of other cells."""
        import duckdb

        with temporary_directory() as folder:
            path = folder / "rows"
            if not self._write(path, blocks):
                return
            with duckdb.connect(folder / "table", config={"memory_limit": _MEMORY}) as database:
                database.execute("SET TimeZone = 'UTC'")
                self._load(database, path)
                (n_rows,) = database.execute("SELECT count(*) FROM cells").fetchone() or (0,)
                for first in range(0, n_rows, _BLOCK_ROWS):
                    yield self._block(database, first)

    def _write(self, path: Path, blocks: Iterable[bytes]) -> int:
        """Write the lines that DuckDB is to read, as UTF-8, and return how many bytes they have.

        A quote without an end would take the lines after it into its cell: it ends with its line. All lines
        end alike: DuckDB fails on a file whose lines do not.
        """
        n_bytes = 0
        with open(path, "wb") as file:
            for i, block in enumerate(blocks):
                lines = begun_in(block) if i == 0 else block
                if i == 0 and self.header:
                    lines = lines.partition(b"\n")[2]
                if not lines.isascii() or b"\0" in lines:
                    lines = lines.decode("utf-8", "replace").replace("\0", "\ufffd").encode()
                lines = lines.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b" ")
                if self.header and b'"' in lines:
                    lines = b"\n".join(row + b'"' * (row.count(b'"') % 2) for row in lines.split(b"\n"))
                if lines.strip():
                    n_bytes += file.write(lines + b"\n")
        return n_bytes

    def _load(self, database: DuckDBPyConnection, path: Path) -> None:
        """Make the table `cells` of the wanted columns c0, c1, … in the order of the file."""
        source, given = self._source(path)
        n_numbers = len(self.names) - len(self.codes)
        cells = [self._cell(name) for name in self.names]
        numbers = map(self._number, cells[:n_numbers], self.names)
        chosen = [f"{number} AS c{i}" for i, number in enumerate(numbers)]
        chosen += [f"{cells[i]} AS c{i}" for i in range(n_numbers, len(cells))]
        odd = [
            f"(trim({cell}) <> '' AND {self._number(cell, name)} IS NULL)::INT"
            for cell, name in zip(cells[:n_numbers], self.names, strict=False)
            if name != self.kinds.time
        ]
        chosen += [f"{' + '.join(odd) or 0} AS odd", f"{self._is_damaged()} AS damaged"]
        database.execute(f"CREATE TABLE cells AS SELECT {', '.join(chosen)} FROM {source}", given)
        sums = "count(*) FILTER (damaged), coalesce(sum(odd) FILTER (NOT damaged), 0)::BIGINT"
        n_damaged, n_odd = database.execute(f"SELECT {sums} FROM cells").fetchone() or (0, 0)
        self.lost += n_damaged
        self.odd += n_odd
        if self.header:
            rejected = "SELECT count(DISTINCT line) FROM reject_errors"
            (n_rejected,) = database.execute(rejected).fetchone() or (0,)
            self.lost += n_rejected

    def _source(self, path: Path) -> tuple[str, list[Any]]:
        """Name the rows of a file in SQL, and give the parameters of that text."""
        if self.header:
            every = {f"h{i}": "VARCHAR" for i in range(len(self.header))}
            text = (
                "read_csv(?, delim = ?, columns = ?, header = false, auto_detect = false, quote = '\"', "
                "escape = '\"', ignore_errors = true, store_rejects = true, max_line_size = ?)"
            )
            return text, [str(path), self.delimiter, every, _LONGEST_ROW]
        text = "read_ndjson_objects(?, ignore_errors = true, maximum_object_size = ?)"
        return text, [str(path), _LONGEST_ROW]

    def _cell(self, name: str) -> str:
        """Name a column of the file in SQL."""
        if self.header:
            return f"h{self.header.index(name)}"
        parts = name.split("/") if self.kinds.nested else []
        paths = [[name], *([*parts[:i], "/".join(parts[i:])] for i in range(1, len(parts)))]
        quoted = ((json.dumps(key, ensure_ascii=False) for key in keys) for keys in paths)
        values = [f"json->>{_text('.'.join(['$', *keys]))}" for keys in quoted]
        return f"coalesce({', '.join(values)})" if len(values) > 1 else f"({values[0]})"

    def _number(self, cell: str, name: str) -> str:
        """Read a cell as a number in SQL; of times of day, ISO 8601 as well."""
        number = f"TRY_CAST(trim({cell}) AS DOUBLE)"
        if name == self.kinds.time:
            return f"coalesce({number}, epoch_us(TRY_CAST({cell} AS TIMESTAMPTZ)) / 1e6)"
        return number

    def _is_damaged(self) -> str:
        """Say in SQL which rows are no rows of steps: damaged objects, and headers that stand again."""
        if not self.header:
            return "json IS NULL OR json_type(json) <> 'OBJECT'"
        again = (f"trim(h{i}) IS NOT DISTINCT FROM {_text(name)}" for i, name in enumerate(self.header))
        return " AND ".join(again)

    def _block(self, database: DuckDBPyConnection, first: int) -> Float64:
        """Read the numbers (rows, columns) of rows from `first` on."""
        cells = [f"c{i}" for i in range(len(self.names))]
        rows = f"FROM cells WHERE rowid >= {first} AND rowid < {first + _BLOCK_ROWS} AND NOT damaged"
        columns = database.execute(f"SELECT {', '.join(cells)} {rows}").fetchnumpy()
        n_numbers = len(cells) - len(self.codes)
        table = [np.ma.filled(columns[cell].astype(np.float64), np.nan) for cell in cells[:n_numbers]]
        for cell, name in zip(cells[n_numbers:], self.codes, strict=True):
            table.append(self._coded(name, np.ma.filled(columns[cell], None).tolist()))
        return np.column_stack(table)

    def _coded(self, name: str, texts: Sequence[str | None]) -> Float64:
        """Give the texts of a label numbers, in order of first appearance; NaN where there is none."""
        codes = self.codes[name]
        code_of = {
            text: codes.setdefault(clean_text(text[:LONGEST_NAME]), len(codes))
            for text in dict.fromkeys(texts)
            if text is not None
        }
        return np.array([np.nan if text is None else code_of[text] for text in texts], np.float64)


def _text(value: str) -> str:
    """Write a text in SQL."""
    return "'" + value.replace("'", "''") + "'"
