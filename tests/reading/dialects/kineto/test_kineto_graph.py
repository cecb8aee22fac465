"""Kineto's step graphs: small recordings with known dependencies, and laws on recorded jobs."""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recorded
from analyzer.model.graph.critical_path import critical_path
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.step_graph import Recording
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.edge_rules import RULES, EdgeKind, Rule
from analyzer.reading.dialects.kineto import Kineto
from analyzer.reading.dialects.kineto.kineto_graph import record
from analyzer.reading.dialects.step_parts import Joint, Meetings, RankStep, RankSteps, RankTrace
from analyzer.reading.dialects.steps import Step, step_table, windows
from analyzer.reading.formats.columns import Trace
from conftest import examples
from make import span, stretches_of, write
from replay.runs import simulated
from trace_utils import read_trace

Ev = dict[str, Any]
EDGE_ARGS = dialects.keys_for({Need.SYNC, Need.EDGES})
US = 1_000
_TOLERANCE_NS = 2_000

KINETO = Kineto()


def host(name: str, ts: float, dur: float, tid: int = 1, cat: str = "cpu_op", **args: Any) -> Ev:
    return span(name, ts, dur, cat, 10, tid, **args)


def call(name: str, ts: float, dur: float, correlation: int, tid: int = 1) -> Ev:
    return host(name, ts, dur, tid, "cuda_runtime", correlation=correlation)


def work(
    name: str, ts: float, dur: float, number: int | None, stream: int = 7, cat: str = "kernel", **args: Any
) -> Ev:
    launched = {} if number is None else {"correlation": number}
    return span(name, ts, dur, cat, 0, stream, **{"stream": stream, **args, **launched})


