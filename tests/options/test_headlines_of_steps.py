"""What is said of a job's steps, worked out by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from conftest import run_cli
from figures import rank_figures
from figures.rank_figures import RankFigures, Wanted
from figures.time_by_role import Breakdown, Breakdowns, summaries
from formats.columns import Trace
from make import by_rank, span, write
from make import step as mark
from options.statistic import headlines
from options.statistic.headlines import exposed_and_outliers
from trace_utils import read_trace
from traces.paths import Source

MS = 1_000_000


def step(rank: str, number: int | None, wall: int, compute: int, comm: int, both: int = 0) -> Breakdown:
    """A step in milliseconds; what is left of it is idle."""
    times = (0, wall * MS, compute * MS, comm * MS, both * MS, (wall - compute - comm + both) * MS)
    return Breakdown(rank, number, *times)


def test_a_rank_has_means_a_median_and_the_steps_beyond_three_deviations() -> None:
    # median 101, deviations 2 1 0 1 39: their median is 1, so what is beyond 104 and 111.1 (10 %) stands out
    parts = [step("rank0", n, wall, 50, 30, 10) for n, wall in enumerate((99, 100, 101, 102, 140), 3)]
    (rank,) = summaries(by_rank(parts))
    assert rank.outlier_steps == [7]
    assert (rank.steps, rank.mean_ns, rank.median_ns) == (5, 108.4 * MS, 101 * MS)
    assert (rank.compute_ns, rank.comm_ns, rank.exposed_comm_ns) == (50 * MS, 30 * MS, 20 * MS)
    assert rank.idle_ns == pytest.approx((108.4 - 70) * MS)


def test_steps_that_hardly_differ_and_three_steps_have_no_outlier() -> None:
    alike = [step("rank0", n, wall, 50, 30) for n, wall in enumerate((1000, 1000, 1000, 1000, 1099))]
    assert summaries(by_rank(alike))[0].outlier_steps == []
    few = [step("rank0", n, wall, 50, 30) for n, wall in enumerate((100, 100, 900))]
    assert summaries(by_rank(few))[0].outlier_steps == []


def test_the_sentence_of_a_breakdown() -> None:
    # alone: 20 of 100 ms on rank0, 30 on rank1; step 4 takes 200 ms on rank1
    parts = [step("rank0", n, 100, 50, 30, 10) for n in range(1, 5)]
    parts += [step("rank1", n, 200 if n == 4 else 100, 40, 30) for n in range(1, 5)]
    assert exposed_and_outliers(by_rank(parts)) == (
        "A step takes 112 ms (mean of 4 steps on 2 ranks, median 100 ms); exposed communication "
        "takes 25.0 ms of it (22 %; most on rank1, 30.0 ms); far longer than the median: step 4 "
        "(200 ms on rank1)."
    )


def test_without_communication_a_breakdown_says_so() -> None:
    assert exposed_and_outliers(by_rank([step("rank0", None, 100, 50, 0)])) == (
        "The recording takes 100 ms; no communication was recorded."
    )


def test_a_step_that_one_rank_lacks_is_not_in_the_mean() -> None:
    steps = [step("rank0", n, 70 if n == 1 else 100, 50, 0) for n in (1, 2, 3)]
    steps += [step("rank1", n, 110, 50, 0) for n in (2, 3)]
    assert exposed_and_outliers(by_rank(steps)) == (
        "A step takes 105 ms (mean of 2 steps on 2 ranks, median 105 ms); no communication was recorded."
    )


def test_a_rank_without_an_event_has_no_steps() -> None:
    assert exposed_and_outliers([*by_rank([step("rank0", None, 100, 50, 0)]), Breakdowns("rank1")]) == (
        "The recording takes 100 ms; no communication was recorded."
    )


def test_steps_of_the_warm_up_are_named_and_not_in_the_mean() -> None:
    assert exposed_and_outliers(by_rank([step("rank0", n, 100, 50, 0) for n in (2, 3)]), [0, 1]) == (
        "A step takes 100 ms (mean of 2 steps, median 100 ms); no communication was recorded; "
        "step 0 and 1, the warm-up, left out."
    )


def middle_steps(trace: Trace) -> RankFigures:
    return rank_figures.rank_figures(Source(Path(trace.path)), trace, Wanted(durations=True))


def where_time_goes(ranks: dict[str, RankFigures]) -> str:
    named = [replace(rank, name=name, breakdown=rank.breakdown.of_rank(name)) for name, rank in ranks.items()]
    return headlines.where_time_goes(named)


def job(tmp_path: Path, **computes_ms: int) -> dict[str, RankFigures]:
    """Ranks whose outer operation computes so long, 45 ms of it inside another; 30 ms of communication."""
    traces = {}
    for rank, ms in computes_ms.items():
        events = [
            span("outer", 0, ms * 1000),
            span("inner", 1000, 45_000),
            span("allreduce", 50_000, 30_000, tid=2),
            span("last", 99_000, 1000),
        ]
        traces[rank] = middle_steps(read_trace(write(tmp_path / f"{rank}.json", events)))
    return traces


def test_where_the_time_goes(tmp_path: Path) -> None:
    # of 100 ms the rank computes 60 and 1, 10 of them while it communicates for 30
    assert where_time_goes(job(tmp_path, rank0=60)) == (
        "The recording takes 100 ms: 51 % computation alone, 20 % communication alone, 19 % idle, "
        "10 % both at once; the longest computation is inner, 45.0 ms of its own time."
    )


def test_who_computes_longest(tmp_path: Path) -> None:
    two = where_time_goes(job(tmp_path, rank0=60, rank1=50))
    assert "; rank0 computes longest, 61.0 ms (rank1 shortest, 51.0 ms); " in two
    alike = where_time_goes(job(tmp_path, rank0=60, rank1=59))
    assert "; ranks compute alike, 60.0 ms to 61.0 ms; " in alike


def test_annotations_are_named_where_hardly_any_operator_is_recorded(tmp_path: Path) -> None:
    # of 100 ms the annotation expert has 60, 58 of them alone; aten::empty takes 2, the all-reduce 30
    events = [
        mark(1, 0, 100_000),
        span("expert", 0, 60_000, "user_annotation", tid=1),
        span("aten::empty", 10_000, 2_000, "cpu_op", tid=1),
        span("gloo:all_reduce", 65_000, 30_000, "user_annotation", tid=2),
    ]
    trace = read_trace(write(tmp_path / "a.json", events, schemaVersion=1))
    assert where_time_goes({"rank0": middle_steps(trace), "rank1": middle_steps(trace)}) == (
        "A step takes 100 ms on 2 ranks: 68 % with no communication (computation is hardly recorded), "
        "30 % communication alone, 2 % computation alone; "
        "the longest annotation is expert, 58.0 ms of its own time on rank0."
    )


def test_what_python_does_in_an_operator_is_the_operators_own_time(tmp_path: Path) -> None:
    events = [
        mark(1, 0, 100_000),
        span("SleepOpBackward", 0, 50_000, "cpu_op", tid=1),
        span("<built-in function sleep>", 1_000, 48_000, "python_function", tid=1),
        span("aten::mm", 60_000, 5_000, "cpu_op", tid=1),
    ]
    trace = read_trace(write(tmp_path / "a.json", events, schemaVersion=1))
    assert where_time_goes({"rank0": middle_steps(trace)}).endswith(
        "is SleepOpBackward, 50.0 ms of its own time."
    )


def test_of_a_large_job_steps_in_the_middle_speak_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # five steps of 100, 10, 20, 30 and 100 ms with an operation each; room for six of ten slices: three steps
    lengths = (100, 10, 20, 30, 100)
    starts = list(itertools.accumulate(lengths, initial=0))
    events = [mark(n, at * 1000, ms * 1000) for n, (at, ms) in enumerate(zip(starts, lengths, strict=False))]
    events += [span("aten::x", at * 1000 + 10, 5000, "cpu_op", tid=1) for at in starts[:5]]
    trace = read_trace(write(tmp_path / "a.json", events, schemaVersion=1))
    monkeypatch.setattr(rank_figures, "_MOST_SLICES", 6)
    assert where_time_goes({"rank0": middle_steps(trace)}).startswith(
        "A step takes 20.0 ms (mean of 3 steps in the middle): 75 % idle, 25 % computation alone;"
    )
    unmarked = read_trace(write(tmp_path / "b.json", [span(f"f{i}", i, 1) for i in range(7)]))
    assert where_time_goes({"rank0": middle_steps(unmarked)}) == (
        "7 slices of 1 rank; no step is marked in them."
    )


@pytest.mark.parametrize(
    ("most", "said"), [(50_000, "A step takes 0 ms"), (6, "10 slices of 1 rank; no step")]
)
def test_steps_that_take_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, said: str
) -> None:
    # one event ten times: each begins an iteration at the moment at which the next one does
    event = {"ph": "X", "name": "FW.a", "ts": 1, "dur": 5, "pid": 0, "tid": 0, "args": {"step": 1}}
    (tmp_path / "a.json").write_text(json.dumps([event] * 10))
    monkeypatch.setattr(rank_figures, "_MOST_SLICES", most)
    code, out, _ = run_cli("statistic", tmp_path / "a.json")
    assert (code, out.startswith(said), ": ." in out) == (0, True, False)
