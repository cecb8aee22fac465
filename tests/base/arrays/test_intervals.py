"""Unions of intervals, and what lies in windows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.arrays.intervals import clipped_lengths, overlap_groups, union, union_length

Pairs = list[tuple[int, int]]
pairs = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=8
)


def arrays(intervals: Pairs) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(intervals, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def instants(intervals: Pairs) -> set[int]:
    """The unit stretches that at least one interval covers, by definition."""
    return {at for start, end in intervals for at in range(start, end)}


def as_pairs(intervals: tuple[np.ndarray, np.ndarray]) -> Pairs:
    return list(zip(intervals[0].tolist(), intervals[1].tolist(), strict=True))


@given(pairs)
def test_a_union_covers_what_its_parts_cover_once(intervals: Pairs) -> None:
    joined = union(*arrays(intervals))
    assert instants(as_pairs(joined)) == instants(intervals)
    assert union_length(*arrays(intervals)) == len(instants(intervals))
    assert all(a[1] < b[0] for a, b in zip(as_pairs(joined), as_pairs(joined)[1:], strict=False))


@given(pairs, st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10)), max_size=4))
def test_what_lies_in_windows_is_counted_instant_by_instant(
    intervals: Pairs, windows: list[tuple[int, int]]
) -> None:
    starts, ends = arrays([(start, start + size) for start, size in windows])
    found = clipped_lengths(union(*arrays(intervals)), starts, ends)
    expected = [len(instants(intervals) & set(range(start, start + size))) for start, size in windows]
    assert found.tolist() == expected


def test_intervals_that_overlap_are_at_once_and_those_that_touch_are_not() -> None:
    start, end = np.array([10, 0, 14, 30, 20]), np.array([15, 5, 20, 31, 25])
    #  0-5 | 10-15 and 14-20 | 20-25 | 30-31
    assert overlap_groups(start, end).tolist() == [1, 0, 1, 3, 2]
    assert overlap_groups(start[:0], end[:0]).tolist() == []
