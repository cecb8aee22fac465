"""Parquet keeps names, numbers and gaps of the first table, with the types of its columns."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pytest

from analyzer.base.errors import AnalyzeError
from analyzer.report import parquet
from analyzer.report.result import Column, Result, Table
from conftest import REPO, run_cli

COLUMNS = (
    Column("name", "Name"),
    Column("step", "Step", "id"),
    Column("ms", "ms", "float"),
    Column("share", "share", "percent"),
    Column("ok", "ok", "bool"),
)


def read(path: Path) -> tuple[list[tuple[str, str]], list[tuple[object, ...]]]:
    table = duckdb.connect().read_parquet(str(path))
    return list(zip(table.columns, map(str, table.types), strict=True)), table.fetchall()


def test_types_and_cells_are_kept(tmp_path: Path) -> None:
    rows = [
        ('a "b",\n=1+1', 7, 1.5, 0.25, True),
        ("", None, None, None, None),
        ("变 \udcff", 1 << 40, math.nan, 1e-300, False),
    ]
    parquet.write(Result("o", "T", {}, [Table("t", "T", COLUMNS, rows)]), tmp_path / "t")
    types, cells = read(tmp_path / "t")
    assert [kind for _, kind in types] == ["VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "BOOLEAN"]
    assert cells == [*rows[:2], ("变 ?", 1 << 40, None, 1e-300, False)]


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    parquet.write(Result("o", "T", {}, [Table("t", "T", COLUMNS, [])]), tmp_path / "t")
    types, cells = read(tmp_path / "t")
    assert ([name for name, _ in types], cells) == (["name", "step", "ms", "share", "ok"], [])


def test_without_a_table_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(AnalyzeError, match=r"^--format parquet: o has no table here; use --format json$"):
        parquet.write(Result("o", "T", {}), tmp_path / "t")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_named_by_output_and_standard_output_stays_empty(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    words = ("breakdown", REPO / "examples/lenet", "--format", "parquet", "--output", file)
    code, out, err = run_cli(*words)
    assert (code, out, err) == (0, "", f"analyze.py: INFO: wrote {file}\n")
    assert len(read(file)[1]) == 22  # 11 steps on each of two ranks
    refused = f"analyze.py: error: --format parquet --output {file}: exists; --force overwrites it\n"
    assert run_cli(*words) == (2, "", refused)
