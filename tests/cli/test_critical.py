"""`--option critical`: the path of a recorded step, by name, by scope, and as a timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import REPO, ask, run_cli
from make import GML, span, step, write, write_gpu, x

# Two steps of one layer and one gradient (ms): FW 1-2, BW 2-5, Comm 5-9 | FW 11-14, BW 14-17, Comm 17-19;
# the third FW at 21 ends the second step.
EVENTS = [
    x("FW.a", "1", 1000, 1000), x("BW.a", "1", 2000, 3000), x("Comm.w", "total", 5000, 4000, "Comm"),
    x("FW.a", "1", 11000, 3000), x("BW.a", "1", 14000, 3000), x("Comm.w", "total", 17000, 2000, "Comm"),
    x("Comm.w.PUSH", "0", 5000, 1000, "Comm"), x("Comm.w.PULL", "0", 6000, 3000, "Comm"),
    x("Comm.w.PUSH", "0", 17000, 1000, "Comm"), x("Comm.w.PULL", "0", 18000, 1000, "Comm"),
    x("FW.a", "1", 21000, 1000),
]  # fmt: skip


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    return write_gpu(tmp_path / "0", GML, EVENTS)


def answer(*args: object) -> dict[str, Any]:
    document: dict[str, Any] = ask("--option", "critical", *args)
    return document


def path_of(document: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(one["name"], one["cat"], one["dur_ms"]) for one in document["scopes"][-1]["path"]]


def test_a_step_is_its_work_and_its_gaps(gpu: Path) -> None:
    # both steps last 10 ms; the first of equals is typical
    document = answer("--path", gpu)
    assert (document["step"], document["iteration_ms"]) == (1, 10.0)
    assert path_of(document) == [
        ("FW.a", "FW", 1.0), ("BW.a", "BW", 3.0), ("Comm.w", "Comm", 4.0),
        ("before the next step", "gap", 2.0),
    ]  # fmt: skip
    (scope,) = document["scopes"]
    assert (scope["scope"], scope["length_ms"]) == ("GPU-0", 10.0)
    assert scope["by_cat"] == {"Comm": 4.0, "BW": 3.0, "gap": 2.0, "FW": 1.0}
    assert scope["by_name"][0] == {
        "name": "Comm.w", "cat": "Comm", "rank": "rank0", "count": 1, "ms": 4.0, "share": 0.4}  # fmt: skip
    assert [one["ts_ms"] for one in scope["path"]] == [0.0, 1.0, 4.0, 8.0]


def test_the_mean_is_the_longest_chain_of_averages(gpu: Path) -> None:
    # FW (1 + 3 + 1) / 3, BW 3, Comm (4 + 2) / 2; no gaps
    document = answer("--path", gpu, "--step", "mean")
    assert path_of(document) == [
        ("FW.a", "FW", pytest.approx(5 / 3)), ("BW.a", "BW", 3.0), ("Comm.w", "Comm", 3.0),
        ("STEP", "STEP", 0.0),
    ]  # fmt: skip
    assert document["iteration_ms"] == document["scopes"][0]["length_ms"] == pytest.approx(5 / 3 + 6)


def test_a_job_has_a_scope_for_each_gpu_each_worker_and_itself(tmp_path: Path) -> None:
    for worker in ("worker_0", "worker_1"):
        for rank in ("0", "1"):
            write_gpu(tmp_path / worker / rank, GML, EVENTS)
    scopes = answer("--path", tmp_path)["scopes"]
    assert [(scope["scope"], scope["worker"]) for scope in scopes] == [
        ("GPU-0", 0), ("GPU-1", 0), ("GPU-0", 1), ("GPU-1", 1), ("worker-0", 0), ("worker-1", 1), ("job", 0),
    ]  # fmt: skip
    assert [scope["length_ms"] for scope in scopes] == [10.0] * 7


def test_the_late_worker_is_on_the_path_with_what_it_works_longer(tmp_path: Path) -> None:
    # worker 1 computes 5 ms longer: worker 0's PULL waits for its PUSH (10-11 ms) and then takes 1 ms;
    # in the second step it is the other way round, so that their clocks agree
    def step(at: int, computed: int) -> list[dict[str, Any]]:
        return [x("FW.a", "1", at, 1000), x("BW.a", "1", at + 1000, computed - 1000),
                x("Comm.w", "total", at + computed, 12000 - computed, "Comm"),
                x("Comm.w.PUSH", "0", at + computed, 1000, "Comm"),
                x("Comm.w.PULL", "0", at + computed + 1000, 11000 - computed, "Comm")]  # fmt: skip

    end = x("FW.a", "1", 24000, 1000)
    write_gpu(tmp_path / "worker_0" / "0", GML, [*step(0, 5000), *step(12000, 10000), end])
    write_gpu(tmp_path / "worker_1" / "0", GML, [*step(0, 10000), *step(12000, 5000), end])
    document = answer("--path", tmp_path)
    job = document["scopes"][-1]
    assert job["by_cat"]["BW"] == 9.0
    assert {one["rank"] for one in job["path"] if one["cat"] == "BW"} == {"wk1.rank0"}
    assert not [one for one in job["path"] if one["cat"] == "wait"]
    slack = {one["name"]: one["slack_ms"] for one in document["operations"]}
    assert slack["wk1.rank0.BW.a"] == 0.0 < slack["wk0.rank0.BW.a"]
    assert document["headline"].startswith("Step 1, the median of 2, takes 12.0 ms")
    assert "BW on wk1.rank0" in document["headline"]


def test_the_timeline_marks_the_path(gpu: Path, tmp_path: Path) -> None:
    output = tmp_path / "marked.json"
    answer("--path", gpu, "--output", output)
    events = json.loads(output.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    track = [event for event in slices if event["pid"] == 1]
    assert [(event["name"], event["dur"]) for event in track] == [
        ("FW.a", 1000.0), ("BW.a", 3000.0), ("Comm.w.PUSH.0", 1000.0), ("Comm.w.PULL.0", 3000.0),
        ("before the next step", 2000.0),
    ]  # fmt: skip
    assert len(slices) == len(EVENTS) + len(track)


def test_the_timeline_keeps_what_was_recorded(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        {**span("aten::mm", 0, 60, "cpu_op", tid=1), "args": {"Input Dims": [[2, 3]]}},
        {"ph": "s", "id": 7, "name": "fwdbwd", "cat": "fwdbwd", "ts": 20, "pid": 0, "tid": 1},
        span("MmBackward", 70, 20, "cpu_op", tid=2),
        {"ph": "f", "id": 7, "name": "fwdbwd", "cat": "fwdbwd", "ts": 70, "pid": 0, "tid": 2, "bp": "e"},
        {"ph": "i", "name": "mark", "ts": -5, "pid": 0, "tid": 2, "s": "t"},
    ]
    write(tmp_path / "rank0.pt.trace.json", events, schemaVersion=1)
    answer("--path", tmp_path / "rank0.pt.trace.json", "--output", tmp_path / "marked.json")
    written = json.loads((tmp_path / "marked.json").read_text())["traceEvents"]
    (product,) = (event for event in written if event.get("args", {}).get("Input Dims"))
    assert product["name"] == "aten::mm" and product["args"]["Input Dims"] == [[2, 3]]
    arrow = [event for event in written if event["name"] == "fwdbwd"]
    # times count from the earliest event, the instant
    assert [(event["ph"], event["ts"], event.get("bp")) for event in arrow] == [
        ("s", 25, None),
        ("f", 75, "e"),
    ]
    assert len({event["id"] for event in arrow}) == 1
    others = {event["id"] for event in written if event["name"] == "critical path" and "id" in event}
    assert arrow[0]["id"] not in others
    assert [event["ts"] for event in written if event["ph"] == "i"] == [0]
    times = [event["ts"] for event in written if event["ph"] != "M"]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        (["--step", "x"], 2, "--step x: not the number of a step"),
        (["--step", "mean", "--output", "a.json"], 2, "--output needs a recorded step"),
        (["--step", "mean", "--filter", "Comm.w"], 2, "--filter needs a recorded step"),
    ],
)
def test_mistakes_are_one_line(gpu: Path, flags: list[str], code: int, what: str) -> None:
    found, out, err = run_cli("--option", "critical", "--path", gpu, *flags)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert what in err


def test_the_shipped_example_blames_the_worker_that_was_waited_for() -> None:
    # worker 0's PULL lasts 82.8 ms, 82.1 of them waiting for worker 1's push
    document = answer("--path", REPO / "examples" / "lenet", "--step", "13")
    job = document["scopes"][-1]
    assert sum(one["dur_ms"] for one in job["path"]) == pytest.approx(document["iteration_ms"], abs=1e-3)
    assert job["by_cat"]["Comm"] < 0.05 * document["iteration_ms"]
    on_late = sum(one["dur_ms"] for one in job["path"] if one["rank"] == "wk1.rank0")
    assert on_late > 0.9 * document["iteration_ms"]
