"""The charts of a workbook, read back by another library."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import openpyxl

from report import colours, xlsx
from result import Bars, Chart, HeatMap, Lines, Result, Waterfall


def read_back(path: Path, *charts: Chart) -> Any:
    xlsx.write(Result("o", "T", {}, charts=charts), path)
    return openpyxl.load_workbook(path)


def rows_of(sheet: Any) -> list[tuple[Any, ...]]:
    return [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]


def test_a_chart_without_a_series_is_left_out(tmp_path: Path) -> None:
    empty: list[Chart] = [Bars("Time", "rank", "ms", ["r0"], {}), Lines("Time", "step", "ms", [1.0], {})]
    assert read_back(tmp_path / "a.xlsx", *empty).sheetnames == ["Summary"]


def test_bars_are_numbers_and_a_chart_of_them(tmp_path: Path) -> None:
    bars = Bars("Time", "rank", "ms", ["r0", "=1+1"], {"FW": [1.0, None], "Comm": [2.0, 3.0]}, stacked=True)
    sheet = read_back(tmp_path / "a.xlsx", bars)["Charts"]
    assert rows_of(sheet) == [
        ("Time", None, None), (None, "FW", "Comm"), ("r0", 1, 2), ("=1+1", None, 3),
    ]  # fmt: skip
    assert sheet["A4"].data_type == "s"
    [chart] = sheet._charts
    assert (chart.type, chart.grouping) == ("col", "stacked")
    assert [series.val.numRef.f for series in chart.series] == ["Charts!$B$3:$B$4", "Charts!$C$3:$C$4"]
    shades = colours.assign(["FW", "Comm"])
    fills = [f"#{series.spPr.solidFill.srgbClr.lower()}" for series in chart.series]
    assert fills == [shades["FW"], shades["Comm"]]


def test_pale_bars_are_seen_through(tmp_path: Path) -> None:
    bars = Bars("T", "step", "ms", ["1"], {"iteration time": [1], "far longer": [3]}, pale={"iteration time"})
    read_back(tmp_path / "a.xlsx", bars)
    with zipfile.ZipFile(tmp_path / "a.xlsx") as book:
        drawn = book.read("xl/charts/chart1.xml").decode().lower()
    own = colours.of("far longer").removeprefix("#")
    assert re.findall(rf'val="{own}"(?:/>|><a:alpha val="(\d+)")', drawn) == ["50000", ""]


def test_each_part_of_a_waterfall_stands_on_those_before(tmp_path: Path) -> None:
    parts = [("a", 3.0, "FW"), ("b", 2.0, "Comm"), ("c", 1.0, "FW")]
    sheet = read_back(tmp_path / "a.xlsx", Waterfall("Parts", "ms", parts, "the step"))["Charts"]
    assert rows_of(sheet)[1:] == [
        (None, "before", "FW", "Comm", "the step"),
        ("a", 0, 3, None, None),
        ("b", 3, None, 2, None),
        ("c", 5, 1, None, None),
        ("the step", None, None, None, 6),
    ]
    assert sheet._charts[0].series[0].spPr.noFill


def test_of_pictures_of_steps_a_workbook_has_those_that_a_page_shows_at_first(tmp_path: Path) -> None:
    steps = [Waterfall(f"Parts of {step}", "ms", [("a", 3.0, "FW")], "it", step=step) for step in "798"]
    sheet = read_back(tmp_path / "a.xlsx", *steps)["Charts"]
    assert [row[0] for row in rows_of(sheet) if "Parts" in str(row[0])] == ["Parts of 7", "Parts of 9"]


def test_a_waterfall_may_lead_from_one_total_to_another_and_fall(tmp_path: Path) -> None:
    parts = [("old", 9.0, ""), ("a", 3.0, "FW"), ("b", -2.0, "Comm")]
    sheet = read_back(tmp_path / "a.xlsx", Waterfall("Parts", "ms", parts, "new"))["Charts"]
    assert rows_of(sheet)[1:] == [
        (None, "before", "FW", "Comm", "new"),
        ("old", 0, None, None, 9),
        ("a", 9, 3, None, None),
        ("b", 10, None, 2, None),  # from 12 down to 10
        ("new", None, None, None, 10),
    ]


def test_strips_are_named_by_both_places_and_lines_by_numbers(tmp_path: Path) -> None:
    strips = Bars("Steps", "step", "ms", ["1", "1"], {"FW": [1.0, 2.0]}, strips=["r0", "r1"])
    lines = Lines("Times", "step", "ms", [3.0, 4.0], {"r0": [1.0, 2.0]})
    sheet = read_back(tmp_path / "a.xlsx", strips, lines)["Charts"]
    assert [row[0] for row in rows_of(sheet)] == ["Steps", None, "r0 1", "r1 1", "Times", None, 3, 4]
    assert len(sheet._charts) == 2


def test_without_a_chart_for_it_a_workbook_has_no_sheet_of_charts(tmp_path: Path) -> None:
    heat = HeatMap("Map", "step", "rank", "ms", ["1"], ["r0"], [[1.0]])
    assert read_back(tmp_path / "a.xlsx", heat).sheetnames == ["Summary"]
