"""The charts of `--option statistic`: what takes the time of a step, each instant counted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import run_cli
from make import span, step, write
from options import arguments, statistic
from result import Bars, HeatMap, Result


def result(path: Path, *words: str) -> Result:
    args = arguments.parse(["--option", "statistic", "--path", str(path), *words])
    return statistic.run(args)


def job(folder: Path, n_ranks: int = 2) -> Path:
    """Four steps of 100 µs. Rank 0: 40 of a convolution, 10 of them a copy in it, then 20 of a reduction.

    The others convolve for 20 µs.
    """
    for rank in range(n_ranks):
        events = []
        for n in range(4):
            at = 100.0 * n
            events += [step(n, at, 100), span("aten::conv", at, 20 if rank else 40, "cpu_op")]
            if not rank:
                events += [
                    span("aten::copy_", at + 10, 10, "cpu_op"),
                    span("gloo:all_reduce", at + 40, 20, "user_annotation", tid=1),
                ]
        info = {"rank": rank, "world_size": n_ranks, "backend": "gloo"}
        write(folder / f"rank{rank}.pt.trace.json", events, schemaVersion=1, distributedInfo=info)
    return folder


def values(chart: Bars) -> dict[tuple[str, str], float]:
    """Return the bars by name and series, those that are 0 left out."""
    return {
        (name, series): ms
        for series, bars in chart.series.items()
        for name, ms in zip(chart.x, bars, strict=True)
        if ms
    }


def test_operations_take_of_a_step_what_lies_in_no_other(tmp_path: Path) -> None:
    first, second = result(job(tmp_path), "--html", "a.html").charts
    assert isinstance(first, Bars)
    # averages over both ranks, ms: (30 + 20) / 2, 10 / 2, 20 / 2, and nothing
    assert values(first) == {
        ("aten::conv", "cpu_op"): pytest.approx(0.025),
        ("aten::copy_", "cpu_op"): pytest.approx(0.005),
        ("gloo:all_reduce", "communication"): pytest.approx(0.010),
        ("(nothing recorded)", "nothing recorded"): pytest.approx((0.040 + 0.080) / 2),
    }
    assert isinstance(second, Bars)
    assert values(second) == {
        ("rank0", "cpu_op"): pytest.approx(0.040),
        ("rank0", "communication"): pytest.approx(0.020),
        ("rank0", "nothing recorded"): pytest.approx(0.040),
        ("rank1", "cpu_op"): pytest.approx(0.020),
        ("rank1", "nothing recorded"): pytest.approx(0.080),
    }


@pytest.mark.slow
def test_many_ranks_are_a_map(tmp_path: Path) -> None:
    _, second = result(job(tmp_path, 17), "--html", "a.html").charts
    assert isinstance(second, HeatMap)
    row = dict(zip(second.y, second.values, strict=True))["rank16"]
    assert dict(zip(second.x, row, strict=True))["cpu_op"] == pytest.approx(0.020)


def test_a_digest_has_the_charts_of_its_job(tmp_path: Path) -> None:
    digest = str(tmp_path / "digest.json")
    of_traces = result(job(tmp_path / "job"), "--html", "a.html", "--save", digest)
    assert result(Path(digest), "--html", "a.html").charts == of_traces.charts


def test_without_marked_steps_averages_are_drawn(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [span("a", 0, 5, "x"), span("b", 5, 3, "y")])
    titles = [chart.title for chart in result(tmp_path / "a.json", "--html", "a.html").charts]
    assert titles == ["Longest operations on average", "Time per category"]


def test_of_many_categories_the_longest_are_drawn(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [span("op", 1000.0 * i, i + 1, f"c{i}") for i in range(100)])
    _, chart = result(tmp_path / "rank0.json", "--html", "a.html").charts
    assert isinstance(chart, Bars)
    assert chart.title == "Time per category: the 64 longest of 100"
    # that of number i takes i + 1 microseconds
    assert values(chart) == {(f"c{i}", f"c{i}"): pytest.approx((i + 1) / 1000) for i in range(36, 100)}


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_what_weighs_most_is_work_and_not_the_steps(n_ranks: int, tmp_path: Path) -> None:
    for rank in range(n_ranks):
        spans = [step(number, 1_000 * number, 900) for number in range(30)]
        spans += [span(f"aten::op{i}", 30 * i, 10 + i, "cpu_op") for i in range(30)]
        write(tmp_path / "job" / f"rank{rank}.pt.trace.json", spans, distributedInfo={"rank": rank})
    operations = next(table for table in result(tmp_path / "job").tables if table.name == "operations")
    assert operations.weights is not None
    of_name = dict(zip((str(row[0]) for row in operations.rows), operations.weights(), strict=True))
    steps = {name for name in of_name if "ProfilerStep" in name}
    assert len(steps) == 30 * n_ranks
    assert max(of_name[name] for name in steps) == 0
    assert min(ns for name, ns in of_name.items() if name not in steps) == 10_000 * 1


@pytest.mark.parametrize("words", [(), ("--sort",)])
def test_a_terminal_has_what_differs_by_a_number_alone_as_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    spans = [step(number, 1_000 * number, 900 + number) for number in range(1, 32)]
    spans += [span("aten::a", 30, 10, "cpu_op"), span("aten::b#7", 50, 10, "cpu_op")]
    write(tmp_path / "a.json", spans)
    asked = ("statistic", tmp_path / "a.json", *words)
    rows = [line.split() for line in run_cli(*asked)[1].splitlines()]
    of_steps = [row for row in rows if row and row[0].startswith("ProfilerStep")]
    # 31 steps of 901 to 931 us, 916 us on average
    steps = ["ProfilerStep*", "×31", "user_annotation", "31", "28.4", "0.901", "0.931", "0.916"]
    assert [row[:8] for row in of_steps] == [steps]
    assert ["aten::b#7", "cpu_op", "1"] in [row[:3] for row in rows]
    assert " alone; --full has each." in run_cli(*asked)[1]
    assert "has each" not in run_cli(*asked, "--full")[1]
    assert sum(line.startswith("ProfilerStep#") for line in run_cli(*asked, "--full")[1].splitlines()) == 31
    told = json.loads(run_cli(*asked, "--format", "json")[1])["operations"]
    assert sum(one["name"].startswith("ProfilerStep#") for one in told) == 31
    first = [row[0] for row in rows if row[1:2] == ["cpu_op"]]
    assert first == ["aten::a", "aten::b#7"]


def test_of_many_ranks_a_terminal_has_what_differs_by_a_number_alone_as_one(tmp_path: Path) -> None:
    for rank in range(17):  # the last has a step less
        spans = [step(number, 1_000 * number, 900) for number in range(1, 6 - rank // 16)]
        write(tmp_path / "job" / f"rank{rank}.pt.trace.json", spans, distributedInfo={"rank": rank})
    asked = ("statistic", tmp_path / "job", "--sort")
    (row,) = [line.split() for line in run_cli(*asked)[1].splitlines() if line.startswith("ProfilerStep")]
    assert row[:4] == ["ProfilerStep*", "×5", "user_annotation", "84"]
    full = run_cli(*asked, "--full")[1].splitlines()
    assert sum(line.startswith("ProfilerStep#") for line in full) == 5


def test_with_head_a_terminal_has_no_more_of_the_rows_that_stand_for_several(tmp_path: Path) -> None:
    spans = [step(number, 1_000 * number, 900) for number in range(5)]
    spans += [span(f"aten::op{i}", 30 * i, 10, "cpu_op") for i in range(9)]
    write(tmp_path / "a.json", spans)
    for words in ([], ["--sort"]):
        out = run_cli("statistic", tmp_path / "a.json", "--head", "3", *words)[1].split("Categories")[0]
        assert sum(line.startswith(("aten", "ProfilerStep")) for line in out.splitlines()) == 3


def test_a_terminal_has_the_partitions_of_a_transfer_as_one(tmp_path: Path) -> None:
    took = {"1": [10, 20], "2": [30, 40]}  # microseconds
    events = [
        {"ph": "X", "name": "Comm.x.PUSH", "pid": "Comm.x", "tid": key, "ts": 100 * i, "dur": us,
         "cat": "Comm", "args": {"name": "Comm.x"}}
        for key, all_us in took.items() for i, us in enumerate(all_us)
    ]  # fmt: skip
    (tmp_path / "comm.json").write_text(json.dumps({"traceEvents": events}))
    words = ("statistic", tmp_path / "comm.json")
    out, full = run_cli(*words)[1], run_cli(*words, "--full")[1]
    (row,) = [line.split() for line in out.splitlines() if line.startswith("Comm.x.PUSH")]
    # of four events 100 us in all, 10 to 40, 25 on average
    assert row[:8] == ["Comm.x.PUSH", "×2", "Comm", "4", "0.100", "0.010", "0.040", "0.025"]
    assert sum(line.startswith("Comm.x.PUSH.") for line in full.splitlines()) == 2
