"""What counts as one operation, to which step an event belongs, and what ranks amount to together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzer.base.errors import AnalyzeError, TraceError
from analyzer.cli.runs import labels
from analyzer.model.figures.job_figures import JobFigures, filtered, load_figures
from analyzer.model.figures.operations_by_step import OpKey, folded
from analyzer.model.figures.rank_figures import Wanted
from analyzer.reading import dialects
from make import comm, step, two_workers, write
from make import span as x
from trace_utils import Request


def load_run(path: Path, select: Sequence[str] = ()) -> JobFigures:
    return load_figures([path], Wanted(operations=True, select=select), Request(jobs=1, progress=False))


def test_events_belong_to_the_step_in_which_they_begin(tmp_path: Path) -> None:
    adds = [x("aten::add", ts, dur, "cpu_op") for ts, dur in ((10, 5), (20, 5), (99, 30), (120, 7))]
    events = [step(1, 0, 100), step(2, 100, 100), *adds]
    found = load_run(write(tmp_path / "t.json", events, schemaVersion=1)).operations(tell_workers=False)
    at = found.keys.index(OpKey("aten::add", "cpu_op"))
    assert (found.count[at].tolist(), found.total_ns[at].tolist()) == ([3, 1], [40_000, 7_000])


def test_a_sub_task_carries_its_partition(tmp_path: Path) -> None:
    path = write(tmp_path / "comm.json", [comm("w", "PUSH", 65536, 0, 4), comm("w", "PUSH", 65537, 0, 4)])
    keys = load_run(path).operations(tell_workers=False).keys
    assert [key.name for key in keys] == ["Comm.w.PUSH.65536", "Comm.w.PUSH.65537"]


def test_the_nth_communication_on_a_track_is_the_nth_steps(tmp_path: Path) -> None:
    events = [comm("w", "PUSH", 1, ts, dur) for ts, dur in ((0, 10), (100, 20), (300, 30))]
    events.append(comm("w", "PULL", 1, 290, 7))
    found = load_run(write(tmp_path / "comm.json", events)).operations(tell_workers=False)
    assert found.total_ns.tolist() == [[10_000, 20_000, 30_000], [7_000, 0, 0]]


def test_without_steps_ten_stretches_stand_for_them(tmp_path: Path) -> None:
    events = [x("work", 10 * i, 5) for i in range(25)] + [x("rare", 10 * i, 1) for i in range(4)]
    found = load_run(write(tmp_path / "t.json", events)).operations(tell_workers=False)
    counts = {key.name: row[row > 0].tolist() for key, row in zip(found.keys, found.count, strict=True)}
    assert counts == {"work": [3, 2, 3, 2, 3, 2, 3, 2, 3, 2], "rare": [1, 1, 1, 1]}


def test_ranks_are_merged_and_workers_told_apart(tmp_path: Path) -> None:
    run = load_run(two_workers(tmp_path))
    apart = run.operations(tell_workers=True)
    assert [key.name for key in apart.keys] == ["wk0.Comm.w.PUSH.1", "wk1.Comm.w.PUSH.1"]
    assert (apart.count.sum(1).tolist(), apart.mean_ns.tolist()) == ([6, 6], [10_000, 20_000])
    assert [key.name for key in run.operations(tell_workers=False).keys] == ["Comm.w.PUSH.1"]


def test_the_filter_keeps_the_named_communication_and_all_else(tmp_path: Path) -> None:
    events = [comm("v", "PUSH", 1, 0, 5), comm("w", "PUSH", 2, 0, 5), x("FW.a", 0, 5, "operator")]
    path = write(tmp_path / "t.json", events)
    run = load_run(path, select=["Comm.w"])
    kept = filtered([run], ["Comm.w"])[0].operations(tell_workers=False).keys
    assert {key.name for key in kept} == {"Comm.w.PUSH.2", "FW.a"}
    with pytest.raises(AnalyzeError, match=r"Comm\.nothing"):
        filtered([load_run(path, select=["Comm.nothing"])], ["Comm.nothing"])


def test_iteration_times_are_averages_over_the_ranks(tmp_path: Path) -> None:
    for rank, dur in ((0, 100), (1, 110)):
        events = [x("aten::add", 1000 * n + 5, 9, "cpu_op") for n in (1, 2)]
        events += [step(n, 1000 * n, dur * n) for n in (1, 2)]
        write(tmp_path / f"rank{rank}.pt.trace.json", events, schemaVersion=1,
              distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
    assert load_run(tmp_path).iteration_ns.tolist() == [105_000, 210_000]


def test_a_trace_without_slices_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no operation"):
        load_run(write(tmp_path / "t.json", [{"ph": "i", "name": "mark", "ts": 1, "pid": 0, "tid": 0}]))


@pytest.mark.parametrize(
    ("name", "cat", "dialect", "expected"),
    [
        ("wk0.Comm.w.PUSH.1", "Comm", "byteps", "PUSH"),
        ("Comm.w", "Comm", "byteps", "Comm"),
        ("BW.conv0", "operator", "byteps", "BW"),
        ("aten::add", "cpu_op", "kineto", "cpu_op"),
        ("ALLREDUCE", "", "horovod", "ALLREDUCE"),
        ("callback/Times/event/batch_end", "batch_end,Times", "composer", "callback/Times/event/batch_end"),
        ("anything", "", "chrome", ""),
    ],
)
def test_categories(name: str, cat: str, dialect: str, expected: str) -> None:
    assert dialects.named(dialect).category(name, cat) == expected


def test_labels_take_the_part_of_paths_that_differs(tmp_path: Path) -> None:
    a, b = tmp_path / "a" / "trace", tmp_path / "b" / "trace"
    assert labels([a, b]) == ["a/trace", "b/trace"]
    assert labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert labels([a, a]) == ["trace", "trace (2)"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProfilerStep#17", "ProfilerStep*"),
        ("<built-in method acquire of _thread.lock object at 0x7f63ad2b1510>",
         "<built-in method acquire of _thread.lock object at 0x…>"),
        ("Optimizer.step#12", "Optimizer.step#*"),
        ("Optimizer.step#SGD.step", "Optimizer.step#SGD.step"),
        ("train_step 5", "train_step *"),
        ("epoch=3 batch=12", "epoch=* batch=*"),
        ("aten::conv2d", "aten::conv2d"),
        ("void gemm_128x64_0x1(float*)", "void gemm_128x64_0x1(float*)"),
        ("Comm.gradient_1.PUSH.65536", "Comm.gradient_1.PUSH.65536"),
    ],
)  # fmt: skip
def test_parts_of_names_that_change_between_calls_are_folded(name: str, expected: str) -> None:
    assert folded(name) == expected


def test_nearly_empty_tables_are_refused(tmp_path: Path) -> None:
    # 4,000 steps with an operation of their own each: 16 million cells for 8,000 events
    own = [x(f"load_{'abcdefghij'[i % 10]}{i}", 10 * i, 5, "cpu_op") for i in range(4000)]
    path = write(tmp_path / "t.json", [*(step(i, 10 * i, 10) for i in range(4000)), *own], schemaVersion=1)
    with pytest.raises(
        TraceError, match=r"4,001 operations in 4,000 steps, .*: too many .*--step_by"
    ) as said:
        load_run(path).operations(tell_workers=False)
    assert str(said.value).startswith(f"{path}: ")
