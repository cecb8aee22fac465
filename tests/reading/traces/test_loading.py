"""The one door: whose each trace is, and what is joined and split."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analyzer.reading.traces import readers as trace_files
from conftest import REPO, ask, few
from make import comm, span, write
from trace_utils import read_ranks

pytestmark = pytest.mark.usefixtures("decoder")

Event = dict[str, Any]


def x(name: str, ts: float, dur: float, cat: str = "user_annotation", tid: object = 1) -> Event:
    return span(name, ts, dur, cat, 1, tid)


def kineto(path: Path, rank: int | None, steps: range, begin: float = 0) -> Path:
    """One cycle of a profiler: steps of 100 µs, each with an operator and a collective in it."""
    events = []
    for i, step in enumerate(steps):
        at = begin + 100 * i
        events += [
            x(f"ProfilerStep#{step}", at, 100),
            x("aten::add", at + 10, 20, "cpu_op"),
            x("gloo:all_reduce", at + 40, 30, tid=2),
        ]
    known = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    return write(path, events, schemaVersion=1, **known)


# ---- the files of a rank


def two_cycles(folder: Path) -> Path:
    for rank in (0, 1):
        kineto(folder / f"rank{rank}.2.pt.trace.json", rank, range(7, 10), 5000)
        kineto(folder / f"rank{rank}.1.pt.trace.json", rank, range(2, 5))
    return folder


def test_the_cycles_of_a_profiler_are_one_rank(tmp_path: Path) -> None:
    job = read_ranks([two_cycles(tmp_path)])
    assert (job.names, job.repairs) == (["rank0", "rank1"], [])
    assert [len(trace) for trace in job.made] == [18, 18]
    assert [file.n_events for file in job.files] == [9, 9, 9, 9]


def test_cycles_of_processes_without_ranks_are_ranks(tmp_path: Path) -> None:
    for process in ("vm_11", "vm_12"):
        kineto(tmp_path / f"{process}.17000000000.pt.trace.json", None, range(2, 5))
        kineto(tmp_path / f"{process}.17000000009.pt.trace.json", None, range(7, 10), 5000)
    job = read_ranks([tmp_path])
    assert (job.names, [len(trace) for trace in job.made]) == (["rank0", "rank1"], [18, 18])
    assert job.repairs == [
        f"{tmp_path}: ranks by the order of processes, as nothing else tells them: rank0 is vm_11 "
        "and rank1 is vm_12"
    ]


def test_a_rank_in_two_given_directories_is_noted(tmp_path: Path) -> None:
    """They may be two jobs: their steps have the same numbers."""
    folders = [tmp_path / "base", tmp_path / "new"]
    for i, folder in enumerate(folders):
        folder.mkdir()
        kineto(folder / "rank0.pt.trace.json", 0, range(3), begin=1e6 * i)
    said = (
        f"{folders[0]}: rank 0 in several directories given, one after the other in time: taken for one job"
    )
    assert read_ranks(folders).repairs[0].startswith(said)
    assert ask("--option", "statistic", "--path", *folders)["repairs"][0].startswith(said)
    assert ask("--option", "compare", "--path", *folders)["repairs"] == []
    assert not any("directories" in line for line in read_ranks([two_cycles(tmp_path / "cycles")]).repairs)


def test_a_lone_file_keeps_its_rank(tmp_path: Path) -> None:
    assert read_ranks([kineto(tmp_path / "t.json", 1, range(2))]).names == ["rank1"]
    assert read_ranks([write(tmp_path / "0_3" / "comm.json", [comm("w", "PUSH", 1, 0, 5)])]).names == [
        "rank3"
    ]
    assert read_ranks([write(tmp_path / "some.json", [x("a", 0, 1)])]).names == ["rank0"]


# ---- combined files


def test_a_combined_file_is_its_ranks_again(tmp_path: Path) -> None:
    paths = [kineto(tmp_path / f"rank{rank}.json", rank, range(2, 5)) for rank in (0, 1)]
    output = tmp_path / "out" / "combined.json"
    output.parent.mkdir()
    ask("--option", "combine", "--path", *paths, "--output", output)
    apart, together = (
        ask("--option", "statistic", "--sub_option", "breakdown", "--path", *each)["breakdown"]
        for each in (paths, [output])
    )
    assert together == apart
    assert [row["rank"] for row in together] == ["rank0"] * 3 + ["rank1"] * 3
    assert read_ranks([output]).made[1].header["distributedInfo"] == {"rank": 1, "world_size": 2}


@pytest.mark.parametrize("label", ["rank {}", "Rank{}: python", "worker 0 rank {}"])
def test_processes_called_after_ranks_are_ranks(tmp_path: Path, label: str) -> None:
    # rank 1 computes 600 of 1,000 µs, rank 0 300: it then waits in the reduction until both are there
    events: list[Event] = []
    for rank, work in ((0, 300), (1, 600)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": label.format(rank)}})
        for at in (0, 1000, 2000):
            spans = [("train_step", 0, 990), ("forward", 10, work), ("allreduce", 10 + work, 700 - work)]
            events += [{**x(name, at + start, dur, "", 1), "pid": rank} for name, start, dur in spans]
    path = write(tmp_path / "t.json", events)
    document = ask("--option", "critical", "--path", path)
    nodes = {(node["name"].rpartition(".")[2], node["rank"][-5:]) for node in document["scopes"][-1]["path"]}
    assert ("forward", "rank1") in nodes
    assert ("forward", "rank0") not in nodes
    predicted = ask("--option", "replay", "--path", path, "--output", "-")["predicted_ms"]
    assert [name[-5:] for name in predicted] == ["rank0", "rank1"]


# ---- GPUs without a final trace


@pytest.mark.slow
@pytest.mark.parametrize("packed", few(1, [True, False]))
def test_a_gpu_without_a_final_trace_is_what_collect_makes_of_it(tmp_path: Path, packed: bool) -> None:
    raw = tmp_path / "raw"
    shutil.copytree(REPO / "examples" / "mlp-raw", raw)
    if packed:
        for file in [file for file in (raw / "worker_0" / "0").iterdir() if file.is_file()]:
            file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    before = ask("--option", "statistic", "--path", raw)["operations"]
    for option, key in (("critical", "iteration_ms"), ("replay", "critical_path"), ("graph", "edges")):
        output = ["--output", tmp_path / "g.dot", "--force"] if option == "graph" else []
        output = ["--output", "-"] if option == "replay" else output
        unpacked = ask("--option", option, "--path", REPO / "examples" / "mlp-raw", *output)
        assert ask("--option", option, "--path", raw, *output)[key] == unpacked[key]
    times = ask("--option", "collect", "--sub_option", "iter_time", "--path", raw)["iteration_ms"]
    assert ask("--option", "collect", "--path", raw)["iteration_ms"] == times
    assert ask("--option", "statistic", "--path", raw)["operations"] == before
    plain = ask("--option", "statistic", "--path", REPO / "examples" / "mlp-raw")["operations"]
    assert plain == before


# ---- args of chosen events


def test_args_of_chosen_events_are_read(tmp_path: Path) -> None:
    """Only those of the chosen names: of slices, or of events that are none."""
    chosen = {"name": "gloo:x", "pid": 1, "tid": 1, "ts": 1, "cat": "a"}
    events = [
        {**chosen, "ph": "X", "dur": 1, "args": {"n": 1, "deep": {"list": [1, [2]]}}},
        {**chosen, "ph": "X", "dur": 1, "id": 7, "args": {"n": 2, "text": ',"args":{"n":0}'}},
        {**chosen, "ph": "X", "dur": 1},
        {**chosen, "ph": "X", "dur": 1, "args": None},
        {**chosen, "ph": "X", "dur": 1, "strange": [1], "args": {"n": 3, "é": "ü"}},
        {**chosen, "ph": "i", "args": {"n": 4}},
        {**chosen, "ph": "M", "args": {"n": 5}},
        {**chosen, "ph": "X", "name": "gloo:y", "dur": 1, "args": {"n": 6}},
    ]
    found = [
        {"n": 1, "deep": {"list": [1, [2]]}},
        {"n": 2, "text": ',"args":{"n":0}'},
        {},
        {},
        {"n": 3, "é": "ü"},
    ]
    for ensure_ascii in (True, False):
        path = tmp_path / f"{ensure_ascii}.json"
        path.write_text(json.dumps({"traceEvents": events}, ensure_ascii=ensure_ascii))
        assert trace_files.read_args(path, {"gloo:x", "z"}, slices=True) == found
        assert trace_files.read_args(path, {"gloo:x"}) == [{"n": 4}]
        assert trace_files.read_args(path, {"z"}) == []
