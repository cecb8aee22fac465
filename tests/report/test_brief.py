"""`--brief` fits the answer into 4 kB, and says what it leaves out."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.report import json as report_json
from analyzer.report.result import Command, Result
from conftest import REPO, ask

_MOST = 4_000  # bytes


def brief(document: dict[str, Any], **more: Any) -> Any:
    stream = io.StringIO()
    report_json.write(Result("o", "T", document, **more), stream, Namespace(brief=True))
    assert len(stream.getvalue().encode()) <= _MOST
    return json.loads(stream.getvalue())


def test_three_findings_stay_and_the_others_are_counted() -> None:
    finding = {"title": "t" * 250, "evidence": [{"name": "a", "step": 7}], "scope": {"ranks": ["rank0"]}}
    answer = brief({"findings": [{**finding, "id": i} for i in range(5)], "skipped": [{"kind": "k"}]})
    assert [found["id"] for found in answer["findings"]] == [0, 1, 2]
    assert answer["findings"][0] == {**finding, "id": 0}
    assert (answer["skipped"], answer["left_out"]) == ([{"kind": "k"}], {"findings": 2})


def test_a_list_of_names_says_how_many_are_cut() -> None:
    assert brief({"steps": list(range(200))})["steps"][-1] == "… 188 more"


def test_numbers_have_six_digits_and_further_sentences_stay() -> None:
    answer = brief({"ms": 0.123456789}, further="F.", notes=["N.", Command("analyze.py x")])
    assert (answer["ms"], answer["further"], answer["notes"]) == (0.123457, "F.", ["N."])


def test_a_command_is_whole_or_left_out() -> None:
    findings = [{"command": Command("analyze.py " + "x" * n), "cause": "y" * 900} for n in (300, 900)]
    answer = brief({"findings": findings})
    assert [found["command"] for found in answer["findings"]] == [findings[0]["command"], None]
    assert all(300 < len(found["cause"]) < 900 for found in answer["findings"])


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2_000),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.sampled_from("abcdef"), inner),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["findings", "steps", "ranks", "skipped", "scope"]), _VALUES))
def test_any_document_fits(document: dict[str, Any]) -> None:
    brief(document, repairs=["r" * 5_000] * 50, notes=["n" * 5_000] * 50, headline="h" * 5_000)


@pytest.mark.parametrize(
    "words", [("diagnose",), ("statistic",), ("breakdown",), ("critical",), ("whatif", "BW=2")]
)
def test_answers_about_an_example_fit(words: tuple[str, ...]) -> None:
    option, *rest = words
    answer = ask(option, REPO / "examples/lenet", *rest, "--brief")
    assert answer["headline"] == ask(option, REPO / "examples/lenet", *rest)["headline"]
    assert len(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()) <= _MOST


def test_the_largest_rows_come_first() -> None:
    totals = [row["total_ms"] for row in ask("statistic", REPO / "examples/lenet", "--brief")["operations"]]
    assert totals == sorted(totals, reverse=True)
