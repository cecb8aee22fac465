"""`collect`: each source alone on small inputs, whole jobs against what their own profiler wrote."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from analyzer.base.names import partition_key
from analyzer.reading.dialects.byteps import GradientNames
from collector.gpu.dag_from_symbols import from_symbols, inputs_of
from collector.gpu.final_trace import gather
from collector.gpu.parts import collect_comm, collect_operators, node_of
from conftest import ask, run_cli
from make import write
from trace_utils import find_gpus

Event = Mapping[str, Any]

# ---- a job of one step: conv -> dense, one gradient each; microseconds

NODES = {
    "FW.conv": ["I/O", "STEP"],
    "FW.dense": ["FW.conv"],
    "BW.dense": ["OUTPUT0"],
    "BW.conv": ["BW.dense"],
    "Comm.conv_weight": ["BW.conv"],
    "Comm.dense_weight": ["BW.dense"],
    "STEP": ["BW.conv", "Comm.conv_weight", "Comm.dense_weight"],
    "OUTPUT0": ["FW.dense"],
    "I/O": [],
}
MODEL = """Symbol Outputs:
\toutput[0]=dense_fwd(0)
Variable:data
Variable:conv_weight
--------------------
Op:Convolution, Name=conv_fwd
Inputs:
\targ[0]=data(0) version=0
\targ[1]=conv_weight(0) version=0
Variable:dense_weight
--------------------
Op:FullyConnected, Name=dense_fwd
Inputs:
\targ[0]=conv_fwd(0)
\targ[1]=dense_weight(0) version=0
"""
PASS = [
    ("conv_fwd", 100, 10),
    ("dense_fwd", 110, 5),
    ("dense_backward", 120, 6),
    ("conv_fwd_backward", 130, 9),
]
UPDATE = [("DeleteVariable", 139, 1), ("BytePSPushPull", 141, 20), ("sgd_update", 162, 8)]


def profile_events(starts: Iterable[int] = (0, 100), *, form: str = "BE", pid: int = 0) -> list[Event]:
    """Events of MXNet's profiler for a step at each of `starts` (relative to 100)."""
    events: list[Event] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"cpu/{pid}"}}]
    for start in starts:
        for name, ts, dur in PASS + UPDATE:
            common = {"name": name, "cat": "operator", "pid": pid, "tid": 17744863269121484553}
            if form == "X":
                events.append({**common, "ph": "X", "ts": start + ts, "dur": dur})
            else:
                events.append({**common, "ph": "B", "ts": start + ts})
                events.append({**common, "ph": "E", "ts": start + ts + dur})
    return events


def comm_events(starts: Iterable[int] = (0, 100)) -> list[Event]:
    """Events of BytePS for the two gradients: main tasks and one stage of one partition."""
    events: list[Event] = []
    for i, key in ((0, partition_key(3, 0)), (1, partition_key(4, 1))):
        name = f"Comm.byteps.gradient_{i}"
        common = {"ph": "X", "args": {"name": name}, "pid": name, "cat": "Comm"}
        for start in starts:
            events.append({**common, "name": name, "ts": start + 140 - i, "dur": 20, "tid": "total"})
            events.append({**common, "name": f"{name}.PUSH", "ts": start + 145, "dur": 5, "tid": str(key)})
    return events


def write_gpu(path: Path) -> Path:
    """Write a complete GPU directory of two steps, without a DAG and without a final trace."""
    write(path / "temp.json", profile_events())
    write(path / "comm.json", comm_events())
    loads = [{"name": "I/O", "ph": "X", "ts": t + 0.5, "dur": 2.25, "pid": "I/O"} for t in (90, 190, 290)]
    write(path / "io.json", [{**load, "cat": "I/O", "args": {"name": "I/O"}} for load in loads])
    (path / "gradient_name_list.txt").write_text("conv_weight\ndense_weight\n")
    (path / "symbol_debug_str.txt").write_text(MODEL)
    return path


def operators(events: Sequence[Event], tmp_path: Path) -> list[Event]:
    from trace_utils import read_trace

    return collect_operators(read_trace(write(tmp_path / "p.json", events)), NODES)[0]


def rows(events: Iterable[Event]) -> list[tuple[str, int, int]]:
    return [(event["name"], event["ts"], event["dur"]) for event in events]


STEP_ONE = [("FW.conv", 100, 10), ("FW.dense", 110, 5), ("BW.dense", 120, 6), ("BW.conv", 130, 9)]


