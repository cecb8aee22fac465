"""The median without `numpy.ma`: the same values as numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.base.arrays.distributions import median


@pytest.mark.parametrize("values", [[7], [3, 1], [5, 1, 4], [2, 9, 2, 4], [0.5, -1.5]])
def test_the_median_is_numpys(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)
