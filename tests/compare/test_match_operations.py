"""`compare.match_operations`: what is evidently the same under another name, and what is not."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np

from compare.match_operations import _clear, pairs
from figures.operations_by_step import Operations, OpKey


def ops(*rows: tuple[str, str, int, float]) -> Operations:
    """Operations given as (name, category, count per step, place in the step), of 4 steps."""
    count = np.array([[n] * 4 for _, _, n, _ in rows], np.int64)
    places = np.array([place for *_, place in rows]) * count.sum(1)
    keys = [OpKey(name, cat) for name, cat, _, _ in rows]
    roles = np.zeros(len(rows), np.int8)
    return Operations(keys, count, (10 * count).astype(np.float64), places.astype(np.float64), roles)


def paired(
    a: Operations, b: Operations, shapes_a: Sequence[str] = (), shapes_b: Sequence[str] = ()
) -> list[str]:
    """The pairs among the operations that have no namesake, as ``old=new``."""
    left = [i for i, key in enumerate(a.keys) if key not in b.keys]
    right = [j for j, key in enumerate(b.keys) if key not in a.keys]
    found = pairs(a, b, left, right, shapes_a or [""] * len(a.keys), shapes_b or [""] * len(b.keys))
    return [f"{a.keys[i].name}={b.keys[j].name}" for i, j in found]


FRAME = [("first", "cpu_op", 1, 0.0), ("last", "cpu_op", 1, 1.0)]


def test_one_other_name_at_the_same_place_is_a_pair() -> None:
    a, b = ops(*FRAME, ("load_v1", "cpu_op", 2, 0.5)), ops(*FRAME, ("load_v2", "cpu_op", 2, 0.6))
    assert paired(a, b) == ["load_v1=load_v2"]


def test_another_category_count_or_shape_is_another_operation() -> None:
    a = ops(*FRAME, ("old", "cpu_op", 2, 0.5))
    assert paired(a, ops(*FRAME, ("new", "kernel", 2, 0.5))) == []
    assert paired(a, ops(*FRAME, ("new", "cpu_op", 3, 0.5))) == []
    assert paired(a, ops(*FRAME, ("new", "cpu_op", 2, 0.5)), ["", "", "[8]"], ["", "", "[16]"]) == []


def test_another_place_is_another_operation() -> None:
    between = [(f"op{i}", "cpu_op", 1, 0.1 + 0.04 * i) for i in range(20)]
    a, b = (
        ops(*FRAME, *between, ("old", "cpu_op", 2, 0.05)),
        ops(*FRAME, *between, ("new", "cpu_op", 2, 0.95)),
    )
    assert paired(a, b) == []


def test_order_counts_not_time() -> None:
    # everything before "mid" takes longer in the second run: the places move, the order stays
    a = ops(*FRAME, ("x_old", "k", 1, 0.1), ("mid", "cpu_op", 1, 0.2), ("y_old", "k", 1, 0.3))
    b = ops(*FRAME, ("x_new", "k", 1, 0.6), ("mid", "cpu_op", 1, 0.8), ("y_new", "k", 1, 0.9))
    assert paired(a, b) == ["x_old=x_new", "y_old=y_new"]


def test_two_candidates_are_no_pair() -> None:
    wide = [(f"op{i}", "cpu_op", 1, i / 200) for i in range(1, 200)]
    a = ops(*FRAME, *wide, ("old", "k", 1, 0.5012))
    b = ops(*FRAME, *wide, ("new1", "k", 1, 0.5011), ("new2", "k", 1, 0.5013))
    assert paired(a, b) == []


def test_the_clearly_nearest_are_those_that_a_table_of_all_distances_tells() -> None:
    random = np.random.default_rng(7)
    found = 0
    for n, m, digits in itertools.product((1, 2, 5, 40), (1, 3, 40), (2, 3, 9)):
        a = random.random(n).round(digits)
        b = np.concatenate([random.random(m), a[: m // 2] + random.normal(0, 0.001, len(a[: m // 2]))])
        table = np.abs(a[:, None] - b)
        nearest = [
            j if near[j] <= 0.1 and np.delete(near, j).min(initial=np.inf) >= max(3 * near[j], 0.0005) else -1
            for near, j in zip(table, table.argmin(1).tolist(), strict=True)
        ]
        assert _clear(a, b).tolist() == nearest
        found += sum(j >= 0 for j in nearest)
    assert found > 100


def test_thousands_that_nothing_tells_apart_take_no_table_of_all_distances() -> None:
    n = 20_000  # the distances of all from all: 3.2 GB
    a, b = (ops(*FRAME, *((f"{run}{i}", "k", 1, i / n) for i in range(n))) for run in ("old", "new"))
    left = list(range(2, n + 2))
    tracemalloc.start()
    try:
        pairs(a, b, left, left, [""] * (n + 2), [""] * (n + 2))
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
