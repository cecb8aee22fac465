"""The laws of systems on a recorded job of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import system_laws

from conftest import few

JOBS = {
    "lenet": ["wk0.rank0", "wk1.rank0"],
    "horovod/2ranks-slow-rank1/trace": ["rank0"],
    "composer/ws2-slow-rank1/trace": ["rank0", "rank1"],
    "pipeline/straggler-ST": [f"rank{i}" for i in range(8)],
    "kineto/gpu-hta-2of128/trace": ["rank0", "rank1"],
    "byteps/fork_lenet_straggler": ["wk0.rank0", "wk1.rank0"],
    "kineto/ddp2-gloo-slow-rank1/trace": ["rank0", "rank1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("job", few(4, JOBS))
def test_an_example_keeps_the_laws_of_systems(path: Path, job: str, tmp_path: Path) -> None:
    system_laws.check_system(path, JOBS[job], tmp_path)


def test_a_recorded_job_that_is_not_combined_keeps_the_other_laws(shared_data: Path) -> None:
    job = shared_data / "dasf" / "one-host-2workers" / "trace"
    system_laws.check_labels(job)
    system_laws.check_step(job)
    system_laws.check_busy(job)
