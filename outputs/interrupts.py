"""The signals that end a run, with exit code 128 + n: nothing is left behind, and its workers end too."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TextIO

#: Ctrl-C, a request to end, a terminal that went away, no CPU time left (`ulimit -t`).
_ENDING = {
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU")
    if (number := getattr(signal, name, None)) is not None
}
_received: list[tuple[int, float]] = []  # and when
_waited: list[int] = []  # for a module that is being loaded
_held: list[set[int]] = []  # by each block of `uninterrupted` that the main thread is in
_kept: list[int] = []  # signals that came in such a block
_WAIT_S, _MOST_WAITS = 0.005, 400
#: For so long after a signal another one does not disturb the removal of files; without it a second Ctrl-C
#: leaves some. With half or twice as much nothing changes but how long one waits whose removal hangs.
_CLEAN_UP_S = 5.0


def ended(main: Callable[[], int]) -> int:
    """Return the exit code of `main`, or 128 + n where signal n ended it, whatever error that led to."""
    _hear_of_the_last_second()
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` and a shell's background ignore some
            signal.signal(number, _end)
    try:
        code = main()
    except BaseException:
        if not _received:
            raise
        code = 1
    finally:  # what comes from now on ends it at once
        if _waited:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in _ENDING:
            if signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)
    if not (code and _received):
        return code
    for stream in (sys.stderr, sys.stdout):  # they may have gone with their terminal
        with contextlib.suppress(AttributeError, OSError, ValueError):
            abandon(stream)
    return 128 + _received[0][0]


def _hear_of_the_last_second() -> None:
    """Let SIGXCPU come a second before the time of `ulimit -t`, which ends a process at once."""
    try:
        import resource
    except ImportError:  # not on this system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == hard > 1:
        resource.setrlimit(resource.RLIMIT_CPU, (hard - 1, hard))


def abandon(stream: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the end of the process does not fail over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end(number: int, frame: FrameType | None) -> None:
    """End as at any error, so that temporary files are removed.

    A module that is being loaded is loaded first: an error while a library makes a class may crash all.
    """
    if _received and time.monotonic() - _received[-1][1] < _CLEAN_UP_S:
        return
    if _is_held(number):
        _kept.append(number)
        return
    if _is_loading(frame) and len(_waited) < _MOST_WAITS and hasattr(signal, "setitimer"):
        _waited.append(number)
        signal.signal(signal.SIGALRM, lambda _, frame: _end(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _WAIT_S)
        return
    _received.append((number, time.monotonic()))
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _is_held(number: int) -> bool:
    return any(number in held for held in _held)


def _is_loading(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end_plainly() -> None:
    """Let this process, a worker, end at once and without a word on each signal that it does not ignore."""
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@contextlib.contextmanager
def uninterrupted(*numbers: int) -> Iterator[None]:
    """Hold these signals, or `numbers`, back until the block is over; processes begun in it get none."""
    held, is_main = {*(numbers or _ENDING)}, threading.current_thread() is threading.main_thread()
    has_mask = hasattr(signal, "pthread_sigmask")
    if is_main:  # another thread may get a signal that this one has blocked, and `_end` is called here
        _held.append(held)
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, held) if has_mask else set()
        try:
            yield
        finally:
            if has_mask:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        if is_main:
            _held.pop()
            if _kept and not _is_held(_kept[0]):
                _end(_kept.pop(0), None)
