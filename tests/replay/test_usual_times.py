"""Usual times: of an event in other steps, and of an owner's peers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.usual_times import medians, pair_numbers, peers_of, peers_usual

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


@pytest.mark.parametrize("group", [[0] * 7, [0, 0, 0, 1, 1, 2, 1], [0, 1, 2, 3, 4, 5, 6], [0, 1]])
def test_peer_medians_agree_with_one_by_one_medians(group: list[int]) -> None:
    time = np.random.default_rng(1).integers(0, 5, (20, len(group))).astype(float)  # with many ties
    of_each = [
        np.median(time[:, peers_of(owner, [], np.array(group))], axis=1) for owner in range(len(group))
    ]
    assert peers_usual(time, np.array(group)).T.tolist() == np.array(of_each).tolist()
