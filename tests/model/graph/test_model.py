"""Graphs: depth, components, and the longest path, worked out by hand, and their laws."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.model.graph.critical_path import NO_EVENT, critical_path
from analyzer.model.graph.model import Dag
from analyzer.reading.dialects.step_parts import Edge
from conftest import examples
from make import random_dags, rank_steps, recording


def test_components_and_depth() -> None:
    dag = Dag.of("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (0, 2)])
    assert dag.components() == 3
    assert dag.depths() == [1, 2, 3, 1, 1]


def test_a_diamond_takes_its_longer_side() -> None:
    #    0:1 -> 1:5 -> 3:2     and 0 -> 2:3 -> 3
    found = Dag.of("abcd", [""] * 4, [1, 5, 3, 2], [(0, 1), (0, 2), (1, 3), (2, 3)]).longest_path()
    assert (found.nodes, found.length_ns) == ([0, 1, 3], 8)
    assert found.slack_ns.tolist() == [0, 0, 2, 0]


def test_a_tie_goes_to_the_edge_that_comes_first() -> None:
    found = Dag.of("abcd", [""] * 4, [1, 5, 5, 2], [(0, 2), (0, 1), (2, 3), (1, 3)]).longest_path()
    assert found.nodes == [0, 2, 3]
    assert found.slack_ns.tolist() == [0, 0, 0, 0]


def test_operations_without_time_are_on_the_path_too() -> None:
    found = Dag.of("abc", [""] * 3, [0, 4, 0], [(0, 1), (1, 2)]).longest_path()
    assert (found.nodes, found.length_ns) == ([0, 1, 2], 4)


def test_a_cycle_is_an_error_that_prints_it() -> None:
    with pytest.raises(TraceError, match=r"^the graph has a cycle: (a -> b -> a|b -> a -> b)$"):
        Dag.of("abc", [""] * 3, [1, 1, 1], [(0, 1), (1, 0), (1, 2)]).longest_path()


# -- laws


@settings(max_examples=examples(200), deadline=None)
@given(random_dags())
def test_the_path_is_a_chain_of_edges_with_no_slack(dag: Dag) -> None:
    found = dag.longest_path()
    pairs = {(a, b) for a, b, _ in dag.edges.tolist()}
    assert all(step in pairs for step in zip(found.nodes, found.nodes[1:], strict=False))
    assert dag.dur_ns[found.nodes].sum() == found.length_ns
    assert all(found.slack_ns[node] == 0 for node in found.nodes)
    assert (found.slack_ns >= 0).all()


@settings(max_examples=examples(100), deadline=None)
@given(random_dags(), st.data())
def test_slack_is_what_an_operation_may_grow_by(dag: Dag, data: st.DataObject) -> None:
    found = dag.longest_path()
    node = data.draw(st.integers(0, len(dag) - 1))
    for extra, longer in ((int(found.slack_ns[node]), 0), (int(found.slack_ns[node]) + 1, 1)):
        dur = dag.dur_ns.copy()
        dur[node] += extra
        assert replace(dag, dur_ns=dur).longest_path().length_ns == found.length_ns + longer


@given(random_dags())
@settings(deadline=None)
def test_it_is_the_critical_path_of_a_step_in_which_nothing_pauses(dag: Dag) -> None:
    chain, ends = dag.longest_path(), dag.ends(dag.dur_ns.tolist())
    assume(chain.length_ns > 0)
    times = zip(dag.names, ends, dag.dur_ns.tolist(), strict=True)
    events = {name: (end - dur, end) for name, end, dur in times}
    edges = [Edge(*pair) for pair in dag.edges[:, :2].tolist()]
    step = recording(rank_steps("rank0", events, edges, bounds=(0, chain.length_ns))).steps[0]
    path = critical_path(step)
    assert path.length_ns == chain.length_ns
    assert (path.event != NO_EVENT).all()
    assert step.slack_ns().tolist() == chain.slack_ns.tolist()
