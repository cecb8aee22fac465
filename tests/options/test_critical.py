"""The longest path and the option that shows it: graphs worked out by hand, and networkx as the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_model import chain, trace

from conftest import run_cli
from dag.path_summary import by_category, iteration_ns, overlap_ns
from dag_utils import Dag, Gpu, Kind, longest_path, merge, new_dag, record
from errors import DagError

# -- by hand


def test_a_diamond_takes_its_longer_side() -> None:
    #    0:1 -> 1:5 -> 3:2     and 0 -> 2:3 -> 3
    found = longest_path(new_dag("abcd", [""] * 4, [1, 5, 3, 2], [(0, 1), (0, 2), (1, 3), (2, 3)]))
    assert (found.nodes, found.part_ns, found.length_ns) == ([0, 1, 3], [1, 5, 2], 8)
    assert found.slack_ns.tolist() == [0, 0, 2, 0]
    assert found.finish_ns.tolist() == [1, 6, 4, 8]


def test_a_tie_goes_to_the_edge_that_comes_first() -> None:
    found = longest_path(new_dag("abcd", [""] * 4, [1, 5, 5, 2], [(0, 2), (0, 1), (2, 3), (1, 3)]))
    assert found.nodes == [0, 2, 3]
    assert found.slack_ns.tolist() == [0, 0, 0, 0]


def test_operations_without_time_are_on_the_path_too() -> None:
    found = longest_path(new_dag("abc", [""] * 3, [0, 4, 0], [(0, 1), (1, 2)]))
    assert (found.nodes, found.part_ns) == ([0, 1, 2], [0, 4, 0])


def test_all_durations_zero() -> None:
    found = longest_path(new_dag("abc", [""] * 3, [0, 0, 0], [(0, 1), (1, 2)]))
    assert (found.nodes, found.length_ns, found.slack_ns.tolist()) == ([0, 1, 2], 0, [0, 0, 0])


def test_of_several_sinks_the_latest_ends_the_path() -> None:
    found = longest_path(new_dag("abc", [""] * 3, [1, 3, 7], [(0, 1), (0, 2)]))
    assert (found.nodes, found.slack_ns.tolist()) == ([0, 2], [0, 4, 0])


def test_parts_that_nothing_connects() -> None:
    found = longest_path(new_dag("abcd", [""] * 4, [1, 2, 10, 4], [(0, 1)]))
    assert (found.nodes, found.slack_ns.tolist()) == ([2], [7, 7, 0, 6])


def test_one_operation_and_none() -> None:
    assert longest_path(new_dag("a", [""], [5])).nodes == [0]
    empty = longest_path(new_dag("", [], []))
    assert (empty.nodes, empty.part_ns, empty.kinds, empty.length_ns) == ([], [], [], 0)


def test_a_coupling_edge_enters_after_the_wait() -> None:
    # b waits 4 of its 10 for a, which takes 7: b ends at max(10, 7 + 6)
    dag = new_dag("ab", [""] * 2, [7, 10], [(0, 1, Kind.MESSAGE)])
    waiting = Dag(**{**{name: getattr(dag, name) for name in Dag.__slots__}, "wait_ns": np.array([0, 4])})
    found = longest_path(waiting)
    assert (found.nodes, found.part_ns, found.length_ns) == ([0, 1], [7, 6], 13)
    assert found.slack_ns.tolist() == [0, 0]


def test_a_cycle_is_an_error_that_prints_it() -> None:
    with pytest.raises(DagError, match=r"^the graph has a cycle: (a -> b -> a|b -> a -> b)$"):
        longest_path(new_dag("abc", [""] * 3, [1, 1, 1], [(0, 1), (1, 0), (1, 2)]))


def test_a_long_cycle_is_shortened() -> None:
    n = 100
    with pytest.raises(DagError, match=r"… 89 more …"):
        longest_path(
            new_dag([f"n{i}" for i in range(n)], [""] * n, [1] * n, [(i, (i + 1) % n) for i in range(n)])
        )


# -- against networkx


@st.composite
def random_dags(draw: st.DrawFn) -> Dag:
    n = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30))
    edges = {(min(a, b), max(a, b)) for a, b in pairs if a != b}
    return new_dag([str(i) for i in range(n)], [""] * n, durations, sorted(edges))


def _networkx_length(dag: Dag) -> int:
    """The longest path of a graph whose edges carry the duration of their source."""
    graph: nx.DiGraph[Any] = nx.DiGraph()
    durations = dag.dur_ns.tolist()
    graph.add_nodes_from(range(len(dag)))
    graph.add_weighted_edges_from(
        (a, b, durations[a]) for a, b in zip(dag.src.tolist(), dag.dst.tolist(), strict=True)
    )
    graph.add_weighted_edges_from((node, "end", durations[node]) for node in range(len(dag)))
    return int(nx.dag_longest_path_length(graph))


@settings(max_examples=200, deadline=None)
@given(random_dags())
def test_length_is_networkx_length(dag: Dag) -> None:
    assert longest_path(dag).length_ns == _networkx_length(dag)


@settings(max_examples=200, deadline=None)
@given(random_dags())
def test_the_path_is_a_chain_of_edges_with_no_slack(dag: Dag) -> None:
    found = longest_path(dag)
    pairs = set(zip(dag.src.tolist(), dag.dst.tolist(), strict=True))
    assert all(step in pairs for step in zip(found.nodes, found.nodes[1:], strict=False))
    assert sum(found.part_ns) == found.length_ns
    assert all(found.slack_ns[node] == 0 for node in found.nodes)
    assert (found.slack_ns >= 0).all()


@settings(max_examples=100, deadline=None)
@given(random_dags(), st.data())
def test_slack_is_what_an_operation_may_grow_by(dag: Dag, data: st.DataObject) -> None:
    found = longest_path(dag)
    node = data.draw(st.integers(0, len(dag) - 1))
    for extra, longer in ((int(found.slack_ns[node]), 0), (int(found.slack_ns[node]) + 1, 1)):
        dur = dag.dur_ns.copy()
        dur[node] += extra
        changed = Dag(**{**{name: getattr(dag, name) for name in Dag.__slots__}, "dur_ns": dur})
        assert longest_path(changed).length_ns == found.length_ns + longer


# -- what a path says


def test_shares_of_categories_add_up() -> None:
    dag = new_dag("abc", ["FW", "BW", "FW"], [1, 2, 4], [(0, 1), (1, 2)])
    assert by_category(dag, longest_path(dag)) == {"FW": 5, "BW": 2}


def test_overlap_of_operations_that_should_follow_each_other() -> None:
    gpu = Gpu(chain("FW.a", "BW.a"), record(trace([("FW.a", "1", 0, 10), ("BW.a", "1", 6, 10)])))
    dag = merge([gpu])
    assert overlap_ns(dag, longest_path(dag)) == (4_000_000, 1)


def test_iteration_is_from_first_computation_to_the_next() -> None:
    events = [
        ("FW.a", "1", 0.0, 1.0),
        ("FW.a", "1", 10.0, 1.0),
        ("FW.a", "1", 30.0, 1.0),
        ("I/O", None, 2.0, 1.0),
    ]
    assert iteration_ns(merge([Gpu(chain("I/O", "FW.a"), record(trace(events)))])) == 15_000_000
    assert iteration_ns(new_dag("a", [""], [1])) is None


# -- the option


def write_gpu(directory: Path, gml: str, events: list[dict[str, Any]]) -> Path:
    directory.mkdir(parents=True)
    (directory / "dag.gml").write_text(gml)
    document = json.dumps({"traceEvents": events})
    (directory / "bps_trace_local_rank0_2step.json").write_text(document)
    return directory


GML = """graph [
  directed 1
  node [
    id 0
    label "FW.a"
  ]
  node [
    id 1
    label "BW.a"
  ]
  node [
    id 2
    label "Comm.w"
  ]
  node [
    id 3
    label "STEP"
  ]
  edge [
    source 0
    target 1
  ]
  edge [
    source 1
    target 2
  ]
  edge [
    source 2
    target 3
  ]
  edge [
    source 3
    target 0
  ]
]
"""


def x(name: str, tid: str, ts: float, dur: float, cat: str = "operator") -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": tid, "ts": ts, "dur": dur}


EVENTS = [
    x("FW.a", "1", 1000, 1000), x("BW.a", "1", 2000, 3000), x("Comm.w", "total", 5000, 4000, "Comm"),
    x("FW.a", "1", 11000, 3000), x("BW.a", "1", 14000, 3000), x("Comm.w", "total", 17000, 2000, "Comm"),
    x("Comm.w.PUSH", "0", 5000, 1000, "Comm"), x("Comm.w.PULL", "0", 6000, 3000, "Comm"),
    x("Comm.w.PUSH", "0", 17000, 1000, "Comm"), x("Comm.w.PULL", "0", 18000, 1000, "Comm"),
]  # fmt: skip


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    return write_gpu(tmp_path / "0", GML, EVENTS)


def answer(*args: object) -> dict[str, Any]:
    code, out, err = run_cli("--option", "critical", "--format", "json", *args)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_averages_of_all_steps(gpu: Path) -> None:
    document = answer("--path", gpu)
    (scope,) = document["scopes"]
    assert (scope["scope"], scope["length_ms"], scope["iteration_ms"]) == ("GPU-0", 8.0, 10.0)
    assert [(stop["name"], stop["cat"], stop["dur_ms"]) for stop in scope["path"]] == [
        ("FW.a", "FW", 2.0), ("BW.a", "BW", 3.0), ("Comm.w", "Comm", 3.0), ("STEP", "STEP", 0.0)]  # fmt: skip
    assert scope["by_cat"] == {"FW": 2.0, "BW": 3.0, "Comm": 3.0, "STEP": 0.0}
    assert {row["name"]: row["slack_ms"] for row in document["operations"]} == {
        "FW.a": 0.0, "BW.a": 0.0, "Comm.w": 0.0, "STEP": 0.0}  # fmt: skip


def test_one_recorded_step(gpu: Path) -> None:
    assert answer("--path", gpu, "--step", 1)["scopes"][0]["length_ms"] == 8.0
    assert answer("--path", gpu, "--step", 2)["scopes"][0]["by_cat"] == {
        "FW": 3.0,
        "BW": 3.0,
        "Comm": 2.0,
        "STEP": 0.0,
    }


def test_through_the_queue_stages(gpu: Path) -> None:
    path = answer("--path", gpu, "--del_queue")["scopes"][0]["path"]
    assert [stop["name"] for stop in path] == ["FW.a", "BW.a", "Comm.w.PUSH.0", "Comm.w.PULL.0", "STEP"]


def test_a_job_has_a_scope_for_each_gpu_each_worker_and_itself(tmp_path: Path) -> None:
    for worker in (0, 1):
        write_gpu(tmp_path / f"worker_{worker}" / "0", GML, EVENTS)
    document = answer("--path", tmp_path)
    assert [(scope["scope"], scope["worker"]) for scope in document["scopes"]] == [
        ("GPU-0", 0), ("GPU-0", 1), ("worker-0", 0), ("worker-1", 1), ("job", 0)]  # fmt: skip
    assert document["scopes"][-1]["path"][0]["name"] == "wk0.rank0.FW.a"


def test_the_timeline_marks_the_path(gpu: Path, tmp_path: Path) -> None:
    answer("--path", gpu, "--output", tmp_path / "marked.json")
    events = json.loads((tmp_path / "marked.json").read_text())["traceEvents"]
    (pid,) = {
        e["pid"] for e in events if e.get("args") == {"name": "critical path"} and e["name"] == "process_name"
    }
    track = [
        (e["name"], e["ts"] / 1000, e["dur"] / 1000) for e in events if e["ph"] == "X" and e["pid"] == pid
    ]
    assert track == [("FW.a", 0.0, 1.0), ("BW.a", 1.0, 3.0), ("Comm.w", 4.0, 4.0),
                     ("FW.a", 10.0, 3.0), ("BW.a", 13.0, 3.0), ("Comm.w", 16.0, 2.0)]  # fmt: skip
    assert sum(e["ph"] == "X" for e in events) == len(EVENTS) + len(track)
    arrows = {(e["ph"], e["id"]): e for e in events if e["ph"] in "sf"}
    # FW.a to BW.a and BW.a to Comm.w in each of two steps
    assert set(arrows) == {(phase, i) for phase in "sf" for i in (1, 2, 3, 4)}
    assert all(arrows["s", i]["ts"] <= arrows["f", i]["ts"] for i in (1, 2, 3, 4))
    marked = [e["name"] for e in events if e.get("args") == {"critical path": True}]
    assert sorted(marked) == ["BW.a", "BW.a", "Comm.w", "Comm.w", "FW.a", "FW.a"]


def test_sort_puts_the_least_slack_first_and_head_cuts(gpu: Path) -> None:
    document = answer("--path", gpu, "--sort", "--head", 2)
    assert [row["name"] for row in document["operations"]] == ["BW.a", "Comm.w"]
    assert len(document["scopes"][0]["path"]) == 4


def test_csv_carries_the_path(gpu: Path) -> None:
    code, out, _ = run_cli("--option", "critical", "--path", gpu, "--format", "csv")
    assert (code, out.splitlines()[1].split(",")[:4]) == (0, ["GPU-0", "FW.a", "FW", "2.0"])


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--path", "nowhere"], "nowhere: no such file or directory"),
        (["--step", "3"], "--step 3: not recorded, the trace holds steps 1 to 2"),
        (["--step", "x"], "--step x: not recorded, the trace holds steps 1 to 2"),
        (["--filter", "Comm.x"], "--filter Comm.x: no such communication operation in the graph"),
    ],
)
def test_mistakes_are_one_line(gpu: Path, args: list[str], what: str) -> None:
    paths = [] if "--path" in args else ["--path", str(gpu)]
    code, out, err = run_cli("--option", "critical", *paths, *args)
    assert (code, out, err) == (1, "", f"analyze.py: error: {what}\n")


def test_an_input_is_never_overwritten(gpu: Path) -> None:
    path = next(gpu.glob("bps_trace*"))
    before = path.read_bytes()
    code, _, err = run_cli("--option", "critical", "--path", gpu, "--output", path)
    assert (code, err) == (2, f"analyze.py: error: --output {path}: is one of the inputs\n")
    assert path.read_bytes() == before


def test_there_are_no_variants(gpu: Path) -> None:
    for option in ("critical", "graph"):
        code, _, err = run_cli("--option", option, "--path", gpu, "--sub_option", "x")
        assert (code, err) == (2, f"analyze.py: error: --sub_option x: {option} has no variants\n")


def test_a_graph_without_its_trace(gpu: Path) -> None:
    code, out, err = run_cli("--option", "critical", "--path", gpu / "dag.gml")
    assert (code, out) == (1, "")
    reason = "a graph without durations; give the GPU's directory with its trace"
    assert err == f"analyze.py: error: {gpu / 'dag.gml'}: {reason}\n"


def test_a_trace_without_its_graph_is_still_answered(gpu: Path) -> None:
    (gpu / "dag.gml").unlink()
    document = answer("--path", gpu)
    assert document["scopes"][0]["length_ms"] == 3.0  # the longest operation by itself
    assert "no dag.gml" in document["repairs"][0]


def test_a_graph_and_a_trace_of_different_models(tmp_path: Path) -> None:
    directory = write_gpu(tmp_path / "0", GML, [x("FW.other", "1", 0, 5)])
    code, _, err = run_cli("--option", "critical", "--path", directory)
    assert (code, err.splitlines()[-1].split(": ", 2)[2]) == (
        1, f"{directory}: the graph and its trace have no operation in common")  # fmt: skip


def test_what_only_one_side_knows_is_listed_whole(tmp_path: Path) -> None:
    events = [x("FW.a", "1", 0, 5), *(x(f"BW.{i}", "1", 5 + i, 1) for i in range(5))]
    document = answer("--path", write_gpu(tmp_path / "0", GML, events))
    assert document["only_in_graph"] == ["BW.a", "Comm.w", "STEP"]
    assert document["only_in_trace"] == ["BW.0", "BW.1", "BW.2", "BW.3", "BW.4"]


def test_a_broken_graph_is_one_line(gpu: Path) -> None:
    (gpu / "dag.gml").write_text(GML[:200])
    code, out, err = run_cli("--option", "critical", "--path", gpu)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{gpu / 'dag.gml'}: expected ']'" in err


def test_a_cut_trace_is_answered_from_what_is_whole(gpu: Path) -> None:
    path = next(gpu.glob("bps_trace*"))
    path.write_bytes(path.read_bytes()[:-150])
    assert answer("--path", gpu)["scopes"][0]["length_ms"] == 8.0


def test_inputs_in_the_events_serve_as_graph(tmp_path: Path) -> None:
    events = [x("FW.a", "1", 0, 1000), x("BW.a", "1", 1000, 2000)]
    events[1]["args"] = {"name": "BW.a", "input0": "FW.a"}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert answer("--path", tmp_path / "trace.json")["scopes"][0]["length_ms"] == 3.0


def test_the_real_job_agrees_with_networkx(shared_data: Path) -> None:
    directory = shared_data / "byteps" / "fork_lenet_base" / "worker_0" / "0"
    events = json.loads(next(directory.glob("bps_trace*")).read_text())["traceEvents"]
    spent: dict[str, list[float]] = {}
    for event in events:
        if event["cat"] != "Comm" or event["tid"] == "total":
            spent.setdefault(event["name"], []).append(event["dur"] / 1e3)
    graph: nx.DiGraph[Any] = nx.DiGraph(nx.read_gml(directory / "dag.gml"))
    graph.remove_edges_from(list(graph.out_edges("STEP")))
    mean = {name: sum(each) / len(each) for name, each in spent.items()}
    for a, b in graph.edges:
        graph[a][b]["weight"] = mean.get(a, 0.0)
    graph.add_edge("STEP", "end", weight=mean.get("STEP", 0.0))
    assert answer("--path", directory)["scopes"][0]["length_ms"] == pytest.approx(
        nx.dag_longest_path_length(graph), abs=1e-3
    )


def test_gpus_without_a_final_trace_are_read_from_the_profilers_files(shared_data: Path) -> None:
    # only one of the four GPUs has one
    document = answer("--path", shared_data / "byteps" / "fork_lenet_2w2g")
    by_scope = [scope["by_cat"] for scope in document["scopes"]]
    assert len(by_scope) == 7
    assert all(by_cat["FW"] > 1 and by_cat["BW"] > 1 for by_cat in by_scope)


def test_a_scope_is_never_shorter_than_its_parts(shared_data: Path) -> None:
    for case in ("fork_lenet_2w2g", "fork_lenet_slownet", "fork_resnet50_2w1s"):
        for flags in ((), ("--del_queue",), ("--step", 2)):
            scopes = answer("--path", shared_data / "byteps" / case, *flags)["scopes"]
            job = scopes[-1]["length_ms"]
            workers = [s["length_ms"] for s in scopes if s["scope"].startswith("worker")]
            gpus = [s["length_ms"] for s in scopes if s["scope"].startswith("GPU")]
            assert job >= max(workers) - 1e-6
            assert max(workers) >= max(gpus) - 1e-6


def test_the_timeline_has_what_the_profilers_files_tell(shared_data: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"  # worker 0's first GPU has no final trace
    answer("--path", shared_data / "byteps" / "fork_lenet_2w2g", "--step", 1, "--output", marked)
    events = json.loads(marked.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    track = [e["name"] for e in events if e["ph"] == "X" and processes[e["pid"]] == "critical path"]
    own = [e["name"] for e in events if e.get("args") == {"critical path": True}]
    assert len(own) == len(track) > 20
    assert sum(e["ph"] == "s" for e in events) == len(own) - 1


def test_the_timeline_marks_the_tasks_of_dasf(shared_data: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.json"
    job = shared_data / "dasf" / "one-host-2workers" / "trace"
    path = answer("--path", job, "--output", marked)["scopes"][-1]["path"]
    events = json.loads(marked.read_text())["traceEvents"]
    assert sum(e["ph"] == "s" for e in events) == len(path) - 1
    assert sum(e.get("args") == {"critical path": True} for e in events) == len(path)
