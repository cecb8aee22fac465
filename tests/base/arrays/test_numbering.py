"""Integers stored in the fewest bits that hold them."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.base.arrays.numbering import narrowest


@pytest.mark.parametrize(
    ("value", "bits"),
    [(0, 16), (2**15 - 1, 16), (2**15, 32), (-(2**15) - 1, 32), (2**31 - 1, 32), (2**31, 64), (-(2**40), 64)],
)
def test_a_number_has_the_bits_it_needs(value: int, bits: int) -> None:
    narrowed = narrowest(np.array([1, value]))
    assert (narrowed.dtype.itemsize * 8, narrowed.tolist()) == (bits, [1, value])
