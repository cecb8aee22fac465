"""The figures of one rank, worked out where its file is read: no process holds the events of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.model.figures.durations import NO_DURATIONS, OperationStats, category_totals, durations
from analyzer.model.figures.operations_by_step import Operations, operations_of
from analyzer.model.figures.time_by_role import NO_BREAKDOWN, Breakdown, breakdown
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.steps import NO_STEPS, Steps
from analyzer.reading.dialects.system import KERNEL_KIND
from analyzer.reading.formats.columns import Trace
from trace_utils import CommFilter, Source


class Wanted(Struct, frozen=True):
    """Which figures of a rank to work out.

    Attributes
    ----------
    durations : how long operations take
    breakdown : where the time of all steps goes
    operations : operations step by step
    spent : what these took of each step
    select : communications that count for `selection`
    group_by : what the work of devices is put together by (`--group_by`), instead of all operations
    rows : of a step log nothing but what a diagnosis looks at, of each step however many there are
    """

    durations: bool = False
    breakdown: bool = False
    operations: bool = False
    spent: bool = False
    select: Collection[str] = ()
    group_by: str | None = None
    rows: bool = False

    @property
    def needs(self) -> Collection[Need]:
        """The purposes for which events' args are decoded."""
        steps = {Need.STEPS} if self.breakdown or self.operations or self.group_by else set()
        return steps if self.group_by in (None, KERNEL_KIND) else {*steps, Need.ORIGIN}


class SelectedOperations(Struct, frozen=True):
    """The operations without communications that `--filter` leaves out, and the names of all that it may."""

    operations: Operations
    communications: Sequence[str]


class LogRows(Struct, frozen=True):
    """The rows of a rank of a step log, of which a long one has stretches of several steps.

    Attributes
    ----------
    names, roles : of the step and its parts (m)
    labels, spent_ns : (k,) and (k, m + 1) of the steps, as of `Operations`
    stretches, means_ns : (s,) and (s, m + 1) of the stretches
    values : (s,) means of numbers other than durations; NaN where not known
    """

    names: Sequence[str]
    roles: Sequence[Role]
    labels: Int64
    spent_ns: NDArray[np.floating]
    stretches: Int64
    means_ns: Float64
    values: Mapping[str, Float64]


class RankFigures(Struct, frozen=True, omit_defaults=True):
    """The figures of one rank; those that were not asked for are empty.

    Attributes
    ----------
    name : what the rank is called in its job
    category_ns : the time of each category; see `category_totals`
    breakdown : of all whole steps
    operations : step by step; None if none were asked for
    """

    source: Source
    dialect: str
    n_slices: int
    name: str = ""
    steps: Steps = NO_STEPS
    durations: OperationStats = NO_DURATIONS
    category_ns: Mapping[str, int] = field(default_factory=dict)
    breakdown: Breakdown = NO_BREAKDOWN
    operations: Operations | None = None
    selection: SelectedOperations | None = None
    log: LogRows | None = None


def rank_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Work out the figures of a rank whose trace was read for the `needs` of `wanted`.

    What it shares with other ranks of its host tells its steps, and is in the host's figures else.

    TraceError where its operations are too many to be looked at step by step.
    """
    system = dialects.of(trace)
    steps = system.find_steps(trace, step_by) if wanted.needs or step_by is not None else NO_STEPS
    if wanted.group_by is None:
        work = trace.own
        roles = system.roles(work) if wanted.breakdown or wanted.spent else np.empty(0, np.int8)
    else:
        work, roles = _device_work(trace, wanted.group_by)
    figures = RankFigures(source, trace.dialect, len(work), steps=steps)
    if wanted.durations:
        figures = replace(figures, durations=durations(work), category_ns=dict(category_totals(work)))
    if wanted.breakdown:
        figures = replace(figures, breakdown=breakdown(work, roles, steps.whole))
    if wanted.operations:
        operations = operations_of(work, steps, roles if wanted.spent else None)
        figures = replace(figures, operations=operations)
    if wanted.select:
        figures = replace(figures, selection=_selection(source, work, steps, wanted.select))
    return figures


def _device_work(trace: Trace, group_by: str) -> tuple[Trace, NDArray[np.int8]]:
    """Name the work of devices by what it belongs to; without any where nothing tells that.

    Returns the work and its roles (n,).
    """
    system = dialects.of(trace)
    roles = system.roles(trace)
    groups = system.work_groups(trace, roles, group_by)
    if groups is None:
        return trace.select(np.empty(0, np.int64)), roles[:0]
    work, roles = groups.of(trace), roles[groups.row]
    return work.own, roles if work.is_shared is None else roles[~work.is_shared]


def _selection(source: Source, trace: Trace, steps: Steps, names: Collection[str]) -> SelectedOperations:
    comm = CommFilter(dialects.of(trace), names, source.prefix)
    return SelectedOperations(operations_of(comm.select(trace), steps), list(comm.known))
