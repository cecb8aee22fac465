"""Where the nodes of a graph are drawn."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import examples
from dag.model import Dag, longest_path, new_dag
from make import random_dags
from options.graph.layout import FreeRows, draw, draw_folded
from result import Network


def drawn(dag: Dag, most: int = 1000) -> Network:
    return draw(dag, longest_path(dag), most=most)


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


def test_chains_of_a_large_graph_are_one_box_each() -> None:
    # 0 leads to a chain of 40 (the longer) and to one of 30; both lead to 71, which leads to 72
    first, second = [*range(1, 41)], [*range(41, 71)]
    edges = [(0, 1), (0, 41), (40, 71), (70, 71), (71, 72)]
    edges += [(a, a + 1) for chain in (first, second) for a in chain[:-1]]
    cats = ["FW"] * 41 + ["BW"] * 32
    dag = new_dag([f"op{i}" for i in range(73)], cats, [2_000_000] * 73, edges)
    found = draw_folded(dag, longest_path(dag))
    assert column(found, "label") == ["op0", "40 operations", "30 operations", "op71", "op72"]
    assert column(found, "cat") == ["FW", "FW", "BW", "BW", "BW"]
    assert column(found, "dur_ms") == [2, 80, 60, 2, 2]
    assert column(found, "slack_ms") == [0, 0, 20, 0, 0]
    assert column(found, "critical") == [True, True, False, True, True]
    assert found.nodes[2]["members"] == [(f"op{i}", 2.0) for i in second]
    assert {(a, b) for a, b, _ in found.edges} == {(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)}
    assert set(found.path) == {(0, 1), (1, 3), (3, 4)}
    assert found.note == "73 operations are drawn as 5: a chain is one box, which a click opens"


@settings(max_examples=examples(100), deadline=None)
@given(random_dags())
def test_a_small_graph_is_not_folded(dag: Dag) -> None:
    assert draw_folded(dag, longest_path(dag)) == draw(dag, longest_path(dag))


def test_nothing_can_be_drawn_too() -> None:
    assert drawn(new_dag([], [], [])).nodes == []


@given(st.lists(st.integers(1, 12), max_size=40))
def test_the_nearest_free_row_is_taken(wishes: list[int]) -> None:
    free, taken = FreeRows(), set[int]()
    for wish in wishes:
        expected = min(set(range(1, 60)) - taken, key=lambda row: (abs(row - wish), row))
        assert free.take(wish) == expected
        taken.add(expected)


def test_a_box_of_an_overview_names_so_many_of_its_operations_that_a_page_stays_small() -> None:
    n = 40_000
    names = [f"rank{i}.op" for i in range(n)]
    dag = new_dag(names, ["FW"] * n, [1_000_000] * n, [(i, i + 1, 0) for i in range(n // 2)])
    boxes = draw_folded(dag, longest_path(dag)).nodes
    assert sum(len(box["members"]) for box in boxes) <= 15_000 + len(boxes)
    assert max(len(box["members"]) for box in boxes) > 1_000
    for box in boxes:
        assert sum(ms for _, ms in box["members"]) == box["dur_ms"]
    assert any(box["members"][-1][0].endswith(" more names") for box in boxes)


def test_a_graph_too_large_to_be_read_is_an_overview_of_categories_in_stretches() -> None:
    n = 540  # one after the other, but each also waits for one that nothing else knows: no chain
    names = [f"FW.a #{i}" for i in range(n)] + [f"I/O.b{i}" for i in range(n)]
    edges = [(i, i + 1, 0) for i in range(n - 1)] + [(n + i, i, 0) for i in range(n)]
    dag = new_dag(names, ["FW"] * n + ["I/O"] * n, [1_000_000] * 2 * n, edges)
    chart = draw_folded(dag, longest_path(dag))
    assert [node["label"] for node in chart.nodes].count("FW") == 9
    first = chart.nodes[0]
    assert (first["label"], first["dur_ms"], first["critical"]) == ("FW", 60.0, True)
    assert first["members"] == [("FW.a ×60", 60.0)]
    loading = [node for node in chart.nodes if node["cat"] == "I/O"]
    assert sum(len(node["members"]) for node in loading) == n
    assert len({(node["x"], node["y"]) for node in chart.nodes}) == len(chart.nodes)
    assert "1,080 operations are drawn as 10 boxes" in chart.note
    still = drawn(dag, 1_079)
    assert [node["operations"] for node in still.nodes] == [60] * 9 + [540]
    assert not any("members" in node for node in still.nodes)
    assert len(drawn(dag, 1_080).nodes) == 1_080
