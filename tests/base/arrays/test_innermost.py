"""Segments of the innermost slice: by hand, and by definition at every instant."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.arrays.intervals import innermost, lies_inside

Slice = tuple[int, int, int]  # start, end, track
slices = st.lists(
    st.tuples(st.integers(0, 15), st.integers(0, 9), st.integers(0, 2)).map(
        lambda s: (s[0], s[0] + s[1], s[2])
    ),
    max_size=9,
)


def segments(rows: list[Slice]) -> list[tuple[int, int, int]]:
    start, end, track = np.array(rows, np.int64).reshape(-1, 3).T
    found = innermost(start, end, track)
    return list(zip(*(part.tolist() for part in found), strict=True))


def owner_at(rows: list[Slice], track: int, at: int) -> int | None:
    """The definition: the last begun, then the shortest, then the last given."""
    is_open = [i for i, (start, end, own) in enumerate(rows) if own == track and start <= at < end]
    return max(is_open, key=lambda i: (rows[i][0], -rows[i][1], i), default=None)


@given(slices)
def test_every_instant_belongs_to_the_slice_begun_last(rows: list[Slice]) -> None:
    found = {(rows[i][2], at): i for i, start, end in segments(rows) for at in range(start, end)}
    expected = {(track, at): owner_at(rows, track, at) for track in range(3) for at in range(26)}
    assert found == {where: owner for where, owner in expected.items() if owner is not None}


@given(slices)
def test_segments_are_in_order_and_as_few_as_can_be(rows: list[Slice]) -> None:
    found = segments(rows)
    assert all(start < end for _, start, end in found)
    for (a, _, end), (b, start, _) in itertools.pairwise(found):
        assert rows[a][2] < rows[b][2] or end < start or (end == start and a != b)


@given(slices, st.lists(st.booleans(), min_size=9, max_size=9))
def test_what_lies_inside_is_within_the_times_of_an_outer_slice(rows: list[Slice], flags: list[bool]) -> None:
    start, end, track = np.array(rows, np.int64).reshape(-1, 3).T
    found = lies_inside(start, end, track, np.array(flags[: len(rows)], np.bool_))
    for i, (begin, until, own) in enumerate(rows):
        around = [
            j for j, (a, b, other) in enumerate(rows)
            if flags[j] and other == own and a <= begin and until <= b and (a, b, j) != (begin, until, i)
            and ((a, b) != (begin, until) or j < i)
        ]  # fmt: skip
        assert found[i] == bool(around)
