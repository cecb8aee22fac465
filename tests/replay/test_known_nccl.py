"""What-ifs of PyTorch jobs on simulated GPUs against the same jobs run with the edit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.known_nccl import NCCLJob
from conftest import few
from dag_utils import load_steps
from replay.edit import EditRequest, Job
from replay.forecast import Forecast, Forecasts
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


def foreseen(job: NCCLJob, directory: Path, edits: str) -> list[Forecast]:
    job.run(_STEPS, 1, directory / "job")
    loaded = load_steps([directory / "job"], Request(progress=False), sizes=True)
    forecasts = Forecasts(Job.of(loaded), loaded.recording.whole_steps)
    return [forecasts.of([EditRequest.of(edit)]) for edit in edits.split()]


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
    found = foreseen(job, tmp_path, edits)
    truth = [job.edited(edit, _STEPS, 1).run(2 * _STEPS, 2) for edit in edits.split()]
    errors = [one.after_ns / 1e6 / then - 1 for one, then in zip(found, truth, strict=True)]
    assert max(map(abs, errors)) < 0.05, dict(zip(edits.split(), errors, strict=True))
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.01
    for one, then in zip(found, truth, strict=True):
        assert one.interval_ns is not None
        assert one.interval_ns[0] <= then * 1e6 <= one.interval_ns[1]
