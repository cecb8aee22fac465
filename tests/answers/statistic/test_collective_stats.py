"""Collectives of a job: transfer apart from waiting, and bandwidths as nccl-tests count them, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import ask, run_cli
from dag_utils import load_steps
from make import span, step, write
from trace_utils import Request

WORDS = ("--option", "statistic", "--sub_option", "collectives", "--path")


def kernel(kind: str, ts: float, dur: float, n: int, elements: int = 1 << 18, **more: Any) -> dict[str, Any]:
    """Return a kernel of a collective of `n` ranks, of 1 MiB; times in microseconds."""
    args = {
        "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
        "Group size": n, "Process Group Name": "1", "Process Group Description": "dp",
        "Process Group Ranks": str(list(range(n))),
    }  # fmt: skip
    return {**span("ncclDevKernel_X", ts, dur, "kernel", 0, 9), "args": {**args, **more}}


def job(
    folder: Path, ranks: Sequence[Sequence[Mapping[str, Any]]], world_size: int | None = None, **header: Any
) -> Path:
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": world_size or len(ranks)}
        write(
            folder / f"rank{rank}.pt.trace.json",
            [*map(dict, events), span("gemm", 0, 10, "kernel", 0, 7)],
            schemaVersion=1,
            distributedInfo=info,
            **header,
        )
    return folder


def answer(path: Path, *words: object) -> Any:
    return ask(*WORDS, path, *words, "--no-progress")


def row(path: Path, *words: object) -> Any:
    (found,) = answer(path, *words)["collectives"]
    return found


def test_the_transfer_lasts_from_the_last_start_to_the_end_and_the_others_wait(tmp_path: Path) -> None:
    # rank 0 waits 50 us for rank 1; 1,048,576 bytes in 200 us are 5.24288 GB/s
    found = row(job(tmp_path, [[kernel("allreduce", 100, 250, 2)], [kernel("allreduce", 150, 200, 2)]]))
    assert found == {
        "kind": "all-reduce", "group": "dp (0, 1)", "ranks": 2, "bytes": 1 << 20,
        "count": 1, "transfer_ms": 0.2, "waiting_ms": 0.025, "algbw_gbs": pytest.approx(5.24288),
        "busbw_gbs": pytest.approx(5.24288), "exposed_share": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "factor"),
    [
        ("allreduce", "all-reduce", 1.5), ("allreduce_coalesced", "all-reduce", 1.5),
        ("_allgather_base", "all-gather", 0.75), ("_reduce_scatter_base", "reduce-scatter", 0.75),
        ("all_to_allv", "all-to-all", 0.75), ("broadcast", "broadcast", 1), ("reduce", "reduce", 1),
    ],
)  # fmt: skip
def test_bandwidth_on_the_bus_counts_as_nccl_tests_do(
    tmp_path: Path, kind: str, name: str, factor: float
) -> None:
    found = row(job(tmp_path, [[kernel(kind, 100, 100, 4)] for _ in range(4)]))
    assert (found["kind"], found["algbw_gbs"]) == (name, pytest.approx(10.48576))
    assert found["busbw_gbs"] == pytest.approx(10.48576 * factor)


def test_the_two_sides_of_a_transfer_are_one(tmp_path: Path) -> None:
    ends = {"Src Rank": 0, "Dst Rank": 1}
    sent = [kernel("send", 1000 * n + 100, 300, 2, **ends) for n in range(3)]
    received = [kernel("recv", 1000 * n + 300, 100, 2, **ends) for n in range(3)]
    found = row(job(tmp_path, [sent, received]))
    assert (found["kind"], found["count"], found["group"]) == ("send/recv", 3, "dp (0, 1)")
    assert (found["transfer_ms"], found["waiting_ms"]) == (pytest.approx(0.1), pytest.approx(0.1))
    assert found["busbw_gbs"] == pytest.approx(10.48576)


def test_with_missing_ranks_the_shortest_time_is_a_bound(tmp_path: Path) -> None:
    # one of two ranks; of 400, 200 and 300 us the second may hold the least waiting
    events = [kernel("allreduce", 1000 * i, dur, 2) for i, dur in enumerate((400, 200, 300), 1)]
    path = job(tmp_path, [events], world_size=2)
    found = row(path)
    assert (found["count"], found["transfer_ms"], found["waiting_ms"]) == (3, 0.2, None)
    assert found["busbw_gbs"] == pytest.approx(5.24288)
    assert "transfer and waiting cannot be told apart" in run_cli(*WORDS, path)[1].replace("\n", " ")


def test_sequence_numbers_match_collectives(tmp_path: Path) -> None:
    # rank 1's recording begins one collective later
    of_rank = [
        [kernel("allreduce", 1000 * n + late, 500 - late, 2, Seq=n) for n in numbers]
        for numbers, late in (((1, 2, 3), 0), ((2, 3), 100))
    ]
    found = row(job(tmp_path, of_rank))
    assert (found["count"], found["transfer_ms"], found["waiting_ms"]) == (
        3, pytest.approx(0.4), pytest.approx(0.05)
    )  # fmt: skip


def launched(steps: Sequence[int], late: int, per_step: int = 1) -> list[dict[str, Any]]:
    """Four steps of 1 ms, of which some launch collectives without sequence numbers, at irregular times."""
    events = [step(n, 1000 * n, 1000) for n in (1, 2, 3, 4)]
    for n in steps:
        for turn in range(per_step):
            start, correlation = 1000 * n + 40 * n * n + 500 + 450 * turn, 10 * n + turn
            launch = span("cudaLaunchKernel", 1000 * n + 10 + 10 * turn, 5, "cuda_runtime")
            launch["args"] = {"correlation": correlation}
            events += [launch, kernel("allreduce", start + late, 400 - late, 2, correlation=correlation)]
    return events


@pytest.mark.parametrize(("per_step", "count"), [(1, 4), (2, 8)])
def test_without_numbers_collectives_are_matched_within_their_steps(
    tmp_path: Path, per_step: int, count: int
) -> None:
    # rank 1 launches none in step 1: nothing ties its clock, so that 400 - 200 us are all that is known
    ranks = [launched((1, 2, 3, 4), 0, per_step), launched((2, 3, 4), 200, per_step)]
    found = row(job(tmp_path, ranks))
    assert (found["count"], found["transfer_ms"], found["waiting_ms"]) == (count, pytest.approx(0.2), None)


def test_collectives_in_different_numbers_are_not_matched(tmp_path: Path) -> None:
    of_rank = [[kernel("allreduce", 1000 * n, 500, 2) for n in turns] for turns in ((1, 2, 3), (1, 3))]
    path = job(tmp_path, of_rank, host_name="node")
    found = row(path)
    assert (found["count"], found["waiting_ms"]) == (5, None)
    assert "5 of these are not matched between ranks" in run_cli(*WORDS, path)[1].replace("\n", " ")


def test_collectives_whose_sizes_contradict_are_not_matched(tmp_path: Path) -> None:
    # each rank lost another one of two all-reduces, of 1 and of 2 MiB: counting would match the two
    of_rank = [[kernel("allreduce", 1000, 500, 2, elements=n)] for n in (1 << 18, 1 << 19)]
    found = answer(job(tmp_path, of_rank))["collectives"]
    assert [(row["bytes"], row["count"], row["waiting_ms"]) for row in found] == [
        (1 << 20, 1, None), (1 << 21, 1, None)
    ]  # fmt: skip


def test_collectives_of_sampled_events_are_not_matched(shared_data: Path) -> None:
    found = answer(shared_data / "kineto" / "gpu-hta-2of128", "--jobs", 1)["collectives"]
    assert sum(row["count"] for row in found) == 20


def test_unknown_values_are_blank_and_counted(tmp_path: Path) -> None:
    bare = span("ncclDevKernel_AllReduce_Sum", 100, 200, "kernel", 0, 9)
    path = job(tmp_path, [[bare, kernel("broadcast", 400, 100, 4)]], world_size=4)
    first, second = answer(path)["collectives"]
    blank = {key for key, value in first.items() if value is None}
    assert blank == {"group", "ranks", "bytes", "waiting_ms"} | {key for key in first if "bw_gbs" in key}
    assert (first["kind"], first["transfer_ms"], second["count"]) == ("all-reduce", 0.2, 1)


def test_impossible_sizes_are_unknown(tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "In msg nelems": 10**25,
        "Out msg nelems": "9" * 29,
        "Group size": -3,
        "Seq": 10**20,
    }
    found = row(job(tmp_path, [[kernel("allreduce", 100, 200, 2, **odd)] for _ in range(2)]))
    assert (found["bytes"], found["busbw_gbs"], found["transfer_ms"]) == (None, None, 0.2)


def test_the_annotation_around_the_launch_tells_the_size_of_a_kernel_without_args(tmp_path: Path) -> None:
    def events(late: int) -> list[dict[str, Any]]:
        found = []
        for at in (0, 1000, 2000):
            about = {"Input Dims": [[256, 1024]], "Input type": ["c10::Half"]}
            launch = {**span("cudaLaunchKernel", at + 15, 5, "cuda_runtime"), "args": {"correlation": at}}
            device = span("ncclKernel_SendRecv_RING", at + 100 + late, 200 - late, "kernel", 0, 9)
            found += [
                {**span("nccl:all_to_all", at + 10, 20, "user_annotation"), "args": about},
                launch,
                {**device, "args": {"correlation": at}},
            ]
        return found

    found = row(job(tmp_path, [events(0), events(100)]))  # 524,288 bytes in 100 us; half go to the other
    assert (found["kind"], found["ranks"], found["bytes"]) == ("all-to-all", 2, 1 << 19)
    assert (found["algbw_gbs"], found["busbw_gbs"]) == (pytest.approx(5.24288), pytest.approx(2.62144))


def test_exposed_time_is_that_of_breakdown(tmp_path: Path) -> None:
    # of 400 us of communication (two at once for 100) a kernel of computation hides 250
    events = [
        kernel("allreduce", 1000, 300, 1), {**kernel("broadcast", 1200, 200, 1), "tid": 10},
        span("gemm", 1050, 250, "kernel", 0, 7),
    ]  # fmt: skip
    found = answer(job(tmp_path, [events]))["collectives"]
    _, out, _ = run_cli(*WORDS[:3], "breakdown", "--path", tmp_path, "--format", "json")
    (part,) = json.loads(out)["breakdown"]
    assert part["exposed_comm_ms"] == pytest.approx(0.15)
    # of the 100 us at once each has a half: 250 + 150 us in all, 50 + 100 exposed
    shares = [(one["kind"], one["exposed_share"]) for one in found]
    assert shares == [("all-reduce", pytest.approx(50 / 250)), ("broadcast", pytest.approx(100 / 150))]


#: By hand from the files: kind, bytes, microseconds from the last start to the last end, factor for 8 ranks.
BY_HAND = [
    ("all-to-all", 6144 * 4, 1694128201431941 - 1694128201431930, 7 / 8),
    ("all-to-all", 24 * 8, 1694128201434718 - 1694128201434710, 7 / 8),
    ("all-to-all", 384 * 4, 1694128201435119 - 1694128201435111, 7 / 8),
    ("all-to-all", 3392 * 4, 1694128201435252 - 1694128201435244, 7 / 8),
    ("all-reduce", 394241 * 4, 1694128201436550 - 1694128201436463, 14 / 8),
    ("all-reduce", 112 * 4, 1694128201438910 - 1694128201438887, 14 / 8),
    ("all-reduce", 226960 * 4, 1694128201440338 - 1694128201440269, 14 / 8),
]


@pytest.mark.slow
def test_collectives_of_eight_recorded_ranks_by_hand(shared_data: Path) -> None:
    path = shared_data / "kineto" / "gpu-param-dlrm-8ranks" / "trace"
    found = answer(path, "--jobs", 1)["collectives"]
    assert sum(one["count"] for one in found) == 8  # two of 6,144 elements, which both take 11 us
    expected = [(kind, n_bytes, n_bytes / us / 1e3 * factor) for kind, n_bytes, us, factor in BY_HAND]
    assert [(one["kind"], one["bytes"], one["busbw_gbs"]) for one in found] == [
        (kind, n_bytes, pytest.approx(rate)) for kind, n_bytes, rate in expected
    ]


def test_collectives_of_one_recorded_rank_of_eight_by_hand(shared_data: Path) -> None:
    # 2,873,320 and 8,816,192 elements of bfloat16; the shortest of three take 6,678.4 and 8,656.708 us
    found = answer(shared_data / "kineto" / "gpu-tracelens-resnet-ckpt-mi300-rank0of8", "--jobs", 1)
    rates = [one["busbw_gbs"] for one in found["collectives"] if one["kind"] == "all-reduce"]
    assert rates == [
        pytest.approx(14 / 8 * 5746640 / 6678.4e3),
        pytest.approx(14 / 8 * 17632384 / 8656.708e3),
    ]


@pytest.mark.slow
def test_transfers_are_the_work_of_the_graph(shared_data: Path) -> None:
    # on each rank from the last start to its own end, which is within 3 us of the last one
    path = shared_data / "kineto" / "gpu-param-dlrm-8ranks" / "trace"
    recording = load_steps([path], Request(jobs=1, progress=False)).recording
    (step,) = recording.steps
    moves = recording.which(lambda one: one.is_communication)[step.operation]
    assert moves.sum() == 8 * 8
    found = answer(path, "--jobs", 1)["collectives"]
    transfers_ms = sum(one["count"] * one["transfer_ms"] for one in found)
    assert step.work_ns[moves].sum() / 1e6 / 8 == pytest.approx(transfers_ms, abs=8 * 0.003)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("jax/shard4", 4 * 8),  # four all-reduces in each of eight steps, which four devices do together
        ("composer/ws2-torch/trace", 2 * (16 + 10 + 6)),  # gloo's calls on two ranks, without their hand-over
    ],
)
def test_collectives_of_other_systems_are_counted_once(shared_data: Path, name: str, count: int) -> None:
    found = answer(shared_data / name, "--jobs", 1)["collectives"]
    assert sum(one["count"] for one in found) == count
    assert all(0 <= one["exposed_share"] <= 1 for one in found)
