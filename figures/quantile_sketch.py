"""Durations in few values: exact where they are few, else sketched with a stated error.

The sketch is that of logarithmic buckets (DDSketch: Masson, Rim, Lee, PVLDB 12, 2019): a bucket reaches
from a power of `_GROWTH` to the next, and all of its durations are taken for the middle between the least
and the greatest of them. Each is then off by at most half the bucket's width and, by rounding, half a
nanosecond: together at most `ERROR` of itself, as a bucket below 200 ns holds one whole number only. So is
every quantile, since the order of the values stays; also that of several ranks together.
"""

from __future__ import annotations

import numpy as np

from figures.durations import Durations

#: How far a quantile from a sketch is off at most, as a share of itself.
ERROR = 0.005
#: Operations with more events on a rank than this are sketched.
MOST_VALUES = 256
_GROWTH = 1 + ERROR
_MOST_TOTAL = 1 << 62  # nanoseconds: a sum beyond has no place in a file


def sketched(durations: Durations) -> Durations:
    """Return the durations with those of operations that have more than `MOST_VALUES` events sketched.

    Their count, sum, variance and extremes stay exact (`Durations.moments`).
    """
    many = np.diff(durations.start) > MOST_VALUES
    if durations.weight is not None or not many.any():
        return durations
    many &= np.add.reduceat(durations.value_ns.astype(np.float64), durations.start[:-1]) < _MOST_TOTAL
    op = np.repeat(np.arange(len(many)), np.diff(durations.start))
    value = durations.value_ns
    bucket = np.where(value > 0, np.floor(np.log(np.maximum(value, 1)) / np.log(_GROWTH)), -1.0)
    first = np.ones(len(value), np.bool_)  # of its bucket; where all are kept each value has its own
    first[1:] = ~many[op[1:]] | (op[1:] != op[:-1]) | (bucket[1:] != bucket[:-1])
    at = np.flatnonzero(first)
    last = np.append(at[1:], len(value)) - 1
    middle = value[at] + (value[last] - value[at]) // 2
    start = np.searchsorted(at, durations.start)
    moments = {i: durations.moments_of(i) for i in np.flatnonzero(many).tolist()}
    return Durations(durations.operations, middle, start, last - at + 1, moments)
