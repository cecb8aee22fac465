"""Intervals of predictions."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.base.arrays.distributions import FEWEST
from replay.answer import mean_interval, paired_change, without_outliers


def test_too_few_steps_have_no_interval() -> None:
    assert mean_interval([100.0] * (FEWEST - 1)) is None
    assert paired_change(np.ones(FEWEST - 1), np.ones(FEWEST - 1)) is None


def test_outliers_count_as_the_longest_usual_step() -> None:
    # the median is 100 and the median deviation 4: an outlier is longer than 112
    assert without_outliers(np.array([96.0, 104, 100, 98, 400])).tolist() == [96, 104, 100, 98, 112]
    # … and than 1.1 times the median
    assert without_outliers(np.array([100.0, 100, 100, 105, 120])).tolist() == pytest.approx(
        [100] * 3 + [105, 110]
    )
    assert without_outliers(np.array([100.0, 100, 400])).tolist() == [100, 100, 400], "of three none is usual"


def test_intervals_widen_with_fewer_steps() -> None:
    widths = []
    for n in (40, 16, 8, 4):
        interval = mean_interval(np.tile([80.0, 120.0], n // 2))
        assert interval is not None
        widths.append(interval[1] - interval[0])
    assert widths == sorted(widths)


def test_the_interval_holds_the_mean_of_further_steps() -> None:
    draw = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        steps = draw.lognormal(5, 0.2, 16)
        interval = mean_interval(steps[:8])
        assert interval is not None
        inside += interval[0] <= steps[8:].mean() <= interval[1]
    assert inside >= 190


def test_a_paired_change_ignores_variation_between_steps() -> None:
    steps = np.array([100.0, 300.0, 50.0, 120.0, 500.0])
    assert paired_change(steps, steps * 1.5) == pytest.approx((0.5, 0.5))
