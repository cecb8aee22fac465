"""What-ifs of PyTorch jobs on simulated GPUs against the same jobs run with the edit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from jobs import MS, foreseen, job, rank

from conftest import few
from dag_utils import load_steps
from oracles.known_nccl import NCCLJob
from replay.edit import EditRequest, Job
from replay.forecast import Forecasts
from trace_utils import Request

_STEPS = 5
#: Two ranks that reduce about as long as they compute, in buckets of 1 MiB and more.
DATA_PARALLEL = NCCLJob(
    forward=((400.0, 100.0),) * 4,
    backward=((500.0, 200.0, 300.0),) * 4,
    weights=((3 << 20, 4096), (1 << 20, 4096), (5 << 20, 4096), (2 << 20, 4096)),
    activations=2_000_000,
    slow=(1.0, 1.0),
    tensor=1,
    data=2,
    stages=1,
    micro_batches=1,
    node=2,
    rate=6e3,
    near=6e3,
    latency=15.0,
    cap=1 << 20,
    spread=(0.005, 0.0),
    crowding=0.0,
    host=8.0,
    load=200.0,
    waits=True,
    says_waits=True,
)
_TENSOR = replace(DATA_PARALLEL, tensor=2, slow=(1.0,) * 4, near=40e3, says_waits=False)
#: The host takes two thirds of the device's time, so that it is ahead when the first step is done.
_HOST = replace(DATA_PARALLEL, host=160.0, waits=False, says_waits=False)
_PIPELINE = replace(DATA_PARALLEL, stages=2, micro_batches=3, slow=(1.0, 1.3, 1.0, 1.0), waits=False)


_STREAMS = {"grad1": (0, 20), "grad2": (20, 50), "reduce1": (20, 30), "reduce2": (50, 60)}
_LATE = {"grad1": (0, 20), "grad2": (20, 40), "reduce1": (20, 30), "reduce2": (40, 60)}


@pytest.mark.parametrize(
    ("edit", "step_ms"),
    [
        ("rank1=2", 20 * 2 + 20 * 2 + 10),  # the last rank's second gradients are ready at 80
        ("rank0.grad1=2", 20 * 2 + 30 + 10),
        ("rank1.grad2=1.5", 60),  # at 50, as the other rank's
        ("bandwidth=0.5", 50 + 20),  # the first one is over at 40, before the second's gradients
        ("bandwidth=0.2", 20 + 50 + 50),  # it is over at 70: the second one has waited for the stream
        ("grad2=0.1", 20 + 10 + 10),
    ],
)
def test_a_collective_starts_when_the_last_rank_is_ready(edit: str, step_ms: float) -> None:
    inputs = {"grad2": ["grad1"], "reduce1": ["grad1"], "reduce2": ["grad2", "reduce1"]}
    kinds = {name: {"on_device": True} for name in _STREAMS}
    both = ["reduce1", "reduce2"]
    ranks = [
        rank(f"rank{number}", [(times, (0, 60))], inputs, kinds=kinds, together=both)
        for number, times in enumerate((_STREAMS, _LATE))
    ]
    assert foreseen(job(*ranks), edit).after_ns == step_ms * MS


@pytest.mark.parametrize(
    ("edit", "step_ms"),
    [
        ("rank3=0.25", 30 + 5 + 5),  # ranks 2 and 3 meet at 30
        ("rank0=6", 60 + 5 + 5),  # ranks 0 and 1 meet at 60, and both hold up their peers
        ("rank1=2", 50),  # at 40, as the others do
        ("tensor1=3", 40 + 15 + 5),
        ("data0=3", (60 + 50) / 2),  # the mean rank: of 0 and 2, and of 1 and 3, which need not wait
    ],
)
def test_ranks_of_two_kinds_of_groups_meet_in_each(edit: str, step_ms: float) -> None:
    # ranks 0 and 1, 2 and 3 reduce for 5 ms; then 0 and 2, 1 and 3
    ranks = []
    for number in range(4):
        tensor, data = f"tensor{number // 2}", f"data{number % 2}"
        met = 20.0 if number < 2 else 40.0
        times = {
            "FW.a": (0.0, 10.0 * (number + 1)),
            tensor: (10.0 * (number + 1), met + 5),
            data: (met + 5, 50.0),
        }
        inputs = {tensor: ["FW.a"], data: [tensor]}
        ranks.append(rank(f"rank{number}", [(times, (0, 50))], inputs, together=[tensor, data]))
    assert foreseen(job(*ranks), edit).after_ns == pytest.approx(step_ms * MS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "edits"),
    few(2, [
        (DATA_PARALLEL, "bandwidth=0.5 bandwidth=4 latency=4 bucket_cap=4MB overlap=off rank1=1.3 kernel=2"),
        (_HOST, "kernel=2 kernel=0.25 bandwidth=4 rank1=1.3"),
        (_TENSOR, "bandwidth=0.5 bandwidth=4 latency=4 overlap=off rank0=0.7 drop=layer_norm_forward"),
        (_PIPELINE, "bandwidth=0.5 stage1=0.8 kernel=0.7 bucket_cap=8MB straggler=none straggler=mean"),
    ]),
)  # fmt: skip
def test_edits_are_foreseen_to_a_few_percent(job: NCCLJob, edits: str, tmp_path: Path) -> None:
    job.run(_STEPS, 1, tmp_path / "job")
    loaded = load_steps([tmp_path / "job"], Request(progress=False), sizes=True)
    forecasts = Forecasts(Job.of(loaded), loaded.recording.whole_steps)
    errors = {}
    for edit in edits.split():
        forecast = forecasts.of([EditRequest.of(edit)])
        truth_ns = job.edited(edit, _STEPS, 1).run(2 * _STEPS, 2) * 1e6
        errors[edit] = abs(forecast.after_ns / truth_ns - 1)
        assert forecast.interval_ns is not None
        assert forecast.interval_ns[0] <= truth_ns <= forecast.interval_ns[1]
    assert max(errors.values()) < 0.05, errors
    assert sorted(errors.values())[len(errors) // 2] < 0.01
