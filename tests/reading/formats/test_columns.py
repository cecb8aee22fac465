"""The helpers for columns that stand in for numpy's own: the same values."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.base.arrays.distributions import median
from analyzer.base.arrays.numbering import numbered, unique


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7], 7.0), ([3, 1], 2.0), ([5, 1, 4], 4.0), ([2, 9, 2, 4], 3.0), ([0.5, -1.5], -0.5)],
)
def test_median_is_the_middle_or_the_mean_of_two(values: list[float], expected: float) -> None:
    assert median(np.array(values)) == expected


def test_unique_values_are_sorted() -> None:
    assert unique(np.array([3, 1, 3, -2, 1])).tolist() == [-2, 1, 3]
    assert unique(np.empty(0, np.int64)).tolist() == []


def test_unique_rows_are_sorted() -> None:
    assert unique(np.array([[2, 1], [0, 5], [2, 1]]), axis=0).tolist() == [[0, 5], [2, 1]]


@pytest.mark.parametrize(
    ("items", "distinct", "place"),
    [("", [], []), ("cab", ["c", "a", "b"], [0, 1, 2]), ("cacb", ["c", "a", "b"], [0, 1, 0, 2])],
)
def test_items_are_numbered_by_first_appearance(items: str, distinct: list[str], place: list[int]) -> None:
    found, places = numbered(items)
    assert (found, places.tolist()) == (distinct, place)
    assert places.dtype == np.int32
