"""The first sentence of each option: the answer, with its numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import REPO, ask, run_cli

LENET = REPO / "examples/lenet"
OTHER = REPO / "examples/lenet-100mbit"


@pytest.mark.parametrize(
    "words",
    [
        ("statistic", LENET), ("statistic", LENET, "--sub_option", "breakdown"), ("critical", LENET),
        ("replay", LENET, "--output", "-"), ("compare", LENET, OTHER), ("3dcompare", LENET, OTHER),
        ("combine", LENET), ("collect", LENET, "--sub_option", "iter_time"), ("graph", LENET / "worker_0/0"),
    ],
    ids=lambda words: " ".join(map(str, words[:1] + words[2:])).replace(str(REPO), ""),
)  # fmt: skip
def test_every_option_answers_in_a_sentence_with_numbers(
    words: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    option, *rest = words
    output = ["--output", tmp_path / "o.json"] if option == "combine" else []
    output = ["--output", tmp_path / "o.svg"] if option == "graph" else output
    document = ask("--option", option, "--path", *rest, *output)
    assert list(document)[:2] == ["option", "headline"]
    sentence = document["headline"]
    assert sentence.endswith(".") and re.search(r"\d", sentence) and "/" not in sentence
    shown = run_cli("--option", option, "--path", *rest, *output, "--force")[1]
    assert shown.splitlines()[0] == sentence


def test_a_breakdown_has_its_ranks_in_json() -> None:
    words = ("--option", "statistic", "--path", LENET, "--sub_option", "breakdown", "--format", "json")
    document = json.loads(run_cli(*words)[1])
    for rank in document["ranks"]:
        walls = [row["wall_ms"] for row in document["breakdown"] if row["rank"] == rank["rank"]]
        assert rank["steps"] == len(walls)
        assert rank["mean_ms"] == pytest.approx(sum(walls) / len(walls))
        assert rank["median_ms"] == pytest.approx(sorted(walls)[len(walls) // 2])
