"""The faces for scripts, and what all faces share: warnings, files, errors."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import AnalyzeError, OutputError
from analyzer.base.outputs.atomic import Outputs
from analyzer.base.units import LazySequence
from analyzer.report import csv as report_csv
from analyzer.report import json as report_json
from analyzer.report import show
from analyzer.report.result import Column, Result, Table

TABLE = Table(
    "operations",
    "Operations",
    (Column("name", "Name"), Column("avg_ms", "Average (ms)", "float"), Column("ok", "OK", "bool")),
    [('a "quoted", name', 1.23456789, True), ("=1+1", None, None), ("x", math.nan, False)],
)


def arguments(**flags: Any) -> Namespace:
    defaults = {
        **dict.fromkeys(("head", "xlsx", "html", "picture", "output", "parquet")),
        **dict.fromkeys(("quiet", "full", "sort", "brief", "open"), False),
    }
    return Namespace(**{"format": "table", "option": "o", "path": [], **defaults, **flags})


def json_of(document: dict[str, Any], repairs: tuple[str, ...] = (), headline: str = "") -> Any:
    stream = io.StringIO()
    report_json.write(Result("o", "T", document, repairs=repairs, headline=headline), stream, arguments())
    return json.loads(stream.getvalue())


def csv_of(result: Result) -> str:
    stream = io.StringIO()
    report_csv.write(result, stream, arguments())
    return stream.getvalue()


def test_json_begins_with_option_and_headline_ends_with_repairs_and_has_null_for_no_number() -> None:
    document = json_of({"a": math.nan, "b": [math.inf]}, ("a.json: cut off",), headline="It is slow.")
    assert list(document.items()) == [
        ("option", "o"), ("headline", "It is slow."), ("a", None), ("b", [None]),
        ("repairs", ["a.json: cut off"]),
    ]  # fmt: skip


def test_json_understands_numpy_paths_lone_surrogates_and_huge_integers() -> None:
    document = {"f": np.float64(0.5), "a": np.array([1, 2]), "p": Path("x/y"), "name": "\ud800", "n": 2**70}
    plain = {"f": 0.5, "a": [1, 2], "p": "x/y", "name": "\ud800", "n": 2**70}
    assert json_of(document) == {"option": "o", "headline": "T", **plain, "repairs": []}


def test_a_lazy_sequence_computes_items_on_access() -> None:
    asked: list[int] = []
    made = LazySequence(range(4), lambda at: asked.append(at) or 10 * at)  # type: ignore[func-returns-value]
    assert (len(made), made[-1], asked) == (4, 30, [3])
    assert ([*made[1:3]], list(made), asked[1:]) == ([10, 20], [0, 10, 20, 30], [1, 2, 0, 1, 2, 3])
    with pytest.raises(IndexError):
        made[4]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), json_values))
def test_json_reads_back_as_it_was(document: dict[str, Any]) -> None:
    assert json.loads(report_json.encode(document)) == document


def test_csv_is_the_first_table_with_its_keys() -> None:
    lines = csv_of(Result("o", "T", {}, (TABLE, TABLE))).splitlines()
    assert lines == ["name,avg_ms,ok", '"a ""quoted"", name",1.23456789,true', "=1+1,,", "x,,false"]


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1))
def test_csv_reads_back_as_it_was(names: list[str]) -> None:
    table = Table("t", "T", (Column("name", "Name"), Column("n", "N", "int")), [(name, 1) for name in names])
    rows = list(csv.reader(io.StringIO(csv_of(Result("o", "T", {}, (table,))), newline="")))
    assert [row[0] for row in rows[1:]] == names


def test_csv_of_a_result_without_a_table_is_refused() -> None:
    with pytest.raises(AnalyzeError, match="has no table"):
        csv_of(Result("o", "T", {}))


def test_each_repair_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Outputs() as outputs:
        show.show(Result("o", "T", {}, repairs=("a.json: cut\noff", "b.json: empty")), arguments(), outputs)
    assert [record.getMessage() for record in caplog.records] == [r"a.json: cut\noff", "b.json: empty"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_file_that_cannot_be_written_does_not_cost_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nowhere" / "a.xlsx"
    unwritten = r"nowhere/a\.xlsx: cannot be written: there is no directory"
    with pytest.raises(OutputError, match=unwritten), Outputs() as outputs:
        show.show(Result("o", "The title", {}, (TABLE,)), arguments(xlsx=str(path)), outputs)
    assert "The title" in capsys.readouterr().out
