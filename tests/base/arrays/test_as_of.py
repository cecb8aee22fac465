"""The last event of a key by a moment, against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.arrays.numbering import as_of

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=9)


@pytest.mark.parametrize("before", [False, True])
@given(events=pairs, wanted=pairs)
def test_it_is_the_last_by_time_then_the_last_given(
    events: list[tuple[int, int]], wanted: list[tuple[int, int]], before: bool
) -> None:
    columns = (np.array(rows, np.int64).reshape(-1, 2).T for rows in (events, wanted))
    expected = [
        max(
            ((at, i) for i, (own, at) in enumerate(events) if own == key and at < moment + (not before)),
            default=(0, -1),
        )[1]
        for key, moment in wanted
    ]
    assert as_of(*next(columns), *next(columns), before=before).tolist() == expected
