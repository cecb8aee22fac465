"""How the steps of each rank spend their time, and which of them take far longer than the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from arrays import Mask, NDArray
from arrays.median import longest_usual, median
from figures.time_by_role import Breakdown


class RankSummary(NamedTuple):
    """The steps of one rank, in nanoseconds: mean and median length, and means of what they were spent on."""

    rank: str
    outlier_steps: list[int]  # numbers of the steps that took far longer than the median
    steps: int
    mean_ns: float
    median_ns: float
    compute_ns: float
    comm_ns: float
    exposed_comm_ns: float
    idle_ns: float


def summaries(parts: Iterable[Breakdown]) -> list[RankSummary]:
    """Return a summary of each rank, in the order of their first step."""
    keys = ("compute_ns", "comm_ns", "exposed_comm_ns", "idle_ns")
    rows = []
    for rank, steps in _by_rank(parts).items():
        wall = np.array([step.wall_ns for step in steps])
        means = [float(np.mean([getattr(step, key) for step in steps])) for key in keys]
        far = [steps[row].step for row in np.flatnonzero(outliers(wall)).tolist()]
        numbers = [number for number in far if number is not None]
        rows.append(RankSummary(rank, numbers, len(steps), float(wall.mean()), median(wall), *means))
    return rows


def outliers(lengths: NDArray[np.number[Any]]) -> Mask:
    """Return which of some steps, given their lengths (n,), took far longer than the median; none of few."""
    return lengths > longest_usual(lengths)


def mean_pause_ns(parts: Iterable[Breakdown]) -> float:
    """Return the mean time between the end of a step and the begin of the one numbered next."""
    pauses = [
        after.start_ns - before.start_ns - before.wall_ns
        for steps in _by_rank(parts).values()
        for before, after in pairwise(steps)
        if before.step is not None and after.step == before.step + 1
    ]
    return float(np.mean(pauses)) if pauses else 0.0


class Shares(NamedTuple):
    """The shares of some steps' time by purpose; together 1."""

    compute: float  # alone
    exposed_comm: float
    both: float
    copies: float
    idle: float


def shares(parts: Sequence[Breakdown]) -> Shares:
    """Return the shares of all the time of some steps."""
    wall, compute, exposed, both, idle = (
        sum(getattr(part, key) for part in parts)
        for key in ("wall_ns", "compute_ns", "exposed_comm_ns", "overlap_ns", "idle_ns")
    )
    alone = compute - both
    ns = alone, exposed, both, wall - alone - exposed - both - idle, idle
    return Shares(*(each / max(wall, 1) for each in ns))


def _by_rank(parts: Iterable[Breakdown]) -> dict[str, list[Breakdown]]:
    """Return the steps of each rank, ranks in the order of their first step."""
    of_rank: dict[str, list[Breakdown]] = {}
    for part in parts:
        of_rank.setdefault(part.rank, []).append(part)
    return of_rank
