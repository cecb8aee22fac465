"""Worker processes, which end with this one, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from errors import AnalyzeError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2  # between looks at the parent, where it cannot be arranged otherwise


@contextlib.contextmanager
def process_pool(
    n: int, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Start `n` processes that run functions; any error in the block ends them at once.

    Raises AnalyzeError where a process was killed.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor  # costs small jobs more than it gives them
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(n, fork_context(), _start, (os.getpid(), initializer, initargs))
    try:
        yield pool
    except BaseException as error:
        for child in multiprocessing.active_children():
            child.kill()
        if isinstance(error, BrokenProcessPool):
            raise AnalyzeError("a worker process was killed (memory?); try --jobs 1") from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_program(command: Sequence[str], seconds: float) -> None:
    """Run another program, its output caught, for at most so long.

    Raises
    ------
    RuntimeError
        It failed, or took too long; the message is what it said.
    OSError
        It could not be started.
    """
    import subprocess

    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {seconds:.0f} s") from error
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fork_context() -> Any:
    """Return how processes are started: forked where the system can do that."""
    import multiprocessing

    return multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)


def end_with(parent: int) -> None:
    """Let this process end when its parent does, and end it at once, without a word, on a signal."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was arranged
        os._exit(1)


def _start(parent: int, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    end_with(parent)
    if initializer is not None:
        initializer(*initargs)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
