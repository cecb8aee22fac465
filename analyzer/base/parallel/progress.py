"""Progress bars of long work, on standard error; silent unless that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial


@contextlib.contextmanager
def bar(
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
