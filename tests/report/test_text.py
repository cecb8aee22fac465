"""The face for people: text that fits the terminal."""

from __future__ import annotations

import io
import re
from argparse import Namespace
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors import printable
from report import tables, text
from result import Bars, Card, Column, Command, Result, Table

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
    commentary=("step 3: 120 ms",),
    notes=("Written to combined.json.",),
)


def shown(result: Result, *, pretty: bool = False, full: bool = False, head: int | None = None) -> str:
    stream = io.StringIO()
    text.write(result, stream, Namespace(pretty=pretty, full=full, head=head))
    return stream.getvalue()


def table_of(*columns: Column, rows: list[tuple[object, ...]]) -> Result:
    return Result("o", "", {}, (Table("t", "T", columns, rows),))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize("columns", ["80"])
def test_a_result_at_the_width_of_a_terminal(
    columns: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    golden(f"report_{columns}.txt", shown(RESULT))


def test_a_bar_in_one_line_has_room_for_bars_and_keeps_the_largest_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {
        "GEMM": 50.0,
        "elementwise": 20.0,
        "normalisation": 12.0,
        "reduction": 10.0,
        "copy": 5.0,
        "rest": 3.0,
    }
    series = {name: [share] for name, share in parts.items()}
    bars = Bars("Where", "%", "", ["a step"], series, stacked=True, horizontal=True)
    monkeypatch.setenv("COLUMNS", "70")
    (line,) = shown(Result("o", "", {}, charts=[bars])).splitlines()
    assert len(line) <= 70
    assert re.sub("[█▏▎▍▌▋▊▉]+", "#", line) == "GEMM # 50 %  elementwise # 20 %  rest # 30 %"
    assert len(re.sub("[^█▏▎▍▌▋▊▉]", "", line)) >= 20


def test_a_pipe_gets_every_name_in_full(golden: Callable[[str, str], None]) -> None:
    golden("report_pipe.txt", shown(RESULT))


def test_pretty_leaves_out_the_title_and_the_commentary() -> None:
    lines = shown(RESULT, pretty=True).splitlines()
    assert lines[0] == "Iteration time  123 ms"
    assert "step 3: 120 ms" not in lines
    assert lines[-1] == "Written to combined.json."


@pytest.mark.parametrize("columns", range(24, 140, 7))
def test_no_line_of_a_table_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(Result("o", "", {}, (OPERATIONS,))).splitlines()
    assert max(map(tables.display_width, lines)) <= columns


@pytest.mark.parametrize("columns", ["9" * 11, "9" * 4000])
def test_a_width_beyond_all_terminals_takes_no_memory(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    parts = Bars("t", "", "ms", ["job"], {"a": [1.0], "b": [2.0]}, stacked=True, horizontal=True)
    assert len(shown(Result("o", "", {}, charts=(parts,)))) < 20_000


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "first"), [(None, "\x1b[1mIt is slow.\x1b[0m"), ("1", "It is slow.")])
def test_the_headline_comes_first_and_is_bold_on_a_terminal(
    no_color: str | None, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream, result = Terminal(), Result("o", "Title", {}, headline="It is slow.", notes=("A note.",))
    text.write(result, stream, Namespace(pretty=False, full=False, head=None))
    assert stream.getvalue().splitlines() == [first, "", "A note."]
    assert shown(result, pretty=True).splitlines() == ["It is slow.", "", "A note."]


def test_numbers_line_up_at_the_decimal_point() -> None:
    lines = shown(table_of(TOTAL, rows=[(1.0,), (1000.25,), (24.56,)])).splitlines()
    assert lines == ["Total (ms)", "──────────", "      1.00", "  1,000", "     24.6"]


def test_an_empty_column_takes_no_room_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    result = table_of(NAME, COUNT, TOTAL, rows=[("a", None, 1.0), ("b", None, 2.0)])
    assert "Count" in shown(result)
    monkeypatch.setenv("COLUMNS", "80")
    assert "Count" not in shown(result)


def test_a_detail_table_is_not_printed() -> None:
    detail = Table("samples", "Samples", (NAME,), [("x",)], detail=True)
    assert "Samples" not in shown(Result("o", "", {}, (CATEGORIES, detail)))


def test_an_empty_table_says_so() -> None:
    assert shown(table_of(NAME, rows=[])) == "T\n  (no rows)\n"


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


def test_a_command_that_is_too_long_goes_on_as_a_shell_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    command = Command("   Closer: python3 a.py --path 'one two' --set \"it's\" --head 10")
    assert shown(Result("o", "", {}, notes=[command])).splitlines() == [
        "   Closer: python3 a.py \\",
        "     --path 'one two' --set \\",
        '     "it\'s" --head 10',
    ]


def test_a_name_cannot_steer_the_terminal() -> None:
    assert "\\x1b[2J\\n" in shown(table_of(NAME, rows=[("\x1b[2J\n",)]))


def test_a_long_name_loses_its_middle() -> None:
    assert tables.shorten("abcdefghij", 7) == "abc…hij"


def test_a_wide_character_takes_two_columns() -> None:
    assert tables.display_width("变a") == 3


@pytest.mark.slow
@given(st.text(), st.integers(1, 40))
def test_a_shortened_text_fits_and_one_that_fits_is_whole(name: str, width: int) -> None:
    name = printable(name)
    short = tables.shorten(name, width)
    assert tables.display_width(short) <= width
    assert short == name or tables.display_width(name) > width


@given(st.text())
def test_what_is_printed_is_printable(name: str) -> None:
    assert printable(name).isprintable()


def test_cards_are_numbered_paragraphs_before_the_notes() -> None:
    cards = [Card("It is slow", "5 ms", [("", "Why."), ("Do", "Less.")]), Card("And late", "")]
    result = Result("o", "", {}, headline="H.", cards=cards, notes=("A note.",))
    assert shown(result) == "H.\n\n1. It is slow. Why.\n   Do  Less.\n\n2. And late.\n\nA note.\n"


def test_columns_leave_from_the_right_and_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 of the name + 2 + 5 + 2 + 5 are the least for three columns
    columns = [Column(key, key, "float") for key in ("avg", "p50", "p99")]
    result = table_of(NAME, *columns, rows=[("n" * 50, 1000.0, 2000.0, 3000.0)])
    monkeypatch.setenv("COLUMNS", "34")
    lines = shown(result).splitlines()
    assert lines[0].split() == ["Name", "avg", "p50"]
    assert " ".join(lines[3:]) == "Hidden to fit the terminal: p99."


def test_a_terminal_gets_the_first_finding_and_how_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = Result("o", "", {}, headline="H.", cards=[Card("Slow", ""), Card("Late", ""), Card("Odd", "")])
    lines = shown(result).splitlines()
    assert lines[2:] == ["1. Slow.", "", "--full says why and what to do for 2 more findings."]
    assert "3. Odd." in shown(result, full=True)
