"""Files without a beginning, dumps of one run, files that mix ranks, ranks told by names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analyzer.reading.traces.paths import ranks_in_names
from analyzer.reading.traces.ranks import Request, read_ranks
from analyzer.reading.traces.readers import read_trace
from analyzer.reading.traces.split import mixed_ranks
from make import span, write


def _slice(name: str, ts: int, pid: int = 1, cat: str = "op") -> dict[str, object]:
    return span(name, ts, 10, cat, pid, 1)


def _text(*events: dict[str, object]) -> str:
    return ",\n".join(map(json.dumps, events))


@pytest.mark.parametrize("before", ["", ",\n", '"pid": 7},\n', '{"id": 3}},\n'])
def test_a_part_without_a_beginning_is_read(tmp_path: Path, before: str) -> None:
    (tmp_path / "tail.json").write_text(f"{before}{_text(_slice('a', 0), _slice('b', 20))}\n]")
    trace = read_trace(tmp_path / "tail.json")
    assert [trace.names[i] for i in trace.name_id] == ["a", "b"]


def test_asynchronous_spans_are_slices_where_nothing_else_is(tmp_path: Path) -> None:
    spans = [("b", 1, 0), ("b", 2, 5), ("e", 1, 20), ("e", 2, 95), ("b", 3, 99)]
    events = [_slice("a", ts) | {"ph": phase, "id": number} for phase, number, ts in spans]
    for others, durations in (([], [20_000, 90_000]), ([_slice("x", 0)], [10_000])):
        trace = read_trace(write(tmp_path / "a.json", events + others))
        assert trace.dur_ns.tolist() == durations


def test_three_dumps_of_mxnet_are_joined(shared_data: Path) -> None:
    read = read_ranks([shared_data / "cases" / "mxnet-chunks" / "run"])
    (trace,) = read.made
    assert (trace.end_ns.max() - trace.ts_ns.min()) == 448_000_000
    assert "dumps that continue each other are joined" in read.job.notes[0]


@pytest.mark.parametrize(("case", "n"), [("mxnet-chunks/run", 9 * 7), ("headless-horovod", 8 * 3)])
def test_parts_of_recorded_runs_are_read(shared_data: Path, case: str, n: int) -> None:
    (trace,) = read_ranks([shared_data / "cases" / case]).made
    assert len(trace) == n


@pytest.mark.parametrize(("name", "lost"), [("trace", 4), ("1k", 19), ("append", 5), ("two", 0)])
def test_a_file_of_two_writers_is_noted(shared_data: Path, name: str, lost: int) -> None:
    read = read_ranks([shared_data / "cases" / "interleaved-writers" / f"{name}.json.gz"])
    (line,) = read.repairs
    assert "it mixes ranks" in line
    assert (f"{lost} damaged events lost" in line) == (lost > 0)
    if name in ("append", "two"):  # which have all 2 x 116 events
        assert read.files[0].n_events == 232 - lost


@pytest.mark.parametrize("second", [3, 4])
def test_two_owners_of_steps_are_two_ranks(tmp_path: Path, second: int) -> None:
    steps = [_slice(f"ProfilerStep#{n}", 0, pid, "user_annotation") for n, pid in ((3, 40), (second, 41))]
    trace = read_trace(write(tmp_path / "a.json", steps, schemaVersion=1))
    assert mixed_ranks(trace).startswith("2 processes wrote this file (pids 40 and 41)")
    told = read_ranks([tmp_path / "a.json"], request=Request(rank_by="pid"))
    assert [rank.source.rank for rank in told.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("names", "ranks"),
    [
        (["a[5].json", "a[4].json", "a[6].json", "a[7].json"], [5, 4, 6, 7]),
        (["TP-0.gz", "TP-1.gz"], [0, 1]),
        (["r0-a2.json", "r1-a2.json"], [0, 1]),
        (["gpu0_7.json", "gpu1_8.json"], []),  # two numbers differ
        (["t_100.json", "t_200.json"], []),
        (["step0.json", "step1.json"], []),
        (["a0.json", "b1.json"], []),
    ],
)
def test_the_number_that_differs_is_the_rank(names: list[str], ranks: list[int]) -> None:
    assert ranks_in_names(names) == ranks


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(tmp_path / "0" / "comm.json", [_slice("Comm.a", 0)])
    for name in ("bps_comm_aligned.json", "comm_detail.json", "nccl_graph.txt"):
        (tmp_path / "0" / name).write_text("{}")
    notes = [note for note in read_ranks([tmp_path]).job.notes if "not read" in note]
    assert notes == [
        f"{tmp_path}: not read: 0/bps_comm_aligned.json, 0/comm_detail.json and 0/nccl_graph.txt "
        "(files of dPRO beside the ranks' recordings)"
    ]


def test_files_without_common_steps_may_be_two_runs(tmp_path: Path) -> None:
    for name, names in (("first", ["a", "b"]), ("second", ["c"])):
        events = [_slice(each, 20 * i) for i, each in enumerate(names)]
        (tmp_path / f"{name}.json").write_text(json.dumps(events))
    (note,) = (note for note in read_ranks([tmp_path]).job.notes if "two runs" in note)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert note == f"{tmp_path}: 2 files; if they are two runs: compare {first} {second}"
