"""Which ranks meet where."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from diagnose.meetings import connected

_PAIRS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60)


@given(_PAIRS)
def test_what_edges_connect_has_the_number_of_its_least_node(pairs: list[tuple[int, int]]) -> None:
    tails, heads = np.array(pairs, np.int64).reshape(-1, 2).T
    part = connected(30, tails, heads)
    matrix = coo_array((np.ones(len(pairs), np.int8), (tails, heads)), shape=(30, 30))
    known = connected_components(matrix, directed=False)[1]
    assert part.tolist() == [int(np.flatnonzero(known == one)[0]) for one in known]


def test_a_long_chain_is_one_part() -> None:
    nodes = np.random.default_rng(1).permutation(5000)
    assert not connected(5000, nodes[1:], nodes[:-1]).any()
