"""Jobs of several hosts, recorded as they are and with one rank slower: what that costs is the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from answers import holds, kinds, titles, winning

from aligned import align_job
from analyzer.answers.diagnose.diagnosis import diagnose
from analyzer.reading import dialects
from conftest import few
from dag_utils import LoadedSteps, load_steps
from oracles.known_pipeline import Pipelines
from oracles.ranks import STAGES, Job, Times, write
from trace_utils import Request, read_ranks

#: Ranks of two hosts, whose clocks differ; the slow one is in the middle of a pipeline.
EVEN = Job(n_ranks=4 * STAGES, kind="host", slow_rank=9, slow=0.0)


def loaded(path: Path) -> LoadedSteps:
    return load_steps([path], Request(jobs=1, progress=False))


def step_ns(steps: LoadedSteps) -> float:
    recording = steps.recording
    return float(recording.steps[recording.choose_step()].bounds.iteration_ns.max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", few(1, ["host", "device"]))
def test_a_slow_rank_is_found_with_what_it_costs_the_job(tmp_path: Path, kind: str) -> None:
    even = replace(EVEN, kind=kind)
    healthy = loaded(write(tmp_path / "even", even, 1_300_000))
    slowed = loaded(write(tmp_path / "slow", replace(even, slow=0.2), 1_300_000))
    # on the host one operator is most of the backward pass, and so of the step, on every rank
    assert kinds(diagnose(healthy)) == ["hot_operation"] * (kind == "host")
    first = diagnose(slowed).findings[0]
    assert (first.finding.kind, first.finding.scope.ranks) == ("late_rank", ["rank9"])
    holds(first, (step_ns(slowed) - step_ns(healthy)) / 1e6)


@dataclass(frozen=True, slots=True)
class UnevenStages(Job):
    """Pipelines whose third stage computes longer by a share than the others, which have theirs."""

    more: float = 0.0
    others: float = 0.0

    def factors(self) -> Times:
        """Return how long each rank's computation takes, the same for all ranks of a stage."""
        is_third = np.arange(self.n_ranks) % STAGES == 2
        return np.where(is_third, 1 + self.more, 1 + self.others)


@pytest.mark.slow
def test_a_stage_that_works_longer_is_uneven_work_and_no_late_rank(tmp_path: Path) -> None:
    job = UnevenStages(n_ranks=2 * STAGES, kind="device", slow_rank=0, slow=0.0)
    uneven = loaded(write(tmp_path / "uneven", replace(job, more=0.2), 1_300_000))
    # the same work, shared out evenly: a stage of four has 20 % more, so each has 5 %
    shared = loaded(write(tmp_path / "shared", replace(job, more=0.05, others=0.05), 1_300_000))
    diagnosis = diagnose(uneven)
    assert kinds(diagnosis) == ["uneven_work"]
    (found,) = winning(diagnosis)
    assert found.finding.title.startswith("stage 2 works")
    assert found.finding.cause.startswith("stage 2 works")
    holds(found, (step_ns(uneven) - step_ns(shared)) / 1e6)


@pytest.mark.parametrize("kind", few(1, ["host", "device"]))
def test_clocks_are_tied_across_pipelines_and_groups(tmp_path: Path, kind: str) -> None:
    job = replace(EVEN, kind=kind, slow=0.2)
    traces = read_ranks(
        [write(tmp_path / "job", job, 1_300_000)], request=Request({dialects.Need.SYNC}, jobs=1)
    ).made
    alignment = align_job(traces, range(job.n_ranks))
    offsets = np.array([clock.offset_us for clock in alignment.clocks])
    bounds = np.array([clock.bound_us or np.inf for clock in alignment.clocks[1:]])
    expected = job.skews_us()[0] - job.skews_us()
    assert abs(offsets - expected).max() <= 5
    assert (abs(offsets - expected)[1:] <= bounds).all()


def test_of_many_ranks_one_is_named_from_three_steps_although_it_is_not_much_slower(tmp_path: Path) -> None:
    few = replace(EVEN, kind="host", slow=0.2)  # of 16 alike, one has the most work in 3 steps once in 256
    steps = loaded(write(tmp_path / "few", few, 600_000))
    assert len(steps.recording.steps) == 3
    first = diagnose(steps).findings[0]
    assert (first.finding.kind, first.finding.scope.ranks) == ("late_rank", ["rank9"])
    assert first.gain is not None
    assert first.gain.low_ns is None


@pytest.mark.parametrize("names_peers", [True, False])
def test_even_stages_of_a_pipeline_wait_while_it_fills_and_drains(tmp_path: Path, names_peers: bool) -> None:
    job = Pipelines({})
    job.write(tmp_path / "job", names_peers=names_peers)
    diagnosis = diagnose(loaded(tmp_path / "job"))
    # 8 micro-batches of 20 and 40 ms, and 8 ms of update; a step has 3 more of these and the transfers
    step_ms = np.mean([max(job.run(work, lambda: 0.02).end.values()) for work in job.works()]) / 1e3
    idle = 100 - 100 * (8 * 60 + 8) / step_ms
    (title,) = titles(diagnosis, "idle")
    assert title == f"the busiest pipeline stage is idle {idle:.0f} % of the step"
    assert kinds(diagnosis) == ["hot_operation"]
