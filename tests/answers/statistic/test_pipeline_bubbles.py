"""Bubbles of pipelines: 1F1B schedules whose idle times follow from arithmetic, and laws on recorded jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, ask, run_cli
from make import write
from oracles.known_pipeline import Op, Pipelines

FORWARD, BACKWARD, STEPS = 10_000.0, 20_000.0, 4  # µs of a micro-batch on a stage
NAMES = {"F": "forward", "B": "backward"}


def job(
    folder: Path,
    slow: Sequence[float] = (1, 1, 1, 1),
    m: int = 8,
    message: float = 0.0,
    names: Mapping[str, str] = NAMES,
) -> Path:
    """Record a pipeline with messages of some µs: `slow` says how much longer each stage computes."""
    p = len(slow)
    work = {Op(0, stage, kind): 0.0 for stage in range(p) for kind in ("gather", "scatter", "norm", "update")}
    for stage, factor in enumerate(slow):
        for i in range(m):
            work |= {Op(0, stage, "F", i): FORWARD * factor, Op(0, stage, "B", i): BACKWARD * factor}
            work |= {Op(0, stage, f"send {kind}", i): message for kind in "FB"}
    step = Pipelines({}, stages=p, replicas=1, micro_batches=m).run(work, lambda: message / 10)
    length = max(step.end.values())
    for stage in range(p):
        events = []
        for number in range(STEPS):
            base = 1000.0 + number * length
            mark: dict[str, Any] = {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                "pid": 9,
                "tid": 9,
            }
            events.append({**mark, "ts": base, "dur": length})
            events += [
                kernel(op, base + begin, step.end[op] - begin, names)
                for op, begin in step.begin.items()
                if op.stage == stage and (op.kind[-1] in "FB" or (op.kind == "norm" and message))
            ]
        write(folder / f"rank{stage}.pt.trace.json", events, schemaVersion=1,
              distributedInfo={"rank": stage, "world_size": p})  # fmt: skip
    return folder


def kernel(op: Op, ts: float, dur: float, names: Mapping[str, str] = NAMES) -> dict[str, Any]:
    verb, _, direction = op.kind.rpartition(" ")
    name, stream = names.get(direction, "ncclDevKernel_AllReduce"), 7
    args: dict[str, Any] = {}
    if direction == "norm":  # all ranks end their step together
        args = {
            "Collective name": "allreduce",
            "Process Group Name": "all",
            "Process Group Ranks": "[0, 1, 2, 3]",
        }
        stream = 25
    elif verb:
        peer = op.stage + (1 if (direction == "F") == (verb == "send") else -1)
        side = "Dst Rank" if verb == "send" else "Src Rank"
        args = {"Collective name": verb, "Process Group Name": "pipeline", side: peer}
        name, stream = "ncclDevKernel_SendRecv", {"send": 20, "recv": 22}[verb] + (direction == "B")
    args = {"device": 0, "stream": stream, **args}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def bubbles(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = ask("statistic", path, "--sub_option", "bubbles")
    return answer


def test_even_stages_are_idle_as_the_formula_says(tmp_path: Path) -> None:
    """Of 4 stages and 8 micro-batches, a step takes (8 + 4 - 1)(10 + 20) = 330 ms, of which 90 are idle."""
    answer = bubbles(job(tmp_path / "job"))
    assert (answer["stages"], answer["micro_batches"]) == (4, 8)
    assert answer["ideal_share"] == pytest.approx(3 / 11)
    assert answer["idle_ms"] == pytest.approx(90)
    assert answer["schedule_ms"] == pytest.approx(90)
    assert answer["uneven_ms"] == answer["other_ms"] == pytest.approx(0)
    for stage, rank in enumerate(answer["bubbles"]):
        assert (rank["step_ms"], rank["compute_ms"]) == (330, 240)
        # the first micro-batch comes down to this stage, and back from the last one
        assert rank["warm_up_ms"] == stage * 10 + (3 - stage) * 20
        assert rank["steady_ms"] == rank["comm_ms"] == 0
        assert rank["drain_ms"] == (3 - stage) * 10 + stage * 20


def test_uneven_stages_are_told_apart_from_the_schedule(tmp_path: Path) -> None:
    """The last stage takes 20 and 40 ms for each micro-batch, the others 10 and 20.

    It works for 480 ms without a pause, once the first one has come down in 30 and until the last one goes
    back in 60: 570. Stages of 37.5 take 11 · 37.5 = 412.5, of which 112.5 are the schedule's.
    """
    answer = bubbles(job(tmp_path / "job", slow=(1, 1, 1, 2), message=5.0))
    assert answer["bubbles"][0]["step_ms"] == pytest.approx(570, rel=0.001)
    assert answer["schedule_ms"] == pytest.approx(112.5, rel=0.001)
    assert answer["even_stages"]["gain_ms"]["mid"] == pytest.approx(570 - 412.5, rel=0.001)
    assert answer["uneven_ms"] == pytest.approx(570 - 412.5, rel=0.001)
    assert answer["other_ms"] == pytest.approx(0, abs=0.2)
    assert answer["half_batches_gain_ms"] == pytest.approx(90 / 2, rel=0.001)  # of 30 down and 60 back


@pytest.mark.parametrize(("stage", "length_ms"), [(1, 530), (2, 550)])
def test_even_stages_instead_of_a_slow_inner_one(tmp_path: Path, stage: int, length_ms: float) -> None:
    """It works for 480 ms, but the first micro-batch comes back after 80 and 50 ms, 20 and 10 ms too late.

    With 10 and 20 ms from the stages before, and 20 and 40 back: 530 and 550. A message sent and one received
    end together, as both peers wait for this stage; it waits for the received one alone.
    """
    slow = [1 + (number == stage) for number in range(4)]
    answer = bubbles(job(tmp_path / "job", slow=slow, message=5.0))
    assert answer["bubbles"][0]["step_ms"] == pytest.approx(length_ms, rel=0.001)
    assert answer["even_stages"]["gain_ms"]["mid"] == pytest.approx(length_ms - 412.5, rel=0.001)
    path, change = tmp_path / "job", f"stage{stage}=0.5"
    (row,) = ask("replay", path, "--sub_option", "whatif", "--set", change)["whatif"]
    assert row["after_ms"] == pytest.approx(330, rel=0.001)  # as of even stages from the start


def test_without_phases_half_of_the_computation_is_forward(tmp_path: Path) -> None:
    """Idle time counts before the first kernel of a step, and after the last one."""
    answer = bubbles(job(tmp_path / "job", names={"F": "gemm", "B": "gemm"}))
    assert answer["micro_batches"] == 8
    assert answer["idle_ms"] == pytest.approx(90)
    assert [rank["warm_up_ms"] for rank in answer["bubbles"]] == [0, 10, 20, 30]


def test_a_job_without_messages_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [kernel(Op(0, 0, "F"), 0, 5)], schemaVersion=1)
    code, _, log = run_cli("statistic", path, "--sub_option", "bubbles")
    assert code == 2
    assert "no rank sends to another one, so there is no pipeline" in log


@pytest.mark.parametrize("name", ["straggler-ST", "timeline-ST.json.gz", "straggler-AR"])
@pytest.mark.slow
def test_parts_add_up_to_the_step(name: str) -> None:
    path = SHARED / "pipeline" / name
    if not path.exists():
        pytest.skip("no recordings")
    answer = bubbles(path)
    assert (answer["stages"], answer["micro_batches"]) == (4, 32 if "AR" in name else 4)
    for rank in answer["bubbles"]:
        parts = ("compute_ms", "comm_ms", "warm_up_ms", "steady_ms", "drain_ms")
        assert sum(rank[part] for part in parts) == pytest.approx(rank["step_ms"], abs=1e-6)
