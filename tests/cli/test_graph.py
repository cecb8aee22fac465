"""Pictures of graphs: where nodes go, what the option says, and the files it writes."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from made_jobs import Job, kineto

from analyzer.reading.dialects.edge_rules import EdgeKind
from conftest import run_cli
from make import GML, write_gpu, x


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def gml(tmp_path: Path) -> Path:
    (tmp_path / "dag.gml").write_text(GML)
    return tmp_path / "dag.gml"


def test_the_figures_of_a_graph(gml: Path) -> None:
    code, out, _ = run_cli("--option", "graph", "--path", gml, "--format", "json")
    document = json.loads(out)
    del document["repairs"]
    assert document.pop("headline") == "The graph has 4 operations and 4 edges."
    assert (code, document) == (0, {
        "option": "graph", "nodes": 4, "edges": 4, "components": 1, "depth": 4,
        "by_cat": {"FW": 1, "BW": 1, "Comm": 1, "STEP": 1}, "only_in_graph": [], "only_in_trace": [],
        "output": "dag.svg",
    })  # fmt: skip
    assert gml.with_suffix(".svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF"), (".dot", b"digraph"),
     (".graphml", b"<?xml"), (".html", b"<!")],
)  # fmt: skip
def test_every_suffix_gives_its_kind_of_file(gml: Path, suffix: str, begin: bytes) -> None:
    output = gml.with_name("picture" + suffix)
    code, _, err = run_cli("--option", "graph", "--path", gml, "--output", output)
    assert code == 0, err
    assert output.read_bytes().startswith(begin)


def test_graphml_keeps_the_kind_of_an_edge_of_the_critical_path(tmp_path: Path) -> None:
    events = [
        x("FW.a", "1", 0, 5),
        x("BW.a", "1", 5, 5),
        x("Comm.w", "total", 10, 5, "Comm"),
        x("STEP", "1", 15, 5),
    ]
    output = tmp_path / "a.graphml"
    run_cli("--option", "graph", "--path", write_gpu(tmp_path / "0", GML, events), "--output", output)
    graph = nx.read_graphml(output)
    names = nx.get_node_attributes(graph, "label")
    said = {(names[a], names[b]): (d["kind"], d["critical"]) for a, b, d in graph.edges(data=True)}
    assert said == {
        ("FW.a", "BW.a"): ("data", True), ("BW.a", "Comm.w"): ("data", True),
        ("Comm.w", "STEP"): ("data", True), ("STEP", "FW.a"): ("next", False)}  # fmt: skip


def test_operations_that_only_the_graph_or_only_the_trace_knows(tmp_path: Path) -> None:
    directory = write_gpu(tmp_path / "0", GML, [x("FW.a", "1", 0, 5), x("BW.other", "1", 5, 5)])
    code, out, _ = run_cli("--option", "graph", "--path", directory, "--format", "json")
    document = json.loads(out)
    assert (code, document["only_in_graph"]) == (0, ["BW.a", "Comm.w", "STEP"])
    assert document["only_in_trace"] == ["BW.other"]
    _, out, _ = run_cli("--option", "graph", "--path", directory, "--force")
    assert "3 operations in the graph but not in the trace: BW.a, Comm.w, STEP\n" in out
    assert "1 operation in the trace but not in the graph: BW.other\n" in out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GML.replace("  directed 1\n", ""), "undirected"),
        (GML.replace('"STEP"', '"BW.end"'), "the graph has a cycle"),
        ("", "no graph"),
    ],
)
def test_broken_graphs_are_one_line(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "dag.gml").write_text(text)
    code, out, err = run_cli("--option", "graph", "--path", tmp_path / "dag.gml")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert what in err
    assert not (tmp_path / "dag.svg").exists()


def test_more_than_a_thousand_operations_are_for_other_programs(tmp_path: Path) -> None:
    nodes = "".join(f'node [ id {i} label "FW.op{i}" ]\n' for i in range(1_001))
    (tmp_path / "dag.gml").write_text(f"graph [\ndirected 1\n{nodes}edge [ source 0 target 1 ]\n]\n")
    code, out, err = run_cli("graph", tmp_path / "dag.gml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "1,001 nodes" in err and ".dot" in err and ".graphml" in err
    assert run_cli("graph", tmp_path / "dag.gml", "--output", tmp_path / "dag.dot")[0] == 0


def edge_kinds(job: Path, output: Path) -> dict[tuple[str, str], str]:
    code, _, err = run_cli("graph", job, "--output", output)
    assert code == 0, err
    graph = nx.read_graphml(output)
    names = nx.get_node_attributes(graph, "label")
    return {(names[a], names[b]): data["kind"] for a, b, data in graph.edges(data=True)}


def test_edges_of_a_recorded_step_have_the_kind_of_their_rule(tmp_path: Path) -> None:
    kinds = edge_kinds(kineto(tmp_path / "job", Job(ranks=1, steps=4)), tmp_path / "a.graphml")
    assert kinds["aten::forward_a", "aten::forward_b"] == "device"  # Rule.THREAD has another number


def test_a_graph_of_a_recorded_gpu_job_is_drawn(shared_data: Path, tmp_path: Path) -> None:
    kinds = edge_kinds(shared_data / "kineto/gpu-hta-rank0of16", tmp_path / "a.graphml")
    assert {"device", "launch"} <= {*kinds.values()} <= {kind.label for kind in EdgeKind}
