"""Jobs in which exactly one thing is wrong by a known amount: it is found first, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from answers import diagnosed, holds, kinds, winning
from made_jobs import WRITERS, Job, iteration_ms

from diagnose.diagnosis import headline

HEALTHY = Job()
#: Systems whose traces have the ranks' own work.
WITH_WORK = ("kineto", "byteps", "composer")


@pytest.mark.parametrize("system", WRITERS)
def test_nothing_is_claimed_of_a_healthy_job(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", HEALTHY))
    assert [one.finding.title for one in winning(diagnosis)] == []
    assert "nothing stands out" in headline(diagnosis)


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize("jitter", [0.01, 0.03])
@pytest.mark.parametrize("system", ["kineto", "byteps", "horovod"])
def test_even_ranks_with_chance_in_their_times_are_not_late(
    tmp_path: Path, system: str, ranks: int, jitter: float
) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, ranks=ranks, jitter=jitter)))
    assert kinds(diagnosis) == []


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("system", WRITERS)
def test_a_rank_that_works_longer_is_late(tmp_path: Path, system: str, ranks: int) -> None:
    job = replace(HEALTHY, ranks=ranks, more_forward=[0.0] * (ranks - 1) + [30.0])
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank"]
    (late,) = winning(diagnosis)
    (name,) = late.finding.ranks
    assert name in (f"rank{ranks - 1}", f"wk{ranks - 1}.rank0")
    holds(late, iteration_ms(job) - iteration_ms(HEALTHY))


@pytest.mark.parametrize("system", WITH_WORK)
def test_a_rank_whose_loader_is_slow_is_late(tmp_path: Path, system: str) -> None:
    job = replace(HEALTHY, more_load=[0.0, 20.0, 0.0, 0.0])
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank"]
    (late,) = winning(diagnosis)
    assert late.finding.ranks in (["rank1"], ["wk1.rank0"])
    assert "loader" in late.finding.action
    holds(late, 20.0)


@pytest.mark.parametrize("system", WITH_WORK)
def test_input_that_every_rank_waits_for(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, load=15.0)))
    assert kinds(diagnosis) == ["input"]
    holds(winning(diagnosis)[0], 15.0)


@pytest.mark.parametrize("system", ["kineto", "byteps", "horovod"])
def test_transfers_that_nothing_hides(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, transfer=40.0)))
    assert kinds(diagnosis) == ["exposed_communication"]
    holds(winning(diagnosis)[0], 40.0)


@pytest.mark.parametrize("system", WRITERS)
def test_a_step_that_takes_much_longer(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", replace(HEALTHY, more_in_step=(4, 200.0))))
    assert kinds(diagnosis) == ["outlier_steps"]
    (outlier,) = winning(diagnosis)
    assert len(outlier.finding.steps) == 1
    gain = outlier.gain
    assert gain is not None
    assert gain.mid_ns / 1e6 == pytest.approx(200.0 / HEALTHY.steps, rel=0.1, abs=2.5)


@pytest.mark.parametrize("system", ["kineto", "byteps", "horovod"])
def test_two_things_wrong_are_both_found_in_their_order(tmp_path: Path, system: str) -> None:
    job = replace(HEALTHY, transfer=25.0, more_forward=[0.0, 0.0, 0.0, 45.0])
    diagnosis = diagnosed(WRITERS[system](tmp_path / "job", job))
    assert kinds(diagnosis) == ["late_rank", "exposed_communication"]
    late, exposed = winning(diagnosis)
    holds(late, 45.0)
    holds(exposed, 25.0)
    assert exposed.after_above_ns is not None
    assert exposed.after_above_ns / 1e6 == pytest.approx(25.0, rel=0.1)


@pytest.mark.parametrize("system", ["kineto", "byteps"])
def test_work_that_is_spread_unevenly(tmp_path: Path, system: str) -> None:
    diagnosis = diagnosed(
        WRITERS[system](tmp_path / "job", replace(HEALTHY, more_forward=[0.0, 10.0, 20.0, 30.0]))
    )
    assert kinds(diagnosis) == ["uneven_work"]
    holds(winning(diagnosis)[0], 30.0 - 15.0)
