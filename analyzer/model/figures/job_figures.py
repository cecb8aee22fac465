"""The figures of a job, rank by rank and together.

Those of a rank are computed where its file is read: no process holds the events of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.arrays.distributions import n_warm_up
from analyzer.base.names import OpName
from analyzer.model.figures.durations import (
    NO_DURATIONS,
    Operations,
    OperationStats,
    OpKey,
    category_totals,
    durations,
    joined,
    merged,
    operation_stats,
    operations_of,
)
from analyzer.model.figures.time_by_role import NO_BREAKDOWN, Breakdown, breakdown
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role, is_communication
from analyzer.reading.dialects.steps import NO_STEPS, Step, Steps, step_table
from analyzer.reading.dialects.system import KERNEL_KIND, StepRows
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.split import TraceFile
from trace_utils import CommFilter, Request, Source, read_ranks

#: Steps of a rank in figures; a longer log is averaged over stretches. A page shows 2,000 cells, and 1,000
#: ranks with so many steps take half a gigabyte.
MOST_STEPS = 1_000


class Wanted(Struct, frozen=True):
    """The figures of a rank to compute."""

    durations: bool = False  # of operations
    breakdown: bool = False  # the time of all steps by role
    operations: bool = False  # step by step
    spent: bool = False  # the share of operations in the time of each step
    select: Collection[str] = ()  # communications that count for `selection`
    group_by: str | None = None  # group the work of devices (`--group_by`) instead of all operations
    rows: bool = False  # of a step log only the data of a diagnosis, for every step

    @property
    def needs(self) -> Collection[Need]:
        """The purposes for which events' args are decoded."""
        steps = {Need.STEPS} if self.breakdown or self.operations or self.group_by else set()
        return steps if self.group_by in (None, KERNEL_KIND) else {*steps, Need.ORIGIN}


class LogRows(Struct, frozen=True):
    """The rows of a rank of a step log with m operations; a long log has stretches of several steps."""

    names: Sequence[str]  # (m,) of the step and its parts
    roles: Sequence[Role]
    labels: Int64  # (k,) of the steps
    spent_ns: NDArray[np.floating]  # (k, m + 1) as of `Operations`
    stretches: Int64  # (s,)
    means_ns: Float64  # (s, m + 1)
    values: Mapping[str, Float64]  # (s,) means of numbers other than durations; NaN where unknown


class RankFigures(Struct, frozen=True, omit_defaults=True):
    """The figures of one rank; those not in `Wanted` are empty."""

    source: Source
    dialect: str
    n_slices: int
    name: str = ""  # in its job
    steps: Steps = NO_STEPS
    durations: OperationStats = NO_DURATIONS
    category_ns: Mapping[str, int] = field(default_factory=dict)  # see `category_totals`
    span_ns: int = 0  # from its first slice to its last
    breakdown: Breakdown = NO_BREAKDOWN  # of all whole steps
    operations: Operations | None = None
    selection: tuple[Operations, Sequence[str]] | None = None  # what `select` keeps, and all that it may keep
    log: LogRows | None = None


