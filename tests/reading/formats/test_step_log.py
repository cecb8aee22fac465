"""Step logs: which column is what, units, repeated and missing steps, damage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.step_log import NUMBER, PARTS, STEP, read, recognises
from analyzer.reading.formats.step_log.named_columns import seconds_of

ROWS = (
    '{"step": 7, "rank": 3, "load_ms": 2.5, "fwd_ms": 5, "step_ms": 10, "ts": 1700000000.010, "loss": 0.5}\n'
)


def log(path: Path, text: str) -> Trace:
    path.write_text(text)
    return read(path)


def slices(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, begin from the first, and length in µs, of each step and of its parts one after the other."""
    found = []
    for row, begin in enumerate((trace.ts_ns - trace.ts_ns.min()).tolist()):
        found.append((STEP, begin // 1000, int(trace.dur_ns[row]) // 1000))
        for key, name in trace.header[PARTS].items():
            if took := trace.args[key].values[row]:
                found.append((name, begin // 1000, took // 1000))
                begin += took
    return found


def test_a_row_is_a_step_with_its_parts_in_order(tmp_path: Path) -> None:
    trace = log(tmp_path / "r.jsonl", ROWS)
    assert slices(trace) == [(STEP, 0, 10_000), ("load", 0, 2_500), ("fwd", 2_500, 5_000)]
    assert trace.ts_ns[0] == 1_700_000_000_000_000_000  # its end is 10 ms later
    assert trace.rank == 3
    assert list(trace.args["loss"].values) == [0.5]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("global_step,data_time_s,total_step_s", "1,0.002,0.010"),
        ("iteration\tload_us\tstep_us", "1\t2000\t10000"),
        ("iter,time/load,time/step", "1,0.002,0.01"),
        ("step,load_ns,iter (ns)", "1,2000000,10000000"),
        ("globalStep,dataTimeMs,stepTimeMs", "1,2,10"),
        ("step,data [ms],ms_per_step,tokens_per_sec,samples/s,GB_s", "1,2,10,9e6,512,30"),
        (",step,data_ms,step_ms", "0,1,2,10"),  # with the index of a table
    ],
)
def test_durations_by_their_units(tmp_path: Path, head: str, row: str) -> None:
    trace = log(tmp_path / "metrics.csv", f"{head}\n{row}\n")
    assert [(begin, took) for _, begin, took in slices(trace)] == [(0, 10_000), (0, 2_000)]


def test_steps_last_from_one_time_of_day_to_the_next(tmp_path: Path) -> None:
    text = "step,timestamp\n1,2024-01-01T00:00:00Z\n2,2024-01-01T00:00:03Z\n3,2024-01-01T00:00:05Z\n"
    trace = log(tmp_path / "a.csv", text)
    assert slices(trace) == [(STEP, 0, 3_000_000), (STEP, 3_000_000, 2_000_000)]
    assert list(trace.args[NUMBER].values) == [2, 3]


def test_a_step_without_a_duration_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    trace = log(tmp_path / "a.csv", "step,load_ms,fwd_ms,compute_ms\n1,1,2,20\n2,1,2,20\n")
    assert slices(trace)[4] == (STEP, 23_000, 23_000)


def test_the_last_row_of_a_repeated_step_counts(tmp_path: Path) -> None:
    text = "step,step_ms\n1,10\n2,11\n3,12\n2,21\n3,22\n"
    trace = log(tmp_path / "a.csv", text)
    assert [took for _, _, took in slices(trace)] == [10_000, 21_000, 22_000]
    assert trace.repairs == ["2 rows of steps that were run again; the last of a step holds"]


@pytest.mark.parametrize(
    ("numbers", "note"),
    [
        ((10, 20, 30), ["one step of 10 is in the log"]),
        ((1, 2, 5), ["2 steps between the first and the last not in the log"]),
        ((1, 2, 3), []),
    ],
)
def test_steps_that_are_not_logged(tmp_path: Path, numbers: tuple[int, ...], note: list[str]) -> None:
    rows = "".join(f"{number},5\n" for number in numbers)
    assert log(tmp_path / "a.csv", f"step,step_ms\n{rows}").repairs == note


def test_steps_that_each_epoch_begins_again_are_numbered_over_all_epochs(tmp_path: Path) -> None:
    rows = [f"{epoch},{step},{10 * epoch + step}" for epoch in (1, 2, 3) for step in range(4)]
    trace = log(tmp_path / "r.csv", "\n".join(["epoch,step,step_ms", *rows[:10]]))
    assert list(trace.args[NUMBER].values) == [*range(10)]
    assert trace.repairs == ["each epoch begins the steps again: they are numbered over all epochs"]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("step,rank0_load_ms,rank1_load_ms,step_ms/rank0,step_ms/rank1", "7,1,2,10,11"),
        ('"Step","rank0 - load_ms","rank0 - load_ms__MIN","rank0 - step_ms",'
         '"rank1 - load_ms","rank1 - load_ms__MIN","rank1 - step_ms"', '7,"1","1","10","2","2","11"'),
    ],
)  # fmt: skip
def test_a_row_may_have_columns_of_each_rank(tmp_path: Path, head: str, row: str) -> None:
    trace = log(tmp_path / "all.csv", f"{head}\n{row}\n{row.replace('7', '8', 1)}\n")
    assert [track.pid for track in trace.tracks] == [0, 1]
    assert trace.track_id.tolist() == [0, 0, 1, 1]
    assert (trace.dur_ns // 1_000_000).tolist() == [10, 10, 11, 11]
    assert [[n // 1_000_000 for n in trace.args[key].values] for key in trace.header[PARTS]] == [[1, 1, 2, 2]]
    assert list(trace.args[NUMBER].values) == [7, 8, 7, 8]


_MEASURED = [
    (step, rank, metric, ms)
    for step in (7, 8)
    for rank in (0, 1)
    for metric, ms in (("load", 1 + rank), ("step", 10 + rank))
]


def _by_metric(rows: Sequence[tuple[int, int, str, int]]) -> list[tuple[int, int, str, int]]:
    return sorted(rows, key=lambda row: row[2])


@pytest.mark.parametrize("order", [list, reversed, _by_metric])
@pytest.mark.parametrize(
    ("name", "head", "row"),
    [
        ("a.csv", "step,rank,metric,value\n", "{},{},{}_ms,{}\n"),
        ("a.csv", "step,rank,metric,value_ms\n", "{},{},{},{}\n"),
        ("a.tsv", "step\trank\tphase\ttime\tepoch\n", "{}\t{}\t{}\t0.0{:02}\t1\n"),
        ("a.jsonl", "", '{{"step": {}, "host": "n{}", "name": "{}", "duration_ms": {}}}\n'),
    ],
)
def test_a_row_may_hold_one_metric_of_a_step(
    tmp_path: Path, order: Callable[..., Iterable[Any]], name: str, head: str, row: str
) -> None:
    trace = log(tmp_path / name, head + "".join(row.format(*one) for one in order(_MEASURED)))
    assert [track.pid for track in trace.tracks] == [0, 1]
    assert trace.track_id.tolist() == [0, 0, 1, 1]
    assert list(trace.args[NUMBER].values) == [7, 8, 7, 8]
    assert (trace.dur_ns // 1_000_000).tolist() == [10, 10, 11, 11]
    assert [[n // 1_000_000 for n in trace.args[key].values] for key in trace.header[PARTS]] == [[1, 1, 2, 2]]


def test_a_log_that_was_cut_and_has_a_broken_row(tmp_path: Path) -> None:
    row = '{"step": %d, "step_ms": 5}\n'
    text = row % 1 + '{"step": 2, "step_ms"\n' + row % 3 + '{"step": 4, "st'
    trace = log(tmp_path / "a.jsonl", text)
    assert list(trace.args[NUMBER].values) == [1, 3]
    assert trace.repairs == [
        "2 damaged rows left out",
        "1 step between the first and the last not in the log",
    ]


@pytest.mark.parametrize("row", [3, 41])  # among those by which columns are told, and after them
def test_a_damaged_cell_is_counted_and_an_empty_one_is_not(tmp_path: Path, row: int) -> None:
    rows = [f"{step},9,2" for step in range(44)]
    rows[row - 1], rows[row] = f"{row - 1},9,", f"{row},9,q"
    trace = log(tmp_path / "a.csv", "\n".join(["step,step_ms,data_ms", *rows]))
    assert trace.repairs == ["1 cell without a number in columns of numbers: taken as empty"]
    assert sum(name == "data" for name, _, _ in slices(trace)) == 42


@pytest.mark.parametrize("cell", ["12.3 ms", "12,3"])
def test_durations_that_are_not_numbers_are_noted(tmp_path: Path, cell: str) -> None:
    trace = log(tmp_path / "a.csv", f"step;data_ms;step_ms\n1;{cell};20\n2;{cell};21\n")
    assert trace.repairs == ["data_ms left out: no plain numbers, such as 12.3"]
    assert not recognises(f"step;data_ms\n1;{cell}\n2;{cell}\n".encode())


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("lost", [0, 9])
def test_rows_in_an_array_are_those_in_lines(tmp_path: Path, indent: int | None, lost: int) -> None:
    rows = [{"step": n, "step_ms": 5.0 + n % 7, "loss": np.nan} for n in range(60_000)]  # of several pieces
    text = json.dumps(rows, indent=indent)
    trace = log(tmp_path / "a.json", text[: len(text) - lost])
    n = len(rows) - bool(lost)
    assert list(trace.args[NUMBER].values) == [*range(n)]
    assert trace.dur_ns[[0, n // 2, -1]].tolist() == [1_000_000 * (5 + one % 7) for one in (0, n // 2, n - 1)]
    assert trace.repairs == (["1 damaged row left out"] if lost else [])
    assert recognises(text[:1000].encode())


def test_a_quote_without_an_end_costs_no_row(tmp_path: Path) -> None:
    rows = [f"{step},9,a" for step in range(44)]
    rows[5] = '5,9,"a'
    assert len(log(tmp_path / "a.csv", "\n".join(["step,step_ms,text", *rows]))) == 44


@pytest.mark.parametrize("last", ["3,30", "3,30\r", "3,30\r\n", "3,30\n", '3,"30"\r', "3,3\r0\r\n3,30"])
def test_a_file_may_mix_line_ends(tmp_path: Path, last: str) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(f"step,step_ms\r\n1,10\r\n2,20\r\n{last}".encode())
    assert [took for _, _, took in slices(read(path))] == [10_000, 20_000, 30_000]


@pytest.mark.parametrize("row", [0, 3, 41])
@pytest.mark.parametrize(("took", "n"), [(",1990", 60), (",", 58)])
def test_a_row_without_its_time_of_day_has_no_length_from_it(
    tmp_path: Path, row: int, took: str, n: int
) -> None:
    rows = [f"{step},{1_700_000_000 + 2 * step}{took}" for step in range(60)]
    rows[row] = f"{row},x{took}"
    trace = log(tmp_path / "a.csv", "\n".join(["step,ts,step_ms", *rows]))
    assert "1 row without a time of day" in trace.repairs
    # without durations a length is known of no first step, none whose end is not, and none after that
    assert len(trace) == n - (took == "," and row > 0)
    assert {*trace.dur_ns.tolist()} == {2 * 10**9 if took == "," else 1_990_000_000}
    assert 1_699_999_998 <= trace.ts_ns.min() / 1e9 <= 1_700_000_002


def test_times_of_day_may_have_zones(tmp_path: Path) -> None:
    times = ("2026-11-27T00:00:00-05:00", "2026-11-27T05:00:01Z", "2026-11-27 05:00:02")
    text = "\n".join(["step,step_ms,ts", *(f"{step},1000,{ts}" for step, ts in enumerate(times))])
    # each is the end of a step of a second; the first begins at 04:59:59 of the universal time
    assert log(tmp_path / "a.csv", text).ts_ns[0] == int(seconds_of("2026-11-27T04:59:59Z")) * 10**9


def test_a_pause_between_steps_is_kept_and_rounded_times_of_day_are_not(tmp_path: Path) -> None:
    text = "step,step_ms,ts\n1,100,1700000000.1\n2,100,1700000000.201\n3,100,1700000005.3\n"
    trace = log(tmp_path / "a.csv", text)
    assert slices(trace) == [(STEP, 0, 100_000), (STEP, 100_000, 100_000), (STEP, 5_199_000, 100_000)]


TWO = ("0,0,80,100", "0,1,70,100", "1,0,80,100", "1,1,70,100")  # step, rank, ms of work, ms of the step


@pytest.mark.parametrize(
    ("row", "note"),
    [
        (
            '{{"step": {0}, "worker": {1}, "work_ms": {2}, "step_ms": {3}}}',
            "worker: rank 0 is 0, rank 1 is 1",
        ),
        (
            '{{"step": {0}, "host": "n{1}0", "local_rank": 3, "work_ms": {2}, "step_ms": {3}}}',
            "host and local_rank: rank 0 is n00 3, rank 1 is n10 3",
        ),
        ("{0},w{1},{2},{3}", "worker: rank 0 is w0, rank 1 is w1"),
        ('{{"step": {0}, "meta": {{"rank": {1}}}, "ms": {{"work_ms": {2}, "all": {{"step_ms": {3}}}}}}}', ""),
        ('{{"trainer/global_step": {0}, "rank": {1}, "perf/work_ms": {2}, "perf/step_ms": {3}}}', ""),
        ('{{"step": {0}, "rank": {1}, "work_ms": {2}, "step_ms": {3}, "step_time_ms": 90}}', ""),
    ],
)
def test_labels_name_ranks_and_nested_members_are_columns(tmp_path: Path, row: str, note: str) -> None:
    lines = [row.format(*cells.split(",")) for cells in TWO]
    trace = log(
        tmp_path / "a.x",
        "# a run\n\n" + "\n".join(lines if row[:2] == "{{" else ["step,worker,work_ms,step_ms", *lines]),
    )
    assert [track.pid for track in trace.tracks] == [0, 1]
    (part,) = trace.header[PARTS]
    assert [took // 1_000_000 for took in trace.args[part].values] == [80, 80, 70, 70]
    assert set(trace.dur_ns.tolist()) == {100_000_000}
    assert trace.repairs == ([f"ranks are told apart by {note}"] if note else [])


def test_a_measurement_does_not_name_ranks(tmp_path: Path) -> None:
    rows = [f"{i},{'' if i % 3 else 90.5 + i % 7},5\n" for i in range(30)]
    trace = log(tmp_path / "a.csv", "step,gpu,step_ms\n" + "".join(rows))
    assert ([track.pid for track in trace.tracks], len(trace), trace.repairs) == ([None], 30, [])


@pytest.mark.parametrize(
    ("ends", "took", "unit"),
    [((0, 0.1, 0.2), 100, "milliseconds"), ((0, 0.1, 0.2), 1e5, "microseconds"), ((0, 100, 200), 100, "")],
)
def test_times_of_day_imply_a_missing_unit(
    tmp_path: Path, ends: tuple[float, ...], took: float, unit: str
) -> None:
    rows = [f"{step},{1.7e9 + end},{took},{took / 4}\n" for step, end in enumerate(ends)]
    trace = log(tmp_path / "a.csv", "step,end_time,step_time,data_time\n" + "".join(rows))
    assert set(trace.dur_ns.tolist()) == {round(ends[1] * 1e9)}
    expected = [f"step_time and data_time taken for {unit}, as the times of day tell"] if unit else []
    assert trace.repairs == expected


def test_rows_of_all_ranks_in_several_pieces_are_those_of_each_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.reading.formats.stream.PIECE", 200)
    monkeypatch.setattr("analyzer.reading.formats.step_log.lines._BLOCK_ROWS", 30)
    rows = [f"{step},{rank},{1 + step + 100 * rank}\n" for step in range(300) for rank in (2, 0, 5)]
    trace = log(tmp_path / "a.csv", "step,rank,step_ms\n" + "".join(rows) + "7,5,9\nx")
    took = (trace.dur_ns // 1_000_000).reshape(3, 300)
    expected = np.arange(1, 301) + np.array([[0], [200], [500]])
    expected[2, 7] = 9  # written last
    assert (took == expected).all()
    assert list(trace.args[NUMBER].values) == 3 * [*range(300)]
    assert trace.repairs == [
        "1 damaged row left out",
        "1 row of steps that were run again; the last of a step holds",
    ]


@pytest.mark.parametrize(
    "head",
    [
        b'{"ph": "X", "step": 1, "dur_ms": 2}\n',  # an event
        b'{"step": 1, "loss": 2}\n',  # no duration
        b'{"loss_ms": 1}\n',  # no step
        b"a,b\n1,2\n",
        b"step,step\n1,2\n",
        b"",
        b"step,step_ms\n",
    ],
)
def test_other_files_are_not_step_logs(head: bytes) -> None:
    assert not recognises(head)


@pytest.mark.parametrize("row", ["1,-5,0", "1,nan,0", "1,1e300,0", "nan,5,0", "1e300,5,0", "1,5,0.5"])
def test_rows_with_impossible_values_are_left_out(tmp_path: Path, row: str) -> None:
    trace = log(tmp_path / "a.csv", f"step,step_ms,rank\n{row}\n2,5,0\n")
    assert trace.repairs == ["1 row without a step or its durations left out"]
    with pytest.raises(TraceError, match="no row tells how long its step took"):
        log(tmp_path / "b.csv", f"step,step_ms,rank\n{row}\n")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_step_log_or_not(data: bytes) -> None:
    assert recognises(data) in (True, False)
    recognises(b"step,step_ms\n1,2\n" + data)
    recognises(ROWS.encode() + data)


def test_steps_with_fractions_and_times_of_day_out_of_range_are_not_read_as_such(tmp_path: Path) -> None:
    text = "step,time,step_ms\n1,9999-12-31T23:59:59,5\n1.5,2024-01-01,5\n2,0001-01-01,5\n3,x,5\n"
    trace = log(tmp_path / "a.csv", text)
    assert list(trace.args[NUMBER].values) == [1, 2, 3]
    assert trace.ts_ns.tolist() == [0, 5_000_000, 10_000_000]
    assert trace.repairs == ["1 row without a step or its durations left out"]


@pytest.mark.parametrize(
    ("name", "per_second"),
    [("timestamp_ms", 1e3), ("ts_us", 1e6), ("end_time_ms", 1e3), ("dump_timestamp_us", 1e6)],
)
@pytest.mark.parametrize("has_step", [True, False])
def test_a_time_of_day_may_have_a_unit(tmp_path: Path, name: str, per_second: float, has_step: bool) -> None:
    rows = [f"{step},{int((1.7e9 + step / 5) * per_second)},{200 if has_step else ''}\n" for step in range(6)]
    trace = log(tmp_path / "a.csv", f"step,{name},step_ms\n" + "".join(rows))
    assert set(trace.dur_ns.tolist()) == {200_000_000}
    assert trace.ts_ns[-1] + trace.dur_ns[-1] == 1_700_000_001_000_000_000


def test_a_counter_since_the_start_is_not_a_duration(tmp_path: Path) -> None:
    rows = [f"{step},{100 + step / 5},200,{20 + step / 2}\n" for step in range(8)]
    trace = log(tmp_path / "a.csv", "step,elapsed_s,step_ms,data_ms\n" + "".join(rows))
    assert set(trace.dur_ns.tolist()) == {200_000_000}
    assert list(trace.header[PARTS].values()) == ["data"]  # grows, but by little
    alone = log(tmp_path / "b.csv", "step,elapsed_s\n" + "".join(f"{s},{7 + s / 5}\n" for s in range(8)))
    assert alone.dur_ns.tolist() == [200_000_000] * 7


def test_any_column_may_name_ranks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{run},{step},{took}\n" for step in range(4) for run, took in (("b-ant", 10), ("a-bee", 30))]
    path.write_text("Run,step,step_ms\n" + "".join(rows))
    trace = read(path, rank_by="Run")
    assert [track.pid for track in trace.tracks] == [0, 1]
    assert trace.dur_ns.tolist() == [30_000_000] * 4 + [10_000_000] * 4
    path.write_text("pid,step,step_ms\n4003,1,5\n4001,1,6\n")
    assert [track.pid for track in read(path, rank_by="pid").tracks] == [0, 1]
    with pytest.raises(TraceError, match="--rank_by host: no column has this name; there are pid, step"):
        read(path, rank_by="host")


def test_steps_may_be_numbered_by_a_column_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,step_ms\nbatch-9,5\nbatch-10,6\n")
    assert list(read(path, step_by="at").args["at"].values) == [9, 10]
