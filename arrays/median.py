"""Medians, and what is far from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Steps below which nothing tells how much steps vary.
FEWEST = 4
#: A step is an outlier beyond this many median deviations from the median, and by this factor at least.
_OUTLIER_DEVIATIONS, _OUTLIER_FACTOR = 3.0, 1.10


def median(values: NDArray[np.generic]) -> float:
    """Return the median of numbers (n,), at least one and none of them NaN; `np.median` loads `numpy.ma`."""
    ordered = np.sort(values).astype(np.float64)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


def longest_usual(lengths: NDArray[np.number[Any]]) -> float:
    """Return the length beyond which a step is an outlier among steps (n,); infinite for fewer than four.

    >>> longest_usual(np.array([10, 11, 12, 13, 14]))
    15.0
    """
    if len(lengths) < FEWEST:
        return math.inf
    middle = median(lengths)
    return max(middle + _OUTLIER_DEVIATIONS * median(np.abs(lengths - middle)), _OUTLIER_FACTOR * middle)
