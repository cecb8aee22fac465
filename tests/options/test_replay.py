"""`--option replay`, end to end: what it answers, in which words and keys."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import REPO, run_cli
from make import span, step, write
from options import arguments, replay
from result import Bars, Chart

pytestmark = pytest.mark.slow

LENET = REPO / "examples" / "lenet"


def document(*args: object) -> dict[str, Any]:
    code, out, err = run_cli("--option", "replay", "--output", "-", "--format", "json", *args)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def whatif(path: Path, *edits: str) -> dict[str, Any]:
    sets = [word for edit in edits for word in ("--set", edit)]
    return document("--path", path, "--sub_option", "whatif", *sets)


@pytest.mark.parametrize("flags", [(), ("--del_queue",)])
def test_replay_and_critical_give_the_same_path(flags: tuple[str, ...]) -> None:
    replayed = document("--path", LENET, *flags)
    number = replayed["critical_step"]
    code, out, err = run_cli(
        "--option", "critical", "--path", LENET, "--step", number, "--format", "json", *flags
    )
    assert code == 0, err
    walked = json.loads(out)["scopes"][-1]
    keys = ("name", "cat", "rank", "ts_ms", "dur_ms")
    assert [[item[key] for key in keys] for item in walked["path"]] == [
        [item[key] for key in keys] for item in replayed["critical_path"]
    ]
    assert sum(item["dur_ms"] for item in replayed["critical_path"]) == pytest.approx(walked["length_ms"])


def test_the_table_is_the_path_summed_by_operation_and_full_shows_its_stretches() -> None:
    code, out, err = run_cli("--option", "replay", "--path", LENET, "--output", "-", "--format", "csv")
    assert code == 0, err
    rows = list(csv.DictReader(out.splitlines()))
    path = document("--path", LENET)["critical_path"]
    assert sum(float(row["ms"]) for row in rows) == pytest.approx(sum(item["dur_ms"] for item in path))
    most = [item["dur_ms"] for item in path if item["name"] == f"{rows[0]['rank']}.{rows[0]['name']}"]
    assert float(rows[0]["ms"]) == pytest.approx(sum(most)) == max(float(row["ms"]) for row in rows)
    shown = [run_cli("--option", "replay", "--path", LENET, "--output", "-", *full)[1]
             for full in ([], ["--full"])]  # fmt: skip
    assert ["after the step's start" in out for out in shown] == [False, True]


def test_a_plain_replay_says_how_long_the_next_steps_will_take() -> None:
    code, out, err = run_cli("--option", "replay", "--path", LENET, "--output", "-")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[1].startswith("The next 11 steps will take")
    found = document("--path", LENET)
    assert found["error"] == pytest.approx(0)
    assert found["interval_ms"][0] < found["iteration_ms"] < found["interval_ms"][1]


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
    code, out, _ = run_cli("--option", "replay", "--path", path, "--output", "-")
    assert code == 0 and "Too few steps for an interval: 4 are needed." in out


def test_bits_per_second_need_the_bytes_of_the_transfers() -> None:
    code, _, err = run_cli("whatif", LENET, "bandwidth=200Mbit")
    assert code == 1 and "give a ratio" in err


def test_each_operation_in_turn_is_measured_against_the_recorded_step() -> None:
    found = document("--path", LENET, "--sub_option", "bottleneck", "--head", "5")
    first = found["bottlenecks"][0]
    assert len(found["bottlenecks"]) == 5
    assert first["effect"] == pytest.approx(first["effect_ms"] / found["iteration_ms"])
    assert first["effect_ms"] < 0


def charts(path: Path, *words: str) -> dict[str, Chart]:
    args = arguments.parse(
        ["--option", "replay", "--output", "-", "--html", "a.html", "--path", str(path), *words]
    )
    return {chart.title: chart for chart in replay.run(args).charts}


def test_the_interval_of_the_headline_is_the_one_that_is_drawn() -> None:
    edits = ("--set", "FW=0.5", "--set", "BW=0.5")
    found = document("--path", LENET, "--sub_option", "whatif", *edits)
    shown = charts(LENET, "--sub_option", "whatif", *edits)
    after = shown["Before and after"]
    assert isinstance(after, Bars)
    assert list(after.x) == ["before", "after: FW=0.5", "after: BW=0.5", "after: FW=0.5 BW=0.5"]
    assert after.series["iteration time"][::3] == pytest.approx([found["before_ms"], found["after_ms"]])
    assert after.between[0] is None
    assert after.between[-1] == pytest.approx(found["interval_ms"])


def test_what_would_be_saved_is_drawn_to_the_right_in_a_colour_for_each_kind() -> None:
    found = document("--path", LENET, "--sub_option", "bottleneck")["bottlenecks"]
    (bars,) = charts(LENET, "--sub_option", "bottleneck").values()
    assert isinstance(bars, Bars)
    for at, (name, row) in enumerate(zip(bars.x, found, strict=False)):
        values = {kind: ms[at] for kind, ms in bars.series.items() if ms[at] is not None}
        assert name == f"{row['kind']} {row['name']}"
        assert values == {row["kind"]: pytest.approx(-row["effect_ms"])}
    assert {"rank", "operation"} <= set(bars.series)
