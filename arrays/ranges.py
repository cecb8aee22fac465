"""Ranges of integers, written out."""

from __future__ import annotations

import numpy as np

from arrays import Int64


def ranges(low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """Return all numbers from each `low` to below its `high` (n,), and from which of the n each is.

    >>> numbers, which = ranges(np.array([3, 8]), np.array([5, 9]))
    >>> numbers.tolist(), which.tolist()
    ([3, 4, 8], [0, 0, 1])
    """
    count = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(count)), count)
    return np.arange(len(which)) + (low - np.cumsum(count) + count)[which], which
