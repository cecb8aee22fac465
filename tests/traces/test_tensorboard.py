"""TensorBoard's directories of profiles: the newest run, one file for each host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from errors import TraceError
from traces.layouts import find_job
from traces.paths import Source

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


@pytest.mark.parametrize("inside", ["", "plugins", "plugins/profile", "plugins/profile/run"])
def test_each_directory_on_the_way_to_a_run_stands_for_it(tmp_path: Path, inside: str) -> None:
    run = write_run(tmp_path, "run", "h.trace.json")
    assert find_job(tmp_path / inside).sources == [Source(run / "h.trace.json")]  # one host is no worker


def test_copies_for_another_viewer_are_left_out_with_a_note(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", "h.trace.json", "perfetto_trace.json.gz")
    job = find_job(tmp_path)
    assert len(job.sources) == 1
    assert job.notes == [f"{run}/perfetto_trace.json.gz: a copy of the trace beside it, left out"]


def test_log_directories_of_processes_are_one_job(tmp_path: Path) -> None:
    for process in ("0", "1"):
        write_run(tmp_path / process, "run", "h.trace.json")
    assert len(find_job(tmp_path).sources) == 2


def test_log_directories_of_different_runs_are_not_one_job(tmp_path: Path) -> None:
    write_run(tmp_path / "before", "run1", "h.trace.json")
    write_run(tmp_path / "after", "run2", "h.trace.json")
    with pytest.raises(TraceError, match=r"hold different runs.*after, before"):
        find_job(tmp_path)


def test_a_run_without_a_trace_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "run", "h.xplane.pb")
    with pytest.raises(TraceError, match=r"run: no trace in this run \(<host>.trace.json.gz\)"):
        find_job(tmp_path)
