"""A drifting clock corrected in steps, each where nothing happens: no duration and no nesting changes.

A correction that grows evenly with time would move the end of a slice further than its beginning. Instead
all events between two quiet moments of a host are moved by the same amount.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arrays import Int64
from clocks.offsets import Clock
from combine.external_sort import DURATIONS, TIMES, Run

_BINS = 1 << 20  # stretches of time that are told to be quiet or not
_STEPS = 4096  # at most so many


class StepwiseShift(Struct, frozen=True):
    """A shift of times: `added` (k + 1) before, between and after the instants `cuts` (k).

    `error_ns` is the farthest that the steps are from the even correction they stand for.
    """

    cuts: Int64
    added: Int64
    error_ns: int

    def shift(self, ts_ns: Int64) -> Int64:
        """Return the shift of times (n,) on the host's clock; their order stays."""
        added: Int64 = self.added[np.searchsorted(self.cuts, ts_ns, "right")]
        return added


def stepwise(clock: Clock, runs: Sequence[tuple[Run, int]]) -> StepwiseShift:
    """Return the steps that put the events of one host on the first host's clock.

    Each of its `runs` is with what makes the run's times those of the host's clock (ns).
    """
    span = extent(runs)
    assert span is not None  # a clock is only known to drift by its events
    first, last = span
    width = (last - first) // _BINS + 1
    starts, ends = _quiet(runs, first, width)
    slot = starts * _STEPS // _BINS
    chosen = np.unique(slot, return_index=True)[1]
    starts, ends = starts[chosen], ends[chosen]
    cuts = first + width * (starts + ends) // 2
    edges = np.concatenate([[first], cuts, [last]])
    middles = (edges[:-1] + edges[1:]) // 2
    wanted = clock.shift(middles)
    added = _not_overtaking(wanted, width * (ends - starts))
    reach = np.abs(clock.shift(edges[:-1]) - wanted) + np.abs(added - wanted)
    return StepwiseShift(cuts, added, int(reach.max()))


def extent(runs: Sequence[tuple[Run, int]]) -> tuple[int, int] | None:
    """Return when the first event begins and the last one ends; None if there is none."""
    first, last = [], []
    for run, base in runs:
        ts, dur = run.column(TIMES), run.column(DURATIONS)
        first.append(int(ts[0]) + base)
        last.append(int((ts + np.maximum(dur, 0)).max()) + base)
    return (min(first), max(last)) if first else None


def _quiet(runs: Sequence[tuple[Run, int]], first: int, width: int) -> tuple[Int64, Int64]:
    """Return the stretches [start, end) of bins in which nothing is open and nothing happens."""
    change = np.zeros(_BINS + 1, np.int64)
    for run, base in runs:
        ts, dur = run.column(TIMES), run.column(DURATIONS)
        start = ts + base - first
        change += np.bincount(start // width, minlength=_BINS + 1)
        change -= np.bincount((start + np.maximum(dur, 0)) // width + 1, minlength=_BINS + 1)[: _BINS + 1]
    quiet = np.cumsum(change) == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]])))
    starts, ends = edges[::2], edges[1::2]
    inside = (starts > 0) & (ends < _BINS)
    return starts[inside], ends[inside]


def _not_overtaking(wanted: Int64, gaps: Int64) -> Int64:
    """Limit each step back to the length of the gap it is taken in."""
    added: Int64 = wanted.copy()
    for i, gap in enumerate(gaps.tolist()):
        added[i + 1] = max(added[i + 1], added[i] - gap)
    return added
