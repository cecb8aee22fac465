"""Progress bars of long work, on standard error; silent unless that is a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """A progress bar; this one shows nothing."""

    def update(self, n: float = 1) -> object:
        """Count `n` more units as done."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        """Vanish."""


class _ShownBar(Bar):
    """A progress bar on standard error, gone when the block ends."""

    def __init__(self, progress: Progress, what: str, total: float | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total)

    def update(self, n: float = 1) -> object:
        self._progress.advance(self._task, n)
        return None

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def bar(total: float | None = None, unit: str = "it", *, what: str, enabled: bool | None = None) -> Bar:
    """Make a bar with the remaining time, for ``with bar(...) as progress: progress.update(n)``.

    Parameters
    ----------
    total : how many `unit`s there are to do; None means unknown
    unit : "B" for bytes, else a word in the plural ("files", "steps")
    what : the words before the bar
    enabled : None means only where standard error is a terminal
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        return Bar()
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
    return _ShownBar(Progress(*columns, console=console, transient=True), what, total)
