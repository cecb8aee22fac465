"""Distinct values, the number of each value among them, and ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from analyzer.base.arrays import Int32, Int64, NDArray


def as_of(
    key: NDArray[np.integer],
    at_ns: Int64,
    wanted: NDArray[np.integer],
    moments: Int64,
    *,
    before: bool = False,
) -> Int64:
    """Find the last event (n,) of each `wanted` key by each of `moments` (k,); -1 for none.

    An event at the moment itself counts, unless `before`. Of a key's events at one time, the last counts.

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


_Item = TypeVar("_Item")
_Scalar = TypeVar("_Scalar", bound=np.generic)


def numbered(items: Iterable[_Item]) -> tuple[list[_Item], Int32]:
    """List the distinct items by first appearance, and each item's index among them (n,).

    >>> distinct, number = numbered(["b", "a", "b"])
    >>> distinct, number.tolist()
    (['b', 'a'], [0, 1, 0])
    """
    items = list(items)
    distinct = list(dict.fromkeys(items))
    if len(distinct) == len(items):  # as a million names may be
        return distinct, np.arange(len(items), dtype=np.int32)
    number = {item: i for i, item in enumerate(distinct)}
    return distinct, np.fromiter(map(number.__getitem__, items), np.int32, len(items))


def occurrence_number(values: Int64) -> Int64:
    """Count the earlier occurrences of each value (n,).

    >>> occurrence_number(np.array([7, 5, 7, 7, 5])).tolist()
    [0, 0, 1, 2, 1]
    """
    values = narrowest(values)  # few bits are sorted in a fraction of the time
    order = np.argsort(values, kind="stable")
    ordered, position = values[order], np.arange(len(values))
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(values)]
    count = np.empty_like(position)
    count[order] = position - np.maximum.accumulate(np.where(is_first, position, 0))
    return count


def unique(values: NDArray[_Scalar], axis: int | None = None) -> NDArray[_Scalar]:
    """List the distinct values as `np.unique` does, without loading `numpy.ma`."""
    distinct: NDArray[_Scalar] = np.unique(values, axis=axis, return_counts=True)[0]
    return distinct


def ids_in(numbers: NDArray[np.integer]) -> list[int]:
    """List the distinct integers (n,) of at least -1 in order, in linear time."""
    ids: list[int] = (np.flatnonzero(np.bincount(numbers + 1)) - 1).tolist()
    return ids


def places_by_value(values: NDArray[np.integer]) -> list[Int64]:
    """List the indices of each distinct value (n,), in order of the values.

    >>> [places.tolist() for places in places_by_value(np.array([7, 5, 7]))]
    [[1], [0, 2]]
    """
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []


def narrowest(numbers: NDArray[np.integer]) -> Int64:
    """Convert numbers to the narrowest of 16, 32 or 64 bits; for storage, not for sums."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    bits = max(low.bit_length(), high.bit_length())
    narrow: Any = np.int16 if bits < 16 else np.int32 if bits < 32 else np.int64
    return numbers.astype(narrow, copy=False)


def connected(n: int, tails: Int64, heads: Int64) -> Int64:
    """Find the least node connected with each of n nodes by edges (e,) of any direction.

    Edges join groups until no group changes; scipy takes a tenth of a second to load.

    >>> connected(5, np.array([3, 4]), np.array([4, 1])).tolist()
    [0, 1, 2, 1, 1]
    """
    part: Int64 = np.arange(n)
    while True:
        before, part = part, part.copy()
        least = np.minimum(before[tails], before[heads])
        np.minimum.at(part, before[tails], least)
        np.minimum.at(part, before[heads], least)
        part = part[part]
        if (part == before).all():
            return part


def cycles(n: int, edges: Int64) -> Int64:
    """Assign a number to each node (n,): the nodes of a cycle of `edges` (m, 2) share one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    matrix = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(n, n))
    return np.asarray(connected_components(matrix, connection="strong")[1], np.int64)


def ranges(low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """List the numbers from each `low` to below its `high` (n,), and the index of each number's range.

    >>> numbers, which = ranges(np.array([3, 8]), np.array([5, 9]))
    >>> numbers.tolist(), which.tolist()
    ([3, 4, 8], [0, 0, 1])
    """
    count = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(count)), count)
    return np.arange(len(which)) + (low - np.cumsum(count) + count)[which], which
