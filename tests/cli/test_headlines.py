"""The first sentence of each option: the answer, with its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from made_jobs import Job, kineto

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


@pytest.mark.parametrize("option", ["statistic", "combine", "critical"])
def test_a_damaged_file_is_named_in_the_answer_with_what_to_do(option: str, tmp_path: Path) -> None:
    job = kineto(tmp_path / "job", Job(ranks=1, steps=6))
    [path] = job.iterdir()
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10])
    output = ("--output", tmp_path / "all.json") if option == "combine" else ()
    code, out, _ = run_cli(option, job, *output)
    assert code == 0
    assert f"1 damaged file ({path.name}): the result lacks the lost events." in out
    assert "Let the profiler finish writing before the job ends." in out


def test_a_recording_by_several_writers_says_what_to_do(shared_data: Path) -> None:
    out = run_cli("statistic", shared_data / "cases/interleaved-writers")[1]
    assert "4 damaged files" in out and "Let the profiler finish writing" in out
