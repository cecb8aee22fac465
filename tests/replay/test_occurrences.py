"""The same event in other steps, and its usual times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.occurrences import medians, pair_numbers

_small = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), max_size=30)


@pytest.mark.slow
@given(_small)
def test_medians_are_those_of_numpy(pairs: list[tuple[int, int]]) -> None:
    group, value = (
        np.array(column, np.int64) for column in (zip(*pairs, strict=True) if pairs else ([], []))
    )
    expected = [int(np.median(value[group == i])) if (group == i).any() else 0 for i in range(5)]
    assert medians(group, value, 5).tolist() == expected


def test_many_different_pairs_get_different_numbers() -> None:
    # narrow columns, as steps have them: 65,536 * (65,535 + 1) is 2 ** 32, which would be 0 in 32 bits
    first, second = np.array([0, 65_536, 0], np.int32), np.array([7, 7, 65_535], np.int32)
    assert len(set(pair_numbers(first, second).tolist())) == 3
