"""Shared by the benchmarks: running a command for its time, CPU time and peak memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one command, its child processes included."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # of the largest single process

    def rate(self, n_bytes: int) -> float:
        """Return MB/s of wall time."""
        return n_bytes / self.wall_s / 1e6


def run(command: Sequence[str], *, repeat: int = 1) -> Cost:
    """Run `command` `repeat` times in a process of its own and return the cheapest run.

    Raises
    ------
    RuntimeError
        The command failed; the message is its standard error.
    """
    return min((_run_once(command) for _ in range(repeat)), key=lambda cost: cost.wall_s)


def _run_once(command: Sequence[str]) -> Cost:
    # as users have it: modules compiled once, not at every start
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    assert process.stderr is not None
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(error.decode())
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, _peak_mb(usage))


def _peak_mb(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def python() -> str:
    """Return the interpreter that runs the benchmark."""
    return sys.executable


def table(rows: Sequence[Sequence[object]]) -> str:
    """Return `rows` (the first is the header) as aligned text."""
    from tabulate import tabulate

    return tabulate(rows[1:], headers=[str(cell) for cell in rows[0]], floatfmt=".2f")
