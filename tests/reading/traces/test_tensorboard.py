"""TensorBoard's directories of profiles: the newest run, one file for each host."""

from __future__ import annotations

import json
from pathlib import Path

from analyzer.reading.traces.layouts import find_job

TRACE = json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 0, "tid": 0}]})


def write_run(log: Path, run: str, *files: str) -> Path:
    folder = log / "plugins" / "profile" / run
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text(TRACE)
    return folder


def test_the_newest_run_has_a_trace_for_each_host(tmp_path: Path) -> None:
    write_run(tmp_path, "2026_11_22_23_59_59", "h0.trace.json")
    run = write_run(tmp_path, "2026_11_23_00_00_01", "h10.trace.json", "h2.trace.json", "h2.xplane.pb")
    job = find_job(tmp_path)
    assert [source.path for source in job.sources] == [run / "h2.trace.json", run / "h10.trace.json"]
    assert [source.worker for source in job.sources] == [0, 1]
    assert job.kind == "ranks"
    assert [note.split(": ", 1)[1] for note in job.notes] == ["an earlier run, left out; give it to read it"]


def test_log_directories_of_processes_are_one_job(tmp_path: Path) -> None:
    for process in ("0", "1"):
        write_run(tmp_path / process, "run", "h.trace.json")
    assert len(find_job(tmp_path).sources) == 2
