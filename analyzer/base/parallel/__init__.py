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
    """Show a bar with the remaining time in the block, whose function counts n more units as done.

    Parameters
    ----------
    total : how many `unit`s there are to do
    unit : "B" for bytes, else a word in the plural ("files", "steps")
    what : the words before the bar
    enabled : None means only where standard error is a terminal
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        yield int
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, force_terminal=True)
    amount = DownloadColumn() if unit == "B" else MofNCompleteColumn()
    after = TextColumn("" if unit == "B" else unit)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, after, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield partial(progress.advance, progress.add_task(what, total=total))


_PR_SET_PDEATHSIG = 1
_FORK_WORTH = 8 << 20  # bytes (unpacked) below which a second process costs more than it saves
_UNPACKED = 12  # what a gzip file's size is taken to grow by

OnRead = Callable[[int], object]  # is told of bytes that were read
_T = TypeVar("_T")


class FilePart(Struct, frozen=True):
    """A file that some work is done for."""

    path: Path
    size: int = 0  # in bytes, as it lies on the disk
    is_shared: bool = False  # whether other hosts may see the file as well
    about: Any = None  # what else the work is told of this file


Work = Callable[[FilePart, OnRead], _T]  # a function of a module (or a partial one), so that it can be sent


#: Yields the result of some work for each part, in their order.
Elsewhere = Callable[[Work[Any], Sequence[FilePart], OnRead], Iterator[Any]]
_elsewhere: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


@contextlib.contextmanager
def working_on(elsewhere: Elsewhere) -> Iterator[None]:
    """Let `map_files` work there in the block, instead of on this machine."""
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
    """Yield the result of `work` for each part of a file, in their order, wherever it is computed.

    Work that a user can mend the failure of returns its error: what it raises ends all of it. In this
    process, if there is little to read; else in `jobs` processes (None: as many as this one may use
    cores), of which this one is one if there are few parts. Elsewhere (`working_on`) whatever other hosts
    may see.
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
    """Return the bytes of a file; 0 where reading it will say what is wrong."""
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

    Raises AnalyzeError where a process was killed.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor  # costs small jobs more than it gives them
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(n, fork_context(), _start, (os.getpid(),))
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
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"not done after {seconds:g} s") from error
    if run.returncode != 0:
        said = run.stderr.decode("utf-8", "replace").strip()
        raise RuntimeError(said or f"exit code {run.returncode}")


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fork_context() -> Any:
    """Context that forks processes, or the system's default where it cannot fork."""
    import multiprocessing

    return multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)


def _start(parent: int) -> None:
    """Let a worker end at once on a signal, and when its parent does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that was arranged
            os._exit(1)
    _elsewhere.set(None)  # its connection is the parent's
