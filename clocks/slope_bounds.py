"""Straight lines between two clouds of points: convex hulls, and the slopes that such lines can have."""

from __future__ import annotations

from collections.abc import Callable

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

    By how much the highest lower bound exceeds the lowest upper one is a convex function of the slope, so
    the slopes for which it is not positive are an interval around its minimum.
    """

    def excess(slope: float) -> float:
        return float((low - slope * low_at).max() - (high - slope * high_at).min())

    best = _lowest(excess, -limit_ppm, limit_ppm)
    if excess(best) > 0:
        return -limit_ppm, limit_ppm
    return _root(excess, best, -limit_ppm), _root(excess, best, limit_ppm)


def _lowest(f: Callable[[float], float], low: float, high: float) -> float:
    """Return where a convex function is lowest, by ternary search."""
    for _ in range(80):
        third = (high - low) / 3
        if f(low + third) <= f(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def _root(f: Callable[[float], float], inside: float, outside: float) -> float:
    """Return how far towards `outside` a function stays at or below 0, by bisection."""
    if f(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if f(middle) <= 0 else (inside, middle)
    return outside