def mark(number: int, ts: float, dur: float) -> Ev:
    return host(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def load(path: Path, events: Sequence[Ev], rank: int = 0) -> Trace:
    write(path, events, schemaVersion=1, distributedInfo={"rank": rank})
    return read_trace(path, args=EDGE_ARGS, points=True)


@pytest.fixture
def steps_of(tmp_path: Path) -> Any:
    """Return the steps of one rank from its events."""

    def steps(*events: Ev, rank: int = 0) -> RankSteps:
        trace = load(tmp_path / f"rank{rank}.json", events, rank)
        return KINETO.rank_steps(RankTrace(f"rank{rank}", trace))

    return steps


def spans(rank: RankSteps, step: RankStep) -> list[tuple[str, float, float]]:
    """The step's events as (label, start, end) in microseconds after the step's begin."""
    labels = [rank.operations[operation].label for operation in step.operation.tolist()]
    times = (((ns - step.begin_ns) / US).tolist() for ns in (step.start_ns, step.end_ns))
    return list(zip(labels, *times, strict=True))


def inputs(rank: RankSteps, step: RankStep, name: str) -> set[tuple[str, Joint, EdgeKind]]:
    """List the inputs of the events called `name`: source, joint and kind of edge."""
    names = [rank.operations[operation].name for operation in step.operation.tolist()]
    edges = [edge for edge in step.edges.tolist() if names[edge[1]] == name]
    return {(names[source], Joint(joint), RULES[rule].kind) for source, _, joint, rule in edges}


def path_of(recording: Recording, row: int = 0) -> Counter[tuple[str, str, str]]:
    """Microseconds on the critical path by (owner, operation, kind of stretch); "" is work."""
    step = recording.steps[row]
    path: Counter[tuple[str, str, str]] = Counter()
    for stretch in stretches_of(critical_path(step)):
        name = "" if stretch.event < 0 else recording.operations[int(step.operation[stretch.event])].name
        path[recording.owners[stretch.owner], name, stretch.cat] += (stretch.end_ns - stretch.start_ns) // US
    return path


# -- threads


def test_a_thread_is_a_chain_of_its_innermost_operations(steps_of: Any) -> None:
    rank = steps_of(host("outer", 0, 10), host("inner", 2, 3), host("after", 15, 1))
    assert spans(rank, rank.steps[0]) == [
        ("outer", 0, 2), ("inner", 2, 5), ("outer", 5, 10), ("after", 15, 16)]  # fmt: skip
    assert inputs(rank, rank.steps[0], "after") == {("outer", Joint.END_TO_HEAD, EdgeKind.DEVICE)}


def test_annotations_are_operations_where_nothing_else_runs_and_python_frames_are_gaps(steps_of: Any) -> None:
    rank = steps_of(
        mark(3, 0, 100),
        host("train.py(3): main", 0, 100, cat="python_function"),
        host("enumerate(DataLoader)#_Iter.__next__", 0, 20, cat="user_annotation"),
        host("Optimizer.step#SGD.step", 30, 40, cat="user_annotation"),
        host("aten::add_", 35, 5),
        host("my own sleep", 80, 10, cat="user_annotation"),
    )
    assert rank.steps[0].number == 3
    update = "Optimizer.step#SGD.step"
    assert spans(rank, rank.steps[0]) == [
        ("enumerate(DataLoader)#_Iter.__next__", 0, 20), (update, 30, 35), ("aten::add_", 35, 40),
        (update, 40, 70), ("my own sleep", 80, 90),
    ]  # fmt: skip
    assert {operation.name: operation.purpose for operation in rank.operations} == {
        "enumerate(DataLoader)#_Iter.__next__": "I/O", update: "STEP", "aten::add_": "STEP",
        "my own sleep": "FW",
    }  # fmt: skip
    gaps = {name: time for (_, name, cat), time in path_of(join([rank])).items() if cat == "gap"}
    assert gaps == {update: 10, "my own sleep": 10, "": 10}


@pytest.mark.parametrize("reduces", [range(1), range(2)])
def test_an_annotation_beside_its_operations_waits_for_what_was_sent(steps_of: Any, reduces: range) -> None:
    # of its 900 µs after the backward pass it waited until 800, or until 200 and 800
    rank = steps_of(
        mark(1, 0, 1200),
        host("bwd", 0, 1000, cat="user_annotation"),
        host("autograd::engine::evaluate_function: a", 0, 100),
        host("c10d::allreduce_", 40, 20),
        *(host("gloo:all_reduce", 50, 750 - 600 * i, tid=9 + i, cat="user_annotation") for i in reduces),
        host("optimizer", 1100, 100),
    )
    step = rank.steps[0]
    awaited = ("gloo:all_reduce", Joint.END_TO_BODY, EdgeKind.HAND_OVER)
    assert [edge for edge in inputs(rank, step, "bwd") if edge[0] == "gloo:all_reduce"] == [awaited]
    path = path_of(join([rank]))
    assert path.total() == 1200
    assert (path["rank0", "bwd", ""], path["rank0", "optimizer", "gap"]) == (200, 100)


def test_the_main_thread_does_not_wait_for_what_ended_early_in_its_pause(steps_of: Any) -> None:
    rank = steps_of(mark(1, 0, 900), host("a", 0, 100), host("aside", 0, 200, tid=2), host("b", 800, 100))
    assert inputs(rank, rank.steps[0], "b") == {("a", Joint.END_TO_HEAD, EdgeKind.DEVICE)}


# -- launches, streams, waits


def device_bound(n: int, room: int) -> list[Ev]:
    """Return n launches of kernels of 100 µs; a call blocks until the `room`-th kernel before it begins."""
    events, now = [], 0
    begins = [3 + 100 * i for i in range(n)]
    for i in range(n):
        until = max(now + 5, begins[i - room] + 1 if i >= room else 0)
        events += [call("cudaLaunchKernel", now, until - now, i), work("kernel", begins[i], 100, i)]
        now = until + 1
    return [mark(1, 0, now), mark(2, now, 1), host("last", now, 1), *events]


def test_a_launch_that_blocks_for_room_in_the_queue_waits_for_a_kernel(steps_of: Any) -> None:
    rank = steps_of(*device_bound(1500, 600))
    step = rank.steps[0]
    assert ("kernel", Joint.START_TO_BODY, EdgeKind.QUEUE) in inputs(rank, step, "cudaLaunchKernel")
    path = path_of(join([rank]))
    length = (step.next_ns - step.begin_ns) // US
    assert path.total() == length > 89_000
    assert path["rank0", "kernel", ""] >= 0.99 * length


def test_of_calls_with_one_correlation_the_nearest_launched_the_work(steps_of: Any) -> None:
    """As where two files of a rank each count from the same number."""
    rank = steps_of(
        call("cudaLaunchKernel", 0, 4, 7),
        work("first", 5, 10, 7),
        call("hipLaunchKernel", 1000, 4, 7),
        work("second", 1005, 10, 7),
    )
    (step,) = rank.steps
    for name, launch in (("first", "cudaLaunchKernel"), ("second", "hipLaunchKernel")):
        assert (launch, Joint.END_TO_HEAD, EdgeKind.LAUNCH) in inputs(rank, step, name)


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "hipStreamSynchronize", "cudaMemcpy", "cudaFree"])
def test_a_call_that_blocks_waits_for_what_was_launched_before(steps_of: Any, name: str) -> None:
    rank = steps_of(
        call("cudaLaunchKernel", 0, 4, 1),
        call(name, 10, 95, 2),
        host("after", 110, 5),
        work("kernel", 5, 95, 1),
        work("of another thread", 106, 2, 3, stream=9),
        call("cudaLaunchKernel", 100, 1, 3, tid=2),
    )
    assert inputs(rank, rank.steps[0], name) == {
        ("kernel", Joint.END_TO_BODY, EdgeKind.SYNCHRONISE),
        ("cudaLaunchKernel", Joint.END_TO_HEAD, EdgeKind.DEVICE),
    }
    path = path_of(join([rank]))
    assert path["rank0", "kernel", ""] == 95
    assert path["rank0", name, ""] == 5  # from the kernel's end to the call's


