"""Straight lines between two clouds of points: convex hulls, and the slopes that such lines can have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_STRIPS = 2048  # corners that are looked for among very many points


def hull(x: Int64, y: Int64, side: int) -> Int64:
    """Return which points form the upper (`side` 1) or lower (-1) convex hull (monotone chain)."""
    order = _outermost(x, side * y)
    xs, ys = x[order].tolist(), (side * y[order]).tolist()
    chain: list[int] = []
    for i in range(len(xs)):
        if i and xs[i] == xs[i - 1]:
            continue  # the first of an abscissa is the outermost
        while len(chain) >= 2:
            a, b = chain[-2], chain[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[b]) > (ys[i] - ys[b]) * (xs[b] - xs[a]):
                break
            chain.pop()
        chain.append(i)
    return order[chain]


def _outermost(x: Int64, y: Int64) -> Int64:
    """Return the points, by abscissa, that may be corners: the highest of each of many narrow strips."""
    order = np.lexsort((-y, x))
    if len(order) <= 2 * _STRIPS:
        return order
    starts = np.linspace(0, len(order), _STRIPS, endpoint=False).astype(np.int64)
    tops = np.maximum.reduceat(y[order], starts)
    chosen = y[order] >= np.repeat(tops, np.diff(np.append(starts, len(order))))
    chosen[[0, -1]] = True
    return order[chosen]


def slopes(
    low_at: Float64, low: Float64, high_at: Float64, high: Float64, limit_ppm: float
) -> tuple[float, float]:
    """Return the least and greatest slope (us per s) of the lines above `low` and below `high`.

    Both are linear programmes in a line's slope and height; (-limit, limit) where no line fits.
    """
    from scipy.optimize import linprog

    rows = np.r_[np.c_[-low_at, -np.ones(len(low))], np.c_[high_at, np.ones(len(high))]]
    sides = np.r_[-low, high]
    bounds = [(-limit_ppm, limit_ppm), (None, None)]
    found = [linprog((sign, 0), A_ub=rows, b_ub=sides, bounds=bounds) for sign in (1, -1)]
    least, greatest = (each.x if each.success else None for each in found)
    if least is None or greatest is None:
        return -limit_ppm, limit_ppm
    return float(least[0]), float(greatest[0])
