"""Where the nodes of a graph are drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from dag.layout import draw
from dag_utils import Dag, longest_path, new_dag
from make import random_dags


def drawn(dag: Dag, **options: Any) -> Any:
    return draw(dag, longest_path(dag), **options)


@settings(max_examples=100, deadline=None)
@given(random_dags())
def test_no_two_nodes_share_a_place(dag: Dag) -> None:
    found = drawn(dag)
    assert len(set(zip(found.x, found.y, strict=True))) == len(dag)


def test_a_chain_runs_to_the_right_then_onto_the_next_band() -> None:
    found = drawn(new_dag([str(i) for i in range(12)], [""] * 12, [1] * 12, [(i, i + 1) for i in range(11)]))
    places = list(zip(found.y, found.x, strict=True))
    assert places == sorted(places)
    assert all(found.critical)
    assert {(a, b) for a, b, _ in found.edges} == set(found.path)


def test_the_critical_path_has_the_first_row() -> None:
    found = drawn(new_dag("abcd", [""] * 4, [1, 2, 9, 1], [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert [found.y[i] for i in (0, 2, 3)] == [0, 0, 0]
    assert (found.y[1] > 0, found.critical[1]) == (True, False)


def test_what_waits_for_nothing_stands_before_its_user() -> None:
    # e is needed by d alone, the fourth of a chain
    found = drawn(new_dag("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)]))
    assert found.x[4] == found.x[2]


def test_a_large_graph_is_condensed_by_its_names_and_says_so() -> None:
    n = 600
    names = [f"FW.layer{i // 100}.op{i % 100}" for i in range(n)]
    found = drawn(new_dag(names, ["FW"] * n, [1] * n, [(i, i + 1) for i in range(n - 1)]), most=500)
    assert len(found.labels) < 100
    assert sum(found.members) == n
    assert sum(found.dur_ns) == n
    assert (
        found.note
        == f"condensed: 600 operations are drawn as {len(found.labels)}, by the beginnings of their names"
    )


def test_nothing_can_be_drawn_too() -> None:
    assert drawn(new_dag([], [], [])).labels == []
