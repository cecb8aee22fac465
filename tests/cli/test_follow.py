"""`diagnose --follow`: lines of change, rotation, restarts."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analyzer.answers.diagnose.step_logs.step_log_diagnosis import diagnose_step_log
from analyzer.cli.diagnose.follow import _Changes
from analyzer.model.figures.job_figures import Wanted, load_figures
from analyzer.reading.formats.step_log.followed_logs import copied
from conftest import REPO, ask, few, run_cli
from oracles.hidden_ranks import hidden_rank, write
from trace_utils import Request

HEAD = "step,rank,step_ms\n"


def rows(*steps: int) -> str:
    return "".join(f"{step},0,10\n" for step in steps)


def test_lines_are_copied_once_they_are_whole(tmp_path: Path) -> None:
    log, folder = tmp_path / "a.csv", tmp_path / "copy"
    folder.mkdir()
    log.write_text(HEAD + "1,0,10\n2,0,")
    looks = copied(log, folder)
    assert next(looks) == (True, None)
    assert (folder / "a.csv").read_text() == HEAD + "1,0,10\n"
    assert next(looks) == (False, None)
    with open(log, "a") as file:
        file.write("11\n")
    assert next(looks) == (True, None)
    assert (folder / "a.csv").read_text() == HEAD + "1,0,10\n2,0,11\n"


@pytest.mark.parametrize("renamed", [True, False])
def test_a_rotated_log_is_read_on(tmp_path: Path, renamed: bool) -> None:
    log, folder = tmp_path / "a.csv", tmp_path / "copy"
    folder.mkdir()
    log.write_text(HEAD + rows(*range(50)))
    looks = copied(log, folder)
    next(looks)
    if renamed:
        with open(log, "a") as file:
            file.write(rows(50))  # not yet read when another file takes the name
        log.rename(tmp_path / "a.csv.1")
    log.write_text(HEAD + rows(51))
    assert next(looks) == (True, None)
    expected = [*range(50), *([50] if renamed else []), 51]
    kept = [line for line in (folder / "a.csv").read_text().splitlines() if not line.startswith("step")]
    assert [int(line.split(",")[0]) for line in kept] == expected


def test_a_restarted_job_begins_anew_in_all_files(tmp_path: Path) -> None:
    job, folder = tmp_path / "job", tmp_path / "copy"
    job.mkdir()
    for rank in range(2):
        (job / f"rank{rank}.csv").write_text(HEAD + rows(*range(100)))
    looks = copied(job, folder)
    next(looks)
    with open(job / "rank1.csv", "a") as file:
        file.write(rows(100, 40, 41))
    assert next(looks) == (True, 40)
    assert (folder / "rank1.csv").read_text() == HEAD + rows(40, 41)
    assert (folder / "rank0.csv").read_text() == HEAD
    with open(job / "rank0.csv", "a") as file:
        file.write(rows(40, 41))
    assert next(looks) == (True, None)
    assert (folder / "rank0.csv").read_text() == HEAD + rows(40, 41)


def test_a_header_may_come_long_before_the_rows(tmp_path: Path) -> None:
    log, folder = tmp_path / "a.csv", tmp_path / "copy"
    folder.mkdir()
    log.write_text(HEAD)
    looks = copied(log, folder)
    next(looks)
    for lines, restart in ((rows(*range(100)), None), (rows(40, 41), 40)):
        with open(log, "a") as file:
            file.write(lines)
        assert next(looks) == (True, restart)
    assert (folder / "a.csv").read_text() == HEAD + rows(40, 41)


def finding(first: int, last: int, gain_ms: float = 34.0) -> dict[str, object]:
    scope = {"ranks": ["rank3"], "operations": ["forward"], "steps": [], "from_step": first, "to_step": last}
    return {"kind": "late_rank", "title": "rank3 is late", "scope": scope, "gain_ms": {"mid": gain_ms}} | {
        "gain_share": 0.12
    }


def test_a_change_is_a_line() -> None:
    changes = _Changes()

    def since(last: int, *findings: dict[str, object]) -> list[str]:
        return changes.since({"steps": [*range(last + 1)], "findings": list(findings)})

    assert since(99) == ["steps 0 to 99: nothing stands out"]
    assert since(100) == []
    told = ["since step 120: rank3 is the straggler, in forward; 34 ms (12 %)"]
    assert since(130, finding(120, 130)) == told
    assert since(131, finding(121, 131, 35.0)) == []
    assert len(since(140, finding(121, 140, 60.0))) == 1
    assert since(160, finding(121, 141)) == ["at step 160: no longer; rank3 is late"]


def test_a_change_without_a_claimed_saving_is_a_line() -> None:
    unclaimed = finding(120, 130) | {"gain_ms": {"low": None, "mid": None, "high": None}, "gain_share": None}
    (line,) = _Changes().since({"steps": [*range(131)], "findings": [unclaimed]})
    assert line == "since step 120: rank3 is the straggler, in forward; no saving is claimed"


def test_steps_of_all_ranks_that_grow_are_a_line(tmp_path: Path) -> None:
    """From step 60 on, both ranks take 130 instead of 100 ms."""
    for rank in range(2):
        steps = "".join(f"{step},{rank},{100 + 30 * (step >= 60) + step % 3 / 10}\n" for step in range(100))
        (tmp_path / f"rank{rank}.csv").write_text(HEAD + steps)
    (line,) = _Changes().since(ask("diagnose", tmp_path))
    assert line.startswith("since step 60: all ranks are slower, outside the log's columns; 30 ms (")


def named(path: Path) -> list[str]:
    """List the ranks in the first two findings."""
    diagnosis = diagnose_step_log(load_figures([path], Wanted(rows=True), Request(jobs=1)))
    return [rank for ranked in diagnosis.findings[:2] for rank in ranked.finding.scope.ranks]


@pytest.mark.slow
@pytest.mark.parametrize("seed", few(5, range(1000, 1050)))
def test_a_hidden_rank_is_named_within_twenty_steps(tmp_path: Path, seed: int) -> None:
    job = hidden_rank(seed)
    for until in (job.onset + 19, 10_000):
        assert f"rank{job.rank}" in named(write(tmp_path / "a.csv", job, until))


@pytest.mark.slow
def test_follow_prints_changes_and_the_answer_at_last(tmp_path: Path) -> None:
    job, log = hidden_rank(3), tmp_path / "a.csv"
    log.write_text(job.until(job.onset - 1).partition("\n")[0] + "\n")  # the job has just begun
    command = [sys.executable, "analyze.py", "diagnose", str(log), "--follow"]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        time.sleep(2)
        with open(log, "a") as file:
            file.write(job.until(job.onset - 1).partition("\n")[2])
        first = process.stdout.readline()
        with open(log, "a") as file:
            file.write(job.until(job.onset + 30)[len(job.until(job.onset - 1)) :])
        time.sleep(4)
        os.kill(process.pid, signal.SIGINT)
        changed, _ = process.communicate()
    assert first.endswith("nothing stands out\n")
    assert changed.startswith("since step ")
    assert f"rank{job.rank} is the straggler, in {job.part};" in changed
    assert f"rank{job.rank} is late from step " in changed
    assert process.returncode == 0


def test_a_recording_and_packed_logs_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"rank,step,step_ms\n0,1,5\n0,2,5\n"))
    for path, why in ((REPO / "examples/ddp-h200", "is no step log"), (tmp_path, "are packed")):
        code, _, err = run_cli("diagnose", path, "--follow")
        assert (code, err.count("\n")) == (2, 1) and why in err
