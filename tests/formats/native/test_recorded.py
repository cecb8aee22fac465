"""Recorded traces give the same columns and the same answers by either decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_scanner import WANTED, seen

import recorded
from conftest import run_cli
from formats import native


@pytest.fixture(autouse=True)
def _with_a_compiler() -> None:
    if native.library() is None:
        pytest.skip("no C compiler here")


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.files(), ids=lambda path: f"{path.parent.name}/{path.name}"[-60:])
def test_the_same_columns(path: Path) -> None:
    assert seen(path, scan=True, args=WANTED, points=True) == seen(path, scan=False, args=WANTED, points=True)


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.jobs(), ids=lambda path: path.name)
def test_the_same_bytes_of_json(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for wish in ("0", "1"):
        monkeypatch.setenv("ANALYZE_NATIVE", wish)
        answers.append(run_cli("--option", "statistic", "--path", path, "--format", "json", "--jobs", "1"))
    assert answers[1] == answers[0]


@pytest.mark.thorough
@pytest.mark.parametrize("path", recorded.jobs(), ids=lambda path: path.name)
def test_the_same_bytes_of_a_combined_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for wish in ("0", "1"):
        monkeypatch.setenv("ANALYZE_NATIVE", wish)
        output = tmp_path / f"{wish}.json"
        flags = ("--path", path, "--output", output, "--format", "json", "--jobs", "1")
        code, out, _ = run_cli("--option", "combine", *flags)
        found.append((code, out.replace(str(output), ""), output.read_bytes() if code == 0 else b""))
    assert found[1] == found[0]
