"""Launches whose kernels the profiler lost, and kernels whose recorded durations cannot be true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.reading.dialects.kineto.launches import lost_work
from analyzer.reading.formats.columns import Trace
from conftest import run_cli
from make import span, write
from make import step as step_mark
from trace_utils import read_trace

Ev = dict[str, Any]
CORRELATION = ("correlation",)
ALL = [5, 6, 7, 8, 9, 10]  # the steps of the cases


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel", dur: float = 5) -> Ev:
    return span(name, ts, dur, "cuda_runtime", 10, 1, correlation=correlation)


def kernel(ts: float, dur: float, correlation: int, stream: int = 7, name: str = "gemm") -> Ev:
    return span(name, ts, dur, "kernel", 0, stream, correlation=correlation, stream=stream)


def job(path: Path, *events: Ev) -> Path:
    return write(path, events, schemaVersion=1)


def read(path: Path, *events: Ev) -> Trace:
    return read_trace(job(path / "rank0.json", *events), args=CORRELATION)


def kernels_us(trace: Trace) -> list[float]:
    is_kernel = np.array([cat == "kernel" for cat in trace.cats])[trace.cat_id]
    return [ns / 1e3 for ns in trace.dur_ns[is_kernel].tolist()]


def breakdown(path: Path) -> tuple[list[dict[str, Any]], str]:
    code, out, err = run_cli("statistic", path, "--sub_option", "breakdown", "--format", "json")
    assert code == 0, err
    return [row for row in json.loads(out)["breakdown"] if row["step"] is not None], err


# ---- a stream does one thing at a time


@pytest.mark.parametrize("dur", [1_000.0, 30_000.0, 1.8446744073709552e13, 1.8446744073709552e16, -3.0])
def test_a_kernel_is_cut_where_the_next_of_its_stream_begins(tmp_path: Path, dur: float) -> None:
    # four kernels of 300 µs, every 500 µs; the second one claims to run on into others
    durations = [300, dur, 300, 300]
    events = [launch(500 * i, i + 1) for i in range(4)]
    events += [kernel(500 * i + 10, length, i + 1) for i, length in enumerate(durations)]
    trace = read(tmp_path, *events)
    assert kernels_us(trace) == [300, 500, 300, 300]
    assert trace.repairs == ["1 kernel or copy runs into the next one of the stream: cut there"]


@pytest.mark.parametrize(
    ("durations", "stream"),
    [
        ([300, 540, 300, 300], 7),  # 40 µs: clocks jitter
        ([300, 1_000, 300, 300], 8),  # the kernel has a stream of its own
        ([1_400, 1_300, 1_200, 300], 7),  # a lane of work that runs side by side
    ],
)
def test_kernels_that_may_be_true_stay(tmp_path: Path, durations: list[float], stream: int) -> None:
    events = [launch(500 * i, i + 1) for i in range(4)]
    events += [kernel(500 * i + 10, durations[i], i + 1, stream if i == 1 else 7) for i in range(4)]
    trace = read(tmp_path, *events)
    assert sorted(kernels_us(trace)) == sorted(durations)
    assert not trace.repairs


@pytest.mark.parametrize(("name", "is_kept"), [("gemm", False), ("ncclDevKernel_AllReduce", True)])
def test_the_last_kernel_of_a_stream_is_left_out_if_it_outlasts_the_recording(
    tmp_path: Path, name: str, is_kept: bool
) -> None:
    # the recording takes 1.3 ms, the last kernel claims 9 ms; a collective may wait for a rank that hangs
    events = [launch(500 * i, i + 1) for i in range(3)]
    events += [kernel(10, 300, 1), kernel(510, 300, 2), kernel(1_010, 9_000, 3, name=name)]
    trace = read(tmp_path, *events, launch(1_290, 4, "cudaDeviceSynchronize", 10))
    assert kernels_us(trace) == ([300, 300, 9_000] if is_kept else [300, 300])
    lines = ["1 kernel or copy takes longer than the recording: left out"]
    assert list(trace.repairs[:1]) == ([] if is_kept else lines)
    assert (lost_work(trace) == "") == is_kept


# ---- launches whose kernels are lost


def steps(lost: set[int]) -> list[Ev]:
    """Make four steps of 1 ms with two kernels of 200 µs each, numbered from 1, without those `lost`."""
    events: list[Ev] = []
    for step in range(4):
        events.append(step_mark(step, 1_000 * step, 1_000))
        for i in range(2):
            number, ts = 2 * step + i + 1, 1_000 * step + 300 * i
            events.append(launch(ts + 10, number))
            if number not in lost:
                events.append(kernel(ts + 100, 200, number))
        events.append(launch(1_000 * step + 700, 100 + step, "cudaDeviceSynchronize", 290))
    return events


@pytest.mark.parametrize(
    ("lost", "counted"),
    [(set(), [0, 1, 2, 3]), ({3}, [0, 2, 3]), ({1, 2, 3, 4}, [2, 3]), ({1, 3, 5, 7}, [0, 1, 2, 3])],
)
def test_steps_that_lost_kernels_are_left_out(tmp_path: Path, lost: set[int], counted: list[int]) -> None:
    # where each step lost some, all of them stay, with what is left of them
    for untimed in ([], [kernel(-9e6, 0, number) for number in lost]):  # not recorded, or without a time
        rows, err = breakdown(job(tmp_path / "rank0.json", *steps(lost), *untimed))
        assert [row["step"] for row in rows] == counted
        if len(counted) < 4:
            assert all(row["compute_ms"] == pytest.approx(0.4) for row in rows)
        assert (f"{len(lost)} of 8 launches have no work of the device" in err) == bool(lost)


def test_two_files_of_a_rank_that_count_from_one_do_not_hide_what_either_lost(tmp_path: Path) -> None:
    job(tmp_path / "worker0.1000.pt.trace.json", *steps(set()))
    later = [{**event, "ts": event["ts"] + 100_000} for event in steps({3})]
    for event in later:
        event["name"] = event["name"].replace("ProfilerStep#", "ProfilerStep#1")
    job(tmp_path / "worker0.2000.pt.trace.json", *later)
    rows, err = breakdown(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 10, 12, 13]
    assert "1 of 8 launches have no work of the device" in err


@pytest.mark.parametrize("case", ["a call of the driver inside", "other numbers"])
def test_launches_that_are_inside_others_or_have_no_common_numbers_lose_nothing(
    tmp_path: Path, case: str
) -> None:
    events: list[Ev] = []
    for i in range(4):
        events += [launch(100 * i, i + 1, dur=20), kernel(100 * i + 30, 50, i + 1)]
        if case == "other numbers":
            events[-1]["args"]["correlation"] += 90
        else:
            events.append(launch(100 * i + 5, i + 1, "cuLaunchKernel", 10))
    trace = read(tmp_path, *events)
    assert not trace.repairs
    assert lost_work(trace) == ""


def test_launches_inside_a_capture_run_nothing_and_lose_nothing(tmp_path: Path) -> None:
    captured = [launch(10 * i + 20, 10 + i, dur=5) for i in range(5)]
    begin = launch(0, 1, "cudaStreamBeginCapture_v10010")
    end = launch(100, 2, "cudaStreamEndCapture")
    after = [launch(200, 3), kernel(210, 50, 3)]
    whole = read(tmp_path, begin, *captured, end, *after)
    assert not whole.repairs
    assert lost_work(whole) == ""
    lost = read(tmp_path, begin, *captured, end, launch(150, 9), *after)
    assert lost_work(lost).startswith("1 of 2 launches")


@pytest.mark.parametrize(
    ("case", "counted", "line"),
    [
        ("kernel-over-next/4ms", ALL, "3 kernels or copies run into the next one of the stream: cut there"),
        ("kernel-over-next/21ms", ALL, "1 kernel or copy runs into the next one"),
        ("kernel-over-next/1600ms", ALL, "1 kernel or copy runs into the next one"),
        ("kernel-over-next/u64", ALL, "1 kernel or copy runs into the next one"),
        ("device-work-lost/three", [8, 9, 10], "18 of 36 launches have no work of the device"),
        ("device-work-lost/half", [9, 10], "20 of 36 launches have no work of the device"),
        ("device-work-lost/all", ALL, "36 launches were recorded and none of their kernels"),
    ],
)
def test_the_whole_steps_of_the_cases_have_their_figures(
    shared_data: Path, case: str, counted: list[int], line: str
) -> None:
    path = shared_data / "cases" / f"{case}.json.gz"
    rows, err = breakdown(path)
    assert [row["step"] for row in rows] == counted
    assert line in err
    if case == "device-work-lost/all":
        assert f"(mean of 6 steps); {line}." in run_cli("statistic", path, "--sub_option", "breakdown")[1]
        assert line in run_cli("diagnose", path)[1].splitlines()[0]
    else:
        assert all(row["compute_ms"] == pytest.approx(6.58, abs=0.02) for row in rows)
        assert all(row["exposed_comm_ms"] == pytest.approx(2.00, abs=0.01) for row in rows)


@pytest.mark.parametrize(("lost", "expected"), [(set(), 0), ({3}, 3)])
def test_compare_does_not_pass_a_recording_that_lost_work(
    tmp_path: Path, lost: set[int], expected: int
) -> None:
    base = job(tmp_path / "base.json", *steps(set()))
    new = job(tmp_path / "new.json", *steps(lost))
    assert run_cli("statistic", new, "--save", tmp_path / "digest.json")[0] == 0
    for name in ("new.json", "digest.json"):  # as the new run and as the base
        for paths in ((base, tmp_path / name), (tmp_path / name, base)):
            code, out, _ = run_cli("compare", *paths, "--fail_above", "5")
            line = f"{name}: not passed by --fail_above: 1 of 8 launches have no work of the device"
            assert (code, line in out) == (expected, bool(lost))
    assert run_cli("--option", "compare", "--path", base, new)[0] == 0
