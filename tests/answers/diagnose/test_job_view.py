"""What detectors see of a job."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import mutations
import pytest

from analyzer.answers.diagnose.steps.job_view import JobView, last_arrivals
from conftest import run_cli
from dag_utils import load_steps
from make import span, step, write, write_gpu
from trace_utils import Request


def two_gpus(directory: Path, *, later: int) -> Path:
    """Write a BytePS worker of two GPUs of which the second is ready to reduce `later` µs after the first."""
    for rank in range(2):
        events: list[dict[str, object]] = []

        def add(name: str, start: int, end: int, tid: str = "7") -> None:
            events.append(span(name, start, end - start, name.partition(".")[0], name, tid))  # noqa: B023

        for n in range(6):
            begin = 100_000 * n
            ready, pushed = begin + 60_000 + later * rank, begin + 60_000 + later
            add("I/O", begin, begin + 1000)
            add("FW.a", begin + 1000, begin + 20_000)
            add("BW.a", begin + 20_000, ready)
            if n == 5:
                continue
            add("Comm.a_weight", ready, begin + 95_000, "total")
            add("Comm.a_weight.REDUCE", ready, pushed, "65536")
            if rank == 0:
                add("Comm.a_weight.PUSH", pushed, pushed + 2000, "65536")
                add("Comm.a_weight.PULL", pushed + 2000, pushed + 4000, "65536")
            # the root is through with the pull a moment sooner, or later, than the other one hears of it
            add("Comm.a_weight.BROADCAST", pushed + 4000 + 10 * (1 - rank), begin + 95_000, "65536")
        write_gpu(directory / str(rank), "graph [\n  directed 1\n]\n", events)
    return directory


def test_of_gpus_that_reduce_and_later_broadcast_together_the_last_is_the_last_to_reduce(
    tmp_path: Path,
) -> None:
    view = JobView(load_steps([two_gpus(tmp_path / "job", later=20_000)], Request(jobs=1, progress=False)))
    arrivals = last_arrivals(view)
    assert [who.tolist() for who, _ in arrivals] == [[1]] * 5
    assert [after.tolist() for _, after in arrivals] == [[20_000_000]] * 5
    names, which = view.largest(view.which(lambda one: False))  # of none, none is the largest
    assert not (names or which.any())


def in_pairs(directory: Path) -> Path:
    """Write 5 steps of 4 ranks that reduce in pairs [0, 2] and [1, 3], on one machine."""
    begins = [10_000, 12_000, 20_000, 23_000]
    for rank, begin in enumerate(begins):
        groups = [("default_pg", [0, 1, 2, 3]), ("undefined", [rank % 2, rank % 2 + 2])]
        config = [{"pg_desc": about, "ranks": ranks} for about, ranks in groups]
        info = {"rank": rank, "world_size": 4, "pg_config": config}
        reduced, events = begins[rank % 2 + 2] + 1_000, []
        for n, at in enumerate(range(0, 150_000, 30_000)):
            events += [
                step(n, at, 29_990),
                span("aten::mm", at, begin - 100, "cpu_op"),
                span("c10d::allreduce_", at + begin - 50, 100, "cpu_op"),
                span("gloo:all_reduce", at + begin, reduced - begin, "user_annotation", tid=40 + n % 2),
            ]
        path = directory / f"rank{rank}.json"
        write(path, events, schemaVersion=1, host_name="node", distributedInfo=info)
    return directory


def test_where_calls_do_not_name_their_group_nobody_is_waited_for_and_a_note_says_so(tmp_path: Path) -> None:
    loaded = load_steps([in_pairs(tmp_path / "job")], Request(jobs=1, progress=False))
    assert [note[:28] for note in loaded.recording.notes] == [
        "ranks are in several groups,"
    ]  # no clock is moved
    assert [who.tolist() for who, _ in last_arrivals(JobView(loaded))] == [[]] * 5


def accumulating(path: Path, longer: int) -> Path:
    """Write 16 steps of 10 ms, each fourth with 4 ms of an optimizer; step `longer` takes 30 ms more."""
    events: list[dict[str, object]] = []
    at = 0.0
    for number in range(16):
        work, update = 9_000 + 30_000 * (number == longer), 4_000 * (number % 4 == 3)
        events += [step(number, at, work + update + 1_000), span("aten::mm", at + 100, work, "cpu_op")]
        if update:
            events.append(span("Optimizer.step#SGD.step", at + work + 200, update, "user_annotation"))
            events.append(span("aten::add_", at + work + 300, update - 200, "cpu_op"))
        at += work + update + 1_000
    return write(path, events, distributedInfo={"rank": 0, "world_size": 1})


@pytest.mark.parametrize(("longer", "expected"), [(-1, []), (9, [9]), (7, [7])])
def test_steps_that_update_the_model_are_compared_among_themselves(
    tmp_path: Path, longer: int, expected: list[int]
) -> None:
    loaded = load_steps([accumulating(tmp_path / "rank0.json", longer)])
    assert JobView(loaded).far_longer == expected


def test_a_step_in_which_nothing_ran_has_a_path(tmp_path: Path) -> None:
    for name, content in mutations.KINDS["jax"]().items():
        document = json.loads(gzip.decompress(content))
        last = max(event["ts"] for event in document["traceEvents"] if event.get("name") == "train")
        kept = [
            one for one in document["traceEvents"] if one.get("name") == "train" or one.get("ts", 0) < last
        ]
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(json.dumps({**document, "traceEvents": kept}).encode()))
    code, out, err = run_cli("--option", "diagnose", "--path", tmp_path)
    assert code == 0, err
    # 5 ms from one to the next; the last, in which nothing ran, is marked with 4
    assert "4 steps of 4.00 to 5.00 ms" in out
