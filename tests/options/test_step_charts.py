"""The pictures of a breakdown: what few and many ranks become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conftest import few
from figures.time_by_role import Breakdown
from make import by_rank
from options.step_charts import breakdown_charts, joined_steps
from report import html
from result import Bars, HeatMap, Result

pytestmark = pytest.mark.slow


def part(rank: int, step: int, exposed_ms: int) -> Breakdown:
    """A step of 100 ms: 40 compute, of which 10 hide communication, 5 copies, the rest idle."""
    idle = 100 - 40 - 5 - exposed_ms
    ns = 1_000_000
    return Breakdown(f"rank{rank}", step, 0, 100 * ns, 40 * ns, (exposed_ms + 10) * ns, 10 * ns, idle * ns)


def test_the_bar_of_a_step_is_as_long_as_the_step() -> None:
    bars, exposed = breakdown_charts(by_rank([part(0, 1, 20), part(0, 2, 30), part(1, 1, 50)]))
    assert isinstance(bars, Bars)
    assert isinstance(exposed, HeatMap)
    assert bars.strips == ["rank0", "rank0", "rank1"]
    assert {name: list(values) for name, values in bars.series.items()} == {
        "compute alone": [30, 30, 30],
        "both": [10, 10, 10],
        "communication alone": [20, 30, 50],
        "copies": [5, 5, 5],
        "idle": [35, 25, 5],
    }
    assert exposed.values == [[20, 30], [50, None]]


def test_steps_that_last_no_time_have_no_picture() -> None:
    assert breakdown_charts(by_rank([Breakdown("rank0", 1, 0, 0, 0, 0, 0, 0)])) == []


@pytest.mark.parametrize("n", [2, 40])
def test_what_took_no_time_anywhere_is_no_map(n: int) -> None:
    parts = [part(rank, 1, 0) for rank in range(n)]
    titles = [chart.title for chart in breakdown_charts(by_rank(parts)) if isinstance(chart, HeatMap)]
    assert titles == ([] if n == 2 else ["Computation, by rank and step"])
    nothing = [Breakdown(f"rank{rank}", 1, 0, 100, 0, 0, 0, 100) for rank in range(n)]
    assert len(breakdown_charts(by_rank(nothing))) == 1


@pytest.mark.parametrize("n", [17, 64])
def test_many_ranks_are_a_map_of_all(n: int) -> None:
    exposed, computed = breakdown_charts(
        by_rank([part(rank, step, rank % 50) for rank in range(n) for step in (1, 2)])
    )
    assert isinstance(exposed, HeatMap)
    assert isinstance(computed, HeatMap)
    assert exposed.y == [f"rank{rank}" for rank in range(n)]
    assert exposed.values[7] == [7, 7]


def test_a_thousand_ranks_are_quantiles_and_the_ten_that_differ_most() -> None:
    exposed, _ = breakdown_charts(
        by_rank([part(rank, step, {77: 5, 5: 1}.get(rank, 4)) for rank in range(1024) for step in (1, 2)])
    )
    assert isinstance(exposed, HeatMap)
    assert exposed.y[:5] == [
        "longest of 1,024", "95th percentile of 1,024", "median of 1,024", "5th percentile of 1,024",
        "shortest of 1,024",
    ]  # fmt: skip
    assert len(exposed.y) == 15
    assert exposed.y[5:7] == ["rank5", "rank77"]  # those for which others wait have least
    assert [row[0] for row in exposed.values[:7]] == [5, 4, 4, 4, 1, 1, 5]


@pytest.mark.parametrize(
    ("n", "n_steps"), few(2, [(1, 5_000), (64, 80), (2, 3_000), (16, 50), (17, 117), (1024, 20), (1, 20_000)])
)
def test_a_page_of_many_ranks_or_steps_stays_small(n: int, n_steps: int, tmp_path: Path) -> None:
    parts = [part(rank, step, rank % 50) for rank in range(n) for step in range(n_steps)]
    html.write(Result("statistic", "T", {}, charts=breakdown_charts(by_rank(parts))), tmp_path / "a.html")
    assert (tmp_path / "a.html").stat().st_size <= 1_500_000


def test_of_many_steps_each_column_is_the_largest_of_some_that_follow_each_other() -> None:
    values = np.array([[1, 5, 2, np.nan, np.nan], [4, 3, 2, 1, 0]])
    names, joined = joined_steps(["7", "8", "9", "11", "12"], values, 3)
    assert names == ["7–8", "9–11", "12"]
    np.testing.assert_array_equal(joined, [[5, 2, np.nan], [4, 2, 0]])
    assert joined_steps(["7", "8"], values[:, :2], 2)[0] == ["7", "8"]


def test_of_a_thousand_steps_none_is_lost_in_the_map() -> None:
    parts = [
        part(rank, step, 44 if (rank, step) == (1, 777) else 3) for rank in (0, 1) for step in range(2000)
    ]
    exposed, _ = breakdown_charts(by_rank(parts))
    assert isinstance(exposed, HeatMap)
    assert exposed.x[:2] == ["0–1", "2–3"]
    found = [
        (rank, steps)
        for rank, row in zip(exposed.y, exposed.values, strict=True)
        for steps, value in zip(exposed.x, row, strict=True)
        if value == 44
    ]
    assert found == [("rank1", "776–777")]


def test_where_no_computation_is_recorded_nothing_is_called_idle() -> None:
    bars, _ = breakdown_charts(by_rank([Breakdown("rank0", 1, 0, 100, 0, 20, 0, 80)]))
    assert isinstance(bars, Bars)
    assert [*bars.series] == ["communication alone", "not recorded"]