@pytest.mark.parametrize("memory", ["Pageable", "Pinned"])
def test_a_copy_from_pageable_memory_blocks_its_call(steps_of: Any, memory: str) -> None:
    # a copy from pinned memory may be done before its call returns, but another time the device is busy then
    copy = f"Memcpy DtoH (Device -> {memory})"
    rank = steps_of(
        call("cudaLaunchKernel", 0, 4, 1),
        call("cudaMemcpyAsync", 10, 120, 2),
        host("item", 131, 1),
        work("kernel", 5, 95, 1),
        work(copy, 101, 20, 2, cat="gpu_memcpy"),
    )
    waits = (copy, Joint.END_TO_BODY, EdgeKind.SYNCHRONISE) in inputs(rank, rank.steps[0], "cudaMemcpyAsync")
    assert waits == (memory == "Pageable")
    if waits:
        path = path_of(join([rank]))
        assert [path["rank0", name, ""] for name in ("kernel", copy, "cudaMemcpyAsync")] == [95, 20, 9]


def test_one_graph_launch_starts_all_of_its_kernels(steps_of: Any) -> None:
    rank = steps_of(call("cudaGraphLaunch", 0, 10, 7), *(work(f"k{i}", 12 + 10 * i, 10, 7) for i in range(3)))
    for i in range(3):
        launch = ("cudaGraphLaunch", Joint.END_TO_HEAD, EdgeKind.LAUNCH)
        assert launch in inputs(rank, rank.steps[0], f"k{i}")
    assert path_of(join([rank])) == {
        ("rank0", "cudaGraphLaunch", ""): 10, ("rank0", "k0", "gap"): 2,
        ("rank0", "k0", ""): 10, ("rank0", "k1", ""): 10, ("rank0", "k2", ""): 10,
    }  # fmt: skip


def test_a_stream_waits_for_another_ones_recorded_event(steps_of: Any) -> None:
    awaited = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 2}
    rank = steps_of(
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaEventRecord", 3, 1, 2),
        call("cudaStreamWaitEvent", 5, 1, 3),
        call("cudaLaunchKernel", 7, 2, 4),
        work("first", 3, 50, 1, stream=7),
        work("second", 60, 5, 4, stream=8),
        work("Stream Wait Event", 5, 1, 3, stream=8, cat="cuda_sync", **awaited),
    )
    assert ("first", Joint.END_TO_HEAD, EdgeKind.SYNCHRONISE) in inputs(rank, rank.steps[0], "second")


def test_without_recorded_events_a_kernel_that_was_ready_waited_for_what_ended_last(steps_of: Any) -> None:
    rank = steps_of(
        call("cudaLaunchKernel", 0, 2, 1),
        call("cudaLaunchKernel", 3, 2, 2),
        call("cudaLaunchKernel", 60, 10, 3),
        work("first", 3, 50, 1, stream=7),
        work("second", 54, 5, 2, stream=8),
        work("not before its launch", 65, 5, 3, stream=9),
    )
    assert ("first", Joint.END_TO_HEAD, EdgeKind.SYNCHRONISE) in inputs(rank, rank.steps[0], "second")
    assert inputs(rank, rank.steps[0], "not before its launch") == {
        ("cudaLaunchKernel", Joint.START_TO_HEAD, EdgeKind.LAUNCH)}  # fmt: skip


