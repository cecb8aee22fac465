"""What is said of a job's steps, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from make import span, write
from statistic.breakdown import Breakdown
from statistic.step_summary import exposed_and_outliers, summaries, where_time_goes
from trace_utils import read_trace

MS = 1_000_000


def step(rank: str, number: int | None, wall: int, compute: int, comm: int, both: int = 0) -> Breakdown:
    """A step in milliseconds; what is left of it is idle."""
    times = (0, wall * MS, compute * MS, comm * MS, both * MS, (wall - compute - comm + both) * MS)
    return Breakdown(rank, number, *times)


def test_a_rank_has_means_a_median_and_the_steps_beyond_three_deviations() -> None:
    # median 101, deviations 2 1 0 1 39: their median is 1, so what is beyond 104 and 106.05 (5 %) stands out
    parts = [step("rank0", n, wall, 50, 30, 10) for n, wall in enumerate((99, 100, 101, 102, 140), 3)]
    (rank,) = summaries(parts)
    assert rank.outlier_steps == [7]
    assert (rank.steps, rank.mean_ns, rank.median_ns) == (5, 108.4 * MS, 101 * MS)
    assert (rank.compute_ns, rank.comm_ns, rank.exposed_comm_ns) == (50 * MS, 30 * MS, 20 * MS)
    assert rank.idle_ns == pytest.approx((108.4 - 70) * MS)


def test_steps_that_hardly_differ_and_three_steps_have_no_outlier() -> None:
    alike = [step("rank0", n, wall, 50, 30) for n, wall in enumerate((1000, 1000, 1000, 1000, 1049))]
    assert summaries(alike)[0].outlier_steps == []
    few = [step("rank0", n, wall, 50, 30) for n, wall in enumerate((100, 100, 900))]
    assert summaries(few)[0].outlier_steps == []


def test_the_sentence_of_a_breakdown() -> None:
    # alone: 20 of 100 ms on rank0, 30 on rank1; step 4 takes 200 ms on rank1
    parts = [step("rank0", n, 100, 50, 30, 10) for n in range(1, 5)]
    parts += [step("rank1", n, 200 if n == 4 else 100, 40, 30) for n in range(1, 5)]
    assert exposed_and_outliers(parts) == (
        "A step takes 112.5 ms (mean of 4 steps on 2 ranks, median 100.0 ms); communication that nothing "
        "hides takes 25.0 ms of it (22%; most on rank1, 30.0 ms); far longer than the median: step 4 "
        "(200.0 ms on rank1)."
    )


def test_without_communication_a_breakdown_says_so() -> None:
    assert exposed_and_outliers([step("rank0", None, 100, 50, 0)]) == (
        "The recording takes 100.0 ms; no communication was recorded."
    )


def test_where_the_time_goes(tmp_path: Path) -> None:
    # outer computes 60 ms, 45 of them in inner; 20 ms are communication alone, 10 of all are both
    events = [
        span("outer", 0, 60_000),
        span("inner", 10_000, 45_000),
        span("allreduce", 50_000, 30_000, tid=2),
    ]
    trace = read_trace(write(tmp_path / "a.json", events))
    traces = {"rank0": trace, "rank1": trace}
    one = [step("rank0", None, 100, 60, 30, 10)]
    assert where_time_goes(one, traces) == (
        "The recording takes 100.0 ms: 50% computation alone, 20% communication alone, 20% idle, "
        "10% both at once; the longest computation is inner, 45.0 ms of its own time."
    )
    two = [*one, step("rank1", None, 100, 40, 30, 10)]
    assert "; rank0 computes longest, 60.0 ms (rank1 shortest, 40.0 ms); " in where_time_goes(two, traces)
    alike = [*one, step("rank1", None, 100, 58, 30, 10)]
    assert "; ranks compute alike, 58.0 ms to 60.0 ms; " in where_time_goes(alike, traces)
