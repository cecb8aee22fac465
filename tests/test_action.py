"""The commands of action.yml run in a shell, with programs that stand for pip and gh."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from conftest import REPO

yaml = pytest.importorskip("yaml", reason="comes with Dask")
ACTION = yaml.safe_load((REPO / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
_VALUE = re.compile(r"\${{ ([\w.]+) }}")

#: Programs of the runner: a venv whose pip writes down what it installs, and gh, which writes down its words.
_PROGRAMS = {
    "python3": r"""
        mkdir -p "$3/bin"
        printf '#!/bin/bash\necho $* > %s\n' "$3/installed" > "$3/bin/pip"
        chmod +x "$3/bin/pip"
    """,
    "gh": """
        echo "$@" > "$RUNNER_TEMP/gh"
        while [ "$1" != --body-file ]; do shift; done
        cp "$2" "$RUNNER_TEMP/comment"
    """,
    "analyze": f'exec {sys.executable} {REPO}/analyze.py "$@"',
}


def run_action(directory: Path, **inputs: str) -> list[int]:
    """Run the steps with commands one after the other; return their exit codes."""
    programs = directory / "bin"
    programs.mkdir()
    for name, script in _PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    files = {f"GITHUB_{name}": str(directory / name) for name in ("PATH", "STEP_SUMMARY", "OUTPUT")}
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}", "RUNNER_TEMP": str(directory), **files,
        "GITHUB_ACTION_PATH": str(REPO), "GITHUB_REPOSITORY": "some/job",
    }  # fmt: skip
    values = {f"inputs.{name}": str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
    values |= {f"inputs.{name}": value for name, value in inputs.items()}
    values |= {"github.token": "secret", "github.event.number": "7"}
    codes = []
    for step in (step for step in STEPS if "run" in step):
        given = {key: filled(text, values) for key, text in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        codes.append(subprocess.run(command, env=environment | given, cwd=REPO, check=False).returncode)
        for line in Path(files["GITHUB_OUTPUT"]).read_text().split() if "id" in step else ():
            name, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{name}"] = value
    return codes


def filled(text: str, values: Mapping[str, str]) -> str:
    return _VALUE.sub(lambda found: values[found[1]], text)


@pytest.mark.slow
def test_a_slower_run_fails_after_its_digest_and_comment(tmp_path: Path) -> None:
    codes = run_action(tmp_path, path="examples/lenet-100mbit", baseline="examples/lenet")
    assert codes == [0, 0, 0, 3]
    assert (tmp_path / "analyze/installed").read_text().split()[-1] == str(REPO)
    answer = (tmp_path / "STEP_SUMMARY").read_text()
    assert (tmp_path / "comment").read_text() == answer
    assert answer.startswith("**Slower: 144 → 420 ms")
    assert "\n\n**A step takes 420 ms" in answer
    assert (tmp_path / "gh").read_text().startswith("pr comment 7 --repo some/job ")
    assert (tmp_path / "digest.json.gz").stat().st_size < 100_000


@pytest.mark.slow
def test_without_a_baseline_it_diagnoses(tmp_path: Path) -> None:
    assert run_action(tmp_path, path="examples/lenet") == [0, 0, 0, 0]
    assert (tmp_path / "STEP_SUMMARY").read_text().startswith("**A step takes 144 ms")


def test_the_action_is_composite_and_short() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert len((REPO / "action.yml").read_text().splitlines()) <= 60
    assert [step["uses"] for step in STEPS if "uses" in step] == ["actions/upload-artifact@v4"]


def test_no_command_has_an_input_in_its_text() -> None:
    """An input is a variable: text in a command would be run."""
    assert [step["run"] for step in STEPS if "${{" in step.get("run", "")] == []
