"""The steps of a step log that all ranks have: what each part of them took on each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.answers.diagnose.finding import HALF, NEARLY_ALL
from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.errors import TraceError
from analyzer.model.figures.job_figures import JobFigures
from analyzer.model.figures.rank_figures import LogRows
from analyzer.reading.dialects import Role

#: Time outside the log's columns: within a rank's steps, and between them, where its rows are shorter than
#: the median rank's, as all ranks' steps last equally long.
REST, BETWEEN = "time outside the log's columns", "the time between its steps"
#: Times that are looked at together: 16 MB; and those of which a median is taken, at least so many steps.
_MOST_CELLS, _ENOUGH_CELLS, _ENOUGH_STEPS = 2_000_000, 2_000_000, 100


class LogSteps:
    """The k steps that all ranks have, and their p parts.

    Of a long log the times lie in a mapped file, from which some are taken (`cells`, `series`); figures by
    step are then means of s stretches. Of any other a stretch is a step.

    Attributes
    ----------
    ranks, parts, roles : names of the ranks; names of the parts, and their roles
    number : (k,) of the steps
    n_logged : (ranks,) how many steps each has
    begins : (s,) with which of the steps each stretch begins
    longer_ns : (parts, ranks, s) how much longer each part took than on the median rank
    middle_ns : (parts, k) how long it took on the median rank, of two ranks the faster
    step_ns : (k,) how long steps took on the median rank
    rows_ns : (k,) the mean of what the rows of the ranks say
    values : (ranks, s) of each column of other numbers than durations, if all ranks have it
    """

    def __init__(self, job: JobFigures) -> None:
        ranks = [rank for rank in job.ranks if rank.n_slices and rank.log is not None]
        logs = [rank.log for rank in ranks if rank.log is not None]
        self.ranks = [rank.name for rank in ranks]
        self.roles: dict[str, Role] = {}
        for log in logs:
            self.roles |= dict(zip(_parts(log), [*log.roles, Role.FRAME], strict=True))
        if len(logs) > 2:  # else nobody is the median rank
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
        ]  # of each step, of one that is missing the row after; None where none is
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
            own = np.arange(begin, min(begin + width, k))
            cells = np.ascontiguousarray(self.cells(own).transpose(0, 2, 1))
            self.step_ns[own] = np.median(cells.sum(0), axis=1)  # with what was between the rank's steps
            self.rows_ns[own] = cells[: len(self.parts) - (BETWEEN in self.roles)].sum(0).mean(1)
            self.middle_ns[:, own] = np.partition(cells, middle, axis=2)[..., middle]
        n = np.diff(self.begins, append=k)
        self.longer_ns = means_ns - (np.add.reduceat(self.middle_ns, self.begins, axis=1) / n)[:, None]

    def cells(self, steps: Int64) -> Float64:
        """Return how long each part took on each rank in these steps (parts, ranks, n)."""
        taken = []
        for spent, at in zip(self._spent, self._at, strict=True):
            taken.append(spent[steps if at is None else at[steps]])
        return self._folded(taken)

    def _folded(self, spent: Sequence[NDArray[np.floating]]) -> Float64:
        found = np.zeros((len(self.parts), len(spent), len(spent[0])))
        for rank, (columns, of_rank) in enumerate(zip(self._columns, spent, strict=True)):
            for column, part in enumerate(columns):
                found[part, rank] += of_rank[:, column]
        if BETWEEN in self.roles:
            rows = found.sum(0)
            found[-1] = np.median(rows, axis=0) - rows
        return found

    def series(self, part: int, rank: int) -> Float64:
        """Return how long a part took on a rank in each step (k,)."""
        spent, at = self._spent[rank], self._at[rank]
        places = self._columns[rank]
        if self.parts[part] == BETWEEN:
            every = spent.sum(axis=1, dtype=np.float64)
            return np.asarray(self.step_ns - (every if at is None else every[at]))
        own = [column for column, place in enumerate(places) if place == part]
        taken = sum(spent[:, column] if at is None else spent[at, column] for column in own)
        return np.asarray(taken, np.float64)

    def excess_ns(self, part: int, rank: int) -> Float64:
        """Return how much longer a part took than on the median rank (k,)."""
        return np.asarray(self.series(part, rank) - self.middle_ns[part])

    def usual_ns(self, steps: Int64) -> tuple[Float64, Float64]:
        """Return the median of each part on each rank in these steps (parts, ranks), or in enough of them.

        Also that of how much longer it is than on the median rank of each step.
        """
        most = max(_ENOUGH_STEPS, _ENOUGH_CELLS // (len(self.parts) * len(self.ranks)))
        if len(steps) > most:
            steps = steps[np.linspace(0, len(steps) - 1, most).astype(np.int64)]
        cells = self.cells(steps)
        usual = np.median(cells, axis=2)
        cells -= self.middle_ns[:, None, steps]
        return usual, np.median(cells, axis=2)

    def stretches_of(self, steps: Mask) -> Mask:
        """Return the stretches (s,) of which at least half are among `steps` (k,)."""
        n = np.diff(self.begins, append=len(self.number))
        return np.asarray(np.add.reduceat(steps, self.begins) * 2 >= n)


def _in_all(labels: Sequence[Int64]) -> Int64:
    """Return the numbers that all of these, ascending each, have; of single ones that are missing, most.

    Who has less than nearly all of what most have, as one that logs each tenth step, decides itself.
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
    found = every[count >= HALF * len(labels)]
    found = found[(found >= max(one[0] for one in labels)) & (found <= min(one[-1] for one in labels))]
    for one in labels:
        has = np.isin(found, one)
        if has.mean() < NEARLY_ALL:
            found = found[has]
    return np.asarray(found)


def _are_same(one: Int64, other: Int64) -> bool:
    return one is other or np.array_equal(one, other)


def _parts(log: LogRows) -> list[str]:
    """Return the part of each column of `spent_ns`; the step around its parts and nothing are one."""
    parts = zip(log.names, log.roles, strict=True)
    return [*(REST if role == Role.FRAME else name for name, role in parts), REST]