@pytest.mark.parametrize("begins", [30, 100])
def test_a_collective_waits_for_what_the_stream_that_computes_was_given_before_its_launch(
    steps_of: Any, begins: int
) -> None:
    # the second one stands behind the first, so that no pause shows what feeds it: gradients ready at 60
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    rank = steps_of(
        *(call("cudaLaunchKernel", 3 * i, 2, i) for i in range(1, 6)),
        work("first gradients", 5, 20, 1, stream=7),
        work("second gradients", 30, 30, 3, stream=7),
        work("what follows", 60, 200, 5, stream=7),
        work(kernel, 26 if begins == 30 else 40, 60, 2, stream=20),
        work(kernel + "2", begins, 60, 4, stream=20),
    )
    fed = ("second gradients", Joint.END_TO_HEAD, EdgeKind.SYNCHRONISE)
    assert (fed in inputs(rank, rank.steps[0], kernel + "2")) == (begins == 100)


def test_without_launches_work_waits_for_what_ended_last_on_its_rank(steps_of: Any) -> None:
    rank = steps_of(
        work("forward", 0, 100, None, stream=1),
        work("send", 101, 50, None, stream=2),
        work("backward", 155, 100, None, stream=1),
        work("update", 260, 10, None, stream=1),
    )
    step = rank.steps[0]
    assert inputs(rank, step, "send") == {("forward", Joint.END_TO_HEAD, EdgeKind.HAND_OVER)}
    assert {name for name, *_ in inputs(rank, step, "backward")} == {"forward", "send"}
    assert {name for name, *_ in inputs(rank, step, "update")} == {"backward", "send"}
    assert path_of(join([rank])) == {
        ("rank0", "forward", ""): 100, ("rank0", "send", "gap"): 1, ("rank0", "send", ""): 50,
        ("rank0", "backward", "gap"): 4, ("rank0", "backward", ""): 100, ("rank0", "update", "gap"): 5,
        ("rank0", "update", ""): 10,
    }  # fmt: skip


@pytest.mark.parametrize(("overlap", "in_order"), [(90, True), (110, True), (500, False)])
def test_a_stream_keeps_its_order_where_times_overlap(steps_of: Any, overlap: float, in_order: bool) -> None:
    # up to a quarter of the first, which takes 400 µs, is jitter; beyond that it is cut where the next begins
    rank = steps_of(work("a", 0, 400, None), work("b", 400 - overlap, 1000, None))
    assert (("a", Joint.END_TO_HEAD, EdgeKind.DEVICE) in inputs(rank, rank.steps[0], "b")) == in_order


# -- steps


def test_the_next_step_waits_for_what_hands_over_to_the_main_thread(steps_of: Any) -> None:
    rank = steps_of(
        mark(1, 0, 500),
        mark(2, 500, 100),
        host("a", 0, 100),
        host("aside", 90, 400, tid=2),
        host("b", 510, 10),
    )
    step = rank.steps[0]
    assert step.last is not None
    assert {spans(rank, step)[event][0] for event in step.last.tolist()} == {"a", "aside"}
    assert path_of(join([rank])) == {
        ("rank0", "aside", "gap"): 90, ("rank0", "aside", ""): 400, ("rank0", "", "gap"): 10,
    }  # fmt: skip


# -- ranks


@pytest.mark.parametrize("late", [0, 400])
def test_a_late_rank_is_on_the_path_with_what_it_worked_longer(steps_of: Any, late: int) -> None:
    collective = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    ranks = []
    for rank, computed in enumerate((300, 300 + late)):
        begin, end = computed + 10, 300 + late + 110
        ranks.append(
            steps_of(
                mark(1, 0, 1000),
                mark(2, 1000, 10),
                host("next", 1000, 1),
                host("compute", 0, computed),
                call("cudaLaunchKernel", computed, 5, 1),
                call("cudaDeviceSynchronize", computed + 6, end - computed, 2),
                work("ncclDevKernel_AllReduce_Sum_f32(args)", begin, end - begin, 1, stream=20, **collective),
                rank=rank,
            )
        )
    path = path_of(join(ranks))
    assert path.total() == 1000
    assert path["rank1" if late else "rank0", "compute", ""] == 300 + late
    assert path["rank0", "ncclDevKernel_AllReduce_Sum_f32(args)", ""] == 100
    assert not any(cat == "wait" for _, _, cat in path)


