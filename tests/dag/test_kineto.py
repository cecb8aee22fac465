"""Kineto traces as graphs: small recordings of which every dependency is known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dag.innermost import IDLE, Segment, segments, split
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import run_cli
from dag_utils import LINK_ARGS, Dag, Kind, kineto_dag, longest_path
from trace_utils import read_trace

# -- threads


def test_nested_slices_become_a_row() -> None:
    #  0 [0, 10] holds 1 [2, 5], which holds 2 [3, 4]; then nothing until 3 [12, 13]
    found = segments([0, 1, 2, 3], [0, 2, 3, 12], [10, 5, 4, 13])
    assert found == [
        (0, 0, 2), (1, 2, 3), (2, 3, 4), (1, 4, 5), (0, 5, 10), (IDLE, 10, 12), (3, 12, 13)]  # fmt: skip


def test_a_slice_without_length_has_a_segment() -> None:
    assert segments([0, 1], [0, 4], [8, 4]) == [(0, 0, 4), (1, 4, 4), (0, 4, 8)]


def test_a_slice_that_sticks_out_is_cut() -> None:
    assert segments([0, 1], [0, 4], [6, 9]) == [(0, 0, 4), (1, 4, 6)]


def test_the_time_before_the_first_slice_is_idle() -> None:
    assert segments([0], [5], [7], begin_ns=2) == [(IDLE, 2, 5), (0, 5, 7)]


def test_cuts_inside_and_at_the_borders() -> None:
    assert split([Segment(0, 0, 10)], [0, 4, 10, 4]) == [(0, 0, 4), (0, 4, 10)]


slices = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(slices)
def test_segments_are_gapless_and_cover_every_slice(pairs: list[tuple[int, int]]) -> None:
    rows = list(range(len(pairs)))
    found = segments(rows, [a for a, _ in pairs], [a + d for a, d in pairs])
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(found))
    assert found[0].start_ns == min(a for a, _ in pairs)
    assert {segment.row for segment in found} - {IDLE} == set(rows)


# -- whole traces

Ev = dict[str, Any]


def host(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op", **args: Any) -> Ev:
    return {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 1) -> Ev:
    return host(name, ts, dur, tid, "cuda_runtime", correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> Ev:
    args = {"correlation": correlation, "stream": stream, **args}
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


def step(number: int, ts: float, dur: float) -> Ev:
    return host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def write(path: Path, events: Sequence[Ev], rank: int = 0) -> Path:
    document = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": list(events)}
    path.write_text(json.dumps(document))
    return path


def load(tmp_path: Path, *ranks: Sequence[Ev]) -> Dag:
    traces = [
        read_trace(write(tmp_path / f"rank{i}.json", events, i), args=LINK_ARGS, points=True)
        for i, events in enumerate(ranks)
    ]
    prefixes = [f"rank{i}." for i in range(len(ranks))] if len(ranks) > 1 else [""]
    return kineto_dag(traces, [None] * len(ranks), prefixes)


def path_of(dag: Dag) -> list[tuple[str, float]]:
    """The path's operations that take time, in microseconds."""
    found = longest_path(dag)
    return [(dag.names[n], part / 1e3) for n, part in zip(found.nodes, found.part_ns, strict=True) if part]


def kinds_into(dag: Dag, name: str) -> set[tuple[str, Kind]]:
    pairs = zip(dag.src.tolist(), dag.dst.tolist(), dag.kind.tolist(), strict=True)
    return {(dag.names[a], Kind(kind)) for a, b, kind in pairs if dag.names[b] == name}


def test_a_thread_is_a_chain_and_its_gaps_are_named(tmp_path: Path) -> None:
    dag = load(tmp_path, [host("aten::a", 0, 10), host("aten::b", 2, 3), host("aten::c", 15, 1)])
    assert path_of(dag) == [
        ("aten::a", 2), ("aten::b", 3), ("aten::a", 5), ("host code before aten::c", 5),
        ("aten::c", 1)]  # fmt: skip


def test_a_kernel_waits_for_its_launch_and_its_stream(tmp_path: Path) -> None:
    dag = load(tmp_path, [
        call("cudaLaunchKernel", 0, 4, 1), kernel("k1", 10, 20, 1), call("cudaLaunchKernel", 5, 4, 2),
        kernel("k2", 30, 5, 2)])  # fmt: skip
    assert kinds_into(dag, "launch of k1") == {("cudaLaunchKernel", Kind.LAUNCH)}
    assert kinds_into(dag, "k2") == {("cudaLaunchKernel", Kind.LAUNCH), ("k1", Kind.DEVICE)}
    assert path_of(dag) == [("cudaLaunchKernel", 4), ("launch of k1", 6), ("k1", 20), ("k2", 5)]


