"""What makes a recording less sure than it looks is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from made_jobs import Job, kineto

from dag_utils import load_steps
from diagnose.diagnosis import Diagnosis, diagnose

HEALTHY = Job()


def diagnosed(path: Path) -> Diagnosis:
    return diagnose(load_steps([path], jobs=1, progress=False))


def flaws(path: Path) -> list[str]:
    found = diagnosed(path).findings
    return [one.finding.title for one in found if one.finding.kind == "capture_quality"]


def test_a_whole_recording_has_no_flaw(tmp_path: Path) -> None:
    assert flaws(kineto(tmp_path / "job", HEALTHY)) == []


def test_a_missing_rank(tmp_path: Path) -> None:
    directory = kineto(tmp_path / "job", HEALTHY)
    (directory / "rank2.pt.trace.json").unlink()
    (title,) = flaws(directory)
    assert "2" in title
    assert "missing" in title


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
    assert flaw.finding.title == "3 whole steps recorded"
    assert "outlier_steps" in [one.kind for one in diagnosis.skipped]
