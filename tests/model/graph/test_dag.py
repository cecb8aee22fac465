"""DAGs: the longest path by hand and its laws, who waits for whom, and edges into the next step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.model.graph.critical_path import NO_EVENT, critical_path
from analyzer.model.graph.dag import Dag, dag_from_gml, dag_from_inputs, mean_dags
from analyzer.model.graph.path_summary import OperationSlack, longest_chain
from analyzer.reading.dialects.step_parts import Edge
from analyzer.reading.formats.columns import Trace, Track
from analyzer.reading.formats.gml import parse_gml
from conftest import examples, run_cli
from make import comm, random_dags, rank_steps, recording, span, trace_of, write


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


Pair = tuple[str, str]


def gml_of(*pairs: Pair) -> str:
    """The graph with these edges as GML."""
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    nodes = "".join(f'node [ id {i} label "{name}" avg 1 ]\n' for i, name in enumerate(names))
    ends = [(names.index(a), names.index(b)) for a, b in pairs]
    edges = "".join(f"edge [ source {a} target {b} ]\n" for a, b in ends)
    return f"graph [\ndirected 1\n{nodes}{edges}]"


def graph(*pairs: Pair) -> Dag:
    """The graph with these edges, from GML."""
    return dag_from_gml(parse_gml(gml_of(*pairs)), "dag.gml")


def events_with(inputs: Sequence[tuple[str, Sequence[str]]], key: str) -> Trace:
    """A trace of one event for each name, whose args `key`0, `key`1, … are its inputs."""
    rows = [(name, Track(0, "total"), at, 1) for at, (name, _) in enumerate(inputs)]
    args: dict[str, dict[int, object]] = {}
    for row, (_, sources) in enumerate(inputs):
        for i, source in enumerate(sources):
            args.setdefault(f"{key}{i}", {})[row] = source
    return trace_of(rows, "byteps", args=args)


def within(dag: Dag) -> set[Pair]:
    return {(dag.names[a], dag.names[b]) for a, b, _ in dag.edges.tolist()}


def onward(dag: Dag) -> set[Pair]:
    """The edges into the next step."""
    return {(dag.names[a], dag.names[b]) for a, b in dag.next_edges.tolist()}


PASS = (("I/O", "FW.a"), ("FW.a", "FW.b"), ("FW.b", "BW.b"), ("BW.b", "BW.a"))
GRADIENTS = (("BW.b", "Comm.b"), ("BW.a", "Comm.a"))


def test_weights_of_the_step_before_are_cut() -> None:
    dag = graph(*PASS, *GRADIENTS, ("Comm.a", "FW.a"), ("Comm.b", "FW.b"))
    assert within(dag) == {*PASS, *GRADIENTS}
    assert onward(dag) == {("Comm.a", "FW.a"), ("Comm.b", "FW.b")}


@pytest.mark.parametrize("key", ["input", "arg"])
def test_inputs_may_name_the_weights_of_the_step_before(key: str) -> None:
    trace = events_with([("FW.a", ["I/O", "Comm.w"]), ("BW.a", ["FW.a"]), ("Comm.w", ["BW.a"])], key)
    dag = dag_from_inputs(trace)
    assert dag is not None
    assert within(dag) == {("I/O", "FW.a"), ("FW.a", "BW.a"), ("BW.a", "Comm.w")}
    assert onward(dag) == {("Comm.w", "FW.a")}


def final_trace(with_inputs: bool) -> dict[str, object]:
    """Four steps of 30 ms: FW 4 and 3, BW 5 and 5, the gradients 9 and 11."""
    times = {
        "FW.a": (0, 4, ["I/O", "Comm.a"]), "FW.b": (4, 3, ["FW.a", "Comm.b"]), "BW.b": (7, 5, ["FW.b"]),
        "BW.a": (12, 5, ["BW.b"]), "Comm.b": (12, 9, ["BW.b"]), "Comm.a": (17, 11, ["BW.a"]),
    }  # fmt: skip
    events = [
        {
            "ph": "X", "name": name, "pid": name if name.startswith("Comm") else 0,
            "tid": "total" if name.startswith("Comm") else 1, "ts": 1000 * (at + start), "dur": 1000 * ms,
            "args": {f"arg{i}": source for i, source in enumerate(sources)} if with_inputs else {},
        }
        for at in (0, 30, 60, 90)
        for name, (start, ms, sources) in times.items()
    ]  # fmt: skip
    return {"traceEvents": events}


@pytest.mark.parametrize("with_inputs", [True, False])
def test_weights_of_the_step_before_cost_no_option_its_answer(tmp_path: Path, with_inputs: bool) -> None:
    (tmp_path / "bps_trace_final.json").write_text(json.dumps(final_trace(with_inputs)))
    if not with_inputs:
        text = gml_of(*PASS[1:], *GRADIENTS, ("Comm.a", "FW.a"), ("Comm.b", "FW.b"))
        (tmp_path / "dag.gml").write_text(text)
    answers = []
    for option in (
        "critical",
        "critical --step mean",
        f"graph --output {tmp_path}/x.svg",
        "replay --output -",
    ):
        code, out, err = run_cli("--option", *option.split(), "--path", tmp_path, "--format", "json")
        assert (code, err.count("cycle")) == (0, 0)
        answers.append(json.loads(out))
    # 30 ms with the gap before the next step; 4 + 3 + 5 + 5 + 11 along the DAG
    assert [answer["scopes"][0]["length_ms"] for answer in answers[:2]] == [30, 28]
    assert answers[3]["predicted_ms"] == {"rank0": 30}


def test_an_undirected_graph_says_nothing_about_who_waits() -> None:
    with pytest.raises(TraceError, match=r"dag\.gml: the graph is undirected"):
        dag_from_gml(parse_gml(gml_of(("a", "b")).replace("directed 1", "")), "dag.gml")


def test_avg_is_the_duration_in_milliseconds() -> None:
    dag = dag_from_gml(parse_gml(gml_of(("a", "b")).replace("avg 1", "avg 1.5", 1)))
    assert dag.dur_ns.tolist() == [1_500_000, 1_000_000]


@pytest.mark.parametrize("avg", ['"x"', "-1", "NAN", "+INF"])
def test_an_avg_that_is_no_duration_is_refused(avg: str) -> None:
    with pytest.raises(TraceError, match="not a duration"):
        dag_from_gml(parse_gml(gml_of(("a", "b")).replace("avg 1", f"avg {avg}", 1)))


def test_a_cycle_within_the_step_is_printed() -> None:
    with pytest.raises(TraceError, match=r"dag.gml: the graph has a cycle: (a -> b -> a|b -> a -> b)$"):
        graph(("a", "b"), ("b", "a"))


GML = """graph [ directed 1
  node [ id 0 label "FW.a" ] node [ id 1 label "BW.a" ] node [ id 2 label "Comm.w" ]
  node [ id 3 label "STEP" ]
  edge [ source 0 target 1 ] edge [ source 1 target 2 ] edge [ source 2 target 3 ] edge [ source 3 target 0 ]
]"""


def test_a_gpu_directory_has_averages_over_its_steps(tmp_path: Path) -> None:
    # FW 2 and 4, BW 5, the gradient 10; STEP is recorded from BW on, 3 longer than the gradient
    events = []
    for at, forward in ((0, 2), (30, 4)):
        events += [
            span("FW.a", 1000 * at, 1000 * forward), span("BW.a", 1000 * at + 4000, 5000),
            span("Comm.byteps.gradient_0", 1000 * at + 10_000, 10_000, pid="Comm", tid="total"),
            comm("byteps.gradient_0", "PUSH", 65536, 1000 * at + 11_000, 9000),
            span("STEP", 1000 * at + 9000, 14_000, tid="update"),
        ]  # fmt: skip
    write(tmp_path / "bps_trace_final.json", events)
    (tmp_path / "gradient_name_list.txt").write_text("w\n")
    (tmp_path / "dag.gml").write_text(GML)
    ((_, _, dag),), notes, _ = mean_dags([tmp_path])
    assert dict(zip(dag.names, (dag.dur_ns // 10**6).tolist(), strict=True)) == {
        "FW.a": 3, "BW.a": 5, "Comm.w": 10, "STEP": 3}  # fmt: skip
    assert dag.longest_path().length_ns == 21_000_000
    assert notes == []
