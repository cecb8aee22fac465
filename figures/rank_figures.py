"""The figures of one rank, worked out where its file is read: no process holds the events of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

import dialects
from dialects import Need
from dialects.steps import NO_STEPS, Steps
from dialects.system import KERNEL_KIND, WorkGroups
from figures.durations import NO_DURATIONS, Durations, category_totals, durations
from figures.log_figures import LogRows, log_figures
from figures.operations_by_step import Operations, operations_of
from figures.time_by_role import Breakdowns, breakdown
from formats.columns import Trace
from trace_utils import CommFilter, Source


class Wanted(Struct, frozen=True):
    """Which figures of a rank to work out.

    Attributes
    ----------
    durations : how long operations take
    breakdown : where the time of all steps goes
    operations : operations step by step
    spent : what these took of each step
    select : communications that count for `selected`
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


class RankFigures(Struct, frozen=True, omit_defaults=True):
    """The figures of one rank; those that were not asked for are empty.

    Attributes
    ----------
    name : what the rank is called in its job
    breakdown : of all whole steps
    rule : which operations count as what in it, a sentence
    operations : step by step; None where there are too many, or none were asked for
    selected : the operations without communications that were not selected
    values : numbers of each whole step other than durations; None or NaN where they are not known
    rows : each step of a step log that has more of them than figures by step have
    communications : what the communications that can be selected are called
    world_size : as the trace itself says; 0 where it does not
    """

    source: Source
    dialect: str
    n_slices: int
    name: str = ""
    steps: Steps = NO_STEPS
    durations: Durations = NO_DURATIONS
    category_ns: Mapping[str, int] = field(default_factory=dict)
    breakdown: Breakdowns = field(default_factory=Breakdowns)
    rule: str = ""
    operations: Operations | None = None
    selected: Operations | None = None
    communications: Sequence[str] = ()
    world_size: int = 0
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    rows: LogRows | None = None

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>``, or what of it is known."""
        return self.source.prefix.rstrip(".")


def rank_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Return the figures of a rank whose trace was read for the `needs` of `wanted`.

    What it shares with other ranks of its host tells its steps, and is in the host's figures else.

    TraceError where its operations are too many to be looked at step by step.
    """
    system = dialects.of(trace)
    if not system.has_events:
        of_log = log_figures(
            trace, system, step_by, durations=wanted.durations, operations=wanted.operations, rows=wanted.rows
        )
        return RankFigures(source, trace.dialect, **of_log)
    figures: dict[str, Any] = {"n_slices": len(trace.own), "world_size": trace.world_size or 0}
    if wanted.durations and wanted.group_by is None:
        figures |= {"durations": durations(trace.own), "category_ns": category_totals(trace.own)}
    return RankFigures(source, trace.dialect, **figures | _by_step(source, trace, wanted, step_by))


def _by_step(source: Source, trace: Trace, wanted: Wanted, step_by: str | None) -> dict[str, Any]:
    """Return the figures of `RankFigures` that go by steps."""
    system = dialects.of(trace)
    if not wanted.needs and step_by is None:
        return {}
    steps = system.find_steps(trace, step_by)
    figures: dict[str, Any] = {"steps": steps}
    if wanted.group_by is not None:
        return figures | _of_groups(trace, steps, wanted)
    trace = trace.own
    if not (wanted.breakdown or wanted.operations):
        return figures
    roles = system.roles(trace)
    if wanted.breakdown:
        figures |= {"breakdown": breakdown(trace, roles, steps.whole)}
        figures |= {"rule": system.rule(trace) if len(trace) else ""}
    if wanted.operations:
        figures["operations"] = operations_of(trace, steps, roles, spent=wanted.spent)
    if wanted.select:
        comm = CommFilter(system, wanted.select, source.prefix)
        left = comm.select(trace)
        figures["selected"] = operations_of(left, steps, system.roles(left), spent=False)
        figures["communications"] = list(comm.known)
    return figures


def _of_groups(trace: Trace, steps: Steps, wanted: Wanted) -> dict[str, Any]:
    """Return the figures of what the work of devices belongs to; none where nothing tells that."""
    system = dialects.of(trace)
    roles = system.roles(trace)
    groups = system.work_groups(trace, roles, wanted.group_by or "")
    if groups is not None and trace.is_shared is not None:
        is_own = ~trace.is_shared[groups.row]
        groups = WorkGroups(groups.row[is_own], groups.names, groups.group[is_own])
    work = trace.select(np.empty(0, np.int64)) if groups is None else groups.of(trace).own
    figures: dict[str, Any] = {"n_slices": len(work)}
    figures |= {"durations": durations(work), "category_ns": category_totals(work)}
    if wanted.breakdown:
        figures["breakdown"] = breakdown(trace.own, system.roles(trace.own), steps.whole)
        figures["rule"] = system.rule(trace)
    if wanted.operations and groups is not None:
        figures["operations"] = operations_of(work, steps, roles[groups.row], spent=wanted.spent)
    return figures
