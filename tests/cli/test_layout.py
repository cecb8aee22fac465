"""Where the nodes of a graph are drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from analyzer.cli.graph.layout import draw
from analyzer.model.graph.model import Dag
from analyzer.report.result import Network
from conftest import examples
from make import random_dags


def drawn(dag: Dag) -> Network:
    return draw(dag, dag.longest_path())


def column(chart: Network, key: str) -> list[Any]:
    return [getattr(node, key) for node in chart.nodes]


@settings(max_examples=examples(100), deadline=None)
@given(random_dags())
def test_no_two_nodes_share_a_place(dag: Dag) -> None:
    found = drawn(dag)
    assert len(set(zip(column(found, "x"), column(found, "y"), strict=True))) == len(dag)


def test_the_critical_path_has_the_first_row() -> None:
    found = drawn(Dag.of("abcd", [""] * 4, [1, 2, 9, 1], [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [found.nodes[i].y for i in (0, 2, 3)] == [0, 0, 0]
    assert (found.nodes[1].y > 0, found.nodes[1].critical) == (True, False)
