"""Why a series is higher in a span: series of 40 values that were made by one of three causes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from arrays import Float64
from arrays.change_points import Shape, why_higher

N = 40


def shifted(noise: Float64, walk: Float64) -> Float64:
    return noise + 6 * (np.arange(N) >= 20)


def growing(noise: Float64, walk: Float64) -> Float64:
    return noise + np.linspace(0, 12, N)


def wandering(noise: Float64, walk: Float64) -> Float64:
    return noise + 2 * np.cumsum(walk)


@pytest.mark.parametrize(
    ("made", "cause"), [(shifted, Shape.LEVEL), (growing, Shape.RAMP), (wandering, Shape.WANDERS)]
)
def test_a_made_cause_is_found_in_nearly_all_series(
    made: Callable[[Float64, Float64], Float64], cause: Shape
) -> None:
    draws = np.random.default_rng(7).normal(size=(100, 2, N))
    found = [why_higher(made(*one), 20, N) for one in draws]
    assert found.count(cause) >= 85


def test_a_long_series_is_looked_at_in_blocks_of_values() -> None:
    noise = np.random.default_rng(7).normal(size=20_000)
    assert why_higher(noise + 3 * (np.arange(20_000) >= 12_345), 12_345, 20_000) is Shape.LEVEL
