"""Damaged files of every kind: each run ends in a result or in one line, soon, and changes no input.

`make fuzz SEED=1 COUNT=5000` runs other mutations than these; what a run may not do is in `fuzz_runs`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import REPO

FIRST = int(os.environ.get("FUZZ_SEED", "1"))
COUNT = int(os.environ.get("FUZZ_COUNT", "24"))
_BLOCK = 1000


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, _BLOCK))
def test_damaged_jobs_end_in_a_result_or_in_one_line(first: int) -> None:
    count = min(_BLOCK, FIRST + COUNT - first)
    command = [sys.executable, "tests/fuzz_runs.py", str(first), str(count)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO)}
    )
    broken = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert (broken, done.stderr, done.returncode) == ([], "", 0)
