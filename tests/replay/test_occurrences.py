"""The same event in other steps, and what is usual of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.occurrences import medians

_small = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), max_size=30)


def test_a_group_without_values_has_median_zero() -> None:
    assert medians(np.array([2, 0, 2, 2]), np.array([9, 5, 1, 4]), 3).tolist() == [5, 0, 4]


@given(_small)
def test_medians_are_those_of_numpy(pairs: list[tuple[int, int]]) -> None:
    group, value = (
        np.array(column, np.int64) for column in (zip(*pairs, strict=True) if pairs else ([], []))
    )
    expected = [int(np.median(value[group == i])) if (group == i).any() else 0 for i in range(5)]
    assert medians(group, value, 5).tolist() == expected
