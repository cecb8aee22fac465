"""The face for people: text that fits the terminal."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import printable
from analyzer.report import cells, text
from analyzer.report.result import Bars, Column, Result, Table

NAME = Column("name", "Name")
COUNT = Column("count", "Count", "int")
TOTAL = Column("total_ms", "Total (ms)", "float")
SHARE = Column("share", "Share", "percent", digits=1)
SPREAD = Column("var_ms2", "Variance (ms²)", "float")

LONG = "rank0.Comm.byteps_push_pull.resnet50/stage1/layer17.gradient.PUSH.26148864"
OPERATIONS = Table(
    "operations",
    "Operations",
    (NAME, COUNT, TOTAL, SHARE, SPREAD),
    [
        (LONG, 20, 1234.5678, 0.098, 0.25),
        ("rank0.FW.conv0", 123456, 2.5, None, float("nan")),
        ("变换", 1, -0.0001, 0.5, 3.0),
    ],
    note="Averages over 20 steps.",
)
CATEGORIES = Table("categories", "Categories", (Column("cat", "Category"), COUNT), [("PUSH", 20)])
RESULT = Result(
    "statistic",
    "Statistics of one run",
    {},
    (OPERATIONS, CATEGORIES),
    figures=(("Iteration time", "123 ms"), ("Ranks", "2")),
    notes=("Written to combined.json.",),
)


def shown(result: Result, *, quiet: bool = False, full: bool = False, head: int | None = None) -> str:
    stream = io.StringIO()
    text.write(result, stream, Namespace(quiet=quiet, full=full, head=head))
    return stream.getvalue()


def table_of(*columns: Column, rows: list[tuple[object, ...]]) -> Result:
    return Result("o", "", {}, (Table("t", "T", columns, rows),))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_result_at_the_width_of_a_terminal(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    golden("report_80.txt", shown(RESULT))


def test_a_pipe_gets_every_name_in_full(golden: Callable[[str, str], None]) -> None:
    golden("report_pipe.txt", shown(RESULT))


@pytest.mark.parametrize("columns", range(24, 140, 7))
def test_no_line_of_a_table_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(Result("o", "", {}, (OPERATIONS,))).splitlines()
    assert max(map(cells.display_width, lines)) <= columns


@pytest.mark.parametrize("columns", ["9" * 11, "9" * 4000])
def test_a_width_beyond_all_terminals_takes_no_memory(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    parts = Bars("t", "ms", ["job"], {"a": [1.0], "b": [2.0]})
    assert len(shown(Result("o", "", {}, charts=(parts,)))) < 20_000


@pytest.mark.parametrize(
    ("full", "head", "n_shown", "rest"),
    [(False, None, 20, "the first 20 of 25 rows; --full shows all"), (True, None, 25, ""),
     (False, 23, 23, "the first 23 of 25 rows"), (False, 3, 20, "the first 20 of 25 rows")],
)  # fmt: skip
def test_a_table_shows_20_rows_and_counts_the_rest(
    full: bool, head: int | None, n_shown: int, rest: str
) -> None:
    result = table_of(NAME, rows=[(f"a{i}",) for i in range(25)])
    lines = shown(result, full=full, head=head).splitlines()
    assert [line for line in lines if line[0] == "a"] == [f"a{i}" for i in range(n_shown)]
    assert lines[-1].startswith(rest)


@pytest.mark.slow
@given(st.text(), st.integers(1, 40))
def test_a_shortened_text_fits_and_one_that_fits_is_whole(name: str, width: int) -> None:
    name = printable(name)
    short = cells.shorten(name, width)
    assert cells.display_width(short) <= width
    assert short == name or cells.display_width(name) > width


@given(st.text())
def test_what_is_printed_is_printable(name: str) -> None:
    assert printable(name).isprintable()


def test_columns_leave_from_the_right_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 of the name + 2 + 5 + 2 + 5 are the least for three columns
    columns = [Column(key, key, "float") for key in ("avg", "p50", "p99")]
    result = table_of(NAME, *columns, rows=[("n" * 50, 1000.0, 2000.0, 3000.0)])
    monkeypatch.setenv("COLUMNS", "34")
    lines = shown(result).splitlines()
    assert lines[0].split() == ["Name", "avg", "p50"]
    assert " ".join(lines[3:]) == "Hidden to fit the terminal: p99."
