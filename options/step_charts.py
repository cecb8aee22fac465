"""The pictures of a breakdown: each rank's steps below each other; of many a map of rank and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from arrays import Int64, NDArray
from figures.time_by_role import Breakdowns
from result import HeatMap

if TYPE_CHECKING:
    from compare.significance import Change

#: Bars of operations in a chart.
MOST_BARS = 20
#: Of the longest bar: a shorter one cannot be seen.
LEAST_DRAWN = 0.005
#: More ranks, and those of more cells, are summed up: quantiles over all, and those that differ most.
_MOST_ROWS, _MOST_CELLS = 64, 2_000
_WORST = 10
#: Of a step: a category that changed less is one of the rest.
LEAST_SHOWN = 0.01
_QUANTILES = {"longest": 1.0, "95th percentile": 0.95, "median": 0.5, "5th percentile": 0.05, "shortest": 0.0}


def doubt(change: Change) -> str:
    """Return words that say where a change may be chance."""
    return " (uncertain)" if change.p is not None and not change.significant else ""


def exposed_map(parts: Sequence[Breakdowns]) -> list[HeatMap]:
    """Return how long each rank communicated in each step while it computed nothing, if any did."""
    return _maps("Exposed communication", parts, lambda part: part.exposed_comm_ns)


def _maps(title: str, parts: Sequence[Breakdowns], value: Callable[[Breakdowns], Int64]) -> list[HeatMap]:
    if not any(value(part).any() for part in parts):
        return []
    steps = sorted({step for part in parts for step in part.step}, key=lambda step: step or 0)
    column = {step: i for i, step in enumerate(steps)}
    ms = np.full((len(parts), len(steps)), np.nan)
    for row, part in enumerate(parts):
        ms[row, [column[step] for step in part.step]] = value(part) / 1e6
    return [rank_map(title, [part.rank for part in parts], [*map(_name, steps)], ms)]


def joined_steps(
    steps: Sequence[str], values: NDArray[np.float64], most: int
) -> tuple[Sequence[str], NDArray[np.float64]]:
    """Return at most `most` columns of `values` (rows, steps), and what they are called.

    Where there are more steps, each column has the largest values of some that follow each other.
    """
    every = -(-len(steps) // most)
    if every <= 1:
        return steps, values
    begins = range(0, len(steps), every)
    groups = [steps[at : at + every] for at in begins]
    names = [own[0] if len(own) == 1 else f"{own[0]}–{own[-1]}" for own in groups]
    return names, np.fmax.reduceat(values, list(begins), axis=1)


def rank_map(
    title: str, ranks: Sequence[str], steps: Sequence[str], ms: NDArray[np.float64], by: str = "step"
) -> HeatMap:
    """Return a map of one figure (ranks, steps or what else it is `by`), NaN where it is not known.

    Of many ranks it shows the quantiles in each step, and those that differ most from the median; of many
    steps the largest of some that follow each other.
    """
    names = list(ranks)
    n_summed = len(_QUANTILES) + _WORST
    if len(ranks) > _MOST_ROWS or (len(ranks) > n_summed and ms.size > _MOST_CELLS):
        means = np.nanmean(ms, axis=1)
        worst = np.argsort(-np.abs(means - np.nanmedian(means)), kind="stable")[:_WORST]
        quantiles = np.nanquantile(ms, list(_QUANTILES.values()), axis=0)
        names = [*(f"{name} of {len(ranks):,}" for name in _QUANTILES), *(ranks[at] for at in worst)]
        ms = np.concatenate([quantiles, ms[worst]])
    if by in ("step", "second"):
        steps, ms = joined_steps(steps, ms, _MOST_CELLS // len(ms))
    values = [[None if np.isnan(cell) else float(cell) for cell in line] for line in ms]
    return HeatMap(f"{title}, by rank and {by}", by, "rank", "ms", steps, names, values)


def _name(step: int | None) -> str:
    return "all" if step is None else str(step)
