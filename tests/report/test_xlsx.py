"""The workbook face, read back by another library."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report import xlsx
from result import Cell, Column, Result, Table

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
        "o", "T", {}, (table([("a",)], NAME, name="summary"),), figures=[("Steps", "12")], read=["r.json"],
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
        ("Read", "r.json"),
        ("Repaired or left out", "cut"),
    ]


def test_the_header_is_bold_and_stays_and_filters(tmp_path: Path) -> None:
    sheet = read_back(tmp_path / "a.xlsx", table([("a", 1), ("b", 2)], NAME, COUNT))["operations"]
    assert sheet["A1"].font.bold
    assert sheet.freeze_panes == "B2"
    assert sheet.auto_filter.ref == "A1:B3"


def test_numbers_are_formatted_by_their_columns(tmp_path: Path) -> None:
    sheet = read_back(tmp_path / "a.xlsx", table([("a", 1, 1.0, 0.5)], NAME, COUNT, AVERAGE, CHANGE))[
        "operations"
    ]
    assert [cell.number_format for cell in sheet[2]] == ["General", "#,##0", "#,##0.000", "0.0%"]


def test_a_change_is_coloured_around_zero(tmp_path: Path) -> None:
    sheet = read_back(tmp_path / "a.xlsx", table([("a", 0.5), ("b", -0.5)], NAME, CHANGE))["operations"]
    [area] = sheet.conditional_formatting
    assert str(area.sqref) == "B2:B3"
    assert [bound.val for bound in area.rules[0].colorScale.cfvo] == [-0.5, 0, 0.5]


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


def test_a_table_without_rows_is_a_sheet_with_a_header(tmp_path: Path) -> None:
    assert rows_of(read_back(tmp_path / "a.xlsx", table([], NAME))["operations"]) == [("Name",)]


def test_sheet_names_that_differ_only_in_case_are_told_apart() -> None:
    taken: set[str] = set()
    assert [xlsx.sheet_name(name, taken) for name in ("Run", "run", "RUN")] == ["Run", "run (2)", "RUN (3)"]


def test_a_long_sheet_name_keeps_both_its_ends_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    name = xlsx.sheet_name("fork_lenet_base_with_a_slow_network_17", set())
    assert name == "fork_lenet_base…slow_network_17"
    assert "names end at 31 characters" in caplog.text


def test_history_is_no_legal_name() -> None:
    assert xlsx.sheet_name("History", set()) == "History_"


@given(st.lists(st.text(), max_size=6))
def test_sheet_names_are_legal_and_unique(wanted: list[str]) -> None:
    taken: set[str] = set()
    names = [xlsx.sheet_name(name, taken) for name in wanted]
    assert len({name.casefold() for name in names}) == len(names)
    for name in names:
        assert 1 <= len(name.encode("utf-16-le")) // 2 <= 31
        assert not set(name) & set("[]:*?/\\")
        assert not name.startswith("'")
        assert not name.endswith("'")


def test_a_number_that_only_tells_apart_has_no_separators(tmp_path: Path) -> None:
    sheet = read_back(tmp_path / "a.xlsx", table([(65536,)], Column("key", "Key", "id")))["operations"]
    assert (sheet["A2"].value, sheet["A2"].number_format) == (65536, "0")
