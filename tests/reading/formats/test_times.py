"""Microseconds to nanoseconds, exactly."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.reading.formats.values import FARTHEST_NS, NO_TIME, InexactError, exact_ns, text_to_ns, to_ns


def test_integers_floats_and_text() -> None:
    assert to_ns([1795219501232034]).tolist() == [1795219501232034000]
    assert to_ns([1.5, 2]).tolist() == [1500, 2000]
    assert to_ns(["12.25", 3, None, "x", True]).tolist() == [12250, 3000, NO_TIME, NO_TIME, NO_TIME]


def test_a_value_that_is_not_a_number_is_not_a_time() -> None:
    assert to_ns([float("nan"), float("inf"), 1.0]).tolist() == [NO_TIME, NO_TIME, 1000]
    assert to_ns([10**30, 1]).tolist() == [NO_TIME, 1000]
    assert to_ns([2**62, 1]).tolist() == [NO_TIME, 1000]  # 146 000 years


def test_a_large_float_is_refused_as_inexact() -> None:
    for us in (1790857026000000.25, 1790857026000000.0):  # the latter is also what …000.003 is decoded as
        with pytest.raises(InexactError):
            to_ns([us])
    with pytest.raises(InexactError):
        to_ns([1795219501000003.125, 10**400])  # beyond all floats
    assert to_ns([1790857026000000, 0.5]).tolist() == [1790857026000000000, 500]


@given(st.integers(-(2**43 - 1) * 1000, (2**43 - 1) * 1000))
def test_floats_below_the_limit_are_exact_to_the_nanosecond(ns: int) -> None:
    written = float(Decimal(ns) / 1000)  # what a decoder makes of the decimal text
    assert to_ns([written, 0.5]).tolist()[0] == ns


@given(st.integers(-FARTHEST_NS, FARTHEST_NS))
def test_text_is_exact_for_every_nanosecond(ns: int) -> None:
    text = str(Decimal(ns) / 1000)
    assert exact_ns(text) == ns
    assert text_to_ns([text.encode()]).tolist() == [ns]


def test_a_number_beyond_all_bounds_is_not_a_time() -> None:
    assert exact_ns("1e999999999") == NO_TIME
