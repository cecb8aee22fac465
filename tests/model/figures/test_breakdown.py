"""Where the time of a step goes: what only waits for a collective does not hide it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.model.figures.time_by_role import Breakdown, breakdown
from analyzer.reading import dialects
from analyzer.reading.formats.columns import Trace
from make import span, write
from trace_utils import read_trace


def steps_of(trace: Trace) -> Breakdown:
    system = dialects.of(trace)
    return breakdown(trace, system.roles(trace), system.find_steps(trace).whole)


def test_an_operator_that_only_waits_for_a_collective_does_not_hide_it(tmp_path: Path) -> None:
    # forward computes 0-10 and 40-50 and waits in between for a reduction of 5-38, 5-10 of which it hides
    events = [
        span("forward", 0, 50, "cpu_op"),
        span("_c10d_functional::wait_tensor", 10, 30, "cpu_op"),
        span("gloo:all_reduce", 5, 33, "user_annotation", tid=1),
    ]
    step = steps_of(read_trace(write(tmp_path / "t.json", events)))
    times = (step.compute_ns, step.comm_ns, step.overlap_ns, step.idle_ns)
    assert [int(ns[0]) for ns in times] == [20_000, 33_000, 5_000, 2_000]


def test_recorded_synchronous_allreduces_are_not_hidden(shared_data: Path) -> None:
    trace = read_trace(shared_data / "generic" / "viztracer" / "viz.json.gz")
    steps = steps_of(trace)
    calls = [i for i, name in enumerate(trace.names) if name.startswith("allreduce ")]
    alone = trace.dur_ns[trace.name_id == calls[0]].sum()  # one after the other
    assert steps.exposed_comm_ns.sum() == alone == pytest.approx(16.358e6, abs=1e3)
    assert not steps.overlap_ns.any()
