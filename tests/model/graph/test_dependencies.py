"""Who waits for whom: edges that lead into the next step are cut, in every form that is documented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzer.base.errors import TraceError
from analyzer.model.graph.dependencies import dag_from_inputs
from analyzer.model.graph.model import Dag, dag_from_gml
from analyzer.reading.formats.columns import Trace, Track
from analyzer.reading.formats.gml import parse_gml
from conftest import run_cli
from make import trace_of

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
