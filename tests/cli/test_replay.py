"""`--option replay`, end to end: what it answers, in which words and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_jobs import Job, kineto

from conftest import REPO, ask, run_cli
from make import span, step, write

pytestmark = pytest.mark.slow

LENET = REPO / "examples" / "lenet"


def document(*args: object) -> dict[str, Any]:
    found: dict[str, Any] = ask("--option", "replay", "--output", "-", *args)
    return found


def whatif(path: Path, *edits: str) -> dict[str, Any]:
    sets = [word for edit in edits for word in ("--set", edit)]
    return document("--path", path, "--sub_option", "whatif", *sets)


def test_a_what_if_has_an_interval_of_its_own() -> None:
    found = whatif(LENET, "BW=0.5")
    (row,) = found["whatif"]
    assert set(row) >= {"set", "before_ms", "after_ms", "change", "interval_ms"}
    assert found["after_ms"] == row["after_ms"] < row["before_ms"] == found["measured_ms"]
    assert row["interval_ms"] == found["interval_ms"]
    assert row["interval_ms"][0] < 0.91 * row["after_ms"] < 1.1 * row["after_ms"] < row["interval_ms"][1]
    assert found["headline"].startswith("With BW=0.5 a step takes")


def test_the_ideal_job_says_how_much_slower_the_recorded_one_is() -> None:
    row = whatif(LENET, "straggler=mean")["whatif"][0]
    assert row["slowdown"] > 1
    ranks = row["slowdown_by"]["rank"]
    assert list(ranks) == ["wk1.rank0", "wk0.rank0"]  # worker 1 works longer
    assert row["slowdown_by"]["kind"]


def test_too_few_steps_have_no_interval(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json"
    events = [step(n, 100 * n, 100) for n in range(3)]
    write(path, [*events, *(span("aten::mm", 100 * n, 60, "cpu_op") for n in range(3))], schemaVersion=1)
    assert document("--path", path)["interval_ms"] is None
    assert whatif(path, "FW=0.5")["whatif"][0]["interval_ms"] is None


def test_a_replay_writes_a_timeline_only_where_output_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = kineto(tmp_path / "job", Job(ranks=1, steps=4))
    monkeypatch.chdir(tmp_path)
    before = {*tmp_path.rglob("*")}
    assert run_cli("replay", job)[0] == 0
    assert {*tmp_path.rglob("*")} == before
    assert run_cli("replay", job, "--output", "all.json")[0] == 0
    assert {*tmp_path.rglob("*")} - before == {tmp_path / "all.json"}
