"""The laws of systems on a recorded job of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import system_laws

from conftest import REPO, few

JOBS = {
    "horovod/2ranks-slow-rank1/trace": ["rank0"],
    "composer/ws2-slow-rank1/trace": ["rank0", "rank1"],
    "pipeline/straggler-ST": [f"rank{i}" for i in range(8)],
    "kineto/gpu-hta-2of128/trace": ["rank0", "rank1"],
    "byteps/fork_lenet_straggler": ["wk0.rank0", "wk1.rank0"],
    "kineto/ddp2-gloo-slow-rank1/trace": ["rank0", "rank1"],
}


def test_an_example_keeps_the_laws_of_systems(tmp_path: Path) -> None:
    system_laws.check_system(REPO / "examples" / "lenet", ["wk0.rank0", "wk1.rank0"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", few(3, JOBS))
def test_a_recorded_job_keeps_the_laws_of_systems(shared_data: Path, tmp_path: Path, job: str) -> None:
    system_laws.check_system(shared_data / job, JOBS[job], tmp_path)


def test_a_recorded_job_that_is_not_combined_keeps_the_other_laws(shared_data: Path) -> None:
    job = shared_data / "dasf" / "one-host-2workers" / "trace"
    system_laws.check_labels(job)
    system_laws.check_step(job)
    system_laws.check_busy(job)
