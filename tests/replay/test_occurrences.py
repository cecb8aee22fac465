"""The same event in other steps, and what is usual of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.occurrences import Middles, medians, pair_numbers

_small = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), max_size=30)


def test_a_group_without_values_has_median_zero() -> None:
    assert medians(np.array([2, 0, 2, 2]), np.array([9, 5, 1, 4]), 3).tolist() == [5, 0, 4]


@pytest.mark.slow
@given(_small)
def test_medians_are_those_of_numpy(pairs: list[tuple[int, int]]) -> None:
    group, value = (
        np.array(column, np.int64) for column in (zip(*pairs, strict=True) if pairs else ([], []))
    )
    expected = [int(np.median(value[group == i])) if (group == i).any() else 0 for i in range(5)]
    assert medians(group, value, 5).tolist() == expected


def test_pairs_of_many_operations_and_many_turns_have_numbers_of_their_own() -> None:
    # narrow columns, as steps have them: 65,536 * (65,535 + 1) is 2 ** 32, which would be 0 in 32 bits
    first, second = np.array([0, 65_536, 0], np.int32), np.array([7, 7, 65_535], np.int32)
    assert len(set(pair_numbers(first, second).tolist())) == 3


@pytest.mark.slow
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=6), min_size=1, max_size=5)
)
def test_middles_are_the_medians_with_and_without_one_value(pairs: list[list[tuple[int, int]]]) -> None:
    # a slot has at most one event in a step
    steps = [dict(step) for step in pairs]
    graphs: Any = [SimpleNamespace(gap_ns=np.array(list(step.values()), np.int64)) for step in steps]
    number = [np.array(list(step), np.int64) for step in steps]
    middles = Middles("gap_ns", graphs, number)
    values = {slot: [step[slot] for step in steps if slot in step] for slot in range(5)}
    found = middles.medians()
    assert found.tolist() == [_median(values[slot]) for slot in range(len(found))]
    for row, step in enumerate(steps):
        others = {
            slot: [one[slot] for i, one in enumerate(steps) if i != row and slot in one] for slot in step
        }
        without = middles.medians_without(number[row], graphs[row].gap_ns)
        assert without.tolist() == [_median(others[slot]) for slot in step]


def _median(values: list[int]) -> int:
    return int(np.median(values)) if values else -1
