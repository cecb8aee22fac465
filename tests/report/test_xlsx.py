"""The workbook face, read back by another library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.report import xlsx
from analyzer.report.result import Cell, Column, Result, Table

NAME = Column("name", "Name")
COUNT = Column("count", "Count", "int")
AVERAGE = Column("avg_ms", "Average (ms)", "float")
CHANGE = Column("change", "Change", "percent", digits=1, scale="diverging")


def table(rows: list[tuple[Cell, ...]], *columns: Column, name: str = "operations") -> Table:
    return Table(name, "Operations", columns, rows)


def read_back(path: Path, *tables: Table) -> Any:
    xlsx.write(Result("o", "T", {}, tables, notes=("a note",)), path)
    return openpyxl.load_workbook(path)


def rows_of(sheet: Any) -> list[tuple[Any, ...]]:
    return list(sheet.iter_rows(values_only=True))


def test_rows_come_back_with_gaps_as_empty_cells(tmp_path: Path) -> None:
    rows: list[tuple[Cell, ...]] = [
        ("a", 3, 1.25, 0.5),
        ("b", None, math.nan, None),
        ("c", 0, math.inf, -0.25),
    ]
    book = read_back(tmp_path / "a.xlsx", table(rows, NAME, COUNT, AVERAGE, CHANGE))
    assert rows_of(book["operations"]) == [
        ("Name", "Count", "Average (ms)", "Change"),
        ("a", 3, 1.25, 0.5),
        ("b", None, None, None),
        ("c", 0, None, -0.25),
    ]


def test_the_first_sheet_is_a_summary(tmp_path: Path) -> None:
    result = Result(
        "o", "T", {}, (table([("a",)], NAME, name="summary"),), figures=[("Steps", "12")],
        notes=["=1+1", "second"], repairs=["cut"], headline="Rank 1 is slow.",
    )  # fmt: skip
    xlsx.write(result, tmp_path / "a.xlsx")
    book = openpyxl.load_workbook(tmp_path / "a.xlsx")
    assert book.sheetnames == ["Summary", "summary (2)"]
    assert rows_of(book["Summary"]) == [
        ("Rank 1 is slow.", None),
        (None, None),
        ("Steps", "12"),
        ("Notes", "=1+1"),
        (None, "second"),
        ("Repaired or left out", "cut"),
    ]


@pytest.mark.parametrize(
    "text", ["=1+1", "{=SUM(A1)}", "https://example.org/", "12", "\x1b[31m\ud800", " x "]
)
def test_a_text_stays_text(text: str, tmp_path: Path) -> None:
    cell = read_back(tmp_path / "a.xlsx", table([(text,)], NAME))["operations"]["A2"]
    assert cell.data_type == "s"
    assert cell.hyperlink is None


def test_an_integer_beyond_the_exact_range_is_kept_as_text(tmp_path: Path) -> None:
    book = read_back(tmp_path / "a.xlsx", table([(2**53 + 1,)], COUNT))
    assert book["operations"]["A2"].value == "9007199254740993"


def test_a_text_longer_than_a_cell_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = read_back(tmp_path / "a.xlsx", table([("x" * 40_000,)], NAME))
    assert len(book["operations"]["A2"].value) == 32_767
    assert "texts cut to 32767 characters: 1" in caplog.text


def test_more_rows_than_a_sheet_holds_are_cut_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xlsx, "ROWS_A_SHEET", 3)  # with the header
    book = read_back(tmp_path / "a.xlsx", table([(1,), (2,), (3,)], COUNT))
    assert rows_of(book["operations"]) == [("Count",), (1,), (2,)]
    assert "operations: 1 rows are left out of the workbook" in caplog.text


@given(st.lists(st.text(), max_size=6))
def test_sheet_names_are_legal_and_unique(wanted: list[str]) -> None:
    taken: set[str] = set()
    names = [xlsx.sheet_name(name, taken) for name in wanted]
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert 1 <= len(name.encode("utf-16-le")) // 2 <= 31
        assert not set(name) & set("[]:*?/\\") and name.isprintable()
        assert not name.startswith("'")
        assert not name.endswith("'")
