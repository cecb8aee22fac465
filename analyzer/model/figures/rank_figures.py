"""The figures of one rank, computed where its file is read: no process holds the events of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.model.figures.durations import (
    NO_DURATIONS,
    Operations,
    OperationStats,
    category_totals,
    durations,
    operations_of,
)
from analyzer.model.figures.time_by_role import NO_BREAKDOWN, Breakdown, breakdown
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.steps import NO_STEPS, Steps
from analyzer.reading.dialects.system import KERNEL_KIND
from analyzer.reading.formats.columns import Trace
from trace_utils import CommFilter, Source


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
