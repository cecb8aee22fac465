"""`arrays.distributions` against scipy."""

from __future__ import annotations

import itertools

import pytest
import scipy

from arrays.distributions import binomial_tail, student_cdf, student_quantile


@pytest.mark.slow  # scipy.special is imported
def test_they_are_those_of_scipy() -> None:
    for df, t in itertools.product((1, 2, 3, 4.5, 10, 100, 5000), (-50, -8, -3, -1, -0.01, 0, 0.5, 2, 10)):
        assert student_cdf(df, t) == pytest.approx(scipy.special.stdtr(df, t), rel=1e-9, abs=0)
        assert student_quantile(df, 0.975) == pytest.approx(scipy.special.stdtrit(df, 0.975), rel=1e-9)
    for of, times, share in itertools.product(
        (1, 5, 20, 300), (0, 1, 2, 5, 200), (0.0, 0.001, 0.05, 0.5, 0.9, 1.0)
    ):
        expected = scipy.special.bdtrc(times - 1, of, share) if 0 < times <= of else float(times == 0)
        assert binomial_tail(times, of, share) == pytest.approx(expected, rel=1e-9, abs=0)
