"""Offset between the clocks of two hosts, by the operations that they have in common.

*Causality*: nobody ends an operation before the last has begun it, which gives a window for the offset.
Where somebody waits, the window is wide and its middle is wrong by half the wait. The one who begins last
does not wait, and the others end when it does, more or less: so an edge of the window misses the truth by
about the shortest time that its host, the one that begins, takes from its own begin to its own end.

*Matched ends*: a collective ends on all its ranks at nearly the same time. Where most differences of the
ends agree closely, as those of kernels do, they are the offset, and their spread is its bound. Those of
collectives that the hosts carry out may scatter by a tenth of a millisecond and all be wrong by five: they
are an estimate, and bound nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.median import MAD_TO_SD, MEDIAN_TO_MEAN, median
from analyzer.model.clocks import limits
from analyzer.model.clocks.common_operations import Occurrences


class PairOffset(Struct, frozen=True):
    """The offset of host j against host i (what to add to j's times, less what to add to i's), in ns."""

    i: int
    j: int
    estimate: float
    doubt: float  # how far the truth usually is from the estimate
    ends: tuple[float, float] | None = None  # window from matched ends; None where they disagree


def evidence(found: Occurrences, compared: Mask) -> list[PairOffset]:
    """Return the evidence of every pair of hosts that is `compared` (n, n) and has any."""
    chosen = np.argwhere(np.triu(compared)).tolist()
    pairs = [_pair(found, i, j) for i, j in chosen]
    return [pair for pair in pairs if pair is not None]


def _pair(found: Occurrences, i: int, j: int) -> PairOffset | None:
    both = found.there[i] & found.there[j]
    waits, together = both & found.all_wait, both & found.end_together
    width, by_window = 2.0 * limits.ENDS_SUFFICE_NS, None
    if waits.any():
        upper = found.end[i, waits] - found.begin[j, waits]
        lower = found.begin[i, waits] - found.end[j, waits]
        misses = [_shortest(found.end[host, waits] - found.begin[host, waits]) for host in (i, j)]
        estimate, doubt, width = _from_window(upper, lower, misses)
        by_window = PairOffset(i, j, estimate, doubt)
    if together.sum() >= limits.FEWEST_ENDS:
        estimate, doubt, limit = _from_ends(found.end[i, together] - found.end[j, together])
        if 2 * limit < width and (limit <= limits.ENDS_SCATTER_NS or by_window is None):
            return PairOffset(i, j, estimate, doubt, (estimate - limit, estimate + limit))
        if 2 * limit < width:
            return PairOffset(i, j, estimate, limit)
    return by_window


def _shortest(times: Int64) -> float:
    """Return the shortest of some times (k,) without a few, which may be faults of the recording."""
    rank = min(max(limits.FEWEST_QUICK, int(limits.QUICK_SHARE * len(times))), len(times) - 1)
    return max(float(np.partition(times, rank)[rank]), 0.0)


def _from_window(upper: Int64, lower: Int64, misses: Sequence[float]) -> tuple[float, float, float]:
    """Return (estimate, doubt, width) of an offset that is at most `upper` and at least `lower` (k,).

    By `misses` the lower and the upper edge miss the truth, more or less; the estimate divides the window
    in that ratio. Where the edges contradict each other, as many occurrences as necessary are left out on
    either side: that keeps the sum of contradictions least.
    """
    high, low = np.sort(upper), np.sort(lower)[::-1]
    first = int(np.argmax(low <= high))
    width = max(float(high[first] - low[first]), 0.0)
    below, above = np.array(misses) + 1.0  # ns, so that they have a ratio
    doubt = float(((np.array(misses) + limits.MESSAGE_NS) ** -2.0).sum() ** -0.5)
    return float(low[first] + width * below / (below + above)), min(doubt, max(width / 2, 1.0)), width


def _from_ends(differences: Int64) -> tuple[float, float, float]:
    """Return (estimate, doubt, limit) of an offset from differences of ends (k,).

    The estimate is the median of those that agree. They agree with the half that lies closest together
    (Rousseeuw, Leroy, Robust Regression and Outlier Detection, 1987, ch. 4: least median of squares, then
    once more without the outliers).
    """
    centre = _densest(np.sort(differences))
    distance = np.abs(differences - centre)
    agree = distance <= limits.OUTLIER * MAD_TO_SD * median(distance)
    middle = median(differences[agree])
    spread = MAD_TO_SD * median(np.abs(differences - middle))
    doubt = limits.END_ERROR_NS + MEDIAN_TO_MEAN * spread / np.sqrt(len(differences))
    return middle, float(doubt), limits.END_LIMIT_NS + 3 * spread


def _densest(values: Int64) -> float:
    """Return the middle of the shortest stretch of sorted `values` that holds more than half of them.

    Of several such stretches the mean of their middles: the answer for negated values is the negated one.
    """
    size = len(values) // 2 + 1
    lengths = values[size - 1 :] - values[: len(values) - size + 1]
    first = np.flatnonzero(lengths == lengths.min())
    return float(np.mean([median(values[begin : begin + size]) for begin in first]))
