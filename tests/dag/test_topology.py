"""Order, depth and components of graphs."""

from __future__ import annotations

from dag_utils import components, depths, new_dag


def test_components_and_depth() -> None:
    dag = new_dag("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (0, 2)])
    assert components(len(dag), dag.src, dag.dst) == 3
    assert depths(len(dag), dag.order(), dag.src, dag.dst) == [1, 2, 3, 1, 1]
