"""Where the nodes of a graph are drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.cli.graph.layout import draw
from analyzer.model.graph.dag import Dag
from analyzer.report.result import Network
from conftest import examples
from make import random_dags


def drawn(dag: Dag) -> Network:
    return draw(dag, dag.longest_path())


def column(chart: Network, key: str) -> list[Any]:
    return [getattr(node, key) for node in chart.nodes]


@settings(max_examples=examples(100), deadline=None)
@given(random_dags(), st.booleans())
def test_no_two_nodes_share_a_place(dag: Dag, joined: bool) -> None:
    found = draw(dag, dag.longest_path(), joined=joined)
    assert len(set(zip(column(found, "x"), column(found, "y"), strict=True))) == len(found.nodes)


@settings(max_examples=examples(100), deadline=None)
@given(random_dags())
def test_every_operation_is_in_one_box_and_time_goes_to_the_right(dag: Dag) -> None:
    found = drawn(dag)
    assert sorted(name for node in found.nodes for name in node.names) == sorted(dag.names)
    if dag.dur_ns.any():
        assert sum(column(found, "dur_ms")) == pytest.approx(dag.dur_ns.sum() / 1e6)
    assert all(found.nodes[a].x < found.nodes[b].x for a, b, _ in found.edges)


def test_a_chain_of_one_kind_is_a_box_with_the_name_of_its_longest_operation() -> None:
    dag = Dag.of(["a", "b", "c", "d"], ["FW", "FW", "FW", "BW"], [1, 7, 2, 4], [(0, 1), (1, 2), (2, 3)])
    boxes = [(node.label, node.dur_ms, node.x) for node in drawn(dag).nodes]
    assert boxes == [("b +2", 1e-5, 0), ("d", 4e-6, 1)]
    path = dag.longest_path()
    everything = draw(dag, path, joined=False)  # for other programs
    assert [node.label for node in everything.nodes] == ["a", "b", "c", "d"]


def test_each_rank_has_a_lane_and_its_boxes_need_no_prefix() -> None:
    dag = Dag.of(["r0.a", "r1.b", "r1.c"], ["FW", "FW", "BW"], [5, 3, 3], [(0, 2), (1, 2)])
    found = draw(dag, dag.longest_path(), "", [0, 1, 1], ["r0", "r1"])
    assert [node.label for node in found.nodes] == ["a", "b", "c"]
    everything = draw(dag, dag.longest_path(), "", [0, 1, 1], ["r0", "r1"], joined=False)
    assert [node.label for node in everything.nodes] == ["r0.a", "r1.b", "r1.c"]  # for other programs
    (_, first), (_, second) = found.lanes
    assert first <= found.nodes[0].y < second <= min(found.nodes[1].y, found.nodes[2].y)


def test_the_critical_path_has_the_first_row() -> None:
    found = drawn(Dag.of("abcd", [""] * 4, [1, 2, 9, 1], [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [found.nodes[i].y for i in (0, 2, 3)] == [0, 0, 0]
    assert (found.nodes[1].y > 0, found.nodes[1].critical) == (True, False)
