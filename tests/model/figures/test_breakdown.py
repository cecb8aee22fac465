"""Where the time of a step goes: what only waits for a collective does not hide it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.model.figures.time_by_role import Breakdown, breakdown
from analyzer.reading import dialects
from analyzer.reading.formats.columns import Trace
from trace_utils import read_trace


def steps_of(trace: Trace) -> Breakdown:
    system = dialects.of(trace)
    return breakdown(trace, system.roles(trace), system.find_steps(trace).whole)


def in_us(step: Breakdown) -> tuple[int, ...]:
    """(computation, communication, both, nothing) of the only step, µs."""
    return tuple(int(ns[0]) // 1000 for ns in (step.compute_ns, step.comm_ns, step.overlap_ns, step.idle_ns))


def test_an_operator_that_only_waits_for_a_collective_does_not_hide_it(tmp_path: Path) -> None:
    # forward computes 0-10 and 40-50 and waits in between for a reduction of 5-38, 5-10 of which it hides
    events = [
        {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": tid, "ts": start, "dur": end - start}
        for name, cat, tid, start, end in [
            ("forward", "cpu_op", 0, 0, 50),
            ("_c10d_functional::wait_tensor", "cpu_op", 0, 10, 40),
            ("gloo:all_reduce", "user_annotation", 1, 5, 38),
        ]
    ]
    (tmp_path / "t.json").write_text(json.dumps(events))
    assert in_us(steps_of(read_trace(tmp_path / "t.json"))) == (20, 33, 5, 2)


def test_recorded_synchronous_allreduces_are_not_hidden(shared_data: Path) -> None:
    trace = read_trace(shared_data / "generic" / "viztracer" / "viz.json.gz")
    steps = steps_of(trace)
    calls = [i for i, name in enumerate(trace.names) if name.startswith("allreduce ")]
    alone = trace.dur_ns[trace.name_id == calls[0]].sum()  # one after the other
    assert steps.exposed_comm_ns.sum() == alone == pytest.approx(16.358e6, abs=1e3)
    assert not steps.overlap_ns.any()
