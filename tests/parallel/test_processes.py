"""Processes that are started here end in time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import parallel
from conftest import is_alive
from errors import AnalyzeError
from parallel import process_pool, run_program


def test_what_a_program_started_ends_with_it_when_it_takes_too_long(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = f"sleep 60 >/dev/null 2>&1 & echo $! > {child}; wait"
    with pytest.raises(RuntimeError, match=r"not done after 0\.5 s"):
        run_program(["sh", "-c", script], 0.5)
    deadline = time.monotonic() + 30
    while is_alive(int(child.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(int(child.read_text()))


def test_a_process_that_stays_stopped_ends_the_work_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_STILL_SECONDS", 0.3)
    with (
        pytest.raises(AnalyzeError, match=r"^a worker process was stopped for 0\.3 s; try --jobs 1$"),
        process_pool(1) as pool,
    ):
        child = pool.submit(os.getpid).result()
        os.kill(child, signal.SIGSTOP)
        pool.submit(int).result(timeout=20)
    assert not is_alive(child)


def test_a_process_that_goes_on_in_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_STILL_SECONDS", 0.5)
    with process_pool(1) as pool:
        child = pool.submit(os.getpid).result()
        for _ in range(2):  # longer than that together
            os.kill(child, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(child, signal.SIGCONT)
            time.sleep(0.3)
        assert pool.submit(os.getpid).result(timeout=20) == child
