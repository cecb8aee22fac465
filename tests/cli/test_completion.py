"""A shell completes options, flags, edits, and the names of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.cli.completion import completions
from conftest import REPO

#: The part of a line before the cursor, what the shell completes of it, and what may stand there.
CASES = [
    ("analyze stat", "stat", ["statistic"]),
    ("analyze --opt", "--opt", ["--option"]),
    ("analyze --option c", "c", ["collect", "collectives", "combine", "compare", "critical"]),
    ("analyze compare a b --fail", "--fail", ["--fail_above"]),
    ("analyze statistic a --format j", "j", ["json"]),
    ("analyze replay a --sub_option map", "map", ["map_delay"]),
    ("analyze replay lenet --set straggler=", "straggler=",
     ["straggler=each_step", "straggler=even", "straggler=mean", "straggler=none"]),
    ("analyze whatif lenet straggler=n", "n", ["none"]),  # bash begins a word after =
    ("analyze whatif lenet wk0.rank0.g", "wk0.rank0.g", ["wk0.rank0.gap=peers"]),
    ("analyze whatif lenet wk1.rank0.ex", "wk1.rank0.ex", ["wk1.rank0.extra=peers"]),
    ("analyze whatif lenet bandw", "bandw", ["bandwidth=0.5", "bandwidth=2", "bandwidth=200Mbit"]),
    ("analyze whatif 'len", "len", []),  # a path: the shell's own completion
    ("analyze len", "len", []),
    ("analyze statistic lenet --head ", "", []),
    ("analyze --option nonsense ", "", []),
    ("analyze whatif worker_nowhere strag", "strag", []),
]  # fmt: skip


@pytest.mark.parametrize(("line", "word", "expected"), CASES)
def test_words_that_may_stand_at_the_cursor(
    line: str, word: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO / "examples")
    assert completions(line, word) == expected


def test_a_damaged_job_has_no_ranks_but_edits(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    assert completions(f"analyze whatif {tmp_path} sync=", "sync=") in (["sync=none"], [])


@pytest.mark.slow
def test_bash_asks_the_program() -> None:
    line = "analyze statistic x --hea # the cursor is before this"
    environment = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(line.index(" #"))}
    words = [sys.executable, "analyze.py", "analyze", "--hea", "x"]
    done = subprocess.run(words, cwd=REPO, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "--head\n"
