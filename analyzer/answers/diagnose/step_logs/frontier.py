"""The frontier of a step: how far the last rank has come after each part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from analyzer.answers.diagnose.step_logs.log_steps import BETWEEN, REST, LogSteps

_MOST_CELLS = 2_000_000  # in memory at once


class _Share(NamedTuple):
    """A part of the mean step: what the frontier advances in it, and the rank that is most often ahead."""

    part: str
    ns: float
    share: float  # of the step
    rank: str | None  # None if all come to its end at once
    ahead_ns: float  # of the median rank, after this part
    ahead: float  # share of the steps in which this rank is the last one


def frontier(log: LogSteps) -> list[_Share]:
    """Account for the mean step by increments of the maximum over ranks of the cumulative time.

    The parts come in the order of their columns. The increments add up to the longest row of each step. A
    late rank counts where it is late, and waiting for it nowhere, as the last rank waits for nobody.
    """
    kept = [index for index, part in enumerate(log.parts) if part != BETWEEN]
    kept.sort(key=lambda index: log.parts[index] == REST)  # last
    parts = [log.parts[index] for index in kept]
    n_parts, n_ranks, k = len(parts), len(log.ranks), len(log.number)
    spent, ahead, last = np.zeros(n_parts), np.zeros((n_parts, n_ranks)), np.zeros((n_parts, n_ranks))
    width = max(1, _MOST_CELLS // (len(log.parts) * n_ranks))
    for begin in range(0, k, width):
        cells = log.cells(np.arange(begin, min(begin + width, k)))[kept]
        reached = cells.cumsum(axis=0)
        spent += np.diff(reached.max(axis=1), axis=0, prepend=0).sum(axis=1)
        ahead += (reached - np.median(reached, axis=1, keepdims=True)).sum(axis=2)
        of_step = reached.argmax(axis=1)
        last += np.array([np.bincount(ranks, minlength=n_ranks) for ranks in of_step])
    shares = []
    for i, (part, rank) in enumerate(zip(parts, last.argmax(axis=1).tolist(), strict=True)):
        name = log.ranks[rank] if ahead[i, rank] > 0 else None
        shares.append(
            _Share(part, spent[i] / k, spent[i] / spent.sum(), name, ahead[i, rank] / k, last[i, rank] / k)
        )
    return [share for share in shares if share.ns > 0]
