"""Progress bars of long work: on standard error, and silent unless somebody watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

#: Totals from here on are shown with SI prefixes (1.20G/3.40G), smaller ones as they are (3/8).
_SCALED_FROM = 10_000


class Bar(Protocol):
    """What long work tells its progress to."""

    def update(self, n: float | None = 1) -> object:
        """Count `n` more units as done."""

    def __enter__(self) -> Bar: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Silent:
    """A bar that nobody sees."""

    def update(self, n: float | None = 1) -> None:
        """Do nothing."""

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


def bar(total: float | None = None, unit: str = "it", *, what: str = "", enabled: bool | None = None) -> Bar:
    """Return a bar to be used as ``with bar(...) as progress: progress.update(n)``.

    It shows the rate and the time that remains, and vanishes when the work is done.

    Parameters
    ----------
    total : how many `unit`s there are to do; None means unknown
    unit : "B" for bytes, else a word in the plural ("files", "steps")
    what : the words before the bar
    enabled : None means only where standard error is a terminal
    """
    if not (sys.stderr.isatty() if enabled is None else enabled):
        return _Silent()
    from tqdm import tqdm  # only here: nobody who sees no bar waits for it

    return tqdm(
        total=total,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=unit == "B" or (total is not None and total >= _SCALED_FROM),
        desc=what or None,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )
