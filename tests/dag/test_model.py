"""Depth and components of graphs."""

from __future__ import annotations

from dag.model import new_dag


def test_components_and_depth() -> None:
    dag = new_dag("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (0, 2)])
    assert dag.components() == 3
    assert dag.depths() == [1, 2, 3, 1, 1]
