"""What is opened: regular files alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.base.inputs import opened
from conftest import run_cli


@pytest.mark.parametrize("option", ["statistic", "compare", "diagnose", "graph"])
def test_a_pipe_that_nobody_writes_is_a_line(tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "trace.json"
    os.mkfifo(pipe)
    paths = [pipe, pipe] if option == "compare" else [pipe]
    code, _, err = run_cli("--option", option, "--path", *paths)
    assert (code, err) == (1, f"analyze.py: error: {pipe}: neither a file nor a directory\n")


@pytest.mark.parametrize("name", ["dag.gml", "trace.json", "dump.pickle", "log.csv", "db.sqlite"])
def test_a_sparse_file_is_refused_at_its_beginning(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(30 << 30)
    option = "graph" if name == "dag.gml" else "statistic"
    code, _, err = run_cli("--option", option, "--path", path)
    assert (code, err.count("\n")) == (1, 1)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "a")
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a writer"))
    signal.alarm(20)
    with pytest.raises(OSError, match="not a regular file"):
        opened(tmp_path / "a")
    signal.alarm(0)
