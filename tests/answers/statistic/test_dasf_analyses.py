"""`statistic.dasf_analyses`: the three analyses agree with DASF's own, and with hand arithmetic."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from analyzer.answers.statistic import dasf_analyses as analysis
from analyzer.base.errors import TraceError
from analyzer.cli.statistic.statistic_tables import dasf_table
from analyzer.reading.dialects import keys_for
from analyzer.reading.formats import dasf_records as dasf
from analyzer.reading.formats.columns import Trace
from analyzer.report.result import Cell, Table
from make import dasf_bytes as packed
from make import dasf_compute as compute
from make import dasf_event as event

SUB_OPTIONS = ("function_bottleneck", "task_bottleneck", "task_balance")
ORACLES = [
    ("one-host-2workers", "*TracePlugin*", "trace_only", SUB_OPTIONS),
    ("two-hosts-4workers", "*TracePlugin*", "trace_only", SUB_OPTIONS),
    ("gpu-metrics", "*TracePlugin*", "trace_only", SUB_OPTIONS),
    ("gpu-metrics", "*", "with_resources", SUB_OPTIONS),
    ("dask2024-tuple-keys", "*", "task_balance", ("task_balance",)),
]


def loaded(paths: Sequence[Path]) -> list[Trace]:
    return [dasf.read(path, keys_for(analysis.NEEDS), points=True) for path in paths]


def traces_of(folder: Path, *records: dict[str, object]) -> list[Trace]:
    path = folder / "a.msgpack"
    path.write_bytes(packed(*records))
    return loaded([path])


def dasf_table_of(sub_option: str, traces: Sequence[Trace]) -> Table:
    return dasf_table(sub_option, traces)[0]


def column(table: Table, key: str) -> list[Cell]:
    return [record[key] for record in table.records()]


def close(ours: Cell, theirs: str) -> bool:
    """Equal up to the half nanosecond in (here) at least 25 µs by which a duration was rounded."""
    try:
        return float(ours or 0) == pytest.approx(float(theirs), rel=2e-5)
    except ValueError:
        return str(ours) == theirs


@pytest.mark.parametrize(("case", "files", "oracle", "subs"), ORACLES)
def test_the_tables_are_those_of_dasf(
    shared_data: Path, case: str, files: str, oracle: str, subs: tuple[str, ...]
) -> None:
    traces = loaded(sorted((shared_data / "dasf" / case / "trace").glob(files)))
    for sub in subs:
        table = dasf_table_of(sub, traces)
        with open(shared_data / "dasf" / case / "oracle" / oracle / f"{sub}.csv", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        identity = 1 if sub == "task_balance" else 3
        theirs = {tuple(row[1 : 1 + identity]): row[1:] for row in rows}
        assert [each.title for each in table.columns] == header[1:]
        assert {tuple(map(str, row[:identity])) for row in table.rows} == theirs.keys()
        for row in table.rows:
            for key, ours, other in zip(
                header[1:], row, theirs[tuple(map(str, row[:identity]))], strict=True
            ):
                assert "GPU " in key or close(ours, other), (sub, key, row)


def test_rows_come_longest_first(tmp_path: Path) -> None:
    records = [compute(1.0, 0.1, key="a-1"), compute(2.0, 0.7, key="b-1"), compute(3.0, 0.2, key="c-1")]
    table = dasf_table_of("task_bottleneck", traces_of(tmp_path, *records))
    assert column(table, "Task Key") == ["b-1", "c-1", "a-1"]
    assert column(table, "Percentage of total time (%)") == pytest.approx([70, 20, 10])


def test_data_and_throughput_come_from_the_results_a_task_takes(tmp_path: Path) -> None:
    source = compute(1.0, 0.1, key="x-1", name="x", size=4_000_000, dependents=["sum-1"])
    taker = compute(3.0, 0.5, key="sum-1", name="sum", size=8, dependencies=["x-1"])
    table = dasf_table_of("function_bottleneck", traces_of(tmp_path, source, taker))
    assert column(table, "Mean Data Size (MB)") == [4.0, 0.0]
    assert column(table, "Mean Throughput (MB/s)") == [8.0, 0.0]  # 4 MB in 0.5 s


def test_a_task_that_ran_twice_has_the_throughput_of_each_run(tmp_path: Path) -> None:
    source = compute(1.0, 0.1, key="x-1", name="x", size=4_000_000)
    runs = [
        compute(at, dur, key="sum-1", name="sum", dependencies=["x-1"])
        for at, dur in [(3.0, 0.5), (9.0, 1.0)]
    ]
    table = dasf_table_of("function_bottleneck", traces_of(tmp_path, source, *runs))
    assert column(table, "Mean Throughput (MB/s)")[0] == 6.0  # 4 MB in 0.5 s, and in 1 s
    assert "1 task ran more than once" in table.note and "DASF" in table.note


def usage(at_s: float, percent: float) -> dict[str, object]:
    return event("Resource Usage", "I", at_s, {"gpu_utilization": percent, "gpu_memory_used": 2e9})


def test_a_sample_counts_for_all_tasks_running_then(tmp_path: Path) -> None:
    both = [compute(2.0, 1.0, key="a-1", name="a"), compute(2.5, 1.0, key="b-1", name="b")]
    samples = [usage(1.8, 50), usage(2.4, 10), usage(2.6, 99)]
    table = dasf_table_of("function_bottleneck", traces_of(tmp_path, *both, *samples))
    found = dict(zip(column(table, "Function"), column(table, "Mean GPU Utilization (%)"), strict=True))
    assert found == {"a": 50, "b": 30}  # a ran 1.0-2.0, b 1.5-2.5; at 2.6 nothing ran


def test_a_sample_counts_for_its_own_host_only(tmp_path: Path) -> None:
    other = usage(1.5, 7) | {"process_id": "elsewhere"}
    table = dasf_table_of("function_bottleneck", traces_of(tmp_path, compute(2.0, 1.0), other))
    assert column(table, "Mean GPU Utilization (%)") == [0]


def test_the_last_sample_of_a_second_counts(tmp_path: Path) -> None:
    held = [event("Managed Memory", "I", at, {"tasks": n}) for at, n in [(7.1, 3), (7.9, 5), (9.2, 4)]]
    table = dasf_table_of("task_balance", traces_of(tmp_path, *held))
    assert [tuple(row) for row in table.rows] == [(0, 5), (2, 4)]


def test_a_profile_without_tasks_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no Compute records.*task_balance"):
        dasf_table_of("function_bottleneck", traces_of(tmp_path, event("Managed Memory", "I", 1.0)))
    with pytest.raises(TraceError, match="no Managed Memory records"):
        dasf_table_of("task_balance", traces_of(tmp_path, compute(1.0, 0.5)))


def test_an_empty_database_among_others_is_left_out_with_a_note(tmp_path: Path) -> None:
    empty, full = tmp_path / "demo-ResourceMonitor-vm.msgpack", tmp_path / "demo-TracePlugin-vm.msgpack"
    empty.write_bytes(b"")
    full.write_bytes(packed(compute(2.0, 1.0)))
    traces, repairs = analysis.read_profiles([empty, full])
    assert (len(analysis.loads(traces, "key")[0]), repairs) == (1, [f"{empty}: empty, no records"])


def test_a_trace_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 0, "tid": 0}]')
    with pytest.raises(TraceError, match="not a DASF profile but a chrome trace"):
        analysis.read_profiles([path])
