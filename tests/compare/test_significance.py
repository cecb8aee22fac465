"""`compare.significance`: tests agree with scipy's; many small operations hide no large one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.compare import simulated
from compare.significance import (
    Change,
    Family,
    changes,
    corrected,
    corrected_by_family,
    families,
    rank_sum,
    sample,
    usual_variance,
    welch,
)
from compare.thresholds import FEWEST_STEPS, LEVEL  # fmt: skip
from dialects import Role

values = st.floats(1, 1e6).map(lambda value: round(value, 3))


def test_a_step_counts_once_however_many_events_it_has() -> None:
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


@given(arrays(float, (3, 5), elements=values), arrays(float, (3, 6), elements=values))
def test_swapping_the_runs_changes_only_the_sign(a: np.ndarray, b: np.ndarray) -> None:
    there, back = welch(sample(a), sample(b)), welch(sample(b), sample(a))
    np.testing.assert_allclose(there.change, -back.change)
    np.testing.assert_allclose(there.low, -back.high, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(there.p, back.p, rtol=1e-9)


def test_too_few_steps_have_no_p_value() -> None:
    found = welch(sample([[1.0, 2.0]]), sample([[5.0, 6.0, 7.0]]))
    assert found.change[0] == 4.5
    assert np.isnan([found.p[0], found.low[0], found.high[0]]).all()


def test_constant_values_differ_for_certain_or_not_at_all() -> None:
    found = welch(sample([[3.0] * 4, [3.0] * 4]), sample([[3.0] * 4, [4.0] * 4]))
    assert found.p.tolist() == [1.0, 0.0]
    assert (found.low[1], found.high[1]) == (1.0, 1.0)


def test_correction_is_that_of_benjamini_and_hochberg() -> None:
    found = corrected(np.array([0.01, np.nan, 0.04, 0.03, 0.5]))
    # four tests, sorted: 0.01 * 4/1, 0.03 * 4/2, 0.04 * 4/3, 0.5 * 4/4, each at most its successor
    np.testing.assert_allclose(found, [0.04, np.nan, 0.16 / 3, 0.16 / 3, 0.5])


def test_runs_of_one_setup_are_seldom_called_different() -> None:
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(20):
        a, b = rng.lognormal(0, 0.5, (200, 10)), rng.lognormal(0, 0.5, (200, 12))
        false += int((corrected(welch(sample(a), sample(b)).p) <= 0.05).sum())
    assert false <= 0.01 * 20 * 200


def test_single_tests_under_the_null_keep_to_their_level() -> None:
    rng = np.random.default_rng(2)
    p = welch(sample(rng.normal(100, 10, (4000, 11))), sample(rng.normal(100, 20, (4000, 6)))).p
    assert 0.035 <= (p <= 0.05).mean() <= 0.06


def correlated(rng: np.random.Generator, rows: int, steps: int, r: float) -> np.ndarray:
    """Series whose neighbours correlate by `r`, as load from outside makes them."""
    noise = rng.normal(0, 1, (rows, steps))
    for step in range(1, steps):
        noise[:, step] = r * noise[:, step - 1] + np.sqrt(1 - r * r) * noise[:, step]
    return 100 + 10 * noise


@pytest.mark.slow
def test_correlated_steps_are_not_taken_for_many_independent_ones() -> None:
    rng = np.random.default_rng(3)
    a, b = correlated(rng, 1000, 60, 0.7), correlated(rng, 1000, 60, 0.7)
    naive = np.asarray(scipy.stats.ttest_ind(a, b, axis=1, equal_var=False).pvalue)
    ours = welch(sample(a), sample(b)).p
    assert (naive <= 0.05).mean() > 0.25
    assert (ours <= 0.05).mean() < 0.10


def _two_runs(spread: np.ndarray, seed: int, slower: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return ten steps of each run (m, 10); each varies by its `spread` (m,), the first is slower."""
    rng = np.random.default_rng(seed)
    a, b = 100 * (1 + spread[:, None] * rng.normal(0, 1, (2, len(spread), 10)))
    b[0] *= slower
    return a, b


def test_the_prior_of_variances_is_the_one_they_were_drawn_with() -> None:
    # sigma² = 0.04 * 8 / chi²(8), and s² = sigma² * chi²(9) / 9
    rng = np.random.default_rng(0)
    true = 0.04 * 8 / rng.chisquare(8, 20_000)
    usual, weight = usual_variance(true * rng.chisquare(9, 20_000) / 9, np.full(20_000, 9))
    assert usual == pytest.approx(0.04, rel=0.05)
    assert weight == pytest.approx(8, rel=0.15)


def test_few_quantities_tell_nothing_of_each_other() -> None:
    a, b = map(sample, _two_runs(np.full(9, 0.1), seed=1))
    np.testing.assert_array_equal(welch(a, b, np.zeros(9, np.int64)).p, welch(a, b).p)


def test_what_varies_more_than_its_like_is_not_taken_to_vary_less() -> None:
    spread = np.where(np.arange(40) == 0, 1.0, 0.05)
    a, b = map(sample, _two_runs(spread, seed=2))
    error = np.sqrt((a.sd**2 / a.n + b.sd**2 / b.n)[0])
    assert welch(a, b, np.zeros(40, np.int64)).p[0] >= 2 * scipy.stats.norm.sf(
        abs(b.mean - a.mean)[0] / error
    )