def rank_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Compute the figures of a rank whose trace was read for the `needs` of `wanted`.

    Slices that ranks of a host share mark steps, and count in the figures of the host. TraceError if there
    are too many operations for a table of steps.
    """
    system = dialects.of(trace)
    steps = system.find_steps(trace, step_by) if wanted.needs or step_by is not None else NO_STEPS
    if wanted.group_by is not None:
        roles = system.roles(trace)
        if (groups := system.work_groups(trace, roles, wanted.group_by)) is None:
            work, roles = trace.select(np.empty(0, np.int64)), roles[:0]
        else:
            rows, work = groups
            roles = roles[rows]
            roles = roles if work.is_shared is None else roles[~work.is_shared]
            work = work.own
    else:
        work = trace.own
        roles = system.roles(work) if wanted.breakdown or wanted.spent else np.empty(0, np.int8)
    counts = roles != Role.IGNORED if wanted.spent else np.ones(len(work), np.bool_)
    span_ns = int(work.end_ns[counts].max() - work.ts_ns[counts].min()) if counts.any() else 0
    figures = RankFigures(source, trace.dialect, len(work), steps=steps, span_ns=span_ns)
    if wanted.durations:
        figures = replace(figures, durations=durations(work), category_ns=dict(category_totals(work)))
    if wanted.breakdown:
        figures = replace(figures, breakdown=breakdown(work, roles, steps.whole))
    if wanted.operations:
        operations = operations_of(work, steps, roles if wanted.spent else None)
        figures = replace(figures, operations=operations)
    if wanted.select:
        comm = CommFilter(system, wanted.select, source.prefix)
        selection = operations_of(comm.select(work), steps), list(comm.known)
        figures = replace(figures, selection=selection)
    return figures


# ---- ranks of step logs


class _Rows(NamedTuple):
    """k steps, or means of `n` (k,) steps: the step and its m - 1 parts (m, k), v other numbers (v, k)."""

    label: Int64
    begin_ns: Int64
    n: Int64
    events: Int64
    total_ns: Float64
    values: Float64

    @property
    def mean_ns(self) -> Float64:
        """Durations of the step and its parts (m, k)."""
        return np.asarray(self.total_ns / self.n)

    @property
    def spent_ns(self) -> Float64:
        """Time of the step outside its parts, of each part, and of nothing, in each step (k, m + 1)."""
        spent = np.column_stack([self.mean_ns.T, np.zeros(len(self.label))])
        spent[:, 0] -= self.mean_ns[1:].sum(0)
        return np.asarray(np.maximum(spent, 0.0))


def log_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Compute the figures of a rank of a step log."""
    system = dialects.of(trace)
    recorded = system.step_rows(trace, step_by)
    parts = {name: part for name, part in recorded.parts.items() if part[1].any()}
    names = [trace.names[0], *parts]
    roles = [Role.FRAME, *(role for role, _ in parts.values())]
    rows = _sorted_rows(recorded, trace, [took for _, took in parts.values()])
    steps, width = _stretched(rows)
    figures = RankFigures(source, trace.dialect, int(rows.events.sum()))
    means_ns = steps.spent_ns
    if wanted.rows:
        spent_ns = means_ns if width == 1 else rows.spent_ns.astype(np.float32)
        values = dict(zip(recorded.values, steps.values, strict=True))
        log = LogRows(names, roles, rows.label, spent_ns, steps.label, means_ns, values)
        return replace(figures, log=log)
    keys = [OpKey(name, OpName.parse(name).cat or "") for name in names]
    if wanted.durations:
        op, step = np.nonzero(rows.events)
        own_ns = np.vstack([rows.total_ns[:1] - rows.total_ns[1:].sum(0), rows.total_ns[1:]]).clip(0)
        took = (total[op, step].astype(np.int64) for total in (rows.total_ns, own_ns))
        stats = operation_stats(keys, op.astype(np.int32), *took)
        category_ns = {keys[0].cat: int(rows.total_ns[0].sum())}
        figures = replace(figures, durations=stats, category_ns=category_ns, span_ns=category_ns[keys[0].cat])
    if wanted.operations:
        labels = steps.label.tolist()
        operations = Operations(keys, steps.events, steps.total_ns, labels, means_ns)
        figures = replace(figures, operations=operations)
    note = f"Each step is the mean of {width} in a row: the log has more than {MOST_STEPS:,}."
    ends_ns = steps.begin_ns + np.rint(steps.mean_ns[0]).astype(np.int64)
    whole = tuple(map(Step, steps.label.tolist(), steps.begin_ns.tolist(), ends_ns.tolist()))
    return replace(
        figures,
        steps=Steps(whole, (), "rows of the log", note=note if width > 1 else ""),
        breakdown=_breakdown(steps, np.array(roles, np.int8), system.rule(trace)),
    )


def _sorted_rows(recorded: StepRows, trace: Trace, parts: Sequence[Float64]) -> _Rows:
    """Sort the rows by step; the last row of a step counts."""
    label, took = recorded.label, np.array([trace.dur_ns, *parts], np.float64)
    values = np.array([*recorded.values.values()]).reshape(len(recorded.values), len(label))
    order = np.argsort(label, kind="stable")
    order = order[np.append(np.diff(label[order]) > 0, True)]
    took = took[:, order]
    n, events = np.ones(len(order), np.int64), (took > 0).astype(np.int64)
    return _Rows(label[order], trace.ts_ns[order], n, events, took, values[:, order])


def _stretched(rows: _Rows) -> tuple[_Rows, int]:
    """Average stretches of successive steps if there are more than `MOST_STEPS`; return also their width.

    All ranks have the same: they begin at multiples of a power of two of the usual difference of labels.
    """
    label = rows.label
    if len(label) <= MOST_STEPS:
        return rows, 1
    width = 1 << int(np.ceil(np.log2(len(label) / MOST_STEPS)))
    distance = max(1, int(np.median(np.diff(label)))) * width
    stretch = label // distance
    first = np.flatnonzero(np.diff(stretch, prepend=stretch[0] - 1))
    n = np.diff(first, append=len(label))
    events, total_ns, values = (
        np.add.reduceat(column, first, axis=1) for column in (rows.events, rows.total_ns, rows.values)
    )
    return _Rows(stretch[first] * distance, rows.begin_ns[first], n, events, total_ns, values / n), width


