"""The command under a finding runs as it is printed, from where the user asked, and changes nothing there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from made_jobs import WRITERS, DeviceStep, Job, device
from made_transfers import Partitions, cycles, nccl

from conftest import REPO, run_cli
from diagnose.finding import Kind

JOB, DEVICE, PARTITIONS = Job(), DeviceStep(), Partitions()
BY_NEED = replace(PARTITIONS, large=20, small=10, small_kib=512, small_ms=0.2, small_pull=0.2, servers=2)


def made(system: str, **more: Any) -> Callable[[Path], object]:
    return lambda path: WRITERS[system](path, replace(JOB, **more))


def on_device(**more: Any) -> Callable[[Path], object]:
    return lambda path: device(path, replace(DEVICE, **more))


def with_bytes(job: Partitions, **more: Any) -> Callable[[Path], object]:
    return lambda path: replace(job, **more).write(path)


#: For each kind jobs in which it is found, one for every way in which it is told.
JOBS: dict[str, list[Callable[[Path], object]]] = {
    "late_rank": [
        *(made(system, more_forward=[0.0, 30.0, 0.0, 0.0]) for system in WRITERS),
        *(made(system, more_pause=25.0) for system in WRITERS),
        made("byteps", more_load=[0.0, 20.0, 0.0, 0.0]),
    ],
    "uneven_work": [made("composer", more_forward=[0.0, 10.0, 20.0, 30.0])],
    "exposed_communication": [
        *(made(system, more_in_turn=20.0) for system in WRITERS),
        *(made(system, transfer=40.0) for system in ("kineto", "byteps", "horovod")),
    ],
    "slow_collective": [
        with_bytes(PARTITIONS, push=(0.2, 3.0)),
        lambda path: nccl(path, [1.0, 1.0, 1.0, 12.0, 1.0]),
    ],
    "small_messages": [
        with_bytes(PARTITIONS, small=64),
        lambda path: nccl(path, [0.1] * 60, compute=60.0),
    ],
    "server": [with_bytes(PARTITIONS, pull=2.2)],
    "priority_inversion": [with_bytes(BY_NEED, small_first=True)],
    "input": [made("composer", load=15.0)],
    "host_bound": [on_device(launch=0.5, kernel=0.05)],
    "host_sync": [on_device(sync_every=4, think=1.0)],
    "copies": [on_device(copy=12.0)],
    "idle": [on_device(gap=10.0), made("byteps", pause=15.0)],
    "hot_operation": [on_device(names=2), made("byteps", forward=60.0, hot=0.85)],
    "outlier_steps": [made(system, more_in_step=(4, 200.0)) for system in WRITERS],
    "profiling_overhead": [
        made("byteps", before=[500.0, 300.0, *(80.0 + 0.1 * (i % 3) for i in range(10))]),
        made("kineto", more_in_step=(0, 200.0)),
    ],
    "memory": [on_device(peak_gb=[39.0] * 8)],
    "negotiation": [lambda path: cycles(path, wait=3.0)],
    "capture_quality": [made("kineto", steps=3)],
}


def test_every_kind_is_here() -> None:
    assert list(JOBS) == sorted(JOBS, key=list(get_args(Kind)).index)
    assert set(JOBS) == set(get_args(Kind))


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


def test_the_command_keeps_what_the_user_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made("kineto", more_forward=[0.0, 30.0, 0.0, 0.0])(Path("job"))
    asked = ("--path", "job", "--step_by", "ProfilerStep", "--filter", "gloo:all_reduce", "--format", "json")
    code, out, err = run_cli(*asked)
    assert code == 0, err
    (command, *_) = [one["command"] for one in json.loads(out)["findings"] if one["kind"] == "late_rank"]
    assert command.endswith("--filter gloo:all_reduce --step_by ProfilerStep")
    assert run_cli(*shlex.split(command)[2:])[0] == 0


@pytest.mark.parametrize("columns", ["", "60"])
def test_the_command_is_typed_as_the_program_was_and_can_be_pasted(tmp_path: Path, columns: str) -> None:
    made("composer", more_forward=[0.0, 30.0, 0.0, 0.0])(tmp_path / "a job")
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
