"""Processes beside this one: how many, how they start, and what the user is told if one is killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from errors import AnalyzeError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def context() -> Any:
    """Return the way to start processes: by forking where there is that, since it costs least."""
    import multiprocessing

    return multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)


@contextmanager
def processes(
    n: int, what: str, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Run tasks in `n` processes while the block lasts.

    Parameters
    ----------
    what : what they do, for the message if one is killed: "read the traces"
    initializer, initargs : called once in each process

    Raises
    ------
    AnalyzeError
        A process was killed, mostly for want of memory.
    """
    from concurrent.futures import ProcessPoolExecutor  # costs small jobs more than it gives them
    from concurrent.futures.process import BrokenProcessPool

    try:
        with ProcessPoolExecutor(n, context(), initializer, initargs) as pool:
            yield pool
    except BrokenProcessPool as error:
        raise AnalyzeError(f"a process that {what} was killed (memory?); try --jobs 1") from error
