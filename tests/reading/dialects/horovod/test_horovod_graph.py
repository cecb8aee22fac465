"""Horovod's steps: rounds of reductions, and who was waited for in the negotiations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from analyzer.base.errors import TraceError
from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading import dialects
from analyzer.reading.dialects.horovod.horovod_graph import record as record_found
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.formats.columns import Trace
from make import path_of, span, stretches_of, write
from trace_utils import read_trace

Ticks = Sequence[tuple[int, int]]  # (rank, time)
Tensor = tuple[str, int, int, Ticks, int, int]  # name, negotiated from, to, ticks, reduced from, to


def timeline(folder: Path, *tensors: Tensor) -> Trace:
    """A timeline of these reductions, µs; a tensor's parts begin 1 after it and end 1 before."""
    pids = {name: i for i, name in enumerate(dict.fromkeys(name for name, *_ in tensors), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for name, pid in pids.items()
    ]
    for name, asked, agreed, ticks, start, end in tensors:
        pid = pids[name]
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": pid, "ts": asked})
        events += [{"ph": "X", "name": str(rank), "pid": pid, "ts": at, "dur": 0} for rank, at in ticks]
        events.append({"ph": "E", "pid": pid, "ts": agreed})
        events.append({"ph": "B", "name": "ALLREDUCE", "pid": pid, "ts": start})
        events.append(span("NCCL_ALLREDUCE", start + 1, end - start - 2, pid=pid, tid=None))
        events.append({"ph": "E", "pid": pid, "ts": end})
    return read_trace(write(folder / "timeline.json", events))


def record(name: str, trace: Trace) -> RankSteps:
    return record_found(name, trace, dialects.of(trace).find_steps(trace))


def on_path(job: Recording) -> Counter[str]:
    """How long each operation is on the paths of all steps, ns."""
    total: Counter[str] = Counter()
    for step in job.steps:
        for stretch in stretches_of(critical_path(step)):
            name = "" if stretch.event < 0 else job.operations[int(step.operation[stretch.event])].name
            total[name] += stretch.dur_ns
    return total


START_UP: Tensor = ("w", 0, 40, (), 50, 100)


def test_a_negotiation_waits_for_the_rank_that_ticks_last(tmp_path: Path) -> None:
    # 12 ranks; rank 0 is ready 5,100 after the step's begin, the others at 1,000 to 1,010
    ticks = [(rank, 1100 + rank) for rank in range(1, 12)] + [(0, 5200)]
    job = join([record("rank0", timeline(tmp_path, START_UP, ("w", 1101, 5200, ticks, 5230, 5330)))])
    assert path_of(job, 0) == [
        ("rank0: computation", "", 5100),
        ("w.ALLREDUCE", "gap", 30),
        ("w.NCCL_ALLREDUCE", "gap", 1),
        ("w.NCCL_ALLREDUCE", "", 98),
        ("w.ALLREDUCE", "", 1),
    ]


def test_without_ticks_the_last_rank_is_unknown(tmp_path: Path) -> None:
    job = join([record("rank0", timeline(tmp_path, START_UP, ("w", 1100, 5200, (), 5230, 5330)))])
    assert path_of(job, 0)[0] == ("last rank: computation", "", 5100)
    assert "0 of 2 negotiations" in job.notes[1]


def test_recorded_ticks_decide_the_usual_last_rank(tmp_path: Path) -> None:
    first: Tensor = ("w", 1100, 5200, [(0, 1100), (1, 5200)], 5230, 5330)
    second: Tensor = ("w", 6330, 9330, (), 9340, 9350)
    job = join([record("rank0", timeline(tmp_path, START_UP, first, second))])
    assert path_of(job, 0)[0] == ("rank1: computation", "", 5100)
    assert path_of(job, 1)[0] == ("rank1 (inferred): computation", "", 4000)
    assert "for rank 1" in job.notes[1]


def test_computation_waits_only_for_reductions_that_it_never_overtook(tmp_path: Path) -> None:
    # in step 2 b is ready while a is reduced, so that in step 3 it did not wait for a's reduction either;
    # the loss never is
    def step(at: int, b_ready: int) -> list[Tensor]:
        return [
            ("a", at + 2000, at + 2010, (), at + 2010, at + 6010),
            ("b", at + b_ready, at + b_ready + 10, (), at + 9010, at + 9110),
            ("loss", at + 11_110, at + 11_110, (), at + 11_110, at + 11_210),
        ]

    start_up: list[Tensor] = [(name, 0, 10, (), 50, 100) for name in ("a", "b", "loss")]
    job = join([record("rank0", timeline(tmp_path, *start_up, *step(100, 5000), *step(11_310, 9000)))])
    assert path_of(job, 1)[:3] == [
        ("computation", "", 2000), ("computation", "", 7000), ("b.NEGOTIATE_ALLREDUCE", "", 10),
    ]  # fmt: skip
    assert ("computation", "", 2000) in path_of(job, 1)[3:]  # from b's reduction to the loss


def test_a_rank_that_overtook_a_reduction_does_not_wait_for_it_later(tmp_path: Path) -> None:
    # b is ready while a is reduced, and c after that: 3,000 after b, whatever became of a
    start_up: list[Tensor] = [(name, 0, 10, (), 50, 100) for name in ("a", "b", "c")]
    steps: list[Tensor] = [
        ("a", 2100, 2110, (), 2110, 6110), ("b", 5100, 5110, (), 6110, 8200),
        ("c", 8100, 8110, (), 8300, 8400),
    ]  # fmt: skip
    job = join([record("rank0", timeline(tmp_path, *start_up, *steps))])
    step = job.steps[0]
    computed = [
        int(work) // 1000
        for operation, work in zip(step.operation, step.work_ns, strict=True)
        if job.operations[int(operation)].label == "computation"
    ]
    assert sorted(computed) == [2000, 3000, 3000]


def test_a_timeline_without_reductions_has_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "X", "name": "NEGOTIATE_BROADCAST", "pid": 1, "ts": 1, "dur": 2}]')
    with pytest.raises(TraceError, match="no round of reductions"):
        record("rank0", read_trace(path))


