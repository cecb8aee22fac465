"""Progress bars of long work, on standard error; silent unless that is a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

#: Seconds without a word.
_SILENT = 1.0
#: Totals from here on are shown with SI prefixes (1.20G/3.40G), smaller ones as they are (3/8).
_SCALED_FROM = 10_000


class Bar:
    """A progress bar; this one shows nothing."""

    def update(self, n: float = 1) -> object:
        """Count `n` more units as done."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        """Vanish."""


def bar(total: float | None = None, unit: str = "it", *, what: str, enabled: bool | None = None) -> Bar:
    """Return a bar of rate and remaining time, for ``with bar(...) as progress: progress.update(n)``.

    Parameters
    ----------
    total : how many `unit`s there are to do; None means unknown
    unit : "B" for bytes, else a word in the plural ("files", "steps")
    what : the words before the bar
    enabled : None means only where standard error is a terminal
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        return Bar()
    from tqdm import tqdm  # only here: nobody who sees no bar waits for it

    shown = tqdm(
        total=total,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=unit == "B" or (total is not None and total >= _SCALED_FROM),
        desc=what,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )
    return cast("Bar", shown)


@contextlib.contextmanager
def heartbeat(enabled: bool | None = None) -> Iterator[None]:
    """Print a progress line every second on a terminal; while a bar is shown, redraw the bar instead.

    What is printed meanwhile writes over it: it leaves the cursor at the beginning of its line.
    """
    if enabled is False or not sys.stderr.isatty():
        yield
        return
    import threading

    over, handle = threading.Event(), sys.stderr.fileno()
    thread = threading.Thread(target=beat, args=(handle, "working", over.wait), daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads: no heartbeat
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()
            erase(handle)


def beat(handle: int, what: str, is_over: Callable[[float], object] = time.sleep) -> None:
    """Write each second to a terminal how long `what` has gone on, until `is_over` (which waits) says so."""
    begin = time.monotonic()
    while not is_over(_SILENT):
        words = _shown_bar() or f"{what}: {time.monotonic() - begin:.0f} s"
        os.write(handle, f"\r{words}\r".encode())


def erase(handle: int) -> None:
    """Take away what `beat` wrote last."""
    os.write(handle, b"\r\x1b[K")


def _shown_bar() -> str:
    """Return the bar that is shown as it is now; "" without a bar, or if it ends at this very moment."""
    with contextlib.suppress(Exception):
        return str(next(iter(sys.modules["tqdm"].tqdm._instances), ""))
    return ""
