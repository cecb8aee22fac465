"""One quantity in two runs: by how much it changed, and whether that is more than chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compare.families import Families
from compare.significance import LEVEL, Samples, corrected, welch


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity in two runs, in nanoseconds: b - a with its 95 % interval.

    `low_ns`, `high_ns` and `p` (corrected for the number of quantities beside it) are None where a
    run has too few steps for a test, all but the averages where it does not occur in one run.
    """

    a_ns: float | None
    b_ns: float | None
    low_ns: float | None = None
    high_ns: float | None = None
    p: float | None = None

    @property
    def ns(self) -> float | None:
        """The difference b - a."""
        return None if self.a_ns is None or self.b_ns is None else self.b_ns - self.a_ns

    @property
    def relative(self) -> float | None:
        """The difference as a share of a; None where a is 0 and b is not."""
        if self.a_ns is None or self.b_ns is None:
            return None
        if self.a_ns == 0:
            return 0.0 if self.b_ns == 0 else None
        return (self.b_ns - self.a_ns) / self.a_ns

    @property
    def significant(self) -> bool:
        """Whether the difference is more than chance."""
        return self.p is not None and self.p <= LEVEL


def changes(
    a: Samples,
    b: Samples,
    *,
    tested: NDArray[np.bool_] | None = None,
    family: Families | None = None,
) -> list[Change]:
    """Return the changes of m quantities, p-values corrected for their number.

    With `family` they are corrected within each family of quantities.
    `tested` (m,) leaves quantities out of the tests that are too small to matter, judged by both runs
    together: so the others need not be corrected for them (Bourgon, Gentleman, Huber, PNAS 2010).
    """
    found = welch(a, b, None if family is None else family.family)
    p = found.p if tested is None else np.where(tested, found.p, np.nan)
    p = corrected(p) if family is None else family.corrected(p)
    columns = (a.mean, b.mean, found.low, found.high, p)
    return [Change(*map(_known, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