# ---- operators


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("conv_fwd", "FW.conv"),
        ("conv", "FW.conv"),
        ("conv_fwd_backward", "BW.conv"),
        ("conv_backward", "BW.conv"),
        ("Convolution:name=conv_fwd;attr=1", "FW.conv"),
        ("[x]name=conv_fwd_backward;", "BW.conv"),
        ("_backward_Convolution:name=conv_fwd;", "BW.conv"),
        ("Convolution", None),
        ("DeleteVariable", None),
    ],
)
def test_operator_names_become_nodes(name: str, node: str | None) -> None:
    assert node_of(name, NODES) == node


@pytest.mark.parametrize("form", ["BE", "X"])
def test_operations_have_their_times_and_one_step_a_step(tmp_path: Path, form: str) -> None:
    operations = operators(profile_events([0], form=form), tmp_path)
    # the update: from the start of the push to the end of sgd_update; freeing memory is no part of it
    assert rows(operations) == [*STEP_ONE, ("STEP", 141, 170 - 141)]


def test_what_several_profiler_processes_report_counts_once(tmp_path: Path) -> None:
    twice = profile_events([0]) + profile_events([0], pid=1)
    assert rows(operators(twice, tmp_path)) == [*STEP_ONE, ("STEP", 141, 29)]


# ---- communication


def test_gradients_get_their_parameters_names_and_inputs() -> None:
    names = GradientNames(Path("names"), ["conv_weight", "dense_weight"])
    events = collect_comm(comm_events([0]), names, NODES)[0]
    assert events[3] == {
        "ph": "X",
        "args": {"name": "Comm.dense_weight", "input0": "BW.dense"},
        "pid": "Comm.dense_weight",
        "cat": "Comm",
        "name": "Comm.dense_weight.PUSH",
        "ts": 145,
        "dur": 5,
        "tid": str(4 * 65536 + 1),
    }


