"""Nsight Systems: ranks, steps and figures of made exports, and the sums of recorded ones."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import system_laws
from nsight_export import Export, two_ranks

from analyzer.reading import dialects
from conftest import ask
from trace_utils import Request, read_ranks


def breakdown(path: Path, *more: object) -> list[tuple[object, ...]]:
    """Return rank, step, and wall, computation, communication and idle time (µs) of each step."""
    rows = ask("statistic", path, "--sub_option", "breakdown", *more)["breakdown"]
    times = ("wall_ms", "compute_ms", "comm_ms", "idle_ms")
    return [(row["rank"], row["step"], *(round(1000 * row[key]) for key in times)) for row in rows]


@pytest.mark.slow
def test_a_made_export_obeys_the_laws_of_systems(tmp_path: Path) -> None:
    job = two_ranks(tmp_path / "job.sqlite")
    assert system_laws.loaded(job).names == ["rank0", "rank1"]
    system_laws.check_labels(job)
    system_laws.check_step(job)
    system_laws.check_busy(job)
    system_laws.check_comm(job)


def test_steps_are_named_ranges_and_ranks_are_devices(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "job.sqlite")
    even = [("rank0", i, 1000, 400, 200, 400) for i in range(3, 8)]
    late = [("rank1", i, 1000, 500, 100, 400) for i in range(3, 8)]
    assert breakdown(path) == [*even, *late]


def test_the_graph_has_launches_waits_and_meetings(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "job.sqlite")
    on_path = ask("critical", path, "--step", 4)["scopes"][-1]["path"]
    kernels = [(node["rank"], node["name"]) for node in on_path if node["name"].startswith("rank1.sm90")]
    assert kernels == [("rank1", "rank1.sm90_gemm_f16")]  # the rank for which the other one waits
    without = ask("whatif", path, "sm90_gemm_f16=0.5")["whatif"][0]
    assert without["before_ms"] == pytest.approx(1.0) and without["after_ms"] == pytest.approx(0.75)


def test_files_of_several_machines_are_one_job_and_ranks_go_on_from_file_to_file(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for node in (0, 1):
        two_ranks(job / f"node{node}.sqlite")
    loaded = read_ranks([job], request=Request(jobs=1, progress=False))
    assert loaded.names == ["rank0", "rank1", "rank2", "rank3"]
    assert [dialects.of(trace).machine(trace) for trace in loaded.made] == ["node7"] * 4


def test_devices_of_one_process_are_ranks_that_share_its_threads(tmp_path: Path) -> None:
    made = Export(tmp_path / "job.sqlite")
    for device in (0, 1):
        made.call("cudaLaunchKernel_v7000", 10 * device, 10 * device + 5, device + 1)
        made.kernel("gemm", 20, 50, device + 1, device=device)
    made.work("MEMCPY", 60, 70, 3, device=2, bytes=64, copyKind=10, srcKind=2, dstKind=2)
    loaded = read_ranks([made.close()], request=Request(jobs=1, progress=False, hosts=True))
    assert loaded.names == ["rank0", "rank1", "host0"]
    own = [{trace.names[i] for i in trace.own.name_id.tolist()} for trace in loaded.made]
    assert own[:2] == [{"gemm"}] * 2
    assert sorted(own[2]) == ["Memcpy PtoP (Device -> Device)", "cudaLaunchKernel"]
    (tmp_path / "other.sqlite").write_bytes(made.path.read_bytes())
    loaded = read_ranks([tmp_path], request=Request(jobs=1, progress=False, hosts=True))
    assert loaded.names == ["rank0", "rank1", "host0", "rank2", "rank3", "host1"]
    assert loaded.repairs[0].endswith("rank0 is job, rank1 is job, rank2 is other and rank3 is other")


def test_marks_tell_steps(tmp_path: Path) -> None:
    made = Export(tmp_path / "job.sqlite")
    for i in range(6):
        made.range("begin", 1000 * i, None, kind=34)
        made.call("cudaGraphLaunch_v10000", 1000 * i, 1000 * i + 9, i + 1)
        for k in range(5):
            made.kernel(f"gemm{k}", 1000 * i + 10 + 100 * k, 1000 * i + 100 + 100 * k, i + 1)
    assert breakdown(made.close(), "--step_by", "begin") == [
        ("rank0", i, 1000, 450, 0, 550) for i in range(1, 6)
    ]


def test_a_recording_without_steps_begins_with_what_it_saw_launched_under_every_option(
    tmp_path: Path,
) -> None:
    made = Export(tmp_path / "job.sqlite")
    made.kernel("gemm", 0, 5, 99)
    for i in (1, 2):
        made.call("cudaLaunchKernel_v7000", 100 * i, 100 * i + 9, i)
        made.kernel("gemm", 100 * i + 10, 100 * i + 50, i)
    path = made.close()  # from the first call, at 100, to the end of the last kernel, at 250
    assert breakdown(path) == [("rank0", None, 150, 80, 0, 70)]
    assert ask("critical", path)["iteration_ms"] == pytest.approx(0.150)


#: Kernels of each recorded file: how many, their sum (ns), and that of flash_fwd_kernel.
SUMS = {"before": (4010, 535_200_650, 272_317_378), "after": (3587, 488_835_406, 240_755_667)}


@pytest.mark.slow
@pytest.mark.parametrize("which", SUMS)
def test_kernels_of_recorded_exports_add_up_as_sql_adds_them(shared_data: Path, which: str) -> None:
    path = shared_data / "nsys" / f"mfu_2gpu_{which}.sqlite"
    db = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    query = (
        'SELECT s.value, count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k '
        "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1"
    )
    by_sql = {name: (count, total) for name, count, total in db.execute(query)}
    db.close()
    operations = ask("statistic", path, "--group_by", "operation")["operations"]
    kernels = [row for row in operations if row["cat"] == "kernel"]
    assert {row["name"]: (row["count"], round(row["total_ms"] * 1e6)) for row in kernels} == by_sql
    sums = [sum(column) for column in zip(*by_sql.values(), strict=True)]
    attention = sum(total for name, (_, total) in by_sql.items() if "flash_fwd_kernel" in name)
    assert (*sums, attention) == SUMS[which]
