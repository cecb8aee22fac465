"""The command under a finding runs as it is printed, from where the user asked, and changes nothing there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from made_cells import CELLS
from made_jobs import WRITERS, Job

from conftest import REPO, run_cli

pytestmark = pytest.mark.slow

LATE = Job(more_forward=[0.0, 30.0, 0.0, 0.0])
#: For each kind jobs in which it is found, one for every way in which it is told.
JOBS = {
    kind: [
        cell.write
        for system, cells in systems.items()
        if system not in ("chrome", "composer_with_torch")  # whose findings are told as PyTorch's are
        for cell in cells
    ]
    for kind, systems in CELLS.items()
}


def files_in(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", JOBS)
def test_the_command_of_a_finding_runs_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, write in enumerate(JOBS[kind]):
        name = f"job {number}"  # quoted in the command
        write(Path(name))
        before = files_in(tmp_path)
        code, out, err = run_cli("--path", name, "--format", "json")
        assert code == 0, err
        commands = [one["command"] for one in json.loads(out)["findings"] if one["kind"] == kind]
        assert commands, f"job {number} has no {kind}"
        for command in commands:
            program, script, *words = shlex.split(command)
            assert (program, script) == ("python3", "analyze.py")
            code, out, err = run_cli(*words)
            assert (code, out != "") == (0, True), f"{command}: {err}"
        assert files_in(tmp_path) == before


@pytest.mark.parametrize(
    ("job", "change"),
    [
        (Job(more_pause=25.0), "rank3.gap=peers"),
        (Job(more_forward=[0.0, 10.0, 20.0, 30.0]), "straggler=even"),
    ],
)
def test_the_command_tells_the_gain_that_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Job, change: str
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["kineto"](Path("job"), job)
    first = json.loads(run_cli("--path", "job", "--format", "json")[1])["findings"][0]
    assert first["change"] == change
    told = json.loads(run_cli(*shlex.split(first["command"])[2:], "--format", "json")[1])
    assert told["before_ms"] - told["after_ms"] == pytest.approx(first["gain_ms"]["mid"], rel=0.05)


def test_where_no_rank_works_longer_the_what_if_names_the_one_that_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["kineto"](Path("job"), Job(more_pause=25.0, jitter=0.0))
    asked = ("--option", "replay", "--path", "job", "--output", "-", "--sub_option", "whatif")
    _, out, _ = run_cli(*asked, "--set", "straggler=none")
    headline = out.splitlines()[0]
    assert ": +0.0%; rank3 holds up the others: 25.0 ms more a step pass with nothing recorded" in headline
    assert headline.endswith("(rank3.gap=peers: 25.0 ms to win).")


def test_the_command_keeps_what_the_user_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["kineto"](Path("job"), LATE)
    asked = ("--path", "job", "--step_by", "ProfilerStep", "--filter", "gloo:all_reduce", "--format", "json")
    code, out, err = run_cli(*asked)
    assert code == 0, err
    (command, *_) = [one["command"] for one in json.loads(out)["findings"] if one["kind"] == "late_rank"]
    assert command.endswith("--filter gloo:all_reduce --step_by ProfilerStep")
    assert run_cli(*shlex.split(command)[2:])[0] == 0


@pytest.mark.parametrize("columns", ["", "60"])
def test_the_command_is_typed_as_the_program_was_and_can_be_pasted(tmp_path: Path, columns: str) -> None:
    WRITERS["composer"](tmp_path / "a job", LATE)
    shell = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, "check": False}
    words = [sys.executable, str(REPO / "analyze.py"), "--path", "a job"]
    asked = subprocess.run(words, env=os.environ | {"COLUMNS": columns}, **shell)  # type: ignore[call-overload]
    assert asked.returncode == 0, asked.stderr
    command = re.search(r"Closer: ((?:.*\\\n)*.*)\n", asked.stdout)
    assert command is not None
    assert ("\n" in command[1]) == bool(columns)
    shown = subprocess.run(["sh", "-c", command[1]], **shell)  # type: ignore[call-overload]
    assert shown.returncode == 0, shown.stderr
    assert "event/forward" in shown.stdout
