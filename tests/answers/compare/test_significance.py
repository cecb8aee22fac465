"""`compare.significance`: tests agree with scipy's and keep to their level."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analyzer.answers.compare.significance import FEWEST_STEPS, LEVEL, Change, sample, welch

values = st.floats(1, 1e6).map(lambda value: round(value, 3))


def test_a_step_counts_once_whatever_its_number_of_events() -> None:
    few = sample([[10.0, 20.0, 30.0]])
    many = sample([[100.0, 200.0, 300.0]], [[10, 10, 10]])
    assert (few.mean[0], few.sd[0], few.n[0]) == (20.0, 10.0, 3)
    assert (many.mean[0], many.sd[0], many.n[0]) == (20.0, 10.0, 3)


def test_the_mean_is_over_all_events_where_steps_have_different_numbers() -> None:
    assert sample([[10.0, 90.0, 20.0]], [[1, 3, 1]]).mean[0] == 24.0  # 120 / 5, not (10 + 30 + 20) / 3


def test_steps_without_the_operation_do_not_count() -> None:
    found = sample([[10.0, 0.0, 20.0, 30.0]], [[1, 0, 1, 1]])
    assert (found.mean[0], found.sd[0], found.steps[0]) == (20.0, 10.0, 3)


@pytest.mark.slow
@given(arrays(float, st.integers(FEWEST_STEPS, 7), elements=values, unique=True),
       arrays(float, st.integers(FEWEST_STEPS, 7), elements=values, unique=True))  # fmt: skip
def test_p_value_and_interval_are_those_of_scipy(a: np.ndarray, b: np.ndarray) -> None:
    found = welch(sample(a), sample(b))
    expected = scipy.stats.ttest_ind(b, a, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p[0] == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low[0], found.high[0]) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_too_few_steps_have_no_p_value() -> None:
    found = welch(sample([[1.0, 2.0]]), sample([[5.0, 6.0, 7.0]]))
    assert found.change[0] == 4.5
    assert np.isnan([found.p[0], found.low[0], found.high[0]]).all()


def test_constant_values_differ_for_certain_or_not_at_all() -> None:
    found = welch(sample([[3.0] * 4, [3.0] * 4]), sample([[3.0] * 4, [4.0] * 4]))
    assert found.p.tolist() == [1.0, 0.0]
    assert (found.low[1], found.high[1]) == (1.0, 1.0)


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(2, 40))
def test_several_p_values_are_corrected_and_their_intervals_agree(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(10, 1, (n, 5)), rng.normal(10, 1, (n, 6)) + rng.choice([0, 2], (n, 1))
    found = welch(sample(a), sample(b))
    alone = scipy.stats.ttest_ind(b, a, axis=1, equal_var=False).pvalue
    np.testing.assert_allclose(found.p, scipy.stats.false_discovery_control(alone), rtol=1e-6)
    is_certain = (found.low > 0) | (found.high < 0)
    assert (is_certain == (found.p <= LEVEL)).all()


def test_runs_of_one_setup_are_seldom_called_different() -> None:
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(20):
        a, b = rng.lognormal(0, 0.5, (200, 10)), rng.lognormal(0, 0.5, (200, 12))
        false += int((welch(sample(a), sample(b)).p <= 0.05).sum())
    assert false <= 0.01 * 20 * 200


def correlated(rng: np.random.Generator, rows: int, steps: int, r: float) -> np.ndarray:
    """Series whose neighbours correlate by `r`, as load from outside makes them."""
    noise = rng.normal(0, 1, (rows, steps))
    for step in range(1, steps):
        noise[:, step] = r * noise[:, step - 1] + np.sqrt(1 - r * r) * noise[:, step]
    return 100 + 10 * noise


@pytest.mark.slow
def test_correlated_steps_are_worth_fewer_independent_ones() -> None:
    rng = np.random.default_rng(3)
    a, b = correlated(rng, 1000, 60, 0.7), correlated(rng, 1000, 60, 0.7)
    naive = np.asarray(scipy.stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue)
    pairs = zip(a, b, strict=True)
    ours = np.array([welch(sample(one), sample(other)).p[0] for one, other in pairs])  # each tested alone
    assert (naive <= 0.05).mean() > 0.25
    assert (ours <= 0.05).mean() < 0.10


def test_a_change_is_a_share_of_the_base_where_there_is_one() -> None:
    assert (Change(200.0, 250.0).ns, Change(200.0, 250.0).relative) == (50.0, 0.25)
    assert (Change(0.0, 5.0).relative, Change(0.0, 0.0).relative) == (None, 0.0)
    assert Change(None, 5.0).ns is None
