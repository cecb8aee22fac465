"""The command under a finding runs as it is printed, from where the user asked, and changes nothing there."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from answers import answer
from made_cells import CELLS
from made_hangs import Run, small_job
from made_jobs import WRITERS, Job

from conftest import REPO, THOROUGH, few, run_cli

pytestmark = pytest.mark.slow

LATE = Job(more_forward=[0.0, 30.0, 0.0, 0.0])
#: For each kind jobs in which it is found, one for every way in which it is told with a device;
#: in `make fuzz` those of all systems whose findings are not told as PyTorch's are.
SYSTEMS = ("device", "byteps", "horovod", "kineto", "composer")
JOBS = {
    kind: [cell.write for system in (found if THOROUGH else found[:1]) for cell in systems[system]]
    for kind, systems in CELLS.items()
    if (found := [system for system in SYSTEMS if system in systems])
}


def files_in(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def told(command: str) -> dict[str, Any]:
    """Return what the command that a finding prints answers."""
    program, script, *words = shlex.split(command)
    assert (program, script) == ("python3", "analyze.py")
    code, out, err = run_cli(*words, "--format", "json")
    assert code == 0, f"{command}: {err}"
    found: dict[str, Any] = json.loads(out)
    return found


def answers(finding: dict[str, Any], step_ms: float) -> bool:
    """Whether a finding claims that its command answers its gain; if so it does, and so its interval."""
    found = told(finding["command"])
    if finding["change"] is None:
        return False
    gain, before = finding["gain_ms"], found["before_ms"]
    if gain["mid"] is None:  # not claimed, as the step may not become shorter
        assert found["interval_ms"][1] >= before
        return True
    assert gain["mid"] == pytest.approx(before - found["after_ms"]), finding["command"]
    if gain["low"] is None:
        assert found["interval_ms"] is None
    else:
        low, high = found["interval_ms"]
        assert (gain["low"], gain["high"]) == pytest.approx((before - high, before - low))
    is_of_span = "from_step" in finding["scope"]
    share = -found["change"] if is_of_span else gain["mid"] / step_ms
    assert finding["gain_share"] == pytest.approx(share)
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("kind", JOBS)
def test_the_command_of_a_finding_answers_its_gain_and_its_interval_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, write in enumerate(JOBS[kind]):
        name = f"job {number}"  # quoted in the command
        write(Path(name))
        before = files_in(tmp_path)
        code, out, err = run_cli("--path", name, "--format", "json")
        assert code == 0, err
        document = json.loads(out)
        found = [one for one in document["findings"] if one["kind"] == kind]
        assert found, f"job {number} has no {kind}"
        for one in found:
            assert answers(one, document["iteration_ms"]["real"]["mid"]) or one["gain_ms"]["mid"] is None
            if number == 0 or THOROUGH:
                told(one["look"])
        assert files_in(tmp_path) == before


@pytest.mark.parametrize("job", few(1, ["examples/lenet-100mbit", "examples/lenet"]))
def test_in_an_example_each_finding_answers_for_itself(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    _, out, _ = run_cli("--path", job, "--format", "json")
    document = json.loads(out)
    answered = [answers(one, document["iteration_ms"]["real"]["mid"]) for one in document["findings"]]
    assert any(answered)


@pytest.mark.thorough
@pytest.mark.parametrize("job", few(2, [
    "kineto/ddp2-gloo-slow-rank1", "horovod/2ranks-slow-rank1", "byteps/fork_lenet_straggler",
    "byteps/fork_mlp_2w2s_pcap", "kineto/gpu-param-dlrm-8ranks", "kineto/gpu-hta-2of128",
    "composer/ws2-slow-rank1", "pipeline/straggler-ST",
]))  # fmt: skip
def test_in_a_recorded_job_each_finding_answers_for_itself(job: str, shared_data: Path) -> None:
    document = answer(shared_data / job)
    found = document["findings"]
    for one in found if THOROUGH else found[:2]:
        answers(one, document["iteration_ms"]["real"]["mid"])


def saving(what_if: dict[str, Any]) -> float:
    return float(what_if["before_ms"] - what_if["after_ms"])


def test_the_command_keeps_what_the_user_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["kineto"](Path("job"), LATE)
    asked = ("--path", "job", "--step_by", "ProfilerStep", "--filter", "gloo:all_reduce", "--format", "json")
    code, out, err = run_cli(*asked)
    assert code == 0, err
    (command, *_) = [one["command"] for one in json.loads(out)["findings"] if one["kind"] == "late_rank"]
    assert command.endswith("--filter gloo:all_reduce --step_by ProfilerStep")
    assert run_cli(*shlex.split(command)[2:])[0] == 0


def test_a_what_if_without_edits_has_those_that_help_most_each_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["kineto"](Path("a job"), LATE)
    _, out, _ = run_cli("whatif", "a job", "--format", "json")
    rows = json.loads(out)["whatif"]
    saved = [row["before_ms"] - row["after_ms"] for row in rows]
    assert 0 < len(rows) <= 10 and saved == sorted(saved, reverse=True)
    assert saved[0] == pytest.approx(30.0, abs=3.0)  # rank1 works so much longer in each step
    for row in rows[:3]:
        again = told(row["command"])
        assert [row[key] for key in ("before_ms", "after_ms", "interval_ms")] == [
            pytest.approx(again[key]) for key in ("before_ms", "after_ms", "interval_ms")
        ]
    assert "'a job'" in rows[0]["command"] and [path.name for path in tmp_path.iterdir()] == ["a job"]


@pytest.mark.parametrize(
    "option",
    [
        "diagnose", "statistic", "graph", "critical", "replay", "combine", "compare", "3dcompare",
        "whatif straggler=none", "graph --step 4",
    ],
)  # fmt: skip
def test_the_last_line_on_a_terminal_is_the_command_to_ask_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    shutil.copytree(REPO / "examples/mlp-raw", tmp_path / "a job")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    name, *rest = option.split()
    code, out, err = run_cli(name, *(["a job"] * 2 if "compare" in option else ["a job"]), *rest)
    assert code == 0, err
    told(out.splitlines()[-1].removeprefix("next: "))
    monkeypatch.delenv("COLUMNS")
    if option == "statistic":  # what is not for a terminal is printed in one place for all
        assert "next: " not in run_cli(option, "a job")[1]


def test_after_a_hang_the_command_to_ask_next_shows_all_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a job").mkdir()
    Run(small_job(), random.Random(1), {2: 9}).write(tmp_path / "a job")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    command = run_cli("a job")[1].splitlines()[-1].removeprefix("next: ")
    assert "next: " not in run_cli(*shlex.split(command)[2:])[1]


def test_of_a_graph_of_averages_the_command_to_ask_next_is_of_its_longest_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPO / "examples/lenet/worker_0/0", tmp_path / "0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = run_cli("graph", "0", "--output", "dag.svg")
    assert code == 0, err
    *_, length = re.findall(r"critical path +(.*)", out)
    _, command = out.splitlines()[-1].split("next: ")
    assert length in run_cli(*shlex.split(command)[2:])[1].splitlines()[0]
    shutil.copy("0/dag.gml", "alone.gml")
    assert "next: " not in run_cli("graph", "alone.gml")[1]  # nothing says how long anything takes


@pytest.mark.parametrize("columns", ["", "60"])
def test_the_command_is_typed_as_the_program_was_and_can_be_pasted(tmp_path: Path, columns: str) -> None:
    WRITERS["composer"](tmp_path / "a job", LATE)
    shell = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120, "check": False}
    words = [sys.executable, str(REPO / "analyze.py"), "--path", "a job"]
    asked = subprocess.run(words, env=os.environ | {"COLUMNS": columns}, **shell)  # type: ignore[call-overload]
    assert asked.returncode == 0, asked.stderr
    command = re.search(r"(?:Try|Look) +((?:.*\\\n)*.*)\n", asked.stdout)
    assert command is not None
    shown = subprocess.run(["sh", "-c", command[1]], **shell)  # type: ignore[call-overload]
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout
