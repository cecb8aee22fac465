"""Graphs: depth, components, and the longest path, worked out by hand, and their laws."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.model.graph.critical_path import NO_EVENT, critical_path
from analyzer.model.graph.model import Dag
from analyzer.model.graph.path_summary import OperationSlack, longest_chain
from analyzer.reading.dialects.step_parts import Edge
from conftest import examples
from make import random_dags, rank_steps, recording


def test_components_and_depth() -> None:
    dag = Dag.of("abcde", [""] * 5, [1] * 5, [(0, 1), (1, 2), (0, 2)])
    assert dag.components() == 3
    assert dag.depths() == [1, 2, 3, 1, 1]


@pytest.mark.parametrize(
    ("durations", "edges", "nodes", "slack"),
    [
        ([1, 5, 3, 2], [(0, 1), (0, 2), (1, 3), (2, 3)], [0, 1, 3], [0, 0, 2, 0]),  # a diamond
        ([1, 5, 5, 2], [(0, 2), (0, 1), (2, 3), (1, 3)], [0, 2, 3], [0, 0, 0, 0]),  # a tie: the first edge
        ([0, 4, 0], [(0, 1), (1, 2)], [0, 1, 2], [0, 0, 0]),  # operations without time are on the path
    ],
)
def test_the_longest_path_and_the_slack_of_the_others(
    durations: list[int], edges: list[tuple[int, int]], nodes: list[int], slack: list[int]
) -> None:
    path = Dag.of("abcd"[: len(durations)], [""] * len(durations), durations, edges).longest_path()
    assert (path.nodes, path.length_ns) == (nodes, sum(durations[node] for node in nodes))
    assert path.slack_ns.tolist() == slack


def test_a_cycle_is_an_error_that_prints_it() -> None:
    with pytest.raises(TraceError, match=r"^the graph has a cycle: (a -> b -> a|b -> a -> b)$"):
        Dag.of("abc", [""] * 3, [1, 1, 1], [(0, 1), (1, 0), (1, 2)]).longest_path()


def test_the_longest_chain_is_the_path_of_its_gpu_and_all_others_have_slack() -> None:
    #  a:1 -> b:5      a, b is the longest: 6; c could take 6 - (1 + 3) = 2 more
    #      -> c:3
    dag = Dag.of(["a", "b", "c"], ["FW", "BW", "Comm"], [1, 5, 3], [(0, 1), (0, 2)])
    scope, operations = longest_chain("GPU-1", 2, dag)
    assert (scope.name, scope.kind, scope.worker, scope.length_ns) == ("GPU-1", "GPU", 2, 6)
    path = scope.path()
    assert [label.name for label in path.labels] == ["a", "b"]
    assert path.ns == [1, 5]
    assert operations == [
        OperationSlack("a", "FW", 1, 0), OperationSlack("b", "BW", 5, 0), OperationSlack("c", "Comm", 3, 2),
    ]  # fmt: skip


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
