"""What makes a recording less sure than it looks is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from answers import diagnosed, titles
from made_jobs import DeviceStep, Job, byteps, composer, device, kineto

from make import span
from trace_utils import read_ranks

HEALTHY = Job()


def flaws(path: Path) -> list[str]:
    return titles(diagnosed(path), "capture_quality")


def test_a_whole_recording_has_no_flaw(tmp_path: Path) -> None:
    assert flaws(kineto(tmp_path / "job", HEALTHY)) == []


def test_one_rank_of_several(tmp_path: Path) -> None:
    directory = kineto(tmp_path / "job", HEALTHY)
    for rank in (0, 1, 3):
        (directory / f"rank{rank}.pt.trace.json").unlink()
    (title,) = flaws(directory)
    assert title.endswith("ranks 0, 1 and 3 of 4 missing")


@pytest.mark.parametrize("content", ["", '{"traceEvents": 3, "ph": 1}'])
def test_a_workers_file_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    directory = byteps(tmp_path / "job", HEALTHY)
    (file,) = (directory / "worker_2").glob("*/bps_trace*")
    file.write_text(content)
    (title,) = flaws(directory)
    assert str(file) in title


def test_other_files_in_the_directory_are_no_ranks(tmp_path: Path) -> None:
    directory = kineto(tmp_path / "job" / "trace", HEALTHY).parent
    (directory / "truth").mkdir()
    (directory / "truth" / "steps_rank0.json").write_text("{}")
    assert flaws(directory) == []


def test_events_open_at_the_recordings_ends_are_no_damage(tmp_path: Path) -> None:
    directory = composer(tmp_path / "job", replace(HEALTHY, ranks=2))
    for file in directory.iterdir():
        events = json.loads(file.read_text())
        last, where = events[-1]["ts"], {"cat": "", "pid": events[-1]["pid"], "tid": 1}
        begun = {"name": "event/fit", "ph": "B", "ts": last, **where}
        ended = {"name": "event/init", "ph": "E", "ts": events[5]["ts"], **where}
        file.write_text(json.dumps([*events, begun, ended]))
    assert flaws(directory) == []


def test_tied_clocks_are_no_damage(tmp_path: Path) -> None:
    """With PyTorch's profiler on, a file of Composer has two axes, which its steps tie."""
    directory = composer(tmp_path / "job", replace(HEALTHY, ranks=2))
    for file in directory.iterdir():
        events = json.loads(file.read_text())
        batches = [one for one in events if one["name"] == "event/batch" and one["ph"] == "B"]
        steps = [
            span(f"ProfilerStep#{i}", one["ts"] - 1.7e15, 9, "user_annotation", one["pid"], 2)
            for i, one in enumerate(batches)
        ]
        file.write_text(json.dumps([*events, *steps]))
    assert len(read_ranks([directory]).repairs) == 2  # a tie is told of each file
    assert flaws(directory) == []


def test_a_damaged_file(tmp_path: Path) -> None:
    directory = kineto(tmp_path / "job", HEALTHY)
    file = directory / "rank3.pt.trace.json"
    file.write_text(file.read_text()[:-2])
    assert flaws(directory) == ["1 damaged file: rank3.pt.trace.json"]


def test_three_steps_give_no_intervals(tmp_path: Path) -> None:
    job = replace(HEALTHY, steps=3, more_forward=[0.0, 0.0, 0.0, 50.0])
    diagnosis = diagnosed(kineto(tmp_path / "job", job))
    late, flaw = diagnosis.findings
    assert late.finding.kind == "late_rank"
    assert late.gain is not None
    assert (late.gain.low_ns, late.gain.high_ns) == (None, None)
    assert flaw.finding.title == "only 3 whole steps recorded"
    assert "outlier_steps" in [one.kind for one in diagnosis.skipped]


def test_unaligned_clocks_are_a_flaw(tmp_path: Path) -> None:
    home = tmp_path / "job"
    home.mkdir()
    for rank in (0, 1):
        directory, _ = device(tmp_path / str(rank), DeviceStep())
        file = home / f"rank{rank}.pt.trace.json"
        (directory / "rank0.pt.trace.json").rename(file)
        about = {"rank": rank, "world_size": 2, "backend": "nccl"}
        file.write_text(json.dumps({"distributedInfo": about, **json.loads(file.read_text())}))
    assert flaws(home)[0] == "the clocks of the ranks are not aligned"
