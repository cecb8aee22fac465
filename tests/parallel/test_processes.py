"""Processes that are started here end in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conftest import is_alive
from parallel import run_program


def test_what_a_program_started_ends_with_it_when_it_takes_too_long(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"sleep 60 >/dev/null 2>&1 & echo $! > {child}; wait"
    with pytest.raises(RuntimeError, match=r"not done after 0\.5 s"):
        run_program(["sh", "-c", script], 0.5)
    deadline = time.monotonic() + 30
    while is_alive(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(child.read_text()))
