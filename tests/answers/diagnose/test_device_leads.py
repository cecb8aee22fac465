"""A device leads: its idle time bounds what its host can save, and its kernels have the next word."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import diagnosed, titles, winning
from made_jobs import DeviceStep, device
from test_device import around

from analyzer.answers.diagnose.diagnosis import Diagnosis, headline
from analyzer.answers.diagnose.steps.causes import causes_of
from analyzer.answers.diagnose.steps.detectors.device import busy_share, device_idle_ns
from make import span, write

Ev = dict[str, Any]
DEVICE_BOUND = DeviceStep()  # 40 kernels of 1 ms, launched in 4 ms
HOST_KINDS = ("host_bound", "host_sync")


def host(name: str, ts: float, dur: float, correlation: int = 0, cat: str = "cuda_runtime") -> Ev:
    args = {"correlation": correlation} if correlation else {}
    return {**span(name, ts, dur, cat, 5, 5), "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int) -> Ev:
    return {**span(name, ts, dur, "kernel", tid=7), "args": {"correlation": correlation, "stream": 7}}


def diagnosis_of(tmp_path: Path, *events: Ev) -> Diagnosis:
    return diagnosed(write(tmp_path / "rank0.json", events, schemaVersion=1))


def host_gains_ms(diagnosis: Diagnosis) -> list[float]:
    found = (ranked.gain for ranked in winning(diagnosis) if ranked.finding.kind in HOST_KINDS)
    return [gain.mid_ns / 1e6 for gain in found if gain is not None]


def copying_steps() -> list[Ev]:
    """Eight steps of 98.2 ms: a copy of 90 ms that the host awaits, and 40 kernels of 0.01 ms."""
    events: list[Ev] = []
    for step in range(8):
        begin, number = 98_200 * step, 100 * step + 1
        events.append(host(f"ProfilerStep#{step}", begin, 98_190, cat="user_annotation"))
        events.append(host("cudaMemcpyAsync", begin, 90_010, number))
        copy = kernel("Memcpy HtoD (Pageable -> Device)", begin + 5, 90_000, number)
        events.append({**copy, "cat": "gpu_memcpy"})
        for i in range(40):
            ts = begin + 90_015 + 200 * i
            events += [
                host("cudaLaunchKernel", ts, 195, number + 1 + i),
                kernel("gelu", ts + 196, 10, number + 1 + i),
            ]
    return events


def test_a_host_saves_no_more_than_a_device_full_of_copies_idles(tmp_path: Path) -> None:
    # the device works for 90.4 ms of each step, and is idle for 7.8 ms
    diagnosis = diagnosis_of(tmp_path, *copying_steps())
    assert diagnosis.view is not None
    assert busy_share(diagnosis.view) == pytest.approx(90.4 / 98.2, abs=0.001)
    assert device_idle_ns(diagnosis.view) / 1e6 == pytest.approx(7.8, abs=0.05)
    assert host_gains_ms(diagnosis)
    assert all(gain <= 7.85 for gain in host_gains_ms(diagnosis))
    assert winning(diagnosis)[0].finding.kind == "copies"


def test_work_of_the_profiler_is_named_without_a_saving(tmp_path: Path) -> None:
    # 5.8 ms before the launches of each step, which takes 46 ms
    directory, step_ms = device(tmp_path / "job", replace(DEVICE_BOUND, gap=6.0))
    around(directory, "Buffer Flush", "overhead", 0.1, 5.9, step_ms)
    diagnosis = diagnosed(directory)
    (title,) = titles(diagnosis, "profiling_overhead")
    assert title == "13 % of the step is work of the profiler, not of the job"
    assert not host_gains_ms(diagnosis)


def test_the_case_of_a_flushing_profiler_offers_nothing_of_it(shared_data: Path) -> None:
    # 6 ms of 16; the device idles 7.42 ms of a step, so a faster host saves 1.42 ms at most
    diagnosis = diagnosed(shared_data / "cases" / "profiler-overhead" / "trace.json.gz")
    assert any("work of the profiler" in title for title in titles(diagnosis, "profiling_overhead"))
    assert all(gain <= 1.42 for gain in host_gains_ms(diagnosis))
    assert "communication is not overlapped; up to 2.00 ms" in headline(diagnosis)


def test_first_launches_of_several_kernels_are_start_up(tmp_path: Path) -> None:
    # 30 and 20 ms for the first launches of two kernels, 0.01 ms for each of 40 more: 50 of 51.2 ms
    events, ts = [], 0.0
    for i in range(42):
        took = {0: 30_000.0, 1: 20_000.0}.get(i, 10.0)
        events.append(host("cudaLaunchKernel", ts, took, i + 1))
        events.append(kernel("ab"[i % 2], ts + took + 2, 5, i + 1))
        ts += took + 20
    diagnosis = diagnosis_of(tmp_path, *events)
    (title,) = titles(diagnosis, "profiling_overhead")
    assert title == "the first launches of 2 kernels are start-up, 98 % of the step"
    assert title in headline(diagnosis)
    assert not winning(diagnosis)


def test_the_capture_of_a_graph_is_one_off_work(tmp_path: Path) -> None:
    # of a step of 10 ms, launches are recorded into a graph from 0.1 to 9.1 ms
    events = [
        host("ProfilerStep#3", 0, 10_000, cat="user_annotation"),
        host("cudaStreamBeginCapture", 100, 10),
        *(host("cudaLaunchKernel", 200 + 900 * i, 800, 10 + i) for i in range(9)),
        host("cudaStreamEndCapture", 9_000, 100),
        host("cudaLaunchKernel", 9_200, 10, 90),
        kernel("gemm", 9_220, 100, 90),
    ]
    diagnosis = diagnosis_of(tmp_path, *events)
    (title,) = titles(diagnosis, "profiling_overhead")
    assert "captures a graph of the device, which is one-off work" in title
    assert title in headline(diagnosis)
    assert not winning(diagnosis)


def test_a_launch_that_finds_the_queue_full_waits_for_the_device(tmp_path: Path) -> None:
    # the fourth launch waits from 3.1 ms until the third kernel begins at 20 ms, and returns soon after
    events = [host("ProfilerStep#3", 0, 45_000, cat="user_annotation")]
    events += [host("cudaLaunchKernel", 1_000 * i, 10, i + 1) for i in range(3)]
    events += [kernel("gemm", 20 + 10_000 * i, 10_000, i + 1) for i in range(4)]
    events += [
        host("cudaLaunchKernel", 3_000, 17_100, 4),
        host("Command Buffer Full", 3_100, 16_950, cat="overhead"),
    ]
    diagnosis = diagnosis_of(tmp_path, *events)
    assert diagnosis.view is not None
    full = diagnosis.view.which(lambda operation: operation.is_overhead)
    assert diagnosis.view.path_work_ns(full) < 100_000
    assert not host_gains_ms(diagnosis)
    assert not titles(diagnosis, "profiling_overhead")


@pytest.mark.parametrize(
    ("name", "title", "advice"),
    [
        ("ampere_sgemm_128x64_tn", "fp32 matrix products", "set_float32_matmul_precision"),
        ("ampere_bf16_s16816gemm_bf16_128x64", "GEMM kernels", "FLOP/s"),
        ("vectorized_elementwise_kernel", "elementwise kernels", "torch.compile"),
        ("nchwToNhwcKernel", "copy kernels", "channels_last"),
    ],
)
def test_a_busy_device_names_the_kind_of_its_kernels(
    tmp_path: Path, name: str, title: str, advice: str
) -> None:
    # 40 kernels of 1 ms in a step of 41 ms, all of one kind
    directory, _ = device(tmp_path / "job", replace(DEVICE_BOUND, names=1))
    (path,) = directory.iterdir()
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] = name
    path.write_text(json.dumps(document))
    diagnosis = diagnosed(directory)
    found = [
        each.finding for each in diagnosis.findings if each.finding.title.endswith(f"of its time on {title}")
    ]
    assert len(found) == 1
    assert advice in found[0].action
    assert not found[0].edits
    assert title in headline(diagnosis)


@pytest.mark.parametrize(
    ("job", "first"),
    [
        ("gpu-switch-a100", "the device spends 92 % of its time on fp32 matrix products"),
        ("gpu-tracelens-capture-mi300", "96 % of the step captures a graph of the device"),
        (
            "gpu-tracelens-first-launches-mi300",
            "the first launches of 10 kernels are start-up, 92 % of the step",
        ),
        ("gpu-zoology-no-kernels", "260 launches were recorded and none of their kernels"),
    ],
)
def test_the_known_cause_of_a_recorded_job_comes_first(shared_data: Path, job: str, first: str) -> None:
    assert f": {first}" in headline(diagnosed(shared_data / "kineto" / job))


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (
            ["softmax_warp_forward", *["nvjet_tst"] * 5],
            "attention runs as matrix products and a softmax, which alone",
        ),
        (["softmax_warp_forward", *["nvjet_tst"] * 4, "flash_fwd_kernel"], None),  # it is fused elsewhere
        (
            ["nchwToNhwcKernel", *["cutlass_conv"] * 5],
            "17 % of the device's time converts layouts of tensors",
        ),
    ],
)
def test_kernels_of_a_busy_device_show_causes(tmp_path: Path, names: list[str], title: str | None) -> None:
    # 42 kernels of 1 ms in each step, a seventh or a sixth of them of each name
    directory, _ = device(tmp_path / "job", replace(DEVICE_BOUND, names=1))
    (path,) = directory.iterdir()
    document = json.loads(path.read_text())
    kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
    for number, event in enumerate(kernels):
        event["name"] = names[number % len(names)]
    path.write_text(json.dumps(document))
    shown = [ranked.finding.title for ranked in diagnosed(directory).findings]
    causes = [each for each in shown if "softmax" in each or "layouts" in each]
    assert [each.startswith(title or "-") for each in causes] == [True] * (title is not None)


@pytest.mark.parametrize(
    ("launch_us", "calls", "title", "advises_graphs"),
    [
        (15, (), "the CPU launches kernels too slowly", True),
        (
            15,
            ("cudaStreamSynchronize",) * 2,
            "the CPU launches kernels too slowly",
            False,
        ),  # graphs cannot hold it
        (15, ("cudaStreamSynchronize",) * 6, "6 calls a step make the CPU wait for the GPU", False),
        (15, ("TorchDynamo Cache Lookup",) * 6, "torch.compile is interrupted", False),
        (60, (), "the host is slow: a launch takes 59 µs", False),
    ],
)
def test_a_slow_host_has_a_cause_and_advice_that_can_work(
    tmp_path: Path, launch_us: float, calls: tuple[str, ...], title: str, advises_graphs: bool
) -> None:
    events, step_us = [], 100 * launch_us + 100
    for number in range(5):
        at = number * step_us
        events.append(host(f"ProfilerStep#{number}", at, step_us, cat="user_annotation"))
        for i in range(100):
            begin, correlation = at + i * launch_us, 1000 * number + i + 1
            events.append(host("cudaLaunchKernel", begin, launch_us - 1, correlation))
            events.append(kernel("gemm", begin + launch_us, 2, correlation))
        events += [host(call, at + 100 * launch_us + 10 * i, 5) for i, call in enumerate(calls)]
    diagnosis = diagnosis_of(tmp_path, *events)
    (finding,) = [ranked.finding for ranked in diagnosis.findings if ranked.finding.kind == "host_bound"]
    assert finding.title.startswith(title)
    assert diagnosis.view is not None
    assert not any("{" in cause for cause in causes_of(diagnosis.view))  # which have no numbers
    assert ("CUDA graphs" in finding.action) == advises_graphs
