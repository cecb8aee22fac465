"""The figures of a job: those of its ranks, and what they amount to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.base.arrays.median import n_warm_up
from analyzer.model.figures.durations import OperationStats, joined
from analyzer.model.figures.log_figures import log_figures
from analyzer.model.figures.operations_by_step import Operations, merged
from analyzer.model.figures.rank_figures import RankFigures, Wanted, rank_figures
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.steps import step_table
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.split import TraceFile
from trace_utils import CommFilter, Request, Source, read_ranks


class JobFigures(Struct, frozen=True):
    """The figures of a job, rank by rank, and what was read for them: traces, or the digest `path`."""

    path: Path
    files: Sequence[TraceFile]
    notes: Sequence[str]  # a line each: missing ranks, empty directories, doubled ranks
    ranks: Sequence[RankFigures]
    step_by: str | None = None
    hosts: Sequence[RankFigures] = ()  # of what several ranks share

    @property
    def repairs(self) -> list[str]:
        """Repairs, omissions and missing ranks: a line per file."""
        return [*self.notes, *(line for file in self.files for line in file.repair_lines)]

    @property
    def n_slices(self) -> int:
        """Slices of all ranks and hosts."""
        return sum(owner.n_slices for owner in (*self.ranks, *self.hosts))

    @property
    def category_ns(self) -> Mapping[str, int]:
        """The time of each category, over all ranks and hosts."""
        return sum((Counter(owner.category_ns) for owner in (*self.ranks, *self.hosts)), Counter())

    @property
    def dialects(self) -> list[str]:
        """The systems that wrote its traces, each once."""
        return list(dict.fromkeys(rank.dialect for rank in self.ranks if rank.n_slices))

    @property
    def workers(self) -> set[int]:
        """The indices of its workers; empty where they are not told apart."""
        return {rank.source.worker for rank in self.ranks if rank.source.worker is not None}

    @property
    def by_prefix(self) -> dict[str, tuple[str, OperationStats]]:
        """For each prefix of operations' names, the rank and the statistics of all files that share it."""
        several = len(self.ranks) > 1
        groups: dict[str, list[RankFigures]] = {}
        for rank in (*self.ranks, *self.hosts):
            groups.setdefault(rank.source.prefix if several else "", []).append(rank)
        return {
            prefix: (ranks[0].name, joined([rank.durations for rank in ranks]))
            for prefix, ranks in groups.items()
        }

    @property
    def iteration_ns(self) -> Float64:
        """How long each whole step took, the mean over the ranks (k,), by number; empty without steps."""
        return self._lengths[1]

    @property
    def _lengths(self) -> tuple[Int64, Float64]:
        """Numbers and lengths (k,) of the steps that all ranks with steps have; else of every step."""
        tables = [step_table(rank.steps.whole) for rank in self.ranks if rank.steps.whole]
        number, begin, end = np.concatenate([step_table(()), *tables]).T
        numbers, row, n = np.unique(number, return_inverse=True, return_counts=True)
        mean_ns = np.bincount(row, end - begin, len(n)) / np.maximum(n, 1)
        common = n == len(tables)
        return (numbers[common], mean_ns[common]) if common.any() else (numbers, mean_ns)

    @property
    def warm_up(self) -> Sequence[int]:
        """The numbers of the first steps if they are far longer than all others; see `n_warm_up`.

        In a step log nothing else tells what is done once, so none is left out.
        """
        if not all(dialects.named(name).has_events for name in self.dialects):
            return ()
        numbers, lengths_ns = self._lengths
        first: list[int] = numbers[: n_warm_up(lengths_ns)].tolist()
        return first

    @property
    def settled(self) -> JobFigures:
        """The job without its warm-up, which says nothing of the steps to come."""
        first = set(self.warm_up)
        return replace(self, ranks=[_without(rank, first) for rank in self.ranks]) if first else self

    def operations(self, *, tell_workers: bool) -> Operations:
        """Merge the operations of all ranks; with workers in their names if `tell_workers`."""
        parts = [rank.operations for rank in self.ranks if rank.operations is not None]
        workers = [rank.source.worker if tell_workers else None for rank in self.ranks]
        prefixes = ["" if worker is None else f"wk{worker}." for worker in workers]
        return merged(parts, prefixes, path=self.path)


def load_figures(paths: Sequence[Path], wanted: Wanted, asked: Request = Request()) -> JobFigures:
    """Work out the figures of the job at `paths`, of which `asked` says how it is read.

    Raises
    ------
    TraceError
        No such path, nothing under it is a trace, the traces hold no operation, or as `rank_figures`.
    AnalyzeError
        A name in `asked.only` is not a communication of the job.
    """
    work = partial(_figures, wanted=wanted, step_by=asked.step_by)
    needs = {Need.STEPS, *wanted.needs} if asked.step_by else wanted.needs
    job = read_ranks(paths, work, asked._replace(needs=needs, hosts=True))
    job.check_any()
    named = zip(job.names, job.ranks, strict=True)
    figures = [replace(rank.made, source=rank.source, name=name) for name, rank in named]
    ranks = [owner for owner in figures if owner.source.host is None]
    hosts = [owner for owner in figures if owner.source.host is not None]
    return JobFigures(paths[0], job.files, job.job.notes, ranks, asked.step_by, hosts)


def _figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None) -> RankFigures:
    figures_of = rank_figures if dialects.of(trace).has_events else log_figures
    return figures_of(source, trace, wanted, step_by)


def _without(rank: RankFigures, first: Collection[int]) -> RankFigures:
    """Leave out the `first` steps of a rank."""
    operations = rank.operations
    if operations is not None and len(operations.labels):
        kept = np.isin(operations.labels, list(first), invert=True)
        labels = np.array(operations.labels)[kept].tolist()
        operations = replace(operations, labels=labels, spent_ns=operations.spent_ns[kept])
    steps = rank.steps._replace(whole=tuple(step for step in rank.steps.whole if step.label not in first))
    return replace(rank, steps=steps, breakdown=rank.breakdown.without(first), operations=operations)


def filtered(runs: Sequence[JobFigures], wanted: Collection[str]) -> list[JobFigures]:
    """Leave out the communications that `wanted` does not name, of runs with a `SelectedOperations`.

    AnalyzeError where no run has a communication of a name.
    """
    if not wanted:
        return list(runs)
    selections = [rank.selection for run in runs for rank in run.ranks if rank.selection is not None]
    CommFilter.check(wanted, {name for selection in selections for name in selection.communications})
    return [replace(run, ranks=[*map(_selected, run.ranks)]) for run in runs]


def _selected(rank: RankFigures) -> RankFigures:
    assert rank.selection is not None, f"{rank.name}: worked out without a selection"
    operations = rank.selection.operations
    return replace(rank, n_slices=int(operations.count.sum()), operations=operations)
