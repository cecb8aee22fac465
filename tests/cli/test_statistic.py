"""The headline and the chart of `--option statistic`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from analyzer.cli import arguments, statistic
from analyzer.cli.statistic.statistic_tables import icicle
from analyzer.model.figures.durations import Stat
from analyzer.report.result import Result, Span, Timeline
from conftest import run_cli
from make import span, step, write
from recorded import files


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


def test_events_of_no_duration_have_no_share_and_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [span("a", 5, 0, "op")])
    code, out, err = run_cli("statistic", path, "--html", tmp_path / "page.html")
    assert (code, out.splitlines()[0]) == (
        0,
        "a takes most time: 0 ms of its own in 1 event of 0 ms on average.",
    )
    assert "wrote" in err


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


def modules(**total_ns: int) -> list[Stat]:
    """Make rows of modules; ``__`` stands for a point."""
    return [module(name.replace("__", "."), ns) for name, ns in total_ns.items()]


def module(name: str, ns: int) -> Stat:
    return Stat(name, "forward", 1, ns, ns, ns, ns, 0, ns, None, None, None)


def test_a_box_of_the_icicle_is_as_wide_as_its_module_and_those_inside() -> None:
    stats = modules(Net_0=3_000_000, Net_0__Linear_0=5_000_000, Net_0__Linear_1=2_000_000, Loss_0=1_000_000)
    stats += modules(Net_0__Linear_1=4_000_000)  # another phase
    boxes = [(box.lane, box.name, box.start_ms, box.dur_ms, box.group) for box in icicle(stats).spans]
    assert boxes == [  # the widest first
        ("level 0", "all", 0, 15, "all"),
        ("level 1", "Net_0 (own 3.00 ms)", 0, 14, "Net"),
        ("level 2", "Linear_1", 5, 6, "Linear"),
        ("level 2", "Linear_0", 0, 5, "Linear"),
        ("level 1", "Loss_0", 14, 1, "Loss"),
    ]


def test_functions_lie_in_the_icicle_by_their_callers() -> None:
    stats = [module("a.py(1): f;torch/b.py(2): g", 5), module("(none)", 1)]
    names = [(box.lane, box.name) for box in icicle(stats).spans]
    assert names == [
        ("level 0", "all"),
        ("level 1", "a.py(1): f"),
        ("level 2", "torch/b.py(2): g"),
        ("level 1", "(none)"),
    ]


def test_of_many_modules_the_narrowest_are_left_out_and_a_name_of_points_is_no_tower() -> None:
    chart = icicle([module(f"Net_0.Linear_{i}", 10_000 - i) for i in range(9_000)])
    assert len(chart.spans) == 8_000
    assert chart.note.endswith("1,002 boxes are left out: the shortest.")
    assert chart.spans[0].dur_ms * 1e6 == pytest.approx(9_000 * 10_000 - 9_000 * 8_999 / 2)
    assert len(icicle([module("a." * 10_000, 1)]).spans) == 102


_WITH_STACKS = [path for path in files("kineto") if "/gpu-tracelens-" in str(path)]


@pytest.mark.parametrize("path", _WITH_STACKS, ids=lambda path: path.parts[-2])
@pytest.mark.slow
def test_boxes_inside_add_up_to_at_most_their_box_and_all_to_the_table(path: Path) -> None:
    words = ("--group_by", "module", "--html", "a.html")
    found = result(path, *words)
    table = next(each for each in found.tables if each.full)
    total = [column.key for column in table.columns].index("total_ms")
    chart = found.charts[0]
    assert isinstance(chart, Timeline)
    levels: dict[int, list[Span]] = {}
    for box in chart.spans:
        levels.setdefault(int(box.lane.split()[1]), []).append(box)
    (whole,) = levels[0]
    assert whole.dur_ms == pytest.approx(sum(float(row[total] or 0) for row in table.rows))
    for level, boxes in levels.items():
        boxes.sort(key=lambda box: box.start_ms)
        for before, after in itertools.pairwise(boxes):
            assert before.start_ms + before.dur_ms <= after.start_ms + 1e-9
        for outer in levels[level - 1] if level else ():
            end = outer.start_ms + outer.dur_ms + 1e-9
            inside = [box.dur_ms for box in boxes if outer.start_ms <= box.start_ms < end - 2e-9]
            assert sum(inside) <= outer.dur_ms + 1e-6