def test_gloo_runs_aside_from_enqueue_to_end(steps_of: Any) -> None:
    rank = steps_of(
        mark(1, 0, 2000),
        host("autograd::engine::evaluate_function: a", 0, 100),
        host("c10d::allreduce_", 40, 20),
        host("gloo:all_reduce", 50, 1200, tid=9, cat="user_annotation"),
        host("optimizer", 1300, 100),
    )
    step = rank.steps[0]
    assert inputs(rank, step, "gloo:all_reduce") == {("c10d::allreduce_", Joint.END_TO_HEAD, EdgeKind.LAUNCH)}
    assert ("gloo:all_reduce", Joint.END_TO_HEAD, EdgeKind.HAND_OVER) in inputs(rank, step, "optimizer")
    gloo = next(operation for operation in rank.operations if operation.name == "gloo:all_reduce")
    assert gloo.is_collective and gloo.is_communication and gloo.purpose == "Comm"
    enqueue = next(operation for operation in rank.operations if operation.name == "c10d::allreduce_")
    assert enqueue.is_communication and not enqueue.is_collective  # how long it takes is not the rank's doing
    assert (step.meetings.keys, step.meetings.turn.tolist()) == ([(("gloo:all_reduce",), 1)], [0])


@pytest.mark.parametrize("pause", [0, 700])
def test_a_collective_of_a_devices_tensors_is_what_lies_between_its_copies(steps_of: Any, pause: int) -> None:
    # its thread waits for the copy to the host (60-70), exchanges until rank 1 has come and 80 more have
    # passed, and launches the copy back: rank 0 waits in the exchange, and does not pause before that copy
    ranks = []
    over = pause + 150
    for rank in range(2):
        late = pause * rank
        ranks.append(
            steps_of(
                mark(1, 0, over + 100),
                host("c10d::allreduce_", late + 40, 10),
                host("gloo:all_reduce", late + 50, over + 40 - late - 50, tid=9, cat="user_annotation"),
                call("cudaStreamSynchronize", late + 60, 10, 1, tid=9),
                host("aten::copy_", over, 30, tid=9),
                host("optimizer", over + 60, 40),
                rank=rank,
            )
        )
    step = ranks[0].steps[0]
    exchange = next(event for event in spans(ranks[0], step) if event[0] == "gloo:all_reduce")
    assert exchange[1:] == (70, pause + 150)
    assert ("gloo:all_reduce", Joint.END_TO_HEAD, EdgeKind.HAND_OVER) in inputs(ranks[0], step, "aten::copy_")
    path = path_of(join(ranks))
    assert path.total() == pause + 250
    assert path["rank0", "gloo:all_reduce", ""] == 80
    assert path["rank1" if pause else "rank0", "c10d::allreduce_", "gap"] == 40 + pause