CASES = ("2ranks-base", "2ranks-cycles", "2ranks-killed", "2ranks-slow-rank1")


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_are_those_of_iter_time_without_the_start_up(shared_data: Path, case: str) -> None:
    trace = read_trace(shared_data / "horovod" / case / "trace" / "timeline.json")
    job = join([record("rank0", trace)])
    expected = [(step.label, step.dur_ns) for step in dialects.of(trace).find_steps(trace).whole]
    assert [(step.number, int(step.bounds.iteration_ns[0])) for step in job.steps] == expected
    assert [critical_path(step).length_ns for step in job.steps] == [dur for _, dur in expected]


def test_recorded_steps_are_as_long_as_the_script_measured(shared_data: Path) -> None:
    folder = shared_data / "horovod" / "2ranks-slow-rank1"
    truth = json.loads((folder / "truth" / "steptimes_rank0.json").read_text())["steps"][1:]
    job = join([record("rank0", read_trace(folder / "trace" / "timeline.json"))])
    measured = sum(step["total_ms"] for step in truth) / len(truth)
    recorded = sum(int(step.bounds.iteration_ns[0]) for step in job.steps) / len(job.steps) / 1e6
    assert recorded == pytest.approx(measured, rel=0.01)


def test_the_slow_rank_is_on_the_path(shared_data: Path) -> None:
    path = shared_data / "horovod" / "2ranks-slow-rank1" / "trace" / "timeline.json"
    total = on_path(join([record("rank0", read_trace(path))]))
    late = sum(ns for name, ns in total.items() if name.startswith("rank1"))
    assert late > 0.9 * sum(total.values())


def test_fused_tensors_are_one_reduction_of_their_bytes(tmp_path: Path) -> None:
    # a and b at the same time, c alone; Horovod tells shapes at the ends
    spans = {
        "a": (10, 20, "[64, 3]", "float32"),
        "b": (11, 21, "[]", "float32"),
        "c": (30, 40, "[5]", "int64"),
    }
    events: list[dict[str, Any]] = []
    for pid, (name, (start, end, shape, dtype)) in enumerate(spans.items()):
        about = {"shape": shape, "dtype": dtype}
        events += [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}},
            {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "pid": pid, "ts": 1},
            *({"ph": "X", "name": rank, "pid": pid, "ts": 2, "dur": 0} for rank in "012"),
            {"ph": "E", "pid": pid, "ts": 3},
            {"ph": "B", "name": "ALLREDUCE", "pid": pid, "ts": start},
            {"ph": "E", "pid": pid, "ts": end, "args": about},
        ]
    trace = read_trace(
        write(tmp_path / "timeline.json", events), args=dialects.keys_for({dialects.Need.SIZES})
    )
    sizes = dialects.of(trace).collectives(RankTrace("rank0", trace))
    assert sizes.n_bytes.tolist() == [64 * 3 * 4 + 4, 64 * 3 * 4 + 4, 5 * 8]
    assert [sizes.calls[i].n_ranks for i in sizes.call] == [3, 3, 3]
    assert sizes.number.tolist() == [0, 0, 1]  # a and b are one
    assert trace.ts_ns[sizes.row].tolist() == [10_000, 11_000, 30_000]
