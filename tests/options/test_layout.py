"""Where the nodes of a graph are drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from dag.model import Dag, longest_path, new_dag
from make import random_dags
from options.graph.layout import FreeRows, draw
from result import Network


def drawn(dag: Dag) -> Network:
    return draw(dag, longest_path(dag))


def column(chart: Network, key: str) -> list[Any]:
    return [node[key] for node in chart.nodes]


@settings(max_examples=examples(100), deadline=None)
@given(random_dags())
def test_no_two_nodes_share_a_place(dag: Dag) -> None:
    found = drawn(dag)
    assert len(set(zip(column(found, "x"), column(found, "y"), strict=True))) == len(dag)


def test_a_chain_runs_to_the_right_then_onto_the_next_band() -> None:
    found = drawn(new_dag([str(i) for i in range(12)], [""] * 12, [1] * 12, [(i, i + 1) for i in range(11)]))
    places = list(zip(column(found, "y"), column(found, "x"), strict=True))
    assert places == sorted(places)
    assert all(column(found, "critical"))
    assert {(a, b) for a, b, _ in found.edges} == set(found.path)


def test_the_critical_path_has_the_first_row() -> None:
    found = drawn(new_dag("abcd", [""] * 4, [1, 2, 9, 1], [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [found.nodes[i]["y"] for i in (0, 2, 3)] == [0, 0, 0]
    assert (found.nodes[1]["y"] > 0, found.nodes[1]["critical"]) == (True, False)


def test_what_waits_for_nothing_stands_before_its_user() -> None:
    # e is needed by d alone, the fourth of a chain
    found = drawn(new_dag("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)]))
    assert found.nodes[4]["x"] == found.nodes[2]["x"]


def test_nothing_can_be_drawn_too() -> None:
    assert drawn(new_dag([], [], [])).nodes == []


@given(st.lists(st.integers(1, 12), max_size=40))
def test_the_nearest_free_row_is_taken(wishes: list[int]) -> None:
    free, taken = FreeRows(), set[int]()
    for wish in wishes:
        expected = min(set(range(1, 60)) - taken, key=lambda row: (abs(row - wish), row))
        assert free.take(wish) == expected
        taken.add(expected)
