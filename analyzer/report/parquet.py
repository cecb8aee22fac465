"""Parquet for dataframes and databases: the first table, with the types of its columns."""

from __future__ import annotations

from pathlib import Path

from analyzer.base.errors import AnalyzeError, OutputError
from analyzer.base.outputs.atomic import open_output, temporary_directory
from analyzer.report.json import encode
from analyzer.report.result import Result

_TYPES = {"int": "BIGINT", "id": "BIGINT", "float": "DOUBLE", "percent": "DOUBLE", "bool": "BOOLEAN"}


def write(result: Result, path: Path) -> None:
    """Write the first table as the file `path`. Raises AnalyzeError without a table, and OutputError."""
    import duckdb

    if not result.files_tables:
        raise AnalyzeError(f"--format parquet: {result.option} has no table here; use --format json")
    table = result.files_tables[0]
    types = {column.key: _TYPES.get(column.kind, "VARCHAR") for column in table.columns}
    with open_output(path) as stream, temporary_directory() as folder:
        rows, target = folder / "rows", folder / "table"
        rows.write_bytes(
            b"\n".join(encode({k: _in_utf8(v) for k, v in row.items()}) for row in table.objects)
        )
        try:
            with duckdb.connect() as database:
                read = database.read_json(str(rows), columns=types, format="newline_delimited")
                read.write_parquet(str(target))
        except duckdb.Error as error:
            raise OutputError(f"{path}: cannot be written: {error}") from error
        stream.write(target.read_bytes())


def _in_utf8(cell: object) -> object:
    return cell.encode("utf-8", "replace").decode() if isinstance(cell, str) else cell
