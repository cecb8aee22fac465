"""What the tests let workers run: a module of its own, because workers should not have to load the tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from analyzer.base.parallel import FilePart, OnRead


def forget(folder: str) -> None:
    """Let a worker not import from `folder`, which a worker that was started elsewhere could not either."""
    sys.path[:] = [path for path in sys.path if path not in ("", folder)]


def sizes(part: FilePart, on_read: OnRead, log: Path | None = None) -> tuple[str, int]:
    """Return a file's name and the process that read it."""
    if log is not None:
        with log.open("a") as file:
            file.write("+")
            file.flush()
            time.sleep(0.05)
            running = log.read_text()
            assert running.count("+") - running.count("-") == 1
            file.write("-")
    return part.path.name, os.getpid()


def die_once(part: FilePart, on_read: OnRead, times: int = 1) -> str:
    """Kill the worker the first times."""
    left = part.path.read_text()
    if part.path.name == "1.txt" and len(left) > 7 - times:
        part.path.write_text(left[1:])
        os.kill(os.getpid(), signal.SIGKILL)
    return part.path.name


class Result:
    """A result that stops the worker when it is first sent, after the task."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        _stop_once(self.path)
        return str, (self.path.name,)


def stop_once(part: FilePart, on_read: OnRead, after: bool) -> object:
    """Stop the worker the first time, while it works or when it is done."""
    if not after:
        _stop_once(part.path)
    return Result(part.path) if after else part.path.name


def _stop_once(path: Path) -> None:
    if path.name == "1.txt" and path.read_text() != "stopped":
        path.write_text("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)


def hide(folder: str) -> None:
    """Let a worker not see what is below `folder`."""
    seen = os.path.exists
    os.path.exists = lambda path: not str(path).startswith(folder) and seen(path)
