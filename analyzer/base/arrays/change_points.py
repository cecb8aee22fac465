"""The span of a series in which its values are higher than outside."""

from __future__ import annotations

import numpy as np

from analyzer.base.arrays import Float64
from analyzer.base.arrays.distributions import MAD_TO_SD, MEDIAN_TO_MEAN

#: Most points of a search (7 ms); a longer series is reduced to means of this many stretches. Half or twice
#: the number finds the same faults (docs/dev/accuracy.md, 6).
_MOST_POINTS = 500
#: Most standard deviations of a point from the median, so that a few outliers do not make a span. With 3, one
#: of 26 faults is missed; 8 finds no more (docs/dev/accuracy.md, 6).
_CLIPPED = 5.0
_LEAST_BLOCKS = 10
_SMOOTHED = 5  # values of each median: twice the most single outliers in a row, and one
#: Least steps of a span, and most spans of a series.
LEAST_STEPS, MOST_SPANS = _SMOOTHED, 20


def higher_spans(values: Float64, least_more: float, sure: float) -> list[tuple[int, int]]:
    """Find the spans in which a series (k,) is higher, one after the other.

    Each span is higher by at least `least_more` and by at least `sure` standard errors; its excess is removed
    before the next search.

    >>> higher_spans(np.array([5.0, 6, 5, 6, 5, 6, 9, 8, 9, 8, 9, 8]), 1.0, 3.0)
    [(6, 12)]
    """
    left = values.astype(np.float64)
    spans = []
    for _ in range(MOST_SPANS):
        begin, end = higher_span(left, LEAST_STEPS)
        outside = np.concatenate([left[:begin], left[end:]])
        if not len(outside):
            break
        more = float(np.median(left[begin:end]) - np.median(outside))
        if more < max(least_more, sure * difference_error(left, end - begin)):
            break
        spans.append((begin, end))
        left[begin:end] -= more
    return spans


def difference_error(values: Float64, length: int) -> float:
    """Compute the standard error of the median of `length` values in a row minus that of the others."""
    others = max(len(values) - length, 1)
    return MEDIAN_TO_MEAN * level_error(values, length) * float(np.sqrt(1 + length / others))


def higher_span(values: Float64, least: int) -> tuple[int, int]:
    """Find begin and end of the span of at least `least` values that stands out most upwards.

    Circular binary segmentation (Olshen, Venkatraman, Lucito, Wigler, Biostatistics 5, 2004): the span with
    the largest difference of its mean from the other values' in standard errors. The values are running
    medians of five, so that one or two outliers make no span. Without a span the result is the whole series.

    >>> higher_span(np.array([0.0, 1, 0, 1, 9, 8, 9, 8, 9, 0, 1, 0, 1, 0]), 3)
    (4, 9)
    >>> higher_span(np.zeros(50_000), 5)
    (0, 50000)
    """
    n = len(values)
    values = around(values, _SMOOTHED)
    width = -(-n // _MOST_POINTS)
    if width == 1:
        return _largest(values, least)
    edges = np.arange(0, n, width)
    means = np.add.reduceat(values, edges) / np.diff(np.append(edges, n))
    begin, end = _largest(means, max(1, least // width))
    begin = _sharpened(values, begin * width, width, +1)
    end = _sharpened(values, min(end * width, n), width, -1)
    return (begin, end) if least <= end - begin <= n - least else (0, n)


def spread_of(values: Float64) -> float:
    """Estimate the standard deviation of the noise around a level that changes now and then."""
    steps = np.diff(values)
    return float(MAD_TO_SD * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2)) if len(steps) else 0.0


def clipped_to_noise(values: Float64) -> Float64:
    """Clip values to `_CLIPPED` standard deviations around the median."""
    middle, far = np.median(values), _CLIPPED * (spread_of(values) or np.std(values))
    return np.clip(values, middle - far, middle + far)


def level_error(values: Float64, length: int) -> float:
    """Estimate the standard error of the level of `length` values in a row with correlated noise.

    The largest error of means of blocks of growing length (Flyvbjerg, Petersen, J. Chem. Phys. 91, 1989), as
    long as there are ten blocks.

    >>> noise = np.random.default_rng(0).normal(size=1_000)
    >>> round(level_error(noise, 25), 1), round(level_error(np.repeat(noise, 5), 25), 1)
    (0.2, 0.4)
    """
    clipped = clipped_to_noise(values)
    worst, width = float(np.std(np.diff(clipped)) / np.sqrt(2 * length)) if len(values) > 1 else 0.0, 2
    while width <= length and len(values) >= _LEAST_BLOCKS * width:
        means = clipped[: len(values) // width * width].reshape(-1, width).mean(1)
        worst = max(worst, spread_of(means) * float(np.sqrt(width / length)))
        width *= 2
    return worst


def around(values: Float64, width: int) -> Float64:
    """Compute running medians of `width` values, an odd number; the ends are mirrored."""
    padded = np.pad(values, width // 2, mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=-1)


def _largest(z: Float64, least: int) -> tuple[int, int]:
    n = len(z)
    total = np.concatenate([[0.0], np.cumsum(z - z.mean())])
    length = np.arange(n + 1)[None, :] - np.arange(n + 1)[:, None]
    is_span = (length >= least) & (length <= n - least)
    if not is_span.any():
        return 0, n
    error = np.sqrt(np.where(is_span, length * (1 - length / n), 1.0))
    score = np.where(is_span, (total[None, :] - total[:, None]) / error, -np.inf)
    begin, end = divmod(int(score.argmax()), n + 1)
    return begin, end


def _sharpened(z: Float64, position: int, width: int, sign: int) -> int:
    """Find the change of the level within a stretch of `at`: the two sides differ most (least squares)."""
    low, high = max(position - width, 0), min(position + width, len(z))
    if position in (0, len(z)) or high - low < 2:
        return position
    part = np.cumsum(z[low:high] - z[low:high].mean()) * -sign
    return low + 1 + int(part[:-1].argmax())
