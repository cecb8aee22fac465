"""Lanes that repeat or sum up others are no work; transfers of parameter servers are communication."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analyzer.reading.traces.layouts import find_job
from conftest import ask, run_cli
from make import span, write

Slice = tuple[str, int, int, int, int]  # name, process, thread, begin and length in microseconds


def write_lanes(
    path: Path, processes: dict[int, str], threads: dict[tuple[int, int], str], spans: list[Slice]
) -> Path:
    """Write a timeline whose processes and threads have names."""
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in processes.items()
    ]
    named += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for (pid, tid), name in threads.items()
    ]
    slices = [{**span(name, ts, dur, "", pid, tid), "ts": str(ts)} for name, pid, tid, ts, dur in spans]
    return write(path, named + slices)


def counts(path: Path) -> dict[str, int]:
    """Count the slices of each name."""
    rows = ask("--option", "statistic", "--path", path, "--full")["operations"]
    return {row["name"]: row["count"] for row in rows}


def split(path: Path) -> Sequence[float]:
    """Take compute, communication, exposed communication and idle of the mean step of the first rank, ms."""
    rank = ask("--option", "statistic", "--sub_option", "breakdown", "--path", path)["ranks"][0]
    return [rank[key] for key in ("compute_ms", "comm_ms", "exposed_comm_ms", "idle_ms")]


def four_steps(step: list[Slice]) -> list[Slice]:
    """Repeat a step of 10 ms four times."""
    return [(name, pid, tid, ts + 10_000 * i, dur) for i in range(4) for name, pid, tid, ts, dur in step]


PROCESSES = {1: "Ascend Hardware", 2: "Communication", 3: "Overlap Analysis", 4: "Python"}
THREADS = {(1, 2): "Stream 2", (2, 3): "Group 0 Communication", (3, 0): "Computing", (3, 1): "Communication"}
DEVICE = four_steps(
    [("MatMul", 1, 2, 0, 3000), ("Add", 1, 2, 3000, 2000), ("hcom_allReduce_", 2, 3, 4000, 4000)]
)
SUMS = four_steps([("Computing", 3, 0, 0, 5000), ("Communication", 3, 1, 4000, 4000)])
MARKS: list[Slice] = [(f"ProfilerStep#{i}", 4, 9, 10_000 * i, 10_000) for i in range(4)]


def test_sums_of_other_lanes_are_not_work(tmp_path: Path) -> None:
    path = write_lanes(tmp_path / "trace_view.json", PROCESSES, THREADS, MARKS + DEVICE + SUMS)
    assert split(path) == pytest.approx([5.0, 4.0, 3.0, 2.0])
    assert "Computing" not in counts(path)


def test_sums_are_known_by_what_they_cover(tmp_path: Path) -> None:
    named = {1: "npu", 2: "links", 3: "overview", 4: "host"}
    path = write_lanes(tmp_path / "trace.json", named, THREADS, MARKS + DEVICE + SUMS)
    assert counts(path).keys() == {
        "MatMul",
        "Add",
        "hcom_allReduce_",
        *(f"ProfilerStep#{i}" for i in range(4)),
    }
    later = [(name, pid, tid, ts + 1, dur) for name, pid, tid, ts, dur in SUMS]
    path = write_lanes(tmp_path / "other.json", named, THREADS, MARKS + DEVICE + later)
    assert counts(path)["Computing"] == 4


def test_a_lane_of_all_streams_is_left_out(tmp_path: Path) -> None:
    first, second = [("gemm", 1, 1, 0, 50), ("norm", 1, 1, 60, 10)], [("copy", 1, 2, 40, 30)]
    every = [(name, 2, 7, ts, dur) for name, _, _, ts, dur in first + second]
    path = write_lanes(tmp_path / "trace.json", {1: "GPU", 2: "all streams"}, {}, first + second + every)
    assert counts(path) == {"gemm": 1, "norm": 1, "copy": 1}


def test_devices_with_the_same_work_at_the_same_moment_stay(tmp_path: Path) -> None:
    step = [("gemm", 1, 1, 0, 50), ("norm", 1, 1, 60, 10)]
    other = [(name, 2, 1, ts, dur) for name, _, _, ts, dur in step]
    assert counts(write_lanes(tmp_path / "trace.json", {}, {}, step + other)) == {"gemm": 2, "norm": 2}


def test_a_rank_of_ascend_is_a_folder(tmp_path: Path) -> None:
    for rank, time in ((0, 1), (0, 2), (1, 2)):
        folder = tmp_path / f"host_{rank + 7}_{time}_ascend_pt"
        write_lanes(
            folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", PROCESSES, THREADS, MARKS + DEVICE + SUMS
        )
        (folder / f"profiler_info_{rank}.json").write_text("{}")
    job = find_job(tmp_path)
    assert [source.rank for source in job.sources] == [0, 1]
    assert [Path(note.split(":")[0]).name for note in job.notes] == ["host_7_1_ascend_pt"]


def test_recorded_sums_of_ascend_are_not_work(shared_data: Path) -> None:
    case = shared_data / "cases" / "ascend-trace-view"
    for name in ("trace_view_rank0.json.gz", "hardware-only.json.gz"):
        assert split(case / name) == pytest.approx([11.5, 7.9, 5.4, 3.1], abs=0.01)
    assert split(case / "trace_view_rank1.json.gz") == pytest.approx([12.7, 7.0, 4.2, 3.1], abs=0.01)


def test_kernels_of_a_recorded_timeline_count_once(shared_data: Path) -> None:
    path = shared_data / "cases" / "tf-timeline" / "timeline.json"
    found = counts(path)
    assert (found["Conv2D"], found["Conv2DBackpropFilter"], found["MEMCPYDtoH"]) == (1, 1, 1)
    assert split(path)[1:3] == pytest.approx([15.0, 15.0])


def test_kernels_of_one_stream_count_once(tmp_path: Path) -> None:
    gpu = "/device:GPU:0/stream"
    names = {
        1: f"{gpu}:all Compute",
        2: f"{gpu}:9 Compute",
        3: "/job:ps/replica:0/task:0/device:CPU:0 Compute",
    }
    step = [("MatMul", 1, 0, 0, 600), ("MatMul", 2, 0, 0, 600), ("_Recv", 3, 0, 500, 300)]
    step.append(("ApplyAdam", 3, 0, 800, 100))
    path = write_lanes(tmp_path / "timeline.json", names, {}, four_steps(step))
    assert counts(path) == {"MatMul": 4, "_Recv": 4, "ApplyAdam": 4}
    assert split(path) == pytest.approx([0.7, 0.3, 0.2, 9.1])


def test_pushes_and_pulls_of_a_store_are_communication(tmp_path: Path) -> None:
    step = [
        ("dot", 0, 1, 0, 4000),
        ("KVStoreDistDefaultPush", 0, 2, 3000, 2000),
        ("adam_update", 0, 1, 6000, 1000),
    ]
    path = write_lanes(tmp_path / "profile.json", {0: "cpu/0"}, {}, four_steps(step))
    assert split(path) == pytest.approx([5.0, 2.0, 1.0, 4.0])


def test_a_recorded_store_communicates_under_the_backward_pass(shared_data: Path) -> None:
    path = shared_data / "cases" / "mxnet-chunks" / "full.json"
    assert split(path)[1:3] == pytest.approx([24.0, 4.0])
    _, out, _ = run_cli("--option", "statistic", "--sub_option", "breakdown", "--path", path)
    assert "pushes and pulls of a KVStore" in out
