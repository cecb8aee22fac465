"""What the steps of a run were spent on, per operation, and per rank on own work or on communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compare.exposure import COMMUNICATION, IGNORED, exposed_ns, layers
from compare.run_table import MeasuredRun, Operations, Rank

Float = NDArray[np.float64]

NOTHING = "(nothing recorded)"


@dataclass(frozen=True, slots=True)
class RankSpent:
    """What one rank spent its whole steps on, nanoseconds.

    `own` (k,) is what it computed, prepared or recorded nothing in, `communication` (k,) what it only
    communicated or waited in, step by step (`labels`); `mean` (m + 1,) is what each operation, and last
    nothing, took of an average step, and `is_comm` (m + 1,) which of them are communication.
    """

    name: str
    labels: Sequence[int]
    own: Float
    communication: Float
    mean: Float
    is_comm: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run spent its whole steps on: `job` (k, m + 1), averaged over the ranks step by step.

    `layer` (m,) is the first layer (`compare.exposure`) that events of each operation belong to.
    """

    names: Sequence[str]  # (m + 1) the operations, and `NOTHING`
    job: Float
    ranks: Sequence[RankSpent]
    layer: NDArray[np.int64]


def time_spent(run: MeasuredRun, ops: Operations) -> Spent:
    """Return what each operation took of each whole step, as `compare.exposure` gives time away."""
    n_columns = len(ops.keys) + 1
    by_label: dict[int, list[Float]] = {}
    ranks: list[RankSpent] = []
    layer = np.full(len(ops.keys), IGNORED)
    for rank, ids in zip(run.ranks, ops.ids, strict=True):
        of_slice = layers(rank.trace)
        np.minimum.at(layer, ids, of_slice)
        if rank.steps.whole:
            steps, part = _rank_spent(rank, of_slice, ids, n_columns)
            ranks.append(part)
            for label, row in zip(part.labels, steps, strict=True):
                by_label.setdefault(label, []).append(row)
    job = [sum(by_label[label]) / len(by_label[label]) for label in sorted(by_label)]
    names = [*(key.name for key in ops.keys), NOTHING]
    return Spent(names, np.array(job).reshape(-1, n_columns), ranks, layer)


def _rank_spent(
    rank: Rank, layer: NDArray[np.int64], ids: NDArray[np.int64], n_columns: int
) -> tuple[Float, RankSpent]:
    found = exposed_ns(rank.trace, layer, ids, n_columns - 1, rank.steps.whole)
    is_comm = np.zeros(n_columns, np.bool_)
    is_comm[ids[layer == COMMUNICATION]] = True
    own, communication = found[:, ~is_comm].sum(1), found[:, is_comm].sum(1)
    labels = [step.label for step in rank.steps.whole]
    return found, RankSpent(rank.name, labels, own, communication, found.mean(0), is_comm)
