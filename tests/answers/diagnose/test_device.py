"""Steps on a device in which one thing is wrong: what is found, and what it wins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from answers import diagnosed, holds, kinds, titles, winning
from made_jobs import WRITERS, DeviceStep, Job, device

from analyzer.answers.diagnose.diagnosis import _Search, headline
from analyzer.answers.diagnose.finding import Finding
from analyzer.answers.diagnose.steps.detectors.device import busy_share
from analyzer.answers.diagnose.steps.job_view import JobView
from conftest import run_cli
from dag_utils import LoadedSteps, load_steps
from make import span, write
from replay.edit import EditRequest
from replay.forecast import Forecasts
from trace_utils import Request

DEVICE_BOUND = DeviceStep()  # 40 kernels of 1 ms, launched in 4 ms


@pytest.mark.parametrize("load", [10.0, 40.0])
def test_launching_is_the_limit_of_what_a_slow_loader_leaves(tmp_path: Path, load: float) -> None:
    # the loader's operations are operators as those that launch; 40 launches of 0.5 ms, 2 ms of the device
    job = replace(DEVICE_BOUND, launch=0.5, kernel=0.05, load=load)
    directory, step_ms = device(tmp_path / "job", job)
    around(directory, "aten::stack", "cpu_op", 1, load - 1, step_ms)
    diagnosis = diagnosed(directory)
    assert kinds(diagnosis) == (["input", "host_bound"] if load > 20 else ["host_bound", "input"])
    gains = {one.finding.kind: one for one in winning(diagnosis)}
    holds(gains["input"], load)
    holds(gains["host_bound"], 40 * 0.5 - 40 * 0.05)


def test_the_device_waits_for_one_long_operation_of_the_host(tmp_path: Path) -> None:
    # 40 ms before the launches of 40 kernels of 0.2 ms
    directory, _ = device(tmp_path / "job", replace(DEVICE_BOUND, kernel=0.2, load=40.0))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace("enumerate(DataLoader)#It.__next__", "aten::sort"))
    diagnosis = diagnosed(directory)
    assert "the device waits for aten::sort; up to 40.0 ms" in headline(diagnosis)
    holds(winning(diagnosis)[0], 40.0)


def test_one_long_operation_is_a_cause_and_waiting_before_it_a_symptom(tmp_path: Path) -> None:
    # 40 kernels of 0.5 ms, for which the host waits at the end of the step; then 40 ms of its own
    path = write(tmp_path / "rank0.json", waiting_before_a_long_operation(), schemaVersion=1)
    (first, *_) = winning(diagnosed(path))
    assert first.finding.kind == "host_bound"
    holds(first, 40.0)


def waiting_before_a_long_operation() -> list[dict[str, Any]]:
    """Return eight steps of 40 kernels of 0.5 ms, a call that waits for them, and 40 ms of an optimizer."""
    events: list[dict[str, Any]] = []

    def add(name: str, cat: str, ts: int, dur: int, **args: int) -> None:
        pid, tid = (0, 7) if cat == "kernel" else (5, 5)
        events.append({**span(name, ts, dur, cat, pid, tid), "args": args})

    for step in range(8):
        at = 61_000 * step
        add(f"ProfilerStep#{step}", "user_annotation", at, 60_999)
        for i in range(40):
            add("cudaLaunchKernel", "cuda_runtime", at + 10 * i, 5, correlation=40 * step + i)
            add("kernel", "kernel", at + 10 + 500 * i, 499, correlation=40 * step + i)
        add("cudaStreamSynchronize", "cuda_runtime", at + 400, 19_620)
        add("Optimizer.step#CPUAdam.step", "user_annotation", at + 20_500, 40_000)
    return events


def around(
    directory: Path, name: str, cat: str, begin: float, end: float, every: float, steps: int = 8
) -> None:
    """Add an event of the host to each step of a recorded job, from `begin` to `end` (ms) after its begin."""
    (path,) = directory.glob("*.json")
    document = json.loads(path.read_text())
    for i in range(steps):
        at = round(1000 * (i * every + begin))
        document["traceEvents"].append(span(name, at, round(1000 * (end - begin)), cat, 1, 1))
    path.write_text(json.dumps(document))


def test_time_that_a_python_function_covers_has_its_name_and_leads_where_it_is_most(tmp_path: Path) -> None:
    # of each step 60 ms before anything is launched, 55 of them in a function
    directory, step_ms = device(tmp_path / "job", replace(DEVICE_BOUND, gap=60.0))
    around(directory, "/home/me/video.py(12): preprocess", "python_function", 2, 57, step_ms)
    diagnosis = diagnosed(directory)
    (title,) = titles(diagnosis, "idle")
    assert title == "60 % of the step is inside preprocess, but in no recorded operation"
    assert diagnosis.findings[0].finding.kind == "idle"
    assert title in headline(diagnosis)
    code, out, err = run_cli("--option", "critical", "--path", directory, "--format", "json")
    assert code == 0, err
    (gap,) = [
        one for one in json.loads(out)["scopes"][-1]["by_name"] if one["cat"] == "gap" and one["ms"] > 1
    ]
    assert (gap["name"], round(gap["ms"])) == ("idle in preprocess", 60)
    assert "60 % idle in preprocess" in json.loads(out)["headline"]


def copies_late(directory: Path, *calls: str) -> None:
    """Give calls of a recorded job copies that began when they were about to return."""
    (path,) = directory.glob("*.json")
    document = json.loads(path.read_text())
    waiting = [one for one in document["traceEvents"] if one["name"] in calls]
    for i, one in enumerate(waiting):
        one["args"] = {"correlation": 9_000 + i}
        copy = {"ph": "X", "name": "Memcpy DtoH (Device -> Host)", "cat": "gpu_memcpy", "pid": 0, "tid": 7}
        args = {"correlation": 9_000 + i, "stream": 7}
        document["traceEvents"].append({**copy, "ts": one["ts"] + one["dur"] - 50, "dur": 5, "args": args})
    path.write_text(json.dumps(document))


def test_a_call_that_waits_for_unrecorded_work_is_named(tmp_path: Path) -> None:
    directory, step_ms = device(tmp_path / "job", replace(DEVICE_BOUND, kernel=0.1, gap=60.0))
    around(directory, "hipMemcpyWithStream", "cuda_runtime", 0.1, 59.9, step_ms)
    copies_late(directory, "hipMemcpyWithStream")
    (found,) = [one.finding for one in diagnosed(directory).findings if one.finding.kind == "idle"]
    # 59.8 of 64 ms
    assert found.title.startswith("the host waits 93 % of the step in hipMemcpyWithStream for work")
    assert found.cause.startswith("59.8 ms of ")


def test_creating_a_context_is_start_up_without_a_saving(tmp_path: Path) -> None:
    job = replace(DEVICE_BOUND, first_call=500.0)
    diagnosis = diagnosed(device(tmp_path / "one", job, steps=1)[0])
    assert winning(diagnosis) == []
    told = "one call of cudaDeviceGetStreamPriorityRange is start-up, 93 % of the step"
    assert titles(diagnosis, "profiling_overhead") == [told]
    assert told in headline(diagnosis)
    several = diagnosed(device(tmp_path / "several", job)[0])  # of eight steps the first one is a warm-up
    assert winning(several) == []
    assert "nothing stands out" in headline(several)


def test_the_first_of_many_calls_that_takes_seconds_is_start_up_and_no_reason_to_change_the_loop(
    tmp_path: Path,
) -> None:
    # fifteen calls of cudaFree in one step: the first takes 5.2 s, the others 10 us
    job = replace(DEVICE_BOUND, first_call=5200.0)
    (path,) = device(tmp_path / "job", job, steps=1)[0].iterdir()
    document = json.loads(path.read_text())
    (first,) = [one for one in document["traceEvents"] if one["name"] == "cudaDeviceGetStreamPriorityRange"]
    first["name"] = "cudaFree"
    launches = [one for one in document["traceEvents"] if one["name"] == "cudaLaunchKernel"]
    for one in launches[:14]:
        document["traceEvents"].append({**first, "ts": one["ts"] + one["dur"] + 2, "dur": 10})
    path.write_text(json.dumps(document))
    diagnosis = diagnosed(path.parent)
    assert winning(diagnosis) == []
    assert "one call of cudaFree is start-up, 99 % of the step" in headline(diagnosis)


def test_how_busy_a_device_is_counts_within_the_step(tmp_path: Path) -> None:
    # each kernel lasts 0.05 of 0.5 ms, but the last one of a step for 10 ms into the next one
    job = replace(DEVICE_BOUND, launch=0.5, kernel=0.05)
    directory, step_ms = device(tmp_path / "job", job)
    view = diagnosed(directory).view
    assert view is not None
    assert busy_share(view) == pytest.approx(40 * 0.05 / step_ms, rel=0.01)
    step = view.recording.steps[2]
    step.end_ns[np.flatnonzero(view.which(lambda one: one.on_device)[step.operation])] += 10**12
    assert busy_share(view) <= 1.0


def test_kernels_beside_each_other_keep_the_device_busy_once(tmp_path: Path) -> None:
    # a kernel takes a tenth of its launch, and so does its twin at the same time
    job = replace(DEVICE_BOUND, launch=0.5, kernel=0.05, twins=True)
    diagnosis = diagnosed(device(tmp_path / "job", job)[0])
    assert kinds(diagnosis) == ["host_bound"]
    assert "the device is busy 10 % of the step" in winning(diagnosis)[0].finding.cause


def test_copies_and_waiting_hosts_are_both_found_in_their_order(tmp_path: Path) -> None:
    job = replace(DEVICE_BOUND, copy=14.0, sync_every=4, think=1.0)
    directory, step_ms = device(tmp_path / "job", job)
    diagnosis = diagnosed(directory)
    assert kinds(diagnosis) == ["copies", "host_sync"]
    copied, waited = winning(diagnosis)
    holds(copied, 14.0)
    holds(waited, step_ms - 14.0 - 40.1)
    assert waited.after_above_ns is not None
    assert waited.after_above_ns / 1e6 == pytest.approx(step_ms - 14.0 - 40.1, rel=0.1)


def test_a_rank_is_late_though_another_one_lost_kernels_of_a_step(tmp_path: Path) -> None:
    # of the step's whole second half nothing is known on rank 0, the reduction included
    job = WRITERS["device"](tmp_path / "job", Job(more_forward=(0, 0, 9, 0)))
    path = sorted(job.rglob("*rank0*.json"))[0]
    document = json.loads(path.read_text())
    step = next(one for one in document["traceEvents"] if one["name"] == "ProfilerStep#3")
    lost = range(step["ts"] + step["dur"] // 2, step["ts"] + step["dur"])
    kept = [
        one
        for one in document["traceEvents"]
        if one.get("cat") not in ("kernel", "gpu_memcpy") or one["ts"] not in lost
    ]
    assert any("nccl" in one["name"] for one in document["traceEvents"] if one not in kept)
    path.write_text(json.dumps(document | {"traceEvents": kept}))
    diagnosis = diagnosed(job)
    assert kinds(diagnosis)[0] == "late_rank"
    assert winning(diagnosis)[0].finding.scope.ranks == ["rank2"]
    holds(winning(diagnosis)[0], 9.0, near=0.2)  # its share of nine steps in ten is known


def test_a_saving_of_an_earlier_finding_is_not_repeated() -> None:
    class Known:  # the first wins 9 ms; the second 10 alone, or 4 to 6 after the first
        def of(self, edits: Sequence[EditRequest], above: Sequence[EditRequest] = ()) -> Won:
            (own,) = edits
            return Won(9e6 if own.name == "first" else 10e6 - (0 if not above else float(own.value)))

    class Won:
        is_certain, before_ns, scale = True, 50e6, 0.0

        def __init__(self, gain_ns: float) -> None:
            self.saved_ns = gain_ns

    def saving(title: str, wins: str = "0") -> Finding:
        return Finding("input", title, "", "", edits=[EditRequest(title, wins)])

    for shared, is_new in (("4e6", True), ("6e6", False)):
        search = _Search(cast(LoadedSteps, None), cast(Forecasts, Known()), is_undecided=False)
        search.judge([saving("first"), saving("second", shared)], ())
        assert [finding.title for finding, _ in search.known] == ["first", *["second"] * is_new]


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ([5.0, 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7], "grows from step to step"),
        ([39.0] * 8, "nearly full"),
        ([5.0, 5.4, 5.1, 5.2, 5.3, 5.0, 5.1, 5.2], ""),
    ],
)
def test_memory_that_grows_or_fills_the_device(tmp_path: Path, peaks: Sequence[float], words: str) -> None:
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=peaks))
    found = titles(diagnosed(directory), "memory")
    assert len(found) == bool(words)
    assert all(words in title for title in found)


def test_memory_events_of_the_host_alone_skip_the_finding(tmp_path: Path) -> None:
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=[5.0] * 8))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace('"Device Type": 1', '"Device Type": 0'))
    (skipped,) = [one for one in diagnosed(directory).skipped if one.kind == "memory"]
    assert skipped.reason == "memory events of the host are recorded, but none of a device"


@pytest.mark.parametrize("kind", [6, 12, 20])
def test_memory_of_hip_xpu_and_other_devices_counts(tmp_path: Path, kind: int) -> None:
    """Older ROCm builds of PyTorch write HIP (6) for what is CUDA (1) in all others."""
    directory, _ = device(tmp_path / "job", replace(DeviceStep(), peak_gb=[39.0] * 8))
    path = directory / "rank0.pt.trace.json"
    path.write_text(path.read_text().replace('"Device Type": 1', f'"Device Type": {kind}'))
    assert ["nearly full" in title for title in titles(diagnosed(directory), "memory")] == [True]


def relative_width(job: DeviceStep, path: Path, edit: EditRequest, steps: int = 12) -> float:
    """Return how wide the interval of an edited job is, as a share of its step."""
    path, _ = device(path, job, steps=steps)
    loaded = load_steps([path], Request(jobs=1, progress=False))
    found = Forecasts(JobView(loaded).job, loaded.recording.whole_steps).of([edit])
    low, high = found.interval_ns or (0, 0)
    return (high - low) / found.after_ns


def test_a_forecast_allows_for_another_clock_in_another_run(tmp_path: Path) -> None:
    steady, changing = (
        relative_width(DeviceStep(pace=pace), tmp_path / name, EditRequest("kernel", "0.98"))
        for name, pace in (("steady", [1.0] * 12), ("changing", [1.0, 1.1] * 6))
    )
    # the paces 1 and 1.1 in turn have a standard deviation of 5 % of their logarithm
    assert steady < 0.09 < 0.18 < changing


def test_a_forecast_allows_for_another_pace_of_launches_in_another_run(tmp_path: Path) -> None:
    """A host that launches 100 kernels of 10 µs in 20 ms; beside it one that loads for 180 ms as well."""
    launching, loading = (
        relative_width(
            DeviceStep(kernels=100, launch=0.2, kernel=0.01, load=load),
            tmp_path / f"loads for {load}",
            EditRequest("kernel", "1"),
        )
        for load in (0.0, 180.0)
    )
    # nine tenths of 15 % (the device works for a twentieth), to both sides 1.96 times; and a tenth of that
    assert 0.45 < launching < 0.65
    assert loading < 0.15
