"""Inputs that once ended in a traceback, a refusal or an endless run, and others of their kinds."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
from made_jobs import WRITERS, Job

from conftest import run_cli
from make import span, step, write


def assert_answered(path: Path) -> None:
    """Ask what is slow: an answer, or one line about the data; never a usage error that nobody typed."""
    code, out, err = run_cli("--path", path)
    assert code == 0 or (code == 1 and err.count("error: ") == 1 and not out), err


@pytest.mark.parametrize("case", ["loads-at-one-time", "own-edit-refused", "same-moment-ranks"])
def test_degenerate_times_are_answered(shared_data: Path, case: str) -> None:
    assert_answered(shared_data / "cases" / f"attack-{case}")


@pytest.mark.parametrize("system", ["byteps", "kineto", "chrome"])
def test_events_written_several_times_are_answered(tmp_path: Path, system: str) -> None:
    job = WRITERS[system](tmp_path / "job", Job(ranks=2, steps=4, before=(95.0,) * 3))
    for path in job.rglob("*.json"):
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "traceEvents": document["traceEvents"] * 10}))
    assert_answered(job)


@pytest.mark.slow
def test_a_breakdown_of_many_streams_is_linear(tmp_path: Path) -> None:
    n = 10_000  # the square of it took half a minute
    kernels = [span(f"k{i % 9}", 10 * i, 8, "kernel", 0, i) | {"args": {"stream": i}} for i in range(n)]
    path = write(tmp_path / "rank0.pt.trace.json", [*(step(i, i * n, n - 1) for i in range(10)), *kernels])
    begin = time.process_time()
    code, out, err = run_cli(
        "statistic", path, "--sub_option", "breakdown", "--jobs", "1", "--format", "json"
    )
    assert (code, json.loads(out)["ranks"][0]["compute_ms"]) == (0, pytest.approx(0.8 * 10)), err
    assert time.process_time() - begin < 10


def test_a_packed_monitor_is_no_profile(shared_data: Path, tmp_path: Path) -> None:
    for path in (shared_data / "dasf" / "two-hosts-4workers" / "trace").glob("*.msgpack"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert run_cli("diagnose", tmp_path)[0] == run_cli("statistic", tmp_path)[0] == 0
