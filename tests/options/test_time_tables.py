"""Iteration times of many ranks in one picture."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from collector.gpu.iteration_times import Gpu, StepTime
from dialects.steps import Step
from options.collect.time_tables import time_result
from result import Lines, Repairs

MS = 1_000_000


def drawn(n_ranks: int) -> list[Lines]:
    """Draw steps 3 to 5 of ranks that take 1, 2, 3, … ms for each, and twice that before they were traced."""
    gpus = []
    for rank in range(1, n_ranks + 1):
        loads = [Step(step, 0, rank * MS * (2 if step < 3 else 1)) for step in range(1, 6)]
        traced = [StepTime(step, None, float(rank * MS)) for step in (3, 4, 5)]
        gpus.append(Gpu(f"rank{rank}", None, None, {}, traced, loads, "marks"))
    args = Namespace(path=[Path("job")], sort=False, head=None)
    charts = time_result(args, gpus, Repairs([]), "Iteration time of").charts
    return [chart for chart in charts if isinstance(chart, Lines)]


@pytest.mark.parametrize("n", [1, 12])
def test_each_of_few_ranks_is_a_line(n: int) -> None:
    recorded, all_steps = drawn(n)
    assert recorded.series == {f"rank{rank}": [float(rank)] * 3 for rank in range(1, n + 1)}
    assert all_steps.series["rank1, not traced"] == [2, 2, None, None, None]
    assert all_steps.dashed["rank1, not traced"] == "rank1"


def test_many_ranks_are_the_longest_the_median_and_the_shortest() -> None:
    recorded, all_steps = drawn(99)
    assert recorded.series == {
        "longest of 99 ranks": [99.0] * 3,
        "median of 99 ranks": [50.0] * 3,
        "shortest of 99 ranks": [1.0] * 3,
    }
    assert all_steps.series["median of 99 ranks, not traced"] == [100, 100, None, None, None]
    assert all_steps.dashed["longest of 99 ranks, not traced"] == "longest of 99 ranks"
