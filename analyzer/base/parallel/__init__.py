"""Work on many files at once: here, in processes that end with this one however it ends, or on a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from analyzer.base.errors import AnalyzeError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


@contextlib.contextmanager
def progress_bar(
    total: float, unit: str, *, what: str, enabled: bool | None = None
) -> Iterator[Callable[..., object]]:
    """Show a bar with the remaining time in the block; the yielded function counts units as done.

    `unit` is "B" for bytes, else a plural ("files", "steps"); `what` stands before the bar. By default bars
    are shown if standard error is a terminal.
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield int
        return
    from rich import progress as rich
    from rich.console import Console

    amount = [rich.DownloadColumn()] if unit == "B" else [rich.MofNCompleteColumn(), rich.TextColumn(unit)]
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), *amount, rich.TimeRemainingColumn())
    console = Console(stderr=True, force_terminal=True)
    with rich.Progress(*columns, console=console, transient=True) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))


_PR_SET_PDEATHSIG = 1
_FORK_WORTH = 8 << 20  # bytes (unpacked) below which a second process costs more than it saves
_UNPACKED = 12  # assumed growth of a gzip file

OnRead = Callable[[int], object]  # called with the number of bytes read
_T = TypeVar("_T")


class FilePart(Struct, frozen=True):
    """A file to work on."""

    path: Path
    size: int = 0  # bytes on the disk
    is_shared: bool = False  # other hosts may see the file
    about: Any = None  # a further argument of the work


Work = Callable[[FilePart, OnRead], _T]  # a function of a module (or a partial one), so that it can be sent


#: Yields the result of some work for each part, in order.
Elsewhere = Callable[[Work[Any], Sequence[FilePart], OnRead], Iterator[Any]]
_elsewhere: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


@contextlib.contextmanager
def working_on(elsewhere: Elsewhere) -> Iterator[None]:
    """Let `map_files` work `elsewhere` in the block."""
    token = _elsewhere.set(elsewhere)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def map_files(
    work: Work[_T],
    parts: Sequence[FilePart],
    *,
    jobs: int | None = None,
    on_read: OnRead = int,
) -> Iterator[_T]:
    """Yield the result of `work` for each part, in order.

    Work returns user errors as values; exceptions abort the run. Shared files are read elsewhere, if
    `working_on` says so. Few bytes are read in this process, more in `jobs` processes (None: the cores of
    this process), of which this process is one if there are few parts.
    """
    elsewhere = _elsewhere.get()
    if elsewhere is None:
        yield from _map_here(work, parts, jobs or cores(), on_read)
        return
    shared = elsewhere(work, [part for part in parts if part.is_shared], on_read)
    unshared = [part for part in parts if not part.is_shared]
    here = _map_here(work, unshared, jobs or cores(), on_read)
    for part in parts:
        yield next(shared if part.is_shared else here)


def size_of(path: Path) -> int:
    """Measure a file in bytes; 0 if it cannot be read."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def unpacked_size(parts: Sequence[FilePart]) -> int:
    """Estimate the bytes to read once unpacked."""
    return sum(part.size * (_UNPACKED if part.path.suffix == ".gz" else 1) for part in parts)


def _map_here(work: Work[_T], parts: Sequence[FilePart], jobs: int, on_read: OnRead) -> Iterator[_T]:
    if jobs == 1 or unpacked_size(parts) < _FORK_WORTH or len(parts) < 2:
        for part in parts:
            yield work(part, on_read)
        return
    n_here = 1 if len(parts) <= jobs else 0
    with process_pool(min(jobs, len(parts)) - n_here) as pool:
        futures = deque(pool.submit(work, part, int) for part in parts[n_here:])
        for part in parts[:n_here]:
            yield work(part, on_read)
        for part in parts[n_here:]:
            result = futures.popleft().result()  # no future is kept, since it keeps its result
            on_read(part.size)
            yield result


@contextlib.contextmanager
def process_pool(n: int) -> Iterator[ProcessPoolExecutor]:
    """Start `n` processes that run functions; any error in the block ends them at once.

    Raises AnalyzeError if a process is killed.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor  # slow to import
    from concurrent.futures.process import BrokenProcessPool

    fork = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    pool = ProcessPoolExecutor(n, multiprocessing.get_context(fork), _start, (os.getpid(),))
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
    """Run another program with captured output for at most `seconds`.

    Raises RuntimeError with the program's message if it fails, and OSError if it cannot be started.
    """
    import subprocess

    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {seconds:g} s") from error
    if run.returncode != 0:
        said = run.stderr.decode("utf-8", "replace").strip()
        raise RuntimeError(said or f"exit code {run.returncode}")


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(parent: int) -> None:
    """Let a worker end at once on a signal, and with its parent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call
            os._exit(1)
    _elsewhere.set(None)  # the connection is the parent's