def test_quantities_that_vary_alike_find_more_without_false_alarms() -> None:
    found = {False: 0, True: 0}
    false = 0
    for seed in range(200):
        a, b = map(sample, _two_runs(np.full(40, 0.12), seed, slower=1.2))
        for together in found:
            p = corrected(welch(a, b, np.zeros(40, np.int64) if together else None).p)
            found[together] += int(p[0] <= LEVEL)
            false += int(together and (p[1:] <= LEVEL).any())
    assert found[True] > found[False]
    assert false <= 0.05 * 200 + 2 * np.sqrt(200 * 0.05 * 0.95)


def test_a_family_of_unequal_variances_keeps_quiet() -> None:
    false = 0
    for seed in range(200):
        spread = 0.1 * np.exp(np.random.default_rng(seed + 10**6).normal(0, 0.7, 40))
        a, b = map(sample, _two_runs(spread, seed))
        false += int((corrected(welch(a, b, np.zeros(40, np.int64)).p) <= LEVEL).any())
    assert false <= 0.05 * 200 + 2 * np.sqrt(200 * 0.05 * 0.95)


def test_difference_and_share_are_of_the_base() -> None:
    change = Change(200.0, 250.0)
    assert (change.ns, change.relative) == (50.0, 0.25)


def test_from_nothing_has_no_share_and_nothing_to_nothing_none() -> None:
    assert Change(0.0, 5.0).relative is None
    assert Change(0.0, 0.0).relative == 0.0
    assert Change(None, 5.0).ns is None


def test_what_is_not_tested_does_not_dilute_the_rest() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(10, 1, (20, 6)), rng.normal(10, 1, (20, 6))
    b[0] += 3
    only_first = np.arange(20) == 0
    alone = changes(sample(a[:1]), sample(b[:1]))[0]
    first, *others = changes(sample(a), sample(b), tested=only_first)
    assert first.p == pytest.approx(alone.p)
    assert {other.p for other in others} == {None}


def test_the_rank_sum_test_bears_outliers_that_hide_a_shift_from_the_mean() -> None:
    # all ten steps are 25 later; one in each run is so long that the means tell nothing
    a = np.array([100.0, 104, 101, 103, 1000, 102, 108, 105, 107, 106])
    b = a + 25
    wanted = scipy.stats.mannwhitneyu(a, b, method="asymptotic", use_continuity=False).pvalue
    assert rank_sum(a, b) == pytest.approx(wanted)
    assert wanted < 0.01
    assert (changes(sample(a), sample(b))[0].p or 0.0) > 0.5
    tied = np.array([100.0, 100, 101, 101, 100, 102])
    wanted = scipy.stats.mannwhitneyu(tied, tied + 1, method="asymptotic", use_continuity=False).pvalue
    assert rank_sum(tied, tied + 1) == pytest.approx(wanted)
    assert rank_sum(a, a) == pytest.approx(1.0)
    assert rank_sum(np.full(5, 7.0), np.full(5, 7.0)) == 1.0


# ---- families of operations


def test_which_operation_is_in_which_family() -> None:
    names = ["BW.a", "BW.tiny", "Comm.x", "Comm.x.PUSH.0", "ncclKernel_AllReduce", "aten::add"]
    of = [Role.COMPUTE, Role.COMPUTE, Role.WHOLE_COMM, Role.COMM, Role.COMM, Role.HOST]
    role = np.array(of, np.int8)
    share = np.array([0.01, 0.0009, 0.5, 0.3, 0.1, 0.2])
    assert families(names, role, share).tolist() == [
        Family.COMPUTATION, Family.REST, Family.TRANSFERS, Family.STAGES, Family.TRANSFERS, Family.REST,
    ]  # fmt: skip


def test_operations_of_one_family_and_size_are_corrected_as_usual() -> None:
    p = np.array([0.001, 0.02, 0.5, np.nan])
    found = corrected_by_family(p, np.full(4, int(Family.REST)), np.full(4, 0.1))
    assert found == pytest.approx(np.minimum(corrected(p) / 0.9, 1.0), nan_ok=True)


def test_a_thousand_stages_leave_the_p_value_of_a_computation_alone() -> None:
    family = np.array([Family.COMPUTATION] * 2 + [Family.STAGES] * 1000)
    p = np.r_[0.01, 0.5, np.full(1000, 0.5)]
    found = corrected_by_family(p, family, np.full(1002, 0.1))
    # twice for its own family, and its part of the false alarms: 0.8 of 0.8 + 0.06, of which 0.9 are used
    assert found[0] == pytest.approx(0.01 * 2 * 0.86 / 0.8 / 0.9)


@pytest.mark.slow
def test_a_slower_operation_is_found_and_false_alarms_are_rare() -> None:
    rates = simulated(60, by_family=True)
    alone = simulated(60, by_family=False)
    assert rates.found >= 0.3  # 0.4 over many jobs
    assert rates.found > alone.found
    assert rates.false_alarm <= 0.12  # 0.05