def test_a_kernel_that_begins_during_its_launch(tmp_path: Path) -> None:
    dag = load(tmp_path, [call("cudaLaunchKernel", 0, 10, 1), kernel("k1", 6, 20, 1)])
    assert path_of(dag) == [("cudaLaunchKernel", 6), ("k1", 20)]


def test_a_synchronisation_ends_after_the_kernel(tmp_path: Path) -> None:
    dag = load(tmp_path, [
        call("cudaLaunchKernel", 0, 4, 1), kernel("k1", 4, 50, 1), call("cudaDeviceSynchronize", 5, 52, 2),
        host("aten::after", 57, 3)])  # fmt: skip
    assert ("k1", Kind.SYNCHRONISE) in kinds_into(dag, "cudaDeviceSynchronize")
    assert path_of(dag) == [
        ("cudaLaunchKernel", 4),
        ("k1", 50),
        ("cudaDeviceSynchronize", 3),
        ("aten::after", 3),
    ]


def test_a_stream_synchronisation_waits_for_its_stream_alone(tmp_path: Path) -> None:
    sync = {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 8, "ts": 6, "dur": 30,
            "args": {"stream": 8, "correlation": 3}}  # fmt: skip
    dag = load(tmp_path, [
        call("cudaLaunchKernel", 0, 2, 1), kernel("k7", 2, 33, 1, 7), call("cudaLaunchKernel", 2, 2, 2),
        kernel("k8", 4, 20, 2, 8), call("cudaStreamSynchronize", 5, 31, 3), sync])  # fmt: skip
    assert ("k8", Kind.SYNCHRONISE) in kinds_into(dag, "cudaStreamSynchronize")
    assert not any(name == "k7" for name, _ in kinds_into(dag, "cudaStreamSynchronize"))


def test_a_stream_waits_for_an_event_of_another(tmp_path: Path) -> None:
    wait = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 8, "ts": 7, "dur": 1,
            "args": {"stream": 8, "wait_on_stream": 7, "correlation": 4,
                     "wait_on_cuda_event_record_corr_id": 3}}  # fmt: skip
    dag = load(tmp_path, [
        call("cudaLaunchKernel", 0, 2, 1), kernel("k1", 2, 40, 1, 7), call("cudaEventRecord", 3, 1, 3),
        call("cudaStreamWaitEvent", 6, 1, 4), wait, call("cudaLaunchKernel", 8, 2, 5),
        kernel("k2", 42, 9, 5, 8)])  # fmt: skip
    assert ("k1", Kind.SYNCHRONISE) in kinds_into(dag, "k2")
    assert path_of(dag) == [("cudaLaunchKernel", 2), ("k1", 40), ("k2", 9)]


def test_an_idle_thread_waits_for_the_one_that_works(tmp_path: Path) -> None:
    dag = load(tmp_path, [
        step(1, 0, 100), host("aten::forward", 0, 10), host("aten::backward", 12, 70, tid=2),
        host("aten::step", 85, 15)])  # fmt: skip
    assert path_of(dag) == [
        ("aten::forward", 10), ("idle before aten::backward, after aten::forward", 2),
        ("aten::backward", 70), ("host code before aten::step in ProfilerStep#1, after aten::backward", 3),
        ("aten::step", 15)]  # fmt: skip


def test_forward_and_backward_are_linked(tmp_path: Path) -> None:
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "id": 5, "pid": 10}
    dag = load(tmp_path, [
        host("aten::forward", 0, 10), host("aten::backward", 12, 70, tid=2),
        {**flow, "ph": "s", "tid": 1, "ts": 0}, {**flow, "ph": "f", "tid": 2, "ts": 12}])  # fmt: skip
    assert ("aten::forward", Kind.DATA) in kinds_into(dag, "aten::backward")


def test_a_collective_begins_when_the_last_rank_has_come(tmp_path: Path) -> None:
    name = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": 3}
    early = [call("cudaLaunchKernel", 0, 2, 1), kernel("ncclDevKernel", 2, 58, 1, 7, **name)]
    late = [
        host("aten::slow", 0, 50),
        call("cudaLaunchKernel", 50, 2, 1),
        kernel("ncclDevKernel", 52, 8, 1, 7, **name),
    ]
    dag = load(tmp_path, early, late)
    assert path_of(dag) == [
        ("rank1.aten::slow", 50),
        ("rank1.cudaLaunchKernel", 2),
        ("rank0.ncclDevKernel", 8),
    ]
    alone = kineto_dag([read_trace(tmp_path / "rank0.json", args=LINK_ARGS)], [None])
    assert longest_path(alone).length_ns == 60_000


