"""Progress bars of long work: on standard error, and silent unless somebody watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm

#: Totals from here on are shown with SI prefixes (1.20G/3.40G), smaller ones as they are (3/8).
_SCALED_FROM = 10_000


def bar(
    total: float | None = None, unit: str = "it", *, what: str = "", enabled: bool | None = None
) -> tqdm[NoReturn]:
    """Return a bar to be used as ``with bar(...) as progress: progress.update(n)``.

    It shows the rate and the time that remains, and vanishes when the work is done.

    Parameters
    ----------
    total : how many `unit`s there are to do; None means unknown
    unit : "B" for bytes, else a word in the plural ("files", "steps")
    what : the words before the bar
    enabled : None means only where standard error is a terminal
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        unit=unit if unit == "B" else f" {unit}",
        unit_scale=unit == "B" or (total is not None and total >= _SCALED_FROM),
        desc=what or None,
        disable=not (sys.stderr.isatty() if enabled is None else enabled),
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )
