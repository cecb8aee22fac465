"""Operations that two runs call differently but that are evidently the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from arrays import Float64, Int64
from figures.operations_by_step import Operations
from opname import OpName

_NEAR = 0.1  # of a step: farther apart nothing is the same
_CLEARLY = 3.0  # times nearer than the next candidate
_TIE = 0.02  # of a step: over how much those between two known operations are spread
_APART = 0.0005  # of a step: what two candidates must at least be apart


def pairs(
    a: Operations,
    b: Operations,
    left_a: Sequence[int],
    left_b: Sequence[int],
    shapes_a: Sequence[Hashable],
    shapes_b: Sequence[Hashable],
) -> list[tuple[int, int]]:
    """Pair operations of `a` with those of `b` that have another name, by their indices.

    They have the same worker, category, shape and count per step, and each is the other's clearly nearest in
    where they come in the step. `left_a` and `left_b` are to be paired; `shapes_a` and `shapes_b` are what
    `shapes` knows of *every* operation.
    """
    of_a, of_b = _by_signature(a, left_a, shapes_a), _by_signature(b, left_b, shapes_b)
    tie = _TIE if len(left_a) == len(left_b) else 0.0
    place_a, place_b = _slots(a, left_a, tie), _slots(b, left_b, tie)
    found: list[tuple[int, int]] = []
    for signature in of_a.keys() & of_b.keys():
        rows, columns = of_a[signature], of_b[signature]
        to_b, to_a = _clear(place_a[rows], place_b[columns]), _clear(place_b[columns], place_a[rows])
        found += [(rows[i], columns[j]) for i, j in enumerate(to_b.tolist()) if j >= 0 and to_a[j] == i]
    return sorted(found)


def shapes(
    operations: Operations, places: Sequence[Int64], of_ranks: Sequence[Sequence[Sequence[str]]]
) -> list[Hashable]:
    """Return the known shape of each operation; `places` are those of the ranks' operations.

    Kineto: the distinct input dimensions, or a kernel's grid and block. BytePS: the partition of a sub-task,
    the partitions of a whole communication.
    """
    seen: list[set[str]] = [set() for _ in operations.keys]
    for of_rank, at_rank in zip(of_ranks, places, strict=True):
        for at, known in zip(at_rank.tolist(), of_rank, strict=True):
            seen[at].update(known)
    ops = [OpName.parse(key.name) for key in operations.keys]
    partitions: dict[OpName, set[int]] = defaultdict(set)
    for op in ops:
        if op.key is not None:
            partitions[op.main].add(op.key)
    return [
        op.key if op.queue else frozenset(partitions[op] if op.is_comm else known)
        for op, known in zip(ops, seen, strict=True)
    ]


def _by_signature(
    ops: Operations, rows: Sequence[int], shape: Sequence[Hashable]
) -> dict[Hashable, list[int]]:
    steps = np.maximum((ops.count > 0).sum(1), 1)
    per_step = np.round(ops.count.sum(1) / steps, 2)
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        op = OpName.parse(ops.keys[row].name)
        groups[op.worker, op.kind, ops.keys[row].cat, shape[row], float(per_step[row])].append(row)
    return groups


def _slots(ops: Operations, left: Sequence[int], tie: float) -> Float64:
    """Return where each operation comes in the sequence of a step, 0 to 1, however long others take.

    It is the share of the operations with a namesake that come before it. Where that says nothing, the
    order among those without one counts a little (`tie`), if both runs have as many of them.
    """
    place = np.asarray(ops.place / np.maximum(ops.count.sum(1), 1), np.float64)
    known = np.sort(np.delete(place, left))
    before = np.searchsorted(known, place) / max(1, len(known))
    among = np.zeros(len(ops.keys))
    order = np.array(left)[np.argsort(place[left], kind="stable")]
    among[order] = np.linspace(0, 1, len(order))
    return np.asarray(before + tie * among, np.float64)


def _clear(places: Float64, others: Float64) -> Int64:
    """Return which of `others` is near each place (n,) and clearly the nearest, or -1.

    Where they are sorted, the two nearest are among the two before a place and the two after it: tables of
    all distances would not fit for many operations.
    """
    order = np.argsort(others, kind="stable")
    places_after = np.searchsorted(others[order], places)[:, None] + np.arange(-2, 2)
    is_one = (places_after >= 0) & (places_after < len(others))
    candidates = order[np.clip(places_after, 0, len(others) - 1)]
    distance = np.where(is_one, np.abs(places[:, None] - others[candidates]), np.inf)
    by_distance = np.argsort(distance, axis=1, kind="stable")
    nearest, next_one = np.take_along_axis(distance, by_distance, 1)[:, :2].T
    is_clear = (nearest <= _NEAR) & (next_one >= np.maximum(_CLEARLY * nearest, _APART))
    found = np.take_along_axis(candidates, by_distance, 1)[:, 0]
    return np.asarray(np.where(is_clear, found, -1), np.int64)