def test_ranks_of_other_hosts_are_put_on_one_clock(tmp_path: Path) -> None:
    def rank(at: float, enters: float) -> list[Ev]:
        gloo = host("gloo:all_reduce", at + enters, 60 - enters, 3, "user_annotation")
        return [step(1, at, 100), host("aten::a", at, enters), gloo]

    write(tmp_path / "rank0.json", rank(0, 10), 0)
    write(tmp_path / "rank1.json", rank(1_000_000, 50), 1)
    _, out, _ = run_cli("--option", "critical", "--path", tmp_path, "--format", "json")
    job = json.loads(out)["scopes"][-1]
    # rank 1's clock is 1 s ahead: its offset lies between -1 s - 50 µs and -1 s + 10 µs; the middle puts its
    # begin 20 µs before rank 0's
    assert job["length_ms"] == pytest.approx(0.12, abs=1e-6)


def test_collectives_that_cannot_be_one_are_not_joined(tmp_path: Path) -> None:
    early = [host("gloo:all_reduce", 0, 5, 3, "user_annotation"), host("aten::a", 0, 100)]
    late = [host("gloo:all_reduce", 50, 5, 3, "user_annotation"), host("aten::a", 0, 100)]
    dag = load(tmp_path, early, late)
    assert "1 collectives ended on one rank before they began on another (gloo:all_reduce)" in dag.notes[0]


def test_the_nth_gloo_collective_matches_the_nth(tmp_path: Path) -> None:
    def rank(at: float) -> list[Ev]:
        return [
            host("c10d::allreduce_", at, 4),
            host("gloo:all_reduce", at + 2, 60 - at, 3, "user_annotation"),
        ]

    dag = load(tmp_path, rank(0), rank(30))
    # rank 1 enqueues at 32; the transfer itself is what follows until 62
    assert dag.dur_ns[list(dag.names).index("rank0.gloo:all_reduce")] == 30_000


def test_a_window_without_events_is_an_empty_graph(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json", [host("aten::a", 0, 10)]), args=LINK_ARGS)
    assert len(kineto_dag([trace], [(10**9, 2 * 10**9)])) == 0


CASES = [
    "ddp2-gloo-base/trace",
    "ddp2-gloo-slow-rank1/trace",
    "gpu-hta-2of128/trace",
    "gpu-hta-critical-simple_add/trace",
    "gpu-hta-nccl-rank0of2/trace",
    "gpu-kineto-old-list/num_workers_0",
    "gpu-tracelens-ddp-mi300-rank0of8/trace",
]


@pytest.mark.parametrize("case", CASES)
def test_no_operation_ends_earlier_than_its_inputs_and_work_allow(shared_data: Path, case: str) -> None:
    paths = sorted((shared_data / "kineto" / case).glob("*.json.gz"))[:2]
    traces = [read_trace(path, args=LINK_ARGS, points=True) for path in paths]
    dag = kineto_dag(traces, [None] * len(traces), [f"rank{i}." for i in range(len(traces))])
    start, dur = dag.step_start_ns[0], dag.step_dur_ns[0]
    end = np.where(dur >= 0, start + dur, 2**62)
    finish = longest_path(dag).finish_ns + start[dur >= 0].min()
    assert (finish <= end + 5_000).all()  # whole microseconds, and host and device clocks


def test_the_straggler_is_found(shared_data: Path) -> None:
    # rank 1 sleeps 400 ms in its data loader at every step
    directory = shared_data / "kineto" / "ddp2-gloo-slow-rank1" / "trace"
    code, out, err = run_cli("--option", "critical", "--path", directory, "--format", "json")
    assert code == 0, err
    job = json.loads(out)["scopes"][-1]
    longest = max(job["path"], key=lambda stop: stop["dur_ms"])
    assert longest["name"].startswith("rank1.host code before aten::stack in enumerate(DataLoader)")
    assert longest["dur_ms"] == pytest.approx(400, abs=5)


def test_a_step_is_chosen_by_its_number_or_an_annotation(tmp_path: Path) -> None:
    events = [step(3, 0, 20), host("aten::a", 2, 10), step(4, 20, 30), host("aten::b", 21, 20)]
    path = write(tmp_path / "t.json", events)
    lengths = {}
    for name in ("3", "4", "ProfilerStep#4"):
        _, out, _ = run_cli("--option", "critical", "--path", path, "--format", "json", "--step", name)
        lengths[name] = json.loads(out)["scopes"][0]["length_ms"]
    assert lengths == {"3": 0.02, "4": 0.03, "ProfilerStep#4": 0.03}
    code, _, err = run_cli("--option", "critical", "--path", path, "--step", "9")
    assert (code, err) == (1, "analyze.py: error: --step 9: no such step on every rank; there are: 3, 4\n")
