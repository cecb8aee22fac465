"""One side of a comparison: a run whose operations are put together over its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

import dialects
from arrays import Float64, Int64
from compare.significance import Samples, sample
from dialects import Role
from figures.job_figures import JobFigures
from figures.operations_by_step import Operations
from figures.time_by_role import NOTHING

_FEW_CELLS = 1 << 20  # of a matrix that is quicker full than sparse


class Side(Struct, frozen=True):
    """One of the two runs: its m operations, step by step, and their categories (m)."""

    run: JobFigures
    ops: Operations
    places: Sequence[Int64]  # of each rank's own operations among these
    categories: Sequence[str]

    @property
    def share_of_step(self) -> Float64:
        """How long the events of each operation last (m,), as a share of all steps (else of computation)."""
        total = self.ops.total_ns.sum(1)
        steps = sum(
            float(step.dur_ns) * rank.steps.width for rank in self.run.ranks for step in rank.steps.whole
        )
        whole = steps or float(total[self.ops.role == Role.COMPUTE].sum())
        return np.asarray(total / max(whole, 1.0), np.float64)

    def by_category(self, names: Sequence[str]) -> tuple[Float64, Samples, Samples]:
        """Return the counts (m, k) of the categories `names`, their averages and what they took of a step."""
        from scipy.sparse import csr_array

        row = {name: at for at, name in enumerate(names)}
        rows = [row[cat] for cat in (*self.categories, NOTHING)]
        shape = len(names), len(rows)
        spent_fold: Any = csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape)
        if len(names) * len(rows) <= _FEW_CELLS:
            spent_fold = spent_fold.toarray()  # which is quicker
        fold = spent_fold[:, :-1]
        count, total = fold @ self.ops.count, fold @ self.ops.total_ns
        return count.sum(1), sample(total, count), sample(spent_fold @ self.ops.spent_ns.T)


def side_of(run: JobFigures, *, tell_workers: bool) -> Side:
    """Return a run's operations, those of several workers told apart or pooled."""
    ops, places = run.operations(tell_workers=tell_workers)
    system = dialects.named(run.dialects[0])
    return Side(run, ops, places, [system.category(key.name, key.cat) for key in ops.keys])