def test_kernels_that_one_rank_lost_do_not_shift_those_of_later_steps(steps_of: Any) -> None:
    # two reductions a step of 100 µs run 60 µs after their launch; rank 1 lost the first one of the second
    # step, so that step is left out; those of later steps still meet
    begins: list[dict[Any, float]] = []
    for rank in range(2):
        events: list[Ev] = []
        for step in range(4):
            events.append(mark(step + 3, 100 * step, 100))
            for i, ts in enumerate((100 * step + 10, 100 * step + 50)):
                events.append(call("cudaLaunchKernel", ts, 5, 10 * step + i + 1))
                if (rank, step, i) != (1, 1, 0):
                    events.append(work("ncclDevKernel_AllReduce", ts + 60, 10, 10 * step + i + 1, 20))
        begins.append({})
        for recorded_step in reversed(steps_of(*events, rank=rank).steps):
            meetings = recorded_step.meetings
            for key, turn, event in zip(meetings.key, meetings.turn, meetings.event, strict=True):
                begins[-1][meetings.keys[key], int(turn)] = recorded_step.start_ns[event] / US
    met = {(ts, begins[1][meeting]) for meeting, ts in begins[0].items() if meeting in begins[1]}
    assert met == {(ts, ts) for ts in (270, 310, 370, 410)}


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ({"Dst Rank": 1}, {"Src Rank": 0}),  # as PyTorch says it: each rank names the other
        ({"Src Rank": 0, "Dst Rank": 1}, {"Src Rank": 0, "Dst Rank": 1}),
        ({"Process Group Ranks": "[0, 1]"}, {"Process Group Ranks": "[0, 1]"}),
    ],
)
def test_both_halves_of_a_transfer_are_known_by_its_ends(
    steps_of: Any, sent: dict[str, Any], received: dict[str, Any]
) -> None:
    def meetings(rank: int, kind: str, args: dict[str, Any]) -> Meetings:
        args = {"Collective name": kind, "Process Group Name": "pp", **args}
        event = work("ncclDevKernel_SendRecv(args)", 0, 10, None, 7, "kernel", **args)
        met: Meetings = steps_of(event, rank=rank).steps[0].meetings
        return met

    there, back = meetings(0, "send", sent), meetings(1, "recv", received)
    assert there.keys == back.keys == [(0, 1, "pp")]
    assert there.rule.tolist() == back.rule.tolist() == [Rule.TRANSFER]  # nobody is late for it


# -- laws


def assert_lawful(step: RankStep) -> None:
    """No edge contradicts the recorded times, and no event waits for itself."""
    source, target, joint, _ = step.edges.T
    from_start = (joint == Joint.START_TO_HEAD) | (joint == Joint.START_TO_BODY)
    to_body = joint >= Joint.END_TO_BODY
    leaves_ns = np.where(from_start, step.start_ns[source], step.end_ns[source])
    limit_ns = np.where(to_body, step.end_ns[target], step.start_ns[target])
    assert (leaves_ns <= limit_ns + _TOLERANCE_NS).all()
    waits: TopologicalSorter[int] = TopologicalSorter(
        {2 * event + 1: [2 * event] for event in range(len(step))}
    )
    ends = ((2 * target + to_body).tolist(), (2 * source + ~from_start).tolist())
    for after, before in zip(*ends, strict=True):
        waits.add(after, before)
    waits.prepare()  # raises where there is a cycle
    assert (step.start_ns >= step.begin_ns).all()
    assert (step.end_ns >= step.start_ns).all()
    assert (step.start_ns <= step.next_ns).all()


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.files("kineto"), ids=lambda path: path.name)
def test_recorded_steps_are_lawful_and_their_paths_as_long_as_they(path: Path) -> None:
    trace = read_trace(path, args=EDGE_ARGS, points=True)
    rank = KINETO.rank_steps(RankTrace("rank0", trace))
    assert rank.steps
    for step in rank.steps:
        assert_lawful(step)
    recording = join([rank])
    first = recording.steps[0]
    assert abs(critical_path(first).length_ns - first.bounds.iteration_ns[0]) <= US
    replayed = simulated(recording, range(len(recording.steps)))
    assert (replayed.iteration_ns == [step.bounds.iteration_ns for step in recording.steps]).all()
    for position, joined in enumerate(recording.steps):
        again = replayed.step(position)
        assert (again.end_ns - again.begin_ns.min() == joined.end_ns - joined.begin_ns.min()).all()


intervals = st.tuples(st.integers(0, 30), st.integers(0, 12))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(intervals, st.integers(1, 2)), min_size=1, max_size=8),
    st.lists(st.tuples(intervals, intervals, st.integers(7, 8)), max_size=6),
    st.lists(intervals, max_size=3),
)
def test_any_recording_is_lawful(
    tmp_path_factory: pytest.TempPathFactory, slices: Any, launched: Any, blocking: Any
) -> None:
    events = [host(f"op{i}", ts, dur, tid) for i, ((ts, dur), tid) in enumerate(slices)]
    for i, ((ts, dur), (begin, length), stream) in enumerate(launched):
        events += [call("cudaLaunchKernel", ts, dur, i), work("kernel", begin, length, i, stream)]
    events += [call("cudaDeviceSynchronize", ts, dur, 100 + i, 2) for i, (ts, dur) in enumerate(blocking)]
    trace = load(tmp_path_factory.mktemp("any") / "rank0.json", events)
    halves = [Step(1, 0, 15_000), Step(2, 15_000, 60_000)]
    for steps in (halves[:0], halves):
        table = step_table(steps)
        for step in record(RankTrace("rank0", trace), table, windows(table), KINETO.roles(trace)).steps:
            assert_lawful(step)


