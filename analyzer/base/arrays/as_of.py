"""The last event of a key by a moment, for many keys and moments at once; pandas calls it merge_asof."""

from __future__ import annotations

import numpy as np

from analyzer.base.arrays import Int64, NDArray


def as_of(
    key: NDArray[np.integer],
    at_ns: Int64,
    wanted: NDArray[np.integer],
    moments: Int64,
    *,
    before: bool = False,
) -> Int64:
    """Index of the last event (n,) of each `wanted` key by each of `moments` (k,); -1 for none.

    An event at the moment itself counts, unless `before`. Of a key's events at one time the last counts.

    >>> key, at_ns = np.array([7, 7, 8]), np.array([10, 20, 15])
    >>> as_of(key, at_ns, key, np.array([5, 20, 30])).tolist()
    [-1, 1, 2]
    """
    n, keys = len(key), np.append(key, wanted)
    is_event = np.arange(len(keys)) < n
    order = np.lexsort((is_event if before else ~is_event, np.append(at_ns, moments), keys))
    last = order[np.maximum.accumulate(np.where(order < n, np.arange(len(order)), 0))]
    index = np.empty(len(order), np.int64)
    index[order] = np.where((last < n) & (keys[last] == keys[order]), last, -1)
    return index[n:]
