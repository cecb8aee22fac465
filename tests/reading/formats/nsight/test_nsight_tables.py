"""Exports of Nsight Systems as columns: names, correlations, times, and what is wrong with a file."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from nsight_export import Export, ns, two_ranks

from analyzer.base.errors import TraceError
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.nsight import nsight_tables
from conftest import run_cli
from trace_utils import read_trace


def rows(trace: Trace) -> list[tuple[str, str, object, object]]:
    """Return name, category, process and thread of each slice."""
    ids = zip(trace.name_id.tolist(), trace.cat_id.tolist(), trace.track_id.tolist(), strict=True)
    return [(trace.names[name], trace.cats[cat], *trace.tracks[track]) for name, cat, track in ids]


def test_every_table_becomes_slices_as_pytorch_calls_them(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite")
    made.call("cudaLaunchKernel_ptsz_v7000", 0, 5, 1)
    made.call("cuMemcpyDtoHAsync_v2", 5, 9, 2)
    made.kernel("void gemm<(int)8>(float *)", 6, 16, 1)
    made.work("GRAPH_TRACE", 16, 19, 1, graphId=12)
    made.work("MEMCPY", 20, 21, 2, bytes=64, copyKind=2, srcKind=2, dstKind=0)
    made.work("MEMSET", 21, 22, 3, bytes=4, memKind=2, stream=9)
    made.work("SYNCHRONIZATION", 22, 23, 4, syncType=3, contextId=1, deviceId=5)
    made.range("aten::mm, seq = 3, op_id = 9", 0, 5)
    made.range("autograd::engine::evaluate_function: MmBackward0, op_id = 2", 0, 5)
    made.range("FSDP::pre_forward (blocks.3), op_id = 1", 0, 5)
    made.range("my range", 0, 6, kind=60)
    made.range("never ended", 0, None)
    made.range("", 1, None, kind=34)
    trace = nsight_tables.read(made.close(), ("correlation",))
    assert rows(trace) == [
        ("void gemm<(int)8>(float *)", "kernel", "GPU 0", 7),
        ("CUDA Graph 12", "kernel", "GPU 0", 7),
        ("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", "GPU 0", 7),
        ("Memset (Device)", "gpu_memset", "GPU 0", 9),
        ("Stream Sync", "cuda_sync", "GPU 0", 7),
        ("cudaLaunchKernel", "cuda_runtime", 10, 10),
        ("cuMemcpyDtoHAsync", "cuda_driver", 10, 10),
        ("aten::mm", "cpu_op", 10, 10),
        ("autograd::engine::evaluate_function: MmBackward0", "cpu_op", 10, 10),
        ("FSDP::pre_forward (blocks.3)", "user_annotation", 10, 10),
        ("my range", "user_annotation", 10, "ranges of 10"),
    ]
    assert trace.args["correlation"].as_dict() == {0: 1, 1: 1, 2: 2, 3: 3, 4: 4, 5: 1, 6: 2}
    assert trace.ts_ns[0] == ns(6) and trace.dur_ns[0] == 10_000
    assert trace.repairs == ["1 NVTX range without an end left out"]


def test_times_are_since_the_epoch_whichever_clock_an_export_has(tmp_path: Path) -> None:
    begins = []
    for name, clock, first in (("a", ns(-1000), 0.0), ("b", None, -19_999_000.0)):
        made = Export(tmp_path / f"{name}.sqlite", () if clock else ("systemClockNs",))
        made.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000, systemClockNs=clock)
        made.kernel("gemm", first, first + 1, 1)
        begins.append(int(read_trace(made.close()).ts_ns[0]))
    assert begins == [1_700_000_000_001_000_000] * 2  # 1 ms after the session began


def test_equal_correlations_of_two_processes_differ(tmp_path: Path) -> None:
    values = nsight_tables.read(two_ranks(tmp_path / "a.sqlite", steps=1), ("correlation",)).args[
        "correlation"
    ]
    by_process = {value >> 32: value & 0xFFFFFFFF for value in values.values}
    assert by_process.keys() == {0, 1}


@pytest.mark.parametrize(
    "lacks",
    [
        ("SYNCHRONIZATION", "GRAPH_TRACE", "MEMCPY", "MEMSET"),
        ("shortName", "contextId", "syncType", "graphId"),
        ("globalPid",),
        ("textId", "PROCESSES", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV"),
    ],
)
def test_tables_and_columns_may_be_missing(tmp_path: Path, lacks: tuple[str, ...]) -> None:
    tables = [
        name if name.isupper() and "TARGET" in name else f"CUPTI_ACTIVITY_KIND_{name}" for name in lacks
    ]
    made = Export(tmp_path / "a.sqlite", {*lacks, *tables})
    made.call("cudaLaunchKernel_v7000", 0, 5, 1)
    made.kernel("gemm", 6, 16, 1)
    made.range("step", 0, 9)
    trace = nsight_tables.read(made.close(), ("correlation",))
    assert [name for name, *_ in rows(trace)] == ["gemm", "cudaLaunchKernel", "step"]
    assert list(trace.args["correlation"].values) == [1, 1]


def test_rows_with_unsound_numbers_are_counted(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite")
    made.kernel("gemm", 6, 16, 1)
    where = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 2, "globalPid": 10 << 24}
    for start, end in (("x", 5), (9, 5), (None, 5), (5, None), (1, 1 << 62), (b"\x00", 3), (2.5, 3)):
        made.add("KERNEL", start=start, end=end, **where, demangledName=1)
    made.add("KERNEL", start=ns(20), end=ns(21), deviceId="one", contextId=None, streamId=-5,
             correlationId="y", globalPid=None, demangledName="gemm")  # fmt: skip
    trace = nsight_tables.read(made.close(), ("correlation",))
    assert trace.repairs == ["7 rows of CUPTI_ACTIVITY_KIND_KERNEL without sound times left out"]
    assert [name for name, *_ in rows(trace)] == ["gemm", "(no name)"]
    assert list(trace.args["correlation"].values) == [(1 << 32) + 1, -1]  # the first process is one unknown


def _foreign(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return path


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["CREATE TABLE NVTX_EVENTS (start)"], "without a table StringIds"),
        (["CREATE TABLE StringIds (id, value)"], "without a table CUPTI_ACTIVITY_KIND_KERNEL"),
        (
            ["CREATE TABLE StringIds (id, value)", "CREATE TABLE NVTX_EVENTS (start, end)"],
            "a damaged database .no such column: eventType",
        ),
    ],
)
def test_another_database_is_refused_in_a_line_that_says_what_to_export(
    tmp_path: Path, statements: list[str], message: str
) -> None:
    with pytest.raises(TraceError, match=f"a.sqlite: .*{message}.*nsys export --type sqlite"):
        read_trace(_foreign(tmp_path / "a.sqlite", *statements))


@pytest.mark.parametrize("share", [0.001, 0.02, 0.7, 0.999])
def test_a_file_that_was_cut_off_is_refused_in_a_line(tmp_path: Path, share: float) -> None:
    whole = two_ranks(tmp_path / "a.sqlite", steps=50).read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    code, _, errors = run_cli("statistic", path)
    assert code == 1 and errors.count("\n") == 1
    assert re.match(rf"analyze.py: error: {path}: a (damaged database|database that was cut off)", errors)


def test_an_endless_view_is_refused(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "report.sqlite", 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE NVTX_EVENTS RENAME TO marks")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        db.execute(f"CREATE VIEW NVTX_EVENTS AS {numbers} SELECT marks.* FROM marks, n")
    with pytest.raises(TraceError, match=r"a damaged database \(its views do not end\)"):
        nsight_tables.read(path)


def test_a_view_that_makes_texts_is_refused(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "report.sqlite", 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE StringIds RENAME TO texts")
        db.execute("CREATE VIEW StringIds AS SELECT id, hex(zeroblob(1000)) AS value FROM texts")
    with pytest.raises(TraceError, match=r"a damaged database \(not authorized to use function: "):
        nsight_tables.read(path)


def test_rows_in_a_log_beside_the_file_are_not_read_and_nothing_is_changed(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("DELETE FROM NVTX_EVENTS")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert before["a.sqlite-wal"]
    tmp_path.chmod(0o500)
    try:
        trace = read_trace(path)
    finally:
        tmp_path.chmod(0o700)
    db.close()
    assert len(trace) == 2 * 5 * 8
    assert trace.repairs == ["rows that are still in a.sqlite-wal are not read; export it again"]
    assert before.keys() == {*os.listdir(tmp_path)} | {"a.sqlite-wal", "a.sqlite-shm"}


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        (["people"], "a database without a table of Nsight Systems"),
        (["rocpd_api", "rocpd_op"], "rpd2tracing.py"),
        (["rocpd_kernel_dispatch_0a"], "rocprofv3 --output-format pftrace"),
        (["StringTable", "CUPTI_ACTIVITY_KIND_KERNEL"], "a profile of nvprof"),
        (["experiments", "runs", "metrics"], "write it as CSV"),
    ],
)
def test_a_database_of_another_program_is_named(tmp_path: Path, tables: list[str], what: str) -> None:
    path = _foreign(tmp_path / "a.db", *(f"CREATE TABLE {table} (x)" for table in tables))
    with pytest.raises(TraceError, match=f"a.db: not a trace: .*{what}") as refused:
        read_trace(path)
    assert "nsys export --type sqlite REPORT" not in str(refused.value)


def test_a_table_with_a_version_in_its_name_is_that_table(shared_data: Path) -> None:
    trace = read_trace(shared_data / "cases" / "nvtx-table-suffix" / "v2.sqlite")
    assert sum(trace.names[i].startswith("train_step_") for i in trace.name_id) == 6