def _breakdown(rows: _Rows, role: NDArray[np.int8], rule: str) -> Breakdown:
    """Split the time of each step by role, as parts do not overlap."""
    parts_ns, role = rows.mean_ns[1:], role[1:]
    computes = (role == Role.COMPUTE) | (role == Role.UPDATE)
    is_of = (computes, is_communication(role), role == Role.COPY)
    wall, compute, comm, copies = (
        np.rint(took).astype(np.int64)
        for took in (rows.mean_ns[0], *(parts_ns[chosen].sum(0) for chosen in is_of))
    )
    return Breakdown(rows.label.tolist(), wall, compute, comm, 0 * wall, wall - compute - comm - copies, rule)


# ---- jobs


class RealSteps(Struct, frozen=True):
    """The k whole steps of a job without its profiler; times of ranks are means."""

    length_ns: Float64  # (k,)
    most_cost_ns: float  # the mean step with the most cost of the profiler, which is the shortest
    least_cost_ns: float
    kinds: Sequence[str]  # of kernels
    device_ns: Float64  # (kinds, k)
    causes: Sequence[str]


class JobFigures(Struct, frozen=True):
    """The figures of a job, rank by rank, from traces or from the digest `path`."""

    path: Path
    files: Sequence[TraceFile]
    notes: Sequence[str]  # a line each: missing ranks, empty directories, doubled ranks
    ranks: Sequence[RankFigures]
    step_by: str | None = None
    hosts: Sequence[RankFigures] = ()  # slices that several ranks share
    real: RealSteps | None = None  # None if nothing tells the profiler's cost

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
    def is_slowed(self) -> bool:
        """True if the profiler of its system slows the host."""
        return any(dialects.named(name).slows_host for name in self.dialects)

    @property
    def dialects(self) -> list[str]:
        """The systems that wrote its traces, each once."""
        return list(dict.fromkeys(rank.dialect for rank in self.ranks if rank.n_slices))

    @property
    def workers(self) -> set[int]:
        """The indices of the workers; empty if unknown."""
        return {rank.source.worker for rank in self.ranks if rank.source.worker is not None}

    @property
    def by_prefix(self) -> dict[str, tuple[str, OperationStats]]:
        """The rank and the joined statistics of all files, by prefix of the operations' names."""
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
        """The length of each whole step, the mean over ranks (k,), by number; empty without steps."""
        return self._lengths[1]

    @property
    def _lengths(self) -> tuple[Int64, Float64]:
        """Numbers and lengths (k,) of the steps that all ranks with steps have, else of every step."""
        tables = [step_table(rank.steps.whole) for rank in self.ranks if rank.steps.whole]
        number, begin, end = np.concatenate([step_table(()), *tables]).T
        numbers, row, n = np.unique(number, return_inverse=True, return_counts=True)
        mean_ns = np.bincount(row, end - begin, len(n)) / np.maximum(n, 1)
        common = n == len(tables)
        return (numbers[common], mean_ns[common]) if common.any() else (numbers, mean_ns)

    @property
    def warm_up(self) -> Sequence[int]:
        """The numbers of the first steps if they are far longer than all others; none in a step log."""
        if not all(dialects.named(name).has_events for name in self.dialects):
            return ()
        numbers, lengths_ns = self._lengths
        first: list[int] = numbers[: n_warm_up(lengths_ns)].tolist()
        return first

    @property
    def settled(self) -> JobFigures:
        """The job without its warm-up."""
        first = set(self.warm_up)
        return replace(self, ranks=[_without(rank, first) for rank in self.ranks]) if first else self

    def operations(self, *, tell_workers: bool) -> Operations:
        """Merge the operations of all ranks; with workers in their names if `tell_workers`."""
        parts = [rank.operations for rank in self.ranks if rank.operations is not None]
        workers = [rank.source.worker if tell_workers else None for rank in self.ranks]
        prefixes = ["" if worker is None else f"wk{worker}." for worker in workers]
        return merged(parts, prefixes, path=self.path)


def load_figures(paths: Sequence[Path], wanted: Wanted, asked: Request = Request()) -> JobFigures:
    """Compute the figures of the job at `paths`, read as `asked`.

    TraceError without a trace or an operation, or as `rank_figures`; AnalyzeError if a name in `asked.only`
    is no communication of the job.
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
    """Leave out the communications that `wanted` does not name, of runs with a `selection`.

    AnalyzeError if no run has a communication of that name.
    """
    if not wanted:
        return list(runs)
    selections = [rank.selection for run in runs for rank in run.ranks if rank.selection is not None]
    CommFilter.check(wanted, {name for _, communications in selections for name in communications})
    return [replace(run, ranks=[*map(_selected, run.ranks)]) for run in runs]


def _selected(rank: RankFigures) -> RankFigures:
    assert rank.selection is not None, f"{rank.name}: computed without a selection"
    operations, _ = rank.selection
    return replace(rank, n_slices=int(operations.count.sum()), operations=operations)