# -- what the recorded jobs are known for


def read_case(shared_data: Path, case: str) -> Recording:
    ranks = []
    for i, path in enumerate(sorted((shared_data / "kineto" / case / "trace").iterdir())):
        trace = read_trace(path, args=EDGE_ARGS, points=True)
        ranks.append(KINETO.rank_steps(RankTrace(f"rank{i}", trace)))
    return join(ranks)


def test_the_path_runs_through_kernels_where_the_device_is_the_limit(shared_data: Path) -> None:
    recording = read_case(shared_data, "gpu-hta-ns-resolution")
    assert [step.number for step in recording.steps] == [102, 103, 104, 105]  # 101 fills the queue
    for step in recording.steps:
        path = critical_path(step)
        on_device = np.isin(path.event, step.on_device)
        assert (path.end_ns - path.start_ns)[on_device].sum() > 0.98 * path.length_ns


def test_where_launching_is_the_limit_the_path_has_a_device_only_beside_the_host(shared_data: Path) -> None:
    recording = read_case(shared_data, "gpu-hta-rank1of2-memory")
    path = critical_path(recording.steps[0])
    decides = np.isin(path.event, recording.steps[0].on_device) & (path.rule != Rule.BUSY)
    assert (path.end_ns - path.start_ns)[decides].sum() < 0.02 * path.length_ns


def test_blocking_calls_wait_for_the_device_and_graphs_do_not_stretch_the_step(shared_data: Path) -> None:
    recording = read_case(shared_data, "gpu-hta-rank0of16")
    for row, step in enumerate(recording.steps):
        path = path_of(recording, row)
        assert path["rank0", "cudaMemcpyAsync", ""] < 2_000  # of 147 ms in which it blocks
        assert abs(path.total() - int(step.next_ns[0] - step.begin_ns[0]) // US) <= len(path) + 500


def test_the_rank_that_sleeps_is_on_the_path_with_its_sleep(shared_data: Path) -> None:
    recording = read_case(shared_data, "ddp2-gloo-slow-rank1")
    for row in range(len(recording.steps)):
        path = path_of(recording, row)
        loads = (
            (owner, time) for (owner, name, cat), time in path.items() if "DataLoader" in name and not cat
        )
        loading = dict(loads)
        assert loading["rank1"] > 300_000  # it sleeps 400 ms in its loader
        assert loading.get("rank0", 0) < 5_000


def test_device_work_on_the_path_is_what_hta_has_there(shared_data: Path) -> None:
    case = shared_data / "kineto" / "gpu-hta-critical-simple_add"
    with gzip.open(case / "oracle" / "overlaid_critical_path_trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    critical = [event for event in events if event.get("ph") == "X" and event.get("args", {}).get("critical")]
    on_device = [event for event in critical if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    trace = read_trace(case / "trace" / "trace.json.gz", args=EDGE_ARGS, points=True)
    end = max(event["ts"] + event["dur"] for event in on_device) * US
    steps = step_table([Step(1, int(trace.ts_ns.min()), end)])
    recording = join([record(RankTrace("rank0", trace), steps, steps, KINETO.roles(trace))])
    step = recording.steps[0]
    path = critical_path(step)
    decides = np.isin(path.event, step.on_device) & path.is_work & (path.rule != Rule.BUSY)
    ours = set((step.start_ns[path.event[decides]] // US).tolist())
    theirs = {event["ts"] for event in on_device}
    assert ours <= theirs
    assert all(ts > end // US - 1_000 for ts in theirs - ours)  # the host was on its way by then


@pytest.mark.slow
def test_thousands_of_streams_take_no_square_of_their_number(steps_of: Any) -> None:
    n = 10_000  # 30 s of a core, where each stream is looked at beside each other one
    events = [mark(1, 0, 4 * n)]
    for i in range(n):
        events += [call("cudaLaunchKernel", 4 * i, 1, i + 1), work("k", 4 * i + 2, 30, i + 1, stream=i)]
    begin = time.process_time()
    steps_of(*events)
    assert time.process_time() - begin < 12
