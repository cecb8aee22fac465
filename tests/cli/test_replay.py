"""`--option replay`, end to end: what it answers, in which words and keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_jobs import Job, kineto

from analyzer.cli.replay.replayed import write_synthetic
from conftest import REPO, ask, run_cli
from make import rank_steps, recording, span, step, write
from replay.runs import simulated

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


def test_written_events_are_sorted_by_time_on_named_tracks(tmp_path: Path) -> None:
    ranks = [rank_steps(f"rank{i}", {"late": (50, 60), "early": (10, 20)}, bounds=(0, 70)) for i in range(2)]
    result = simulated(recording(*ranks), [0])
    assert write_synthetic(result, tmp_path / "a.json") == 4
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["rank0.early", "rank1.early", "rank0.late", "rank1.late"]
    assert [event["ts"] for event in slices] == [0.010, 0.010, 0.050, 0.050]
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {1: "rank0.rank0", 2: "rank1.rank1"}  # a rank's track is called as the rank here
    assert [processes[event["pid"]] for event in slices] == [processes[1], processes[2]] * 2


def test_times_count_from_the_first_step_which_the_header_states(tmp_path: Path) -> None:
    epoch = 1_700_000_000_000_000_001
    own = rank_steps(
        "rank0", {"a": (epoch + 1, epoch + 2), "b": (epoch + 2, epoch + 4)}, bounds=(epoch, epoch + 4)
    )
    write_synthetic(simulated(recording(own), [0]), tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["baseTimeNanoseconds"] == epoch
    # as float64 since the epoch both would begin at the same time, and b be left out by a viewer
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(event["ts"], event["dur"]) for event in slices] == [(0.001, 0.001), (0.002, 0.002)]
