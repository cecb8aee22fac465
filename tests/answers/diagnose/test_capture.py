"""What makes a recording less sure than it looks is told."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers import diagnosed, titles
from hypothesis import given, settings
from hypothesis import strategies as st
from made_jobs import DeviceStep, Job, byteps, composer, device, kineto

import make
from conftest import examples
from dag_utils import load_steps
from trace_utils import Request, read_ranks

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
            make.span(f"ProfilerStep#{i}", one["ts"] - 1.7e15, 9, "user_annotation", one["pid"], 2)
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


RANKS, STEPS, FIRST = 3, 10, 3
FORWARD_MS, UPDATE_MS, LATE_MS = 20.0, 2.0, 9.0
#: By so much the ends of one reduction may be apart that the hosts carry out, in milliseconds.
SCATTER_MS = 3.0

Cuts = dict[int, tuple[int, int]]  # of a rank: how many of its first and of its last steps are not recorded


def span(name: str, begin_ms: float, end_ms: float, cat: str = "cpu_op", tid: int = 1) -> dict[str, Any]:
    return make.span(name, round(begin_ms * 1000, 3), round((end_ms - begin_ms) * 1000, 3), cat, 1, tid)


def reducing(directory: Path, late: int, cuts: Cuts, seed: int) -> Path:
    """Write ranks that compute, reduce on the host, and update; the one that is late computes for longer."""
    draw = np.random.default_rng(seed)
    forward = FORWARD_MS * (1 + 0.005 * draw.standard_normal((STEPS, RANKS)))
    forward[:, late] += LATE_MS
    scatter = SCATTER_MS * draw.random((STEPS, RANKS))
    begin = np.zeros(RANKS)
    events: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        entered = begin + forward[step]
        left = entered.max() + 0.5 + scatter[step]
        for rank in range(RANKS):
            first, last = cuts.get(rank, (0, 0))
            after = left[rank] + UPDATE_MS
            if first <= step < STEPS - last:
                events[rank] += [
                    span(f"ProfilerStep#{FIRST + step}", begin[rank], after, "user_annotation"),
                    span("forward", begin[rank], entered[rank]),
                    span("c10d::allreduce_", entered[rank], entered[rank] + 0.02),
                    span("gloo:all_reduce", entered[rank] + 0.01, left[rank], "user_annotation", 9),
                    span("update", left[rank], after),
                ]
            begin[rank] = after
    for rank, own in enumerate(events):
        header = {"host_name": "node", "distributedInfo": {"rank": rank, "world_size": RANKS}}
        make.write(directory / f"rank{rank}.json", own, schemaVersion=1, **header)
    return directory


ends = st.tuples(st.integers(0, 2), st.integers(0, 2))


@given(st.integers(0, RANKS - 1), st.dictionaries(st.integers(0, RANKS - 1), ends), st.integers(0, 99))
@settings(max_examples=examples(12), deadline=None)
def test_the_late_rank_is_found_whatever_steps_are_missing(late: int, cuts: Cuts, seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        diagnosis = diagnosed(reducing(Path(directory), late, cuts, seed))
    (title,) = titles(diagnosis, "late_rank")
    assert title.startswith(f"rank{late} is late by ")


def test_steps_missing_on_some_ranks_are_noted(tmp_path: Path) -> None:
    cuts = {0: (0, 2), 1: (1, 0), 2: (1, 0)}
    loaded = load_steps([reducing(tmp_path, 2, cuts, 1)], Request(jobs=1, progress=False))
    assert [step.number for step in loaded.recording.steps] == list(range(4, 11))
    assert loaded.recording.notes == [
        "steps that not every rank recorded are left out: 11–12 (not in rank0) and 3 (not in rank1 and rank2)"
    ]
