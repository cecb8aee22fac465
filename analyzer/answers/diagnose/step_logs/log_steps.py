"""The steps of a step log that all ranks have: the time of each part on each rank, and their frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analyzer.answers.diagnose.finding import HALF, NEARLY_ALL
from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.errors import TraceError
from analyzer.model.figures.job_figures import JobFigures, LogRows
from analyzer.reading.dialects import Role

#: Time outside the log's columns: within a rank's steps, and between them, where its rows are shorter than
#: the median rank's, as all ranks' steps last equally long.
REST, BETWEEN = "time outside the log's columns", "the time between its steps"
#: Times in memory at once (16 MB), or in a median, which takes at least so many steps.
_MOST_CELLS, _ENOUGH_STEPS = 2_000_000, 100


class LogSteps:
    """The k steps that all ranks have, and their parts.

    A long log is averaged over s stretches, and its times lie in a mapped file, from which `cells` and
    `series` are read. In any other log a stretch is a step.

    Attributes
    ----------
    number : (k,) of the steps
    n_logged : (ranks,) number of steps
    begins : (s,) index of the first step of each stretch
    longer_ns : (parts, ranks, s) difference to the median rank
    middle_ns : (parts, k) on the median rank, of two ranks the faster
    step_ns : (k,) on the median rank
    rows_ns : (k,) mean of the ranks' rows
    values : (ranks, s) of each column of other numbers than durations that all ranks have
    """

    def __init__(self, job: JobFigures) -> None:
        ranks = [rank for rank in job.ranks if rank.n_slices and rank.log is not None]
        logs = [rank.log for rank in ranks if rank.log is not None]
        self.ranks = [rank.name for rank in ranks]
        self.roles: dict[str, Role] = {}
        for log in logs:
            self.roles |= dict(zip(_parts(log), [*log.roles, Role.FRAME], strict=True))
        self.roles[REST] = self.roles.pop(REST)  # the last part of a step
        if len(logs) > 2:  # else there is no median rank
            self.roles[BETWEEN] = Role.FRAME
        self.parts = list(self.roles)
        self._columns = [[self.parts.index(name) for name in _parts(log)] for log in logs]
        self._spent = [log.spent_ns for log in logs]
        self.number = _in_all([log.labels for log in logs])
        stretches = _in_all([log.stretches for log in logs])
        if not len(self.number) or not len(stretches):
            raise TraceError(f"{job.path}: no step is in the log of every rank")
        self._at = [
            None if _are_same(log.labels, self.number) else np.searchsorted(log.labels, self.number)
            for log in logs
        ]  # row of each step, or of the one after a missing step; None if the rows are the steps
        self.n_logged = [len(log.labels) for log in logs]
        self.begins = np.searchsorted(self.number, stretches)
        places = [np.searchsorted(log.stretches, stretches) for log in logs]
        means_ns = self._folded([log.means_ns[rows] for log, rows in zip(logs, places, strict=True)])
        self.values: dict[str, Float64] = {}
        for name in logs[0].values:
            if all(name in log.values for log in logs):
                of_ranks = zip(logs, places, strict=True)
                self.values[name] = np.array([log.values[name][rows] for log, rows in of_ranks])
        k, middle = len(self.number), (len(self.ranks) - 1) // 2
        self.middle_ns, self.step_ns, self.rows_ns = np.zeros((len(self.parts), k)), *np.zeros((2, k))
        width = max(1, _MOST_CELLS // (len(self.parts) * len(self.ranks)))
        for begin in range(0, k, width):
            block = np.arange(begin, min(begin + width, k))
            cells = np.ascontiguousarray(self.cells(block).transpose(0, 2, 1))
            self.step_ns[block] = np.median(cells.sum(0), axis=1)  # with the time between steps
            self.rows_ns[block] = cells[: len(self.parts) - (BETWEEN in self.roles)].sum(0).mean(1)
            self.middle_ns[:, block] = np.partition(cells, middle, axis=2)[..., middle]
        n = np.diff(self.begins, append=k)
        self.longer_ns = means_ns - (np.add.reduceat(self.middle_ns, self.begins, axis=1) / n)[:, None]

    def cells(self, steps: Int64) -> Float64:
        """Read the time of each part on each rank in these steps (parts, ranks, n)."""
        rows = zip(self._spent, self._at, strict=True)
        return self._folded([spent[steps if index is None else index[steps]] for spent, index in rows])

    def _folded(self, spent: Sequence[NDArray[np.floating]]) -> Float64:
        cells = np.zeros((len(self.parts), len(spent), len(spent[0])))
        for rank, (columns, of_rank) in enumerate(zip(self._columns, spent, strict=True)):
            for column, part in enumerate(columns):
                cells[part, rank] += of_rank[:, column]
        if BETWEEN in self.roles:
            rows = cells.sum(0)
            cells[-1] = np.median(rows, axis=0) - rows
        return cells

    def series(self, part: int, rank: int) -> Float64:
        """Read the time of a part on a rank in each step (k,)."""
        spent, index = self._spent[rank], self._at[rank]
        if self.parts[part] == BETWEEN:
            every = spent.sum(axis=1, dtype=np.float64)
            return np.asarray(self.step_ns - (every if index is None else every[index]))
        columns = [column for column, row in enumerate(self._columns[rank]) if row == part]
        taken = sum(spent[:, column] if index is None else spent[index, column] for column in columns)
        return np.asarray(taken, np.float64)

    def excess_ns(self, part: int, rank: int) -> Float64:
        """Compute the difference of a part to the median rank (k,)."""
        return np.asarray(self.series(part, rank) - self.middle_ns[part])

    def usual_ns(self, steps: Int64) -> tuple[Float64, Float64]:
        """Compute the median of each part on each rank in (enough of) these steps (parts, ranks).

        Also the median difference to the median rank of each step.
        """
        most = max(_ENOUGH_STEPS, _MOST_CELLS // (len(self.parts) * len(self.ranks)))
        if len(steps) > most:
            steps = steps[np.linspace(0, len(steps) - 1, most).astype(np.int64)]
        cells = self.cells(steps)
        usual = np.median(cells, axis=2)
        cells -= self.middle_ns[:, None, steps]
        return usual, np.median(cells, axis=2)

    def stretches_of(self, steps: Mask) -> Mask:
        """Mask the stretches (s,) with at least half of their steps among `steps` (k,)."""
        n = np.diff(self.begins, append=len(self.number))
        return np.asarray(np.add.reduceat(steps, self.begins) * 2 >= n)


def _in_all(labels: Sequence[Int64]) -> Int64:
    """Find the numbers that most of these, ascending each, have.

    One that lacks many of these numbers, such as a rank that logs each tenth step, must have them itself.
    """
    every, count = labels[0], np.ones(len(labels[0]), np.int64)
    for other in labels[1:]:
        if not _are_same(every, other):
            both = np.union1d(every, other)
            more = np.zeros(len(both), np.int64)
            more[np.searchsorted(both, every)] = count
            every, count = both, more
        count[np.searchsorted(every, other)] += 1
    if (count == len(labels)).all():
        return every
    if not all(map(len, labels)):
        return every[:0]
    common = every[count >= HALF * len(labels)]
    first, last = max(of_rank[0] for of_rank in labels), min(of_rank[-1] for of_rank in labels)
    common = common[(common >= first) & (common <= last)]
    for of_rank in labels:
        has = np.isin(common, of_rank)
        if has.mean() < NEARLY_ALL:
            common = common[has]
    return np.asarray(common)


def _are_same(a: Int64, b: Int64) -> bool:
    return a is b or np.array_equal(a, b)


def _parts(log: LogRows) -> list[str]:
    """Name the part of each column of `spent_ns`; the step around its parts and nothing are one."""
    parts = zip(log.names, log.roles, strict=True)
    return [*(REST if role == Role.FRAME else name for name, role in parts), REST]


class FrontierPart(NamedTuple):
    """A part of the mean step: what the frontier advances in it, and the rank that is most often ahead."""

    part: str
    ns: float
    share: float  # of the step
    rank: str | None  # None if all come to its end at once
    ahead_ns: float  # of the median rank, after this part
    ahead: float  # share of the steps in which this rank is the last one


def frontier(log: LogSteps) -> list[FrontierPart]:
    """Account for the mean step by increments of the maximum over ranks of the cumulative time.

    The parts come in the order of their columns. The increments add up to the longest row of each step. A
    late rank counts where it is late, and waiting for it nowhere, as the last rank waits for nobody.
    """
    kept = [index for index, part in enumerate(log.parts) if part != BETWEEN]
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
    return [
        FrontierPart(
            part,
            spent[i] / k,
            spent[i] / spent.sum(),
            log.ranks[rank] if ahead[i, rank] > 0 else None,
            ahead[i, rank] / k,
            last[i, rank] / k,
        )
        for i, (part, rank) in enumerate(zip(parts, last.argmax(axis=1).tolist(), strict=True))
        if spent[i] > 0
    ]
