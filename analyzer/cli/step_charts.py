"""The pictures of a breakdown: each rank's steps below each other; of many a map of rank and step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.report.result import HeatMap

if TYPE_CHECKING:
    from analyzer.answers.compare.significance import Change

#: Bars of operations in a chart.
MOST_BARS = 20
#: Most ranks and cells of a map.
_MOST_ROWS, _MOST_CELLS = 64, 2_000
#: Share of a step; categories that changed less are summed up as the rest.
LEAST_SHOWN = 0.01


def doubt(change: Change) -> str:
    """Mark a tested change that is not significant."""
    return " (not significant)" if change.p is not None and not change.significant else ""


def joined_steps(
    steps: Sequence[str], values: NDArray[np.float64], most: int
) -> tuple[Sequence[str], NDArray[np.float64]]:
    """Reduce `values` (rows, steps) to at most `most` columns; return also their names.

    Where there are more steps, each column has the largest values of some that follow each other.
    """
    every = -(-len(steps) // most)
    if every <= 1:
        return steps, values
    begins = range(0, len(steps), every)
    groups = [steps[begin : begin + every] for begin in begins]
    names = [group[0] if len(group) == 1 else f"{group[0]}–{group[-1]}" for group in groups]
    return names, np.fmax.reduceat(values, list(begins), axis=1)


def rank_map(title: str, ranks: Sequence[str], steps: Sequence[str], ms: NDArray[np.float64]) -> HeatMap:
    """Draw one figure (ranks, steps), NaN where it is not known.

    Of many ranks those that differ most from the median, of many steps the largest of some that follow each
    other.
    """
    means = np.nanmean(ms, axis=1)
    shown = np.sort(np.argsort(-np.abs(means - np.nanmedian(means)), kind="stable")[:_MOST_ROWS])
    steps, ms = joined_steps(steps, ms[shown], _MOST_CELLS // len(shown))
    values = [[None if np.isnan(cell) else float(cell) for cell in line] for line in ms]
    names = [ranks[rank] for rank in shown.tolist()]
    return HeatMap(f"{title}, by rank and step", "", "step", "rank", steps, names, values, by_step=True)
