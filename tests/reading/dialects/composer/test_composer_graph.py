"""Composer's batches as steps, and PyTorch's profiler on Composer's clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.reading import dialects
from analyzer.reading.dialects.composer import tie_axes
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.formats.columns import Trace
from make import path_of, stretches_of
from trace_utils import read_trace

#: µs since the epoch of Composer's events, and of PyTorch's, whose base is lost.
COMPOSER, TORCH = 1_795_218_143_000_000, 4_361_117_000_000
Span = tuple[str, int, int, int]  # name, batch, start, end (µs)


def trace_of(folder: Path, spans: Sequence[Span], torch: Sequence[Span] = (), rank: int = 0) -> Trace:
    """A rank's file; `torch` are spans of PyTorch's profiler, on thread 1."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": name, "pid": rank, "tid": 0, "ts": COMPOSER, "args": {"value": value}}
        for name, value in (("global_rank", rank), ("clock_sync_timestamp_us", COMPOSER))
    ]
    for name, batch, start, end in spans:
        args = {"epoch": 0, "batch": batch}
        where = {"name": name, "cat": "", "pid": rank, "tid": 0, "args": args}
        events += [{"ph": "B", "ts": COMPOSER + start, **where}, {"ph": "E", "ts": COMPOSER + end, **where}]
    for name, _, start, end in torch:
        where = {"name": name, "cat": "user_annotation", "pid": rank, "tid": 1}
        events.append({"ph": "X", "ts": TORCH + start, "dur": end - start, **where})
    path = folder / f"ep0-ba1-rank{rank}.json"
    path.write_text(json.dumps(sorted(events, key=lambda event: event["ts"])))
    return read_trace(path, args=("batch",), points=True)


def record(trace: Trace, name: str = "rank0") -> RankSteps:
    return dialects.of(trace).rank_steps(RankTrace(name, trace))


def batch(number: int, at: int, forward: int, backward: int) -> list[Span]:
    """Loading for 10, then the batch: forward, backward, and 5 without either."""
    begin, middle = at + 10, at + 10 + forward
    return [
        ("event/dataloader", number, at, begin),
        ("event/batch", number, begin, middle + backward + 5),
        ("event/forward", number, begin, middle),
        ("event/backward", number, middle, middle + backward),
    ]


def test_a_step_is_a_batch_with_its_loading(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [*batch(7, 0, 20, 30), *batch(8, 70, 20, 40)])
    steps = record(trace)
    assert [(s.number, s.begin_ns // 1000 - COMPOSER, s.next_ns // 1000 - COMPOSER) for s in steps.steps] == [
        (7, 0, 65), (8, 65, 145),
    ]  # fmt: skip
    assert path_of(join([steps]), 1) == [
        ("event/dataloader", "gap", 5), ("event/dataloader", "", 10), ("event/forward", "", 20),
        ("event/backward", "", 40), ("event/batch", "", 5),
    ]  # fmt: skip
    phases = {one.name: (one.cat, one.purpose) for one in steps.operations}
    assert phases["event/forward"] == ("event/forward", "FW")
    assert phases["event/dataloader"] == ("event/dataloader", "I/O")


def test_no_rank_ends_its_backward_pass_before_the_last_has_begun_it(tmp_path: Path) -> None:
    # rank 1 loads for as long, but its forward pass takes 50 instead of 20; both end together
    ranks = [
        record(trace_of(tmp_path, batch(1, 0, 20, 60), rank=0), "rank0"),
        record(trace_of(tmp_path, batch(1, 0, 50, 30), rank=1), "rank1"),
    ]
    assert path_of(join(ranks), 0) == [
        ("rank1.event/dataloader", "", 10), ("rank1.event/forward", "", 50),
        ("rank0.event/backward", "", 30), ("rank0.event/batch", "", 5),
    ]  # fmt: skip


CALLBACK = "callback/TorchProfiler/event/batch_end"


def test_steps_of_pytorch_s_profiler_begin_as_its_callback_ends(tmp_path: Path) -> None:
    # PyTorch saw the last two of three steps: #2 begins 1000 after its base as the second callback ends (200)
    calls = [(CALLBACK, 2, at - 5, at) for at in (100, 200, 310)]
    batches = [("event/batch", i, at, at + 80) for i, at in ((1, 10), (2, 110), (3, 210))]
    torch = [
        ("ProfilerStep#2", 0, 1000, 1110),
        ("ProfilerStep#3", 0, 1110, 1200),
        ("gloo:all_reduce", 0, 1010, 1020),
    ]
    trace = trace_of(tmp_path, [*calls, *batches], torch)
    at_us = {
        trace.names[name]: at // 1000 - COMPOSER
        for name, at in zip(trace.name_id.tolist(), trace.ts_ns.tolist(), strict=True)
    }
    assert [at_us[name] for name, *_ in torch] == [200, 310, 210]
    assert "56.7 years" in trace.repairs[-1] and "2 steps" in trace.repairs[-1]
    assert tie_axes(trace) is trace


@pytest.mark.parametrize(
    "case",
    ["ws1-torch/trace/ep0-ba6-rank0", "ws2-torch/trace/ep0-ba5-rank1", "ws2-torch/oracle/merged_trace"],
)
def test_the_lost_base_is_found_to_a_tenth_of_a_millisecond(shared_data: Path, case: str) -> None:
    path = shared_data / "composer" / f"{case}.json"
    trace = read_trace(path)
    raw = json.loads(path.read_text())
    expected = {
        (event["pid"], event["name"]): 1_790_857_026_000_000_000 + round(event["ts"] * 1000)
        for event in raw
        if str(event.get("name")).startswith("ProfilerStep#")
    }
    names = np.array(trace.names)[trace.name_id]
    for (pid, name), at_ns in expected.items():
        pids = np.array([track.pid == pid for track in trace.tracks])[trace.track_id]
        (found,) = trace.ts_ns[(names == name) & pids]
        assert abs(int(found) - at_ns) < 100_000


def test_communication_of_a_trace_with_both_is_in_its_steps(shared_data: Path) -> None:
    paths = [shared_data / "composer" / "ws2-torch" / "trace" / f"ep0-ba5-rank{rank}.json" for rank in (0, 1)]
    ranks = [
        record(read_trace(path, args=("batch",), points=True), f"rank{i}") for i, path in enumerate(paths)
    ]
    job = join(ranks)
    assert [step.number for step in job.steps] == [2, 3]
    names = {job.operations[int(i)].name for i in job.steps[1].operation}
    assert {"gloo:all_reduce", "aten::convolution_backward", "event/batch"} <= names
    assert any(joint_from != to for joint_from, to in job.steps[1].owner[job.steps[1].edges[:, :2]].tolist())


@pytest.mark.parametrize("case", ["ws2", "ws2-slow-rank1"])
def test_recorded_paths_are_as_long_as_their_steps(shared_data: Path, case: str) -> None:
    folder = shared_data / "composer" / case / "trace"
    traces = [read_trace(path, args=("batch",), points=True) for path in sorted(folder.glob("*.json"))]
    job = join([record(trace, f"rank{i}") for i, trace in enumerate(traces)])
    assert [step.number for step in job.steps] == [2, 3, 4, 5]
    for step in job.steps:
        path = critical_path(step)
        assert (
            sum(stretch.dur_ns for stretch in stretches_of(path))
            == path.length_ns
            == step.bounds.iteration_ns[path.owner]
        )
