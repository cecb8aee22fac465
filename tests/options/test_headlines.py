"""The first sentence of each option: the answer, with its numbers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import REPO, run_cli

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
    code, out, err = run_cli("--option", option, "--path", *rest, *output, "--format", "json")
    assert code == 0, err
    document = json.loads(out)
    assert list(document)[:2] == ["option", "headline"]
    sentence = document["headline"]
    assert sentence.endswith(".") and re.search(r"\d", sentence) and "/" not in sentence
    shown = run_cli("--option", option, "--path", *rest, *output, "--force")[1]
    assert shown.splitlines()[0] == sentence


<<<<<<< HEAD
def test_a_breakdown_has_its_rule_and_its_ranks_in_json() -> None:
=======
def clock(offset: float, bound: float | None) -> dict[str, Any]:
    return {"offset_us": offset, "bound_us": bound}


def combined(by: str = "causality") -> Any:
    return SimpleNamespace(members=[0, 1, 2], n_events=1234, aligned_by=by)


@pytest.mark.parametrize(
    ("workers", "by", "ends"),
    [
        ([clock(0, 0)], "none", "3 traces of 1 worker, 1,234 events, all on one clock."),
        (
            [clock(0, 0), clock(0, 20.5), clock(-35_100.0, 2_000.0)],
            "causality",
            "events; clocks agree within ± 2.00 ms (by causality).",
        ),
        (
            [clock(0, 0), clock(0, 20.5), clock(0, None)],
            "causality",
            "(by causality); nothing ties 1 clock to the others.",
        ),
        ([clock(0, 0), clock(0, None)], "none", "nothing ties their clocks together, so they may be apart."),
    ],
)
def test_combine_says_how_well_clocks_agree(workers: list[dict[str, Any]], by: str, ends: str) -> None:
    assert of_clocks(combined(by), workers, asked=True).endswith(ends)


def test_combine_says_that_clocks_were_not_compared() -> None:
    workers = [clock(0, 0), clock(0, None)]
    assert of_clocks(combined("none"), workers, asked=False).endswith("; their clocks were not compared.")


def test_3dcompare_names_the_fastest_and_the_slowest_run() -> None:
    assert of_runs(["a", "b", "c"], [250.0, 100.0, None]) == (
        "b has the shortest steps, 100 ms; a the longest, 250 ms (2.50 times)."
    )
    assert of_runs(["a", "b"], [None, None]) == "Average times of a, b; no run marks its steps."


def gpu(steps: dict[int, int], loads: dict[int, int] | None = None) -> Gpu:
    """A GPU with steps (number: milliseconds) and loads of input data."""
    times = [StepTime(number, 2.0 * MS, float(ms * MS)) for number, ms in steps.items()]
    loaded = [Step(number, 0, ms * MS) for number, ms in (loads or {}).items()]
    return Gpu("rank0", None, None, {}, times, loaded, "marks")


def sentence(one: Gpu) -> str:
    return of_steps(cast("list[StepTime]", one.steps), 1)


def test_collect_gives_the_iteration_time_and_its_range() -> None:
    assert sentence(gpu({7: 10, 8: 12, 9: 11})) == (
        "An iteration takes 11.0 ms (mean of 3 steps; 10.0 ms to 12.0 ms), "
        "2.00 ms of it forward and backward."
    )
    assert of_steps([], 0) == ""


def test_a_breakdown_has_its_ranks_in_json() -> None:
>>>>>>> 7d811982 (Show fewer pictures and keys: JSON of critical, replay and breakdown comes from their tables)
    words = ("--option", "statistic", "--path", LENET, "--sub_option", "breakdown", "--format", "json")
    document = json.loads(run_cli(*words)[1])
    for rank in document["ranks"]:
        walls = [row["wall_ms"] for row in document["breakdown"] if row["rank"] == rank["rank"]]
        assert rank["steps"] == len(walls)
        assert rank["mean_ms"] == pytest.approx(sum(walls) / len(walls))
        assert rank["median_ms"] == pytest.approx(sorted(walls)[len(walls) // 2])


def test_step_by_is_heeded_by_statistic_and_refused_by_variants_without_steps(tmp_path: Path) -> None:
    shutil.copytree(LENET, tmp_path / "job")
    code, _, err = run_cli("--option", "statistic", "--path", tmp_path / "job", "--step_by", "nothing")
    assert (code, err.count("\n"), "--step_by nothing" in err) == (1, 1, True)
    words = ("--option", "statistic", "--path", tmp_path, "--sub_option", "task_balance", "--step_by", "x")
    code, _, err = run_cli(*words)
    assert (code, "--step_by has no effect with --sub_option task_balance" in err) == (2, True)
