"""The lines of a step log (JSON, CSV or TSV) as tables of numbers, read by DuckDB."""

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
_BLOCK_ROWS = 250_000  # rows held as Python objects at a time
_MEMORY = "256MB"  # for DuckDB; the rest of its table is on the disk
_LONGEST_ROW = 1 << 24  # bytes


def begun_in(head: bytes) -> bytes:
    """Strip the byte order mark and comment lines from a file's beginning."""
    return re.sub(rb"\A(?:[ \t\r]*(?:#[^\n]*)?\n)+", b"", head.removeprefix(BOM))


def object_of(line: bytes) -> Mapping[str, Any] | None:
    """Decode a line's object, which may hold NaN; None if it is damaged.

    Members of nested objects are added under their path: ``{"time": {"data": 2}}`` has ``time/data``.
    """

    def members(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, cell in row.items():
            yield name, cell
            if isinstance(cell, dict):
                yield from ((f"{name}/{inner}", value) for inner, value in members(cell))

    try:
        row = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
        return dict(members(row)) if isinstance(row, dict) else None
    except (ValueError, RecursionError):
        return None


def cells_of(line: bytes, delimiter: str) -> list[str]:
    """Split a line into its cells; [] if a quote has no end."""
    text = line.decode("utf-8", "replace").replace("\0", "\ufffd").strip("\r")
    try:
        (cells,) = csv.reader([text], delimiter=delimiter)
        return cells
    except (csv.Error, ValueError):
        return []


class Form:
    """The columns of a log and how its rows are written.

    `names` are the columns; those of texts have `codes` and come last. `lost` counts damaged
    rows, `odd` cells without a number in columns of numbers. A CSV file has a `header` and a `delimiter`;
    JSON has neither. `by_rank` has the columns in the file of each rank, if a row is of all ranks.
    """

    def __init__(
        self,
        kinds: Kinds,
        header: Sequence[str],
        delimiter: str,
        by_rank: Mapping[int, Mapping[str, str]],
    ) -> None:
        self.kinds, self.header, self.delimiter, self.by_rank = kinds, header, delimiter, by_rank
        coded = {*kinds.labels, *kinds.values, kinds.metric}
        self.codes: dict[str, dict[str, int]] = {name: {} for name in kinds.texts if name in coded}
        wanted = (kinds.step, *kinds.durations, *kinds.values, *kinds.labels, kinds.rank, kinds.time)
        names = [*dict.fromkeys(name for name in wanted if name is not None and name not in self.codes)]
        self.names = [*names, *self.codes]
        self.numbers = names  # the columns of numbers in the file
        if by_rank:
            names = [name for name in names if name not in (kinds.rank, "rank")]
            full = (columns.get(name, name) for columns in by_rank.values() for name in names)
            self.numbers = [*dict.fromkeys(full)]
        self.lost = self.odd = 0

    def columns(self, blocks: Iterable[bytes]) -> dict[str, Float64]:
        """Read the numbers (n,) of each column; times of day are in seconds, other cells NaN."""
        import duckdb

        pieces = {name: [np.empty(0)] for name in self.names}
        with temporary_directory() as folder:
            path = folder / "rows"
            if self._write(path, blocks):
                with duckdb.connect(folder / "table", config={"memory_limit": _MEMORY}) as database:
                    database.execute("SET TimeZone = 'UTC'")
                    self._load(database, path)
                    (n_rows,) = database.execute("SELECT count(*) FROM cells").fetchone() or (0,)
                    for first in range(0, n_rows, _BLOCK_ROWS):
                        for name, column in self._block(database, first):
                            pieces[name].append(column)
        return {name: np.concatenate(pieces.pop(name)) for name in self.names}

    def _write(self, path: Path, blocks: Iterable[bytes]) -> int:
        """Write the lines for DuckDB as UTF-8, and count the bytes.

        DuckDB needs one kind of line end, and would take the lines after an open quote into its cell: such a
        quote is closed at the end of its line.
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
        """Make the table `cells` with a column n0, n1, … for each number and t0, t1, … for each text."""
        source, parameters = self._source(path)
        cells = {name: self._cell(name) for name in (*self.numbers, *self.codes)}
        chosen = [f"{self._number(cells[name], name)} AS n{i}" for i, name in enumerate(self.numbers)]
        chosen += [f"{cells[name]} AS t{i}" for i, name in enumerate(self.codes)]
        odd = [
            f"(trim({cells[name]}) <> '' AND {self._number(cells[name], name)} IS NULL)::INT"
            for name in self.numbers
            if name != self.kinds.time
        ]
        chosen += [f"{' + '.join(odd) or 0} AS odd", f"{self._is_damaged()} AS damaged"]
        database.execute(f"CREATE TABLE cells AS SELECT {', '.join(chosen)} FROM {source}", parameters)
        sums = "count(*) FILTER (damaged), coalesce(sum(odd) FILTER (NOT damaged), 0)::BIGINT"
        n_damaged, n_odd = database.execute(f"SELECT {sums} FROM cells").fetchone() or (0, 0)
        self.lost += n_damaged
        self.odd += n_odd
        if self.header:
            rejected = "SELECT count(DISTINCT line) FROM reject_errors"
            (n_rejected,) = database.execute(rejected).fetchone() or (0,)
            self.lost += n_rejected

    def _source(self, path: Path) -> tuple[str, list[Any]]:
        """Write SQL for the rows of a file, with its parameters."""
        if self.header:
            columns = {f"h{i}": "VARCHAR" for i in range(len(self.header))}
            text = (
                "read_csv(?, delim = ?, columns = ?, header = false, auto_detect = false, quote = '\"', "
                "escape = '\"', ignore_errors = true, store_rejects = true, max_line_size = ?, "
                "buffer_size = ?)"
            )
            return text, [str(path), self.delimiter, columns, _LONGEST_ROW, 2 * _LONGEST_ROW]
        text = "read_ndjson_objects(?, ignore_errors = true, maximum_object_size = ?)"
        return text, [str(path), _LONGEST_ROW]

    def _cell(self, name: str) -> str:
        """Write SQL for a column of the file."""
        if self.header:
            return f"h{self.header.index(name)}"
        parts = name.split("/") if self.kinds.nested else []
        paths = [[name], *([*parts[:i], "/".join(parts[i:])] for i in range(1, len(parts)))]
        quoted = ((json.dumps(key, ensure_ascii=False) for key in keys) for keys in paths)
        values = [f"json->>{_text('.'.join(['$', *keys]))}" for keys in quoted]
        return f"coalesce({', '.join(values)})" if len(values) > 1 else f"({values[0]})"

    def _number(self, cell: str, name: str) -> str:
        """Write SQL for a cell as a number; a time of day may be ISO 8601."""
        number = f"TRY_CAST(trim({cell}) AS DOUBLE)"
        if name == self.kinds.time:
            return f"coalesce({number}, epoch_us(TRY_CAST({cell} AS TIMESTAMPTZ)) / 1e6)"
        return number

    def _is_damaged(self) -> str:
        """Write SQL for rows to ignore: damaged objects, and repeated headers."""
        if not self.header:
            return "json IS NULL OR json_type(json) <> 'OBJECT'"
        cells = (f"trim(h{i}) IS NOT DISTINCT FROM {_text(name)}" for i, name in enumerate(self.header))
        return " AND ".join(cells)

    def _block(self, database: DuckDBPyConnection, first: int) -> Iterator[tuple[str, Float64]]:
        """Yield the columns of a block of rows from row `first` on, of each rank if a row is of all."""
        rows = f"FROM cells WHERE rowid >= {first} AND rowid < {first + _BLOCK_ROWS} AND NOT damaged"
        cells = database.execute(f"SELECT * EXCLUDE (odd, damaged) {rows}").fetchnumpy()
        columns: dict[str, Any] = {
            name: np.ma.filled(cells[f"n{i}"].astype(np.float64), np.nan)
            for i, name in enumerate(self.numbers)
        }
        for i, name in enumerate(self.codes):
            columns[name] = self._coded(name, np.ma.filled(cells[f"t{i}"], None).tolist())
        n_rows = len(next(iter(columns.values())))
        for rank, full in (self.by_rank or {0: {}}).items():
            for name in self.names:
                yield name, np.broadcast_to(columns.get(full.get(name, name), rank), n_rows)

    def _coded(self, name: str, texts: Sequence[str | None]) -> Float64:
        """Replace the texts of a column (n,) by their codes; NaN where there is no text."""
        codes = self.codes[name]
        code_of = {
            text: codes.setdefault(clean_text(text[:LONGEST_NAME]), len(codes))
            for text in dict.fromkeys(texts)
            if text is not None
        }
        return np.array([np.nan if text is None else code_of[text] for text in texts], np.float64)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
