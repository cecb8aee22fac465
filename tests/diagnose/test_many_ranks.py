"""Jobs of several hosts, recorded as they are and with one rank slower: what that costs is the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dialects
from benchmarks.ranks import STAGES, Job, write
from clocks.job_clocks import align_job
from dag_utils import LoadedSteps, choose_step, load_steps
from diagnose.diagnosis import diagnose
from trace_utils import load_paths

#: Ranks of two hosts, whose clocks differ; the slow one is in the middle of a pipeline.
EVEN = Job(n_ranks=4 * STAGES, kind="host", slow_rank=9, slow=0.0)


def loaded(path: Path) -> LoadedSteps:
    return load_steps([path], jobs=1, progress=False)


def step_ns(steps: LoadedSteps) -> float:
    recording = steps.recording
    return float(recording.steps[choose_step(recording)].iteration_ns.max())


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_slow_rank_is_found_with_what_it_costs_the_job(tmp_path: Path, kind: str) -> None:
    even = replace(EVEN, kind=kind)
    healthy = loaded(write(tmp_path / "even", even, 1_300_000))
    slowed = loaded(write(tmp_path / "slow", replace(even, slow=0.2), 1_300_000))
    claimed = [one for one in diagnose(healthy).findings if one.gain is not None]
    assert [one.finding.title for one in claimed] == []
    first = diagnose(slowed).findings[0]
    assert (first.finding.kind, first.finding.ranks) == ("late_rank", ["rank9"])
    gain, truth = first.gain, step_ns(slowed) - step_ns(healthy)
    assert gain is not None
    assert gain.low_ns is not None
    assert gain.high_ns is not None
    assert gain.low_ns <= truth <= gain.high_ns
    assert gain.mid_ns == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_clocks_are_tied_across_pipelines_and_groups(tmp_path: Path, kind: str) -> None:
    job = replace(EVEN, kind=kind, slow=0.2)
    system = dialects.kineto.Kineto()
    traces = load_paths([write(tmp_path / "job", job, 1_300_000)], args=system.sync_args, jobs=1).traces
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
    assert (first.finding.kind, first.finding.ranks) == ("late_rank", ["rank9"])
    assert first.gain is not None
    assert first.gain.low_ns is None
