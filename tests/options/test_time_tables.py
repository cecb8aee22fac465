"""Iteration times of ranks in one picture."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from collector.gpu.iteration_times import Gpu, StepTime
from options.collect.time_tables import time_result
from result import Bars, Chart, HeatMap, Repairs

MS = 1_000_000


def drawn(n_ranks: int) -> Chart:
    """Draw steps 3 to 5 of ranks that take 1, 2, 3, … ms for each."""
    steps = {
        rank: [StepTime(step, None, float(rank * MS)) for step in (3, 4, 5)] for rank in range(1, n_ranks + 1)
    }
    gpus = [Gpu(f"rank{rank}", None, None, {}, of_rank, [], "marks") for rank, of_rank in steps.items()]
    args = Namespace(path=[Path("job")], sort=False, head=None)
    (chart,) = time_result(args, gpus, Repairs([]), "Iteration time of").charts
    return chart


def test_a_rank_has_bars_and_several_have_a_map() -> None:
    alone, several = drawn(1), drawn(2)
    assert isinstance(alone, Bars)
    assert (alone.x, alone.series) == (["3", "4", "5"], {"rank1": [1.0] * 3})
    assert isinstance(several, HeatMap)
    assert (several.y, several.values) == (["rank1", "rank2"], [[1.0] * 3, [2.0] * 3])