def test_a_name_list_with_an_endless_name_is_none(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    (gpu / "gradient_name_list.txt").write_text("conv_weight\n" + "x" * 5000 + "\n")
    repairs = collect(gpu)["repairs"]
    assert any("a name of 5,000 characters: no list of gradients" in line for line in repairs)
    assert "Comm.byteps.gradient_0" in {event["pid"] for event in final(gpu)["traceEvents"]}


# ---- the DAG


def test_a_symbol_dump_becomes_the_dag() -> None:
    graph = from_symbols(MODEL)
    assert graph is not None
    assert {node: set(inputs) for node, inputs in inputs_of(graph).items()} == {
        node: set(inputs) for node, inputs in NODES.items()
    }


def test_a_shared_weight_belongs_to_all_its_operations() -> None:
    tied = MODEL.replace("dense_weight(0)", "conv_weight(0)").replace("Variable:dense_weight\n", "")
    graph = from_symbols(tied)
    assert graph is not None
    assert inputs_of(graph)["Comm.conv_weight"] == ["BW.conv", "BW.dense"]


def test_a_loss_stands_behind_the_output() -> None:
    loss = "Symbol Outputs:\n\toutput[0]=mean(0)\nVariable:data0\n" + "-" * 20
    loss += "\nOp:mean, Name=mean\nInputs:\n\targ[0]=data0(0) version=0\n"
    graph = from_symbols(MODEL, {0: loss, 10**18: ""})
    assert graph is not None
    inputs = inputs_of(graph)
    assert inputs["FW.mean"] == ["FW.dense"]
    assert set(inputs["OUTPUT0"]) == {"FW.dense", "FW.mean"}
    assert set(inputs["BW.dense"]) == {"OUTPUT0", "BW.mean"}


# ---- one GPU directory


def collect(path: Path, *flags: object) -> dict[str, Any]:
    document = ask("--option", "collect", "--path", path, *flags)
    assert isinstance(document, dict)
    return document


def final(path: Path) -> dict[str, Any]:
    document = json.loads((path / "bps_trace_final.json").read_text())
    assert isinstance(document, dict)
    return document


def files(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_the_answer_of_one_gpu(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    answer = collect(gpu)
    assert answer == {
        "option": "collect",
        "headline": "An iteration takes 0.100 ms (mean of 2 steps; 0.100 ms to 0.100 ms).",
        "gpus": [
            {
                "path": str(gpu),
                "trace": str(gpu / "bps_trace_final.json"),
                "events": {"I/O": 3, "FW": 4, "BW": 4, "Comm": 8, "STEP": 2},
                "steps": 2,
                "fw_bw_ms": 0.039,
                "iteration_ms": 0.1,
                "iteration_ms_per_step": [0.1, 0.1],
            }
        ],
        "iteration_ms": 0.1,
        "repairs": [f"{gpu / 'dag.gml'}: missing: built from symbol_debug_str.txt"],
    }


def test_twice_gives_the_same_files(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    collect(gpu)
    once = files(gpu)
    collect(gpu)
    assert files(gpu) == once


def test_a_dag_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    (gpu / "dag.gml").write_text("no graph at all")
    repairs = collect(gpu)["repairs"]
    assert (gpu / "dag.gml").read_text() == "no graph at all"
    assert any("not used: inputs from symbol_debug_str.txt" in line for line in repairs)
    assert len([line for line in repairs if "dag.gml" in line]) == 1


@pytest.mark.parametrize(
    ("variant", "changed"), [("operator", {"FW", "BW", "STEP"}), ("comm", {"Comm"}), ("io", {"I/O"})]
)
def test_a_variant_renews_one_part_and_leaves_the_rest(
    tmp_path: Path, variant: str, changed: set[str]
) -> None:
    gpu = write_gpu(tmp_path / "0")
    collect(gpu)
    old = final(gpu)
    for event in old["traceEvents"]:
        event["args"]["mark"] = [1, 2.5, None]
    old["otherData"] = {"version": "x"}
    (gpu / "bps_trace_final.json").write_text(json.dumps(old))
    collect(gpu, "--sub_option", variant)
    new = final(gpu)
    renewed = {event["name"].split(".")[0] for event in new["traceEvents"] if "mark" not in event["args"]}
    assert renewed == changed
    assert new["otherData"] == {"version": "x"}
    kept = [event for event in old["traceEvents"] if event["name"].split(".")[0] not in changed]
    assert [event for event in new["traceEvents"] if "mark" in event["args"]] == kept


@pytest.mark.parametrize("content", [None, b"[{", b"null"])
@pytest.mark.parametrize("name", ["temp.json", "comm.json", "io.json"])
def test_one_bad_source_costs_its_own_part_only(tmp_path: Path, name: str, content: bytes | None) -> None:
    gpu = write_gpu(tmp_path / "0")
    if content is None:
        (gpu / name).unlink()
    else:
        (gpu / name).write_bytes(content)
    answer = collect(gpu)
    lost = {"temp.json": {"FW", "BW", "STEP"}, "comm.json": {"Comm"}, "io.json": {"I/O"}}[name]
    assert set(answer["gpus"][0]["events"]) == {"FW", "BW", "STEP", "Comm", "I/O"} - lost
    assert len([line for line in answer["repairs"] if name in line]) == 1


def test_a_source_that_was_cut_does_not_replace_more_than_it_has(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    collect(gpu)
    once = final(gpu)
    text = (gpu / "comm.json").read_text()
    (gpu / "comm.json").write_text(text[: len(text) // 2])
    repairs = collect(gpu)["repairs"]
    assert final(gpu) == once
    assert len(repairs) == 1
    assert "stay as they are" in repairs[0]


def test_a_directory_with_nothing_usable_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "comm.json").write_text("")
    code, out, err = run_cli("--option", "collect", "--path", tmp_path)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "nothing to collect" in err


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    gpu = write_gpu(tmp_path / "0")
    (gpu / "bps_trace_final.json").mkdir()
    before = files(gpu)
    code, out, err = run_cli("--option", "collect", "--path", gpu)
    assert (code, out, err.count("\n"), "bps_trace_final.json: is a directory" in err) == (2, "", 1, True)
    assert files(gpu) == before


# ---- jobs


def test_a_failing_gpu_does_not_stop_the_others(tmp_path: Path) -> None:
    for worker, rank in ((0, 0), (0, 1), (1, 0)):
        write_gpu(tmp_path / f"worker_{worker}" / str(rank))
    bad = tmp_path / "worker_1" / "1"
    write(bad / "comm.json", [])
    answer = collect(tmp_path, "--jobs", 2)
    assert [Path(gpu["path"]).relative_to(tmp_path).as_posix() for gpu in answer["gpus"]] == [
        "worker_0/0",
        "worker_0/1",
        "worker_1/0",
    ]
    assert [line for line in answer["repairs"] if str(bad) in line and "nothing to collect" in line]
    assert answer["iteration_ms"] == 0.1


def test_the_jobs_time_is_of_the_steps_that_all_have(tmp_path: Path) -> None:
    for rank, loads in ((0, (0, 100, 200)), (1, (0, 100, 200, 1200))):
        events = [{"name": "I/O", "ph": "X", "ts": t + 0.5, "dur": 2, "pid": "I/O"} for t in loads]
        write(tmp_path / str(rank) / "io.json", events)
    answer = collect(tmp_path)
    assert [gpu["iteration_ms"] for gpu in answer["gpus"]] == [0.1, 0.4]  # 1.2 ms in 3 steps
    assert answer["iteration_ms"] == 0.1


# ---- recorded jobs: equal to what the profiler itself wrote


def copied(shared: Path, case: str, to: Path, *ignored: str) -> Path:
    target = to / case
    shutil.copytree(shared / "byteps" / case, target, ignore=shutil.ignore_patterns(*ignored))
    for path in [target, *target.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def as_texts(events: Iterable[Event]) -> Counter[str]:
    return Counter(json.dumps(event, sort_keys=True) for event in events)


# The profiler takes the first BW that follows an FW for the begin of the backward pass; with a traced
# loss this is the loss's, which an asynchronous engine runs before the forward pass is through. It then
# finds no last BW, hence no STEP. Each step has one all the same: the traced steps are the difference.
@pytest.mark.parametrize(
    ("case", "gpu", "steps_it_missed"),
    [
        ("fork_lenet_base", "worker_0/0", 11),
        ("fork_lenet_slownet", "worker_0/0", 11),
        ("fork_lenet_2w2g", "worker_0/1", 0),
        ("fork_mlp_2w2s_pcap", "worker_0/0", 0),
        ("fork_resnet50_2w1s", "worker_0/0", 3),
    ],
)
def test_equal_to_the_profilers_own_trace(
    shared_data: Path, tmp_path: Path, case: str, gpu: str, steps_it_missed: int
) -> None:
    path = copied(shared_data, case, tmp_path, "*.pcap", "*log*.txt") / gpu
    trace = next(path.glob("bps_trace*"))
    expected = as_texts(json.loads(trace.read_text())["traceEvents"])
    trace.unlink()  # else what cannot be collected would be kept from it
    report = gather(find_gpus(path)[0], tmp_path / "made")
    found = as_texts(json.loads(next(iter(report.new.values())).read_bytes())["traceEvents"])
    assert not expected - found
    more = [json.loads(text) for text in (found - expected).elements()]
    assert [event["name"] for event in more] == ["STEP"] * steps_it_missed


@pytest.mark.parametrize(
    "gpu",
    [
        "fork_lenet_base/worker_1/0",
        "fork_lenet_2w2g/worker_1/1",
        "fork_mlp_2w2s_pcap/worker_0/0",
        "fork_resnet50_2w1s/worker_0/0",
    ],
)
def test_the_dag_from_symbols_is_byte_for_byte_the_profilers(
    shared_data: Path, tmp_path: Path, gpu: str
) -> None:
    case, _, rest = gpu.partition("/")
    path = copied(shared_data, case, tmp_path, "*.pcap", "*log*.txt") / rest
    recorded = (path / "dag.gml").read_bytes()
    (path / "dag.gml").unlink()
    new = gather(find_gpus(path)[0], tmp_path / "made").new
    assert new[path / "dag.gml"].read_bytes() == recorded


def test_stock_operator_names_leave_communication_and_loads(shared_data: Path, tmp_path: Path) -> None:
    path = copied(shared_data, "fork_lenet_stock_mxnet", tmp_path)
    answer = collect(path)
    # 11 steps: 8 gradients, 15 partitions with 6 stages, one main task each; I/O and STEP of steps 1 to 16
    comm = json.loads((path / "worker_0" / "0" / "comm.json").read_text())["traceEvents"]
    assert answer["gpus"][0]["events"] == {"I/O": 16, "STEP": 16, "Comm": len(comm)}
    assert ["none of its 7 operations is in the DAG" in line for line in answer["repairs"]] == [True]


def test_a_cut_comm_json_gives_what_is_whole(shared_data: Path, tmp_path: Path) -> None:
    path = copied(shared_data, "master_torch_truncated", tmp_path)
    text = (path / "worker_0" / "0" / "comm.json").read_text()
    answer = collect(path)
    # every whole event has its "cat", its last member, and a closing brace
    assert answer["gpus"][0]["events"] == {"Comm": text.count('"cat": "Comm"\n        }')}
    cut = [line for line in answer["repairs"] if "comm.json" in line]
    assert len(cut) == 2  # one for each worker


# ---- captures and server logs


def test_everything_includes_captures_and_logs(shared_data: Path, tmp_path: Path) -> None:
    path = copied(shared_data, "fork_mlp_2w2s_pcap", tmp_path)
    answer = collect(path)
    assert answer["gpus"][0]["steps"] == 6
    assert answer["network"]["output"] == str(path / "comm_timeline.json")
    assert answer["server"]["output"] == str(path / "server_timeline.json")
    for part in ("network", "server"):
        assert json.loads(Path(answer[part]["output"]).read_text())["traceEvents"]


@pytest.mark.parametrize(("variant", "member"), [("pcap", "network"), ("server", "server")])
def test_the_network_alone(shared_data: Path, tmp_path: Path, variant: str, member: str) -> None:
    path = copied(shared_data, "fork_mlp_2w2s_pcap", tmp_path)
    before = files(path)
    answer = collect(path, "--sub_option", variant, "--output", tmp_path / "made.json")
    assert answer["gpus"] == []
    assert answer[member]["output"] == str(tmp_path / "made.json")
    assert files(path) == before
