"""The slowdown S of pipelines whose S is arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import job as joined
from jobs import rank as made

from conftest import few
from dag_utils import load_steps
from oracles.known_pipeline import Pipelines
from replay.slowdown import slowdown


@pytest.mark.slow
@pytest.mark.parametrize("names_peers", few(1, [True, False]))
@pytest.mark.parametrize(
    "job",
    [
        Pipelines({(replica, 3): 1.35 for replica in range(2)}),  # the last stage has more layers
        Pipelines({(1, 2): 2.2}),  # one machine is slow
        Pipelines({}, uneven=0.35),  # sequences differ in length
    ],
    ids=["stage", "rank", "lengths"],
)
def test_the_slowdown_of_pipelines_is_arithmetic(tmp_path: Path, job: Pipelines, names_peers: bool) -> None:
    job.write(tmp_path / "job", names_peers=names_peers)
    result = slowdown(load_steps([tmp_path / "job"]).recording)
    assert result.ratio == pytest.approx(job.slowdown(), abs=0.01)
    for stage in range(job.stages):
        of_stage = job.slowdown(lambda op, stage=stage: op.stage == stage)  # type: ignore[misc]
        assert result.by["stage"][str(stage)] == pytest.approx(of_stage, abs=0.02)
    for rank in range(job.stages * job.replicas):
        of_rank = job.slowdown(lambda op, rank=rank: op.replica * job.stages + op.stage == rank)  # type: ignore[misc]
        assert result.by["rank"][f"rank{rank}"] == pytest.approx(of_rank, abs=0.02)


def test_pauses_do_not_count_and_reductions_of_other_ranks_are_apart() -> None:
    # after a pause ranks work for 10, 30 and 20 (mean 20); then all reduce for 8, in the other step two for 2
    ranks = []
    for number, work in enumerate((10, 30, 20)):
        first = {"FW": (20, 20 + work), "reduce": (20 + work, 58)}
        second = {"FW": (78, 78 + work), "reduce": (78 + work, 110)} if number < 2 else {"FW": (78, 98)}
        steps = [(first, (0, 58)), (second, (58, 110))]
        ranks.append(made(f"rank{number}", steps, {"reduce": ["FW"]}, together=["reduce"]))
    assert slowdown(joined(*ranks)).ratio == pytest.approx((38 / 28 + 32 / 22) / 2)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "published"), few(1, [("straggler-ST", 1.1787), ("straggler-AR", 1.9730)]))
def test_the_slowdown_of_published_jobs_is_the_published_one(
    shared_data: Path, job: str, published: float
) -> None:
    result = slowdown(load_steps([shared_data / "pipeline" / job]).recording)
    assert result.ratio == pytest.approx(published, abs=0.01)
    if job == "straggler-ST":
        assert result.by["stage"]["3"] == pytest.approx(1.2323, abs=0.02)
