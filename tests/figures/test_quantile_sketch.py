"""Sketched durations: few operations' values are kept, quantiles of many are off by no more than stated."""

from __future__ import annotations

from statistics import fmean, pvariance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from arrays import Int64
from figures.durations import ERROR, MOST_VALUES, Durations, joined, sketched, statistics

_NS = st.integers(0, 400) | st.integers(0, 10**12)


def one(values: Int64, name: str = "a") -> Durations:
    """Return the durations of one operation."""
    return Durations([(name, "")], np.sort(values), np.array([0, len(values)]))


def check(found: Durations, values: Int64) -> None:
    """Compare the statistics of the first operation with those of its values."""
    stat = statistics(found)[0]
    assert stat.count == len(values)
    assert stat.total_ns == sum(values.tolist())
    assert (stat.min_ns, stat.max_ns) == (min(values), max(values))
    assert stat.mean_ns == pytest.approx(fmean(values.tolist()))
    assert stat.var_ns2 == pytest.approx(pvariance(values.tolist()), rel=1e-6, abs=1e-6)
    for q, quantile in ((0.5, stat.p50_ns), (0.95, stat.p95_ns), (0.99, stat.p99_ns)):
        assert quantile == pytest.approx(np.quantile(values, q), rel=ERROR * 1.000001, abs=1e-9)


@given(arrays.arrays(np.int64, st.integers(MOST_VALUES + 1, 2000), elements=_NS))
def test_quantiles_are_within_the_stated_error_and_all_else_is_exact(values: Int64) -> None:
    check(sketched(one(values)), values)


@given(
    arrays.arrays(np.int64, st.integers(MOST_VALUES + 1, 600), elements=_NS),
    arrays.arrays(np.int64, st.integers(1, 600), elements=_NS),
)
def test_also_of_two_ranks_together_of_which_one_may_be_exact(a: Int64, b: Int64) -> None:
    check(joined([sketched(one(a)), sketched(one(b))]), np.concatenate([a, b]))


def test_few_values_are_kept_as_they_are() -> None:
    few = one(np.arange(MOST_VALUES))
    assert sketched(few) is few


def test_an_operation_with_few_values_beside_one_with_many_stays_exact() -> None:
    many = np.full(MOST_VALUES + 1, 10**6)
    few = np.array([1001, 1002, 1003])
    both = Durations(
        [("many", ""), ("few", "")],
        np.concatenate([many, few]),
        np.array([0, len(many), len(many) + 3]),
    )
    found = sketched(both)
    assert found.value_ns.tolist() == [10**6, 1001, 1002, 1003]
    assert found.weights.tolist() == [MOST_VALUES + 1, 1, 1, 1]
    assert statistics(found)[1] == statistics(one(few, "few"))[0]


def test_a_sketch_is_small() -> None:
    values = np.random.default_rng(1).lognormal(13, 0.5, 1_000_000).astype(np.int64)
    assert len(sketched(one(values)).value_ns) < 1200  # of e**13 ns times or by 100: 9.2 / ln(1.005) = 1845
