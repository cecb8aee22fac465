"""The headline and the chart of `--option statistic`."""

from __future__ import annotations

import json
from pathlib import Path

from analyzer.cli import arguments, statistic
from analyzer.report.result import Result
from conftest import run_cli
from make import span, step, write


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


def test_a_digest_has_the_charts_of_its_job(tmp_path: Path) -> None:
    digest = str(tmp_path / "digest.json")
    of_traces = result(job(tmp_path / "job"), "--html", "a.html", "--save", digest)
    assert result(Path(digest), "--html", "a.html").charts == of_traces.charts


def test_the_operation_with_the_largest_total_is_named_and_no_step(tmp_path: Path) -> None:
    found = result(job(tmp_path))
    # 40 us in each of 4 steps on rank 0, 10 of them in a copy; the steps themselves take 100 us
    expected = "rank0.aten::conv takes most time: 0.120 ms of its own in 4 events of 0.0400 ms on average."
    assert found.headline == expected


def test_the_first_table_has_the_largest_own_total_first_and_steps_apart(tmp_path: Path) -> None:
    found = result(job(tmp_path, 1))
    work, apart = [table for table in found.tables if table.brief]
    # own totals of 4 steps in 0.4 ms of recording: 4 * (40 - 10), 4 * 20 and 4 * 10 us
    rows = [(name, own, share) for name, own, share, *_ in work.rows]
    assert rows == [("aten::conv", 0.12, 0.3), ("gloo:all_reduce", 0.08, 0.2), ("aten::copy_", 0.04, 0.1)]
    # a step holds 100 us, 40 of them in the convolution; the reduction is on another thread
    assert [row[1] for row in apart.rows] == [0.06] * 4


def test_more_than_sixteen_ranks_are_one_row_an_operation_on_a_terminal(tmp_path: Path) -> None:
    words = ("statistic", job(tmp_path, 17))
    assert "aten::conv" in [line.split()[0] for line in run_cli(*words)[1].splitlines() if line]
    rows = json.loads(run_cli(*words, "--format", "json")[1])["operations"]
    assert sum(row["name"].endswith(".aten::conv") for row in rows) == 17
