"""Durations of operations, in total and step by step: against a plain re-computation, and by hand."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import recorded
import reference
from analyzer.base.arrays import Int64
from analyzer.base.arrays.intervals import union_length
from analyzer.base.errors import AnalyzeError, TraceError
from analyzer.base.names import OpName
from analyzer.cli.runs import labels
from analyzer.model.figures.durations import OpKey, folded, joined, operation_stats, rows_of
from analyzer.model.figures.job_figures import JobFigures, Wanted, filtered, load_figures
from analyzer.reading import dialects
from analyzer.reading.dialects import Role
from analyzer.reading.formats.columns import Trace
from conftest import REPO, ask, run_cli
from make import comm, span, step, two_workers, write
from make import span as x
from trace_utils import Request, read_ranks

FIGURES = ("count", "total_ms", "min_ms", "max_ms", "avg_ms", "var_ms2", "p50_ms", "p95_ms", "p99_ms")


def statistic(*args: object) -> dict[str, Any]:
    document: dict[str, Any] = ask("statistic", *args)
    return document


def test_figures_by_hand(tmp_path: Path) -> None:
    # durations 1, 2, 3, 10 ms: mean 4, variance (9+4+1+36)/4 = 12.5, p95 = 3 + 0.85*7, p99 = 3 + 0.97*7
    events = [x("a", 0, 3000), x("a", 5000, 1000), x("b", 9000, 0), x("a", 9000, 10000), x("a", 30000, 2000)]
    found = statistic("--path", write(tmp_path / "t.json", events))
    first, second = found["operations"]
    assert [first[key] for key in FIGURES] == pytest.approx([4, 16, 1, 10, 4, 12.5, 2.5, 8.95, 9.79])
    assert (first["name"], second["name"], second["avg_ms"]) == ("a", "b", 0)


def test_a_category_counts_nested_slices_once(tmp_path: Path) -> None:
    # outer 10 ms holds inner 4 ms of the same category; another category's slice nests too
    events = [
        x("outer", 0, 10000, cat="op"),
        x("inner", 1000, 4000, cat="op"),
        x("call", 2000, 1000, cat="runtime"),
        x("other", 0, 7000, cat="op", tid=1),
    ]
    found = statistic("--path", write(tmp_path / "t.json", events))
    assert found["categories"] == [
        {"cat": "op", "count": 3, "total_ms": 17.0, "max_name": "outer", "max_avg_ms": 10.0},
        {"cat": "runtime", "count": 1, "total_ms": 1.0, "max_name": "call", "max_avg_ms": 1.0},
    ]


def test_rank_ten_comes_after_rank_nine(tmp_path: Path) -> None:
    for rank in (10, 9, 2):
        write(tmp_path / f"rank{rank}.json", [x("a", 0, 1)])
    found = statistic("--path", tmp_path)
    assert [op["name"] for op in found["operations"]] == ["rank2.a", "rank9.a", "rank10.a"]
    assert any("ranks 0, 1 and 3 to 8 of 11 missing" in line for line in found["repairs"])


def test_a_first_rank_without_slices(tmp_path: Path) -> None:
    for rank, events in enumerate(([x("FW.a", 0, 1) | {"ph": "i"}], [x("FW.a", 0, 2)])):
        write(tmp_path / f"rank{rank}.json", events)
    (row,) = statistic("--path", tmp_path)["operations"]
    assert (row["name"], row["count"], row["total_ms"]) == ("rank1.FW.a", 1, 0.002)


def test_files_of_unknown_rank_count_as_one_trace(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", [x("a", 0, 1000), x("b", 0, 1000)])
    two = write(tmp_path / "two.json", [x("a", 0, 3000)])
    a, b = statistic("--path", f"{one},{two}")["operations"]
    assert (a["name"], a["count"], a["avg_ms"], a["p50_ms"]) == ("a", 2, 2.0, None)
    assert (b["name"], b["count"], b["avg_ms"], b["p50_ms"]) == ("b", 1, 1.0, 1.0)


def test_sort_and_head(tmp_path: Path) -> None:
    often = [x("often", 40 + 5 * n, 4) for n in range(3)]  # 12 us in all, 4 on average
    path = write(tmp_path / "t.json", [x("short", 0, 1), x("long", 1, 9), x("middle", 20, 5), *often])
    names = [op["name"] for op in statistic("--path", path, "--sort", "--head", 2)["operations"]]
    assert names == ["often", "long"]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.whole_files(), ids=lambda path: str(path)[-60:])
def test_agrees_with_a_plain_recomputation(path: Path) -> None:
    events = reference.load_events(path)
    expected: dict[tuple[str, str], list[Fraction]] = defaultdict(list)
    nests: dict[tuple[str, str, str], list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for name, cat, pid, tid, ts, dur in reference.slices(events):
        if pid in ("Spans", "Traces") or "PyTorch Profiler" in str(tid):
            continue  # the recording itself
        if name.isdecimal() and dur == 0:
            continue  # Horovod's tick of a rank that is ready: an instant
        parsed = OpName.parse(name)
        name = f"{name}.{tid}" if parsed.queue and not parsed.key else name
        expected[name, cat].append(dur)
        nests[cat, str(pid), str(tid)].append((ts, ts + dur))
    if not expected:
        assert run_cli("--option", "statistic", "--path", path)[0] == 1
        return
    found = statistic("--path", path)
    assert found["traces"][0]["events"] == len(events)
    got = {(op["name"], op["cat"]): [op[key] for key in FIGURES] for op in found["operations"]}
    assert list(got) == list(expected)
    for key, durations in expected.items():
        want = reference.figures(durations)
        assert got[key] == pytest.approx([want[k] for k in FIGURES], rel=1e-9, abs=1e-12), key
    totals: dict[str, float] = defaultdict(float)
    for (cat, _, _), intervals in nests.items():
        totals[cat] += reference.covered_ms(intervals)
    assert {cat["cat"]: cat["total_ms"] for cat in found["categories"]} == pytest.approx(totals, rel=1e-9)


def test_operations_of_a_file_of_many_ranks_come_by_rank(tmp_path: Path) -> None:
    """In each rank by first occurrence, as everywhere; the replayed ranks begin in the other order."""
    path = tmp_path / "synthetic.json"
    assert run_cli("--option", "replay", "--path", REPO / "examples" / "lenet", "--output", path)[0] == 0
    expected: dict[str, list[Fraction]] = defaultdict(list)
    for name, _, _, tid, _, dur in reference.slices(reference.load_events(path)):
        key = f".{tid}" if OpName.parse(name).queue else ""
        expected[name + key].append(dur / 1000)
    assert next(iter(expected)) == "wk1.rank0.I/O"
    got = {op["name"]: (op["count"], op["total_ms"]) for op in statistic("--path", path)["operations"]}
    assert list(got) == sorted(expected, key=lambda name: name.split(".")[0])
    assert got == {name: (len(durs), pytest.approx(float(sum(durs)))) for name, durs in expected.items()}


def test_torch_says_the_same(shared_data: Path) -> None:
    """The counts and totals of `prof.key_averages()`, but for two names that torch counts otherwise."""
    case = shared_data / "kineto" / "ddp2-gloo-key-averages"
    found = statistic("--path", case / "trace")
    ours = {
        op["name"]: (op["count"], op["total_ms"])
        for op in found["operations"]
        if op["name"].startswith("rank0.") and op["cat"] in ("cpu_op", "user_annotation")
    }
    oracle = json.loads((case / "oracle" / "key_averages_rank0.json").read_text())
    rows = oracle if isinstance(oracle, list) else oracle.get("key_averages", oracle)
    checked = 0
    for row in rows:
        name = row.get("key", row.get("name"))
        if name in ("aten::div", "aten::div_") or f"rank0.{name}" not in ours:
            continue
        count, total = ours[f"rank0.{name}"]
        assert count == row["count"], name
        assert total == pytest.approx(row["cpu_time_total_us"] / 1000, rel=1e-6, abs=2e-3 * count), name
        checked += 1
    assert checked >= 100


@pytest.mark.parametrize(
    ("traces", "oracle"),
    [
        ("gpu-hta-compare/control", "gpu-hta-compare/oracle/control"),
        ("gpu-hta-2of128/trace", "gpu-hta-2of128/oracle"),
    ],
)
def test_device_time_agrees_with_hta(shared_data: Path, traces: str, oracle: str) -> None:
    """Computation, and how much of the communication it hides, over whole files in whole microseconds."""
    folder = shared_data / "kineto" / oracle / "hta_all_steps"
    times = csv.DictReader((folder / "temporal_breakdown.csv").open())
    overlaps = csv.DictReader((folder / "comm_comp_overlap.csv").open())
    for trace, time, overlap in zip(
        read_ranks([shared_data / "kineto" / traces]).made, times, overlaps, strict=True
    ):
        kinds = dialects.of(trace).roles(trace)
        comm_rows, compute_rows = dialects.is_communication(kinds), kinds == Role.COMPUTE
        compute, comm = _busy_ns(trace, compute_rows), _busy_ns(trace, comm_rows)
        both = compute + comm - _busy_ns(trace, compute_rows | comm_rows)
        assert compute / 1000 == float(time["compute_time(us)"])
        assert round(100 * both / comm, 2) == float(overlap["comp_comm_overlap_pctg"])


def _busy_ns(trace: Trace, rows: NDArray[np.bool_]) -> int:
    part = trace.select(rows)
    return union_length(part.ts_ns, part.end_ns)


@pytest.mark.parametrize(
    ("rest", "idle_ms"),
    [
        # communication 6-16 on a stream, a copy 16-17
        ([x("ncclDevKernel_AllReduce", 6000, 10000, "kernel", tid=8),
          x("Memcpy HtoD", 16000, 1000, "gpu_memcpy", tid=7)], 3.0),
        # gloo exchanges 6-16; NCCL's call of the host only hands over
        ([x("gloo:all_reduce", 6000, 10000, "user_annotation", tid=9),
          x("gloo:all_reduce", 15900, 50, "gpu_user_annotation", tid=7),
          x("nccl:all_reduce", 16000, 4000, "user_annotation", tid=9)], 4.0),
    ],
)  # fmt: skip
def test_breakdown_by_hand(tmp_path: Path, rest: list[dict[str, Any]], idle_ms: float) -> None:
    # one step of 20 ms: computation 0-8
    events = [x("ProfilerStep#3", 0, 20000, "user_annotation"), x("gemm", 0, 8000, "kernel", tid=7), *rest]
    (row,) = statistic("--path", write(tmp_path / "t.json", events), "--sub_option", "breakdown")["breakdown"]
    assert [*row.values()] == ["rank0", 3, 20.0, 8.0, 10.0, 2.0, 8.0, idle_ms]


def test_a_waiting_update_counts_while_no_transfer_runs(tmp_path: Path) -> None:
    # FW 0-4, BW 4-10, one communication 8-16, STEP 10-20 waits for it: computation 0-10 and 16-20
    comm = {"tid": "total", "pid": "Comm.a"}
    step = [x("I/O", 0, 1), x("FW.a", 0, 4), x("BW.a", 4, 6), x("Comm.a", 8, 8) | comm, x("STEP", 10, 10)]
    events = [e | {"ts": e["ts"] * 1000 + 20_000 * i, "dur": e["dur"] * 1000} for i in (0, 1) for e in step]
    path = write(tmp_path / "bps_trace_final.json", events)
    first = statistic("--path", path, "--sub_option", "breakdown")["breakdown"][0]
    assert (first["wall_ms"], first["compute_ms"], first["comm_ms"]) == (20.0, 14.0, 8.0)
    assert (first["overlap_ms"], first["exposed_comm_ms"], first["idle_ms"]) == (2.0, 6.0, 0.0)


def test_the_breakdown_of_a_combined_trace_is_that_of_its_ranks(tmp_path: Path) -> None:
    job = REPO / "examples" / "lenet"
    output = tmp_path / "combined.json"
    assert run_cli("--option", "combine", "--path", job, "--output", output)[0] == 0
    apart = statistic("--path", job, "--sub_option", "breakdown")["breakdown"]
    assert {row["rank"] for row in apart} == {"wk0.rank0", "wk1.rank0"}
    assert statistic("--path", output, "--sub_option", "breakdown")["breakdown"] == apart


_VALUES = arrays.arrays(np.int64, st.integers(1, 50), elements=st.integers(0, 400) | st.integers(0, 10**12))


@given(st.lists(_VALUES, min_size=1, max_size=3))
def test_joined_statistics_are_those_of_all_values(parts: list[Int64]) -> None:
    stats = [operation_stats([("a", "")], np.zeros(len(part), np.int32), part, part) for part in parts]
    (row,), values = rows_of(joined(stats)), np.concatenate(parts)
    assert (row.count, row.total_ns) == (len(values), values.sum())
    assert (row.min_ns, row.max_ns) == (values.min(), values.max())
    assert row.mean_ns == pytest.approx(fmean(values.tolist()))
    assert row.var_ns2 == pytest.approx(pvariance(values.tolist()), rel=1e-6, abs=1e-6)
    percentiles = [row.p50_ns, row.p95_ns, row.p99_ns]
    if len(parts) > 1:
        assert percentiles == [None] * 3
    else:
        assert percentiles == pytest.approx(np.quantile(values, (0.5, 0.95, 0.99)), rel=1e-9, abs=1e-9)


def job(root: Path, n_ranks: int = 3) -> Path:
    """Ranks whose operation a takes 1000 µs times (rank + 1), twice; rank 1 has an operation b of its own."""
    for rank in range(n_ranks):
        each = 1000 * (rank + 1)
        events = [span("a", 0, each, "op"), span("a", 1e6, each, "op")]
        events += [span("b", 2e6, 500, "op")] if rank == 1 else []
        write(root / f"rank{rank}.json", events)
    return root


def test_an_operation_is_summed_over_the_ranks(tmp_path: Path) -> None:
    found = statistic("--path", job(tmp_path), "--group_by", "operation")["operations"]
    a, b = found
    assert (a["name"], a["count"], a["total_ms"], a["min_ms"], a["max_ms"]) == ("a", 6, 12, 1, 3)
    assert a["avg_ms"] == pytest.approx(2)
    assert a["var_ms2"] == pytest.approx(2 / 3)  # of 1, 1, 2, 2, 3, 3
    assert (a["p50_ms"], b["p50_ms"]) == (None, 0.5), "percentiles are those of one rank"
    assert (a["ranks"], a["slowest_rank"], a["slowest_avg_ms"], a["fastest_avg_ms"]) == (3, "rank2", 3, 1)
    assert (b["name"], b["count"], b["ranks"], b["slowest_rank"]) == ("b", 1, 1, "rank1")
    assert b["slowest_avg_ms"] == b["fastest_avg_ms"] == 0.5


def test_by_rank_is_the_default(tmp_path: Path) -> None:
    path = job(tmp_path)
    assert statistic("--path", path) == statistic("--path", path, "--group_by", "rank")
    assert statistic("--path", path)["operations"][0]["name"] == "rank0.a"


def test_a_category_names_its_operation_without_a_rank(tmp_path: Path) -> None:
    (cat,) = statistic("--path", job(tmp_path), "--group_by", "operation")["categories"]
    assert (cat["count"], cat["total_ms"], cat["max_name"], cat["max_avg_ms"]) == (7, 12.5, "a", 2)


def test_one_rank_alone(tmp_path: Path) -> None:
    path = job(tmp_path) / "rank2.json"
    (a,) = statistic("--path", path, "--group_by", "operation")["operations"]
    assert (a["ranks"], a["slowest_rank"], a["avg_ms"]) == (1, "rank2", 3)


@pytest.mark.slow
@pytest.mark.parametrize(("n_ranks", "rows"), [(16, 17), (17, 2)])
def test_a_terminal_shows_more_than_sixteen_ranks_by_operation(
    tmp_path: Path, n_ranks: int, rows: int
) -> None:
    path = job(tmp_path, n_ranks)
    _, out, _ = run_cli("--option", "statistic", "--path", path, "--full")
    table = out.split("Operations\n")[1].split("Categories\n")[0]
    assert sum(" op " in line for line in table.splitlines()) == rows
    assert ("Over 17 ranks; --group_by rank" in out) == (n_ranks == 17)
    _, asked, _ = run_cli("--option", "statistic", "--path", path, "--full", "--group_by", "rank")
    assert "rank0.a" in asked
    _, out, _ = run_cli("--option", "statistic", "--path", path, "--format", "csv")
    assert len(list(csv.DictReader(out.splitlines()))) == n_ranks + 1  # files stay by rank
    assert len(statistic("--path", path)["operations"]) == n_ranks + 1


def test_it_has_no_effect_on_variants(tmp_path: Path) -> None:
    path = job(tmp_path)
    words = ("--option", "statistic", "--path", path, "--sub_option", "breakdown", "--group_by", "rank")
    code, _, err = run_cli(*words)
    assert code == 2 and "--group_by has no effect" in err


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
