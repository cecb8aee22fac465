"""PyTorch and Horovod jobs as recordings: small ones made by hand, with known waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from errors import TraceError
from formats.columns import ArgColumn, Trace, Track
from replay import horovod, kineto
from replay.anchors import Anchors, aligned, anchors
from replay.answer import answer
from replay.model import Model, fit
from replay.plan import Int64
from replay.recording import Recording
from replay.whatif.edits import apply

MS = 1_000_000
Row = tuple[str, str, int, int, float, float]  # name, category, pid, tid, start and end in ms


def trace(
    rows: Sequence[Row],
    dialect: str = "kineto",
    args: Mapping[str, ArgColumn] | None = None,
    metadata: Sequence[Mapping[str, Any]] = (),
) -> Trace:
    names = list(dict.fromkeys(row[0] for row in rows))
    cats = list(dict.fromkeys(row[1] for row in rows))
    tracks = list(dict.fromkeys(Track(row[2], row[3]) for row in rows))
    start = np.array([row[4] * MS for row in rows], np.int64)
    return Trace(
        path="made.json",
        dialect=dialect,
        names=names,
        cats=cats,
        tracks=tracks,
        name_id=np.array([names.index(row[0]) for row in rows], np.int32),
        cat_id=np.array([cats.index(row[1]) for row in rows], np.int32),
        track_id=np.array([tracks.index(Track(row[2], row[3])) for row in rows], np.int32),
        ts_ns=start,
        dur_ns=np.array([row[5] * MS for row in rows], np.int64) - start,
        args=args or {},
        metadata=metadata,
    )


def ddp_rank(compute: float, reduced: float, steps: int = 3, every: float = 50) -> Trace:
    """A rank that computes, hands its gradients over, waits until `reduced` and updates for 4 ms."""
    rows: list[Row] = []
    for i in range(steps):
        at = i * every
        rows += [
            (f"ProfilerStep#{i + 1}", "user_annotation", 1, 1, at, at + every),
            ("aten::conv2d", "cpu_op", 1, 1, at, at + compute),
            ("aten::mul", "cpu_op", 1, 1, at, at + 1),  # inside conv2d
            ("gloo:all_reduce", "user_annotation", 1, 2, at + compute, at + reduced),
            ("Optimizer.step#SGD.step", "user_annotation", 1, 1, at + reduced, at + reduced + 4),
            ("aten::add_", "cpu_op", 1, 1, at + reduced, at + reduced + 4),
        ]
    return trace(rows)


def two_ranks() -> Recording:
    """Rank 0 computes for 10, rank 1 for 30; reducing takes 6 from when the last is there."""
    return kineto.record(
        [kineto.RankTrace("rank0", ddp_rank(10, 36)), kineto.RankTrace("rank1", ddp_rank(30, 36))]
    )


def service_ms(model: Model, owner: int, name: str) -> float:
    step, recorded = model.steps[0], model.recording.steps[0]
    found = [
        float(step.service_ns[event]) / MS
        for event, operation in enumerate(recorded.operation.tolist())
        if (one := model.recording.operations[operation]).owner == owner and one.name == name
    ]
    assert len(found) == 1
    return found[0]


def test_only_outermost_operations_are_replayed() -> None:
    names = {one.name for one in two_ranks().operations}
    assert names == {"aten::conv2d", "gloo:all_reduce", "aten::add_"}


def test_phases_are_told_by_what_is_around() -> None:
    phases = {one.name: one.phase for one in two_ranks().operations}
    assert phases == {"aten::conv2d": "FW", "gloo:all_reduce": "Comm", "aten::add_": "STEP"}


def test_a_collective_works_from_when_the_last_rank_is_there() -> None:
    model = fit(two_ranks())
    assert service_ms(model, 0, "gloo:all_reduce") == 6
    assert service_ms(model, 1, "gloo:all_reduce") == 6


def test_steps_of_ranks_are_replayed() -> None:
    assert answer(fit(two_ranks())).predicted_ns.tolist() == [50 * MS, 50 * MS]


def test_the_rank_that_waits_gains_nothing_from_being_faster() -> None:
    assert answer(apply(fit(two_ranks()), ["rank0.FW=0.5"])).iteration_ns == 50 * MS


def test_the_rank_that_is_waited_for_makes_the_step() -> None:
    found = answer(apply(fit(two_ranks()), ["rank1.FW=2"]))
    assert found.predicted_ns.tolist() == [80 * MS, 80 * MS]


def test_without_the_straggler_both_compute_for_10() -> None:
    assert answer(apply(fit(two_ranks()), ["straggler=none"])).iteration_ns == 30 * MS


def test_a_broadcast_does_not_wait_at_its_root() -> None:
    ranks: list[kineto.RankTrace] = []
    for at, until in ((0.0, 2.0), (5.0, 8.0)):
        rows: list[Row] = [
            ("ProfilerStep#1", "user_annotation", 1, 1, 0, 20),
            ("aten::a", "cpu_op", 1, 1, 0, 1),
            ("gloo:broadcast", "user_annotation", 1, 2, at, until),
        ]
        ranks.append(kineto.RankTrace(f"rank{len(ranks)}", trace(rows)))
    model = fit(kineto.record(ranks))
    assert service_ms(model, 0, "gloo:broadcast") == 2
    assert service_ms(model, 1, "gloo:broadcast") == 3


def gpu_rank() -> Trace:
    """Two launches of 1 ms; kernels of 10 one after the other; the host waits for the second."""
    rows: list[Row] = [
        ("ProfilerStep#1", "user_annotation", 1, 1, 0, 30),
        ("aten::a", "cpu_op", 1, 1, 0, 1),
        ("cudaLaunchKernel", "cuda_runtime", 1, 1, 0.5, 0.6),
        ("aten::b", "cpu_op", 1, 1, 1, 2),
        ("cudaLaunchKernel", "cuda_runtime", 1, 1, 1.5, 1.6),
        ("cudaStreamSynchronize", "cuda_runtime", 1, 1, 2, 22),
        ("kernel_a", "kernel", 0, 7, 1, 11),
        ("kernel_b", "kernel", 0, 7, 12, 22),
    ]
    correlation = ArgColumn(np.array([2, 4, 5, 6, 7], np.int64), [1, 2, 3, 1, 2])
    return trace(rows, args={"correlation": correlation})


def test_waiting_for_the_device_is_not_work_of_the_host() -> None:
    model = fit(kineto.record([kineto.RankTrace("rank0", gpu_rank())]))
    assert service_ms(model, 0, "cudaStreamSynchronize") == 0
    assert answer(model).iteration_ns == 30 * MS


def test_a_longer_kernel_makes_the_step_longer() -> None:
    model = fit(kineto.record([kineto.RankTrace("rank0", gpu_rank())]))
    assert answer(apply(model, ["kernel_a=1.5"])).iteration_ns == 35 * MS


def test_a_launch_has_slack_beside_a_busy_device() -> None:
    model = fit(kineto.record([kineto.RankTrace("rank0", gpu_rank())]))
    assert answer(apply(model, ["aten::b=3"])).iteration_ns == 30 * MS


def test_without_marked_steps_the_recording_is_one() -> None:
    rows: list[Row] = [("aten::a", "cpu_op", 1, 1, 5, 9), ("aten::b", "cpu_op", 1, 1, 10, 12)]
    assert answer(fit(kineto.record([kineto.RankTrace("rank0", trace(rows))]))).iteration_ns == 7 * MS


def test_a_trace_without_operations_is_refused() -> None:
    with pytest.raises(TraceError, match="nothing to replay"):
        kineto.record([kineto.RankTrace("rank0", trace([("a", "overhead", 1, 1, 0, 1)]))])


def test_operations_without_duration_are_refused() -> None:
    rows: list[Row] = [("ProfilerStep#1", "user_annotation", 1, 1, 3, 3), ("aten::a", "cpu_op", 1, 1, 3, 3)]
    with pytest.raises(TraceError, match="nothing to replay"):
        answer(fit(kineto.record([kineto.RankTrace("rank0", trace(rows))])))


# ---- Horovod


def timeline(rounds: int = 3) -> Trace:
    """Rounds of 40: b is handed over at 0, a at 10; each negotiated in 2, reduced in 5."""
    rows: list[Row] = []
    for i in range(rounds):
        at = 40.0 * i
        for pid, ready in ((2, at), (1, at + 10)):
            rows += [
                ("NEGOTIATE_ALLREDUCE", "", pid, 0, ready, ready + 2),
                ("0", "", pid, 0, ready, ready),
                ("ALLREDUCE", "", pid, 0, ready + 2, ready + 7),
                ("GLOO_ALLREDUCE", "", pid, 0, ready + 3, ready + 6),
            ]
    names = [
        {"name": "process_name", "pid": pid, "args": {"name": f"grad.{word}"}}
        for pid, word in ((1, "a"), (2, "b"))
    ]
    return trace(rows, "horovod", metadata=names)


def test_a_round_over_all_tensors_is_a_step() -> None:
    found = answer(fit(horovod.record(timeline())))
    assert found.result.iteration_ns[:, 0].tolist() == [40 * MS, 40 * MS]


def test_tensors_are_named_and_ticks_are_no_operations() -> None:
    labels = {one.label for one in horovod.record(timeline()).operations if one.is_traced}
    kinds = ("NEGOTIATE_ALLREDUCE", "ALLREDUCE", "GLOO_ALLREDUCE")
    assert labels == {f"grad.{word}.{kind}" for word in "ab" for kind in kinds}


def test_what_is_not_in_the_timeline_stands_between_the_tensors() -> None:
    # b is reduced at 7, a handed over at 10: 3 of computing; twice as much makes the step 3 longer
    assert answer(apply(fit(horovod.record(timeline())), ["BW=2"])).iteration_ns == 43 * MS


def test_a_longer_negotiation_makes_the_step_longer() -> None:
    edits = ["grad.a.NEGOTIATE_ALLREDUCE=+5ms"]
    assert answer(apply(fit(horovod.record(timeline())), edits)).iteration_ns == 45 * MS


def test_a_timeline_without_rounds_is_refused() -> None:
    with pytest.raises(TraceError, match="no round"):
        horovod.record(trace([("CYCLE_START", "", 0, 0, 0, 0)], "horovod"))


# ---- clocks


def test_anchors_are_collectives_of_all_with_all() -> None:
    found = anchors([ddp_rank(10, 36)])
    assert list(found) == ["gloo:all_reduce"]
    begins, ends = found["gloo:all_reduce"]
    assert begins.tolist() == [10 * MS, 60 * MS, 110 * MS]
    assert ends.tolist() == [36 * MS, 86 * MS, 136 * MS]


def test_traces_are_shifted_as_the_aligner_says() -> None:
    one, other = ddp_rank(10, 36), ddp_rank(30, 36)

    def align(hosts: Sequence[Anchors]) -> list[Callable[[Int64], Int64]]:
        assert len(hosts) == 2
        return [lambda ts: np.zeros_like(ts), lambda ts: np.full_like(ts, 5)]

    first, second = aligned([one, other], [0, 1], align)
    assert (first.ts_ns == one.ts_ns).all()
    assert (second.ts_ns == other.ts_ns + 5).all()
