"""The figures of one rank, worked out where its file is read: no process holds the events of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

import dialects
from arrays import NDArray
from arrays.intervals import innermost
from dialects import Need, Role
from dialects.roles import own_streams
from dialects.steps import NO_STEPS, Step, Steps
from dialects.system import KERNEL_KIND, WorkGroups
from errors import TraceError
from figures.durations import NO_DURATIONS, Durations, category_totals, durations
from figures.log_figures import LogRows, log_figures
from figures.operations_by_step import Operations, operations_of
from figures.time_by_role import Breakdowns, breakdown
from formats.columns import Trace
from traces.filter import selected_of
from traces.paths import Source

#: Slices of a trace of which all steps are looked at, so that statistics of a large one take little longer.
_MOST_SLICES = 50_000


class Wanted(Struct, frozen=True):
    """Which figures of a rank to work out.

    Attributes
    ----------
    durations : how long operations take, and where the time of some steps in the middle goes
    breakdown : where the time of all steps goes
    operations : operations step by step
    spent : what these took of each step
    may_lack : whether `operations` may be None where they are too many to be looked at step by step
    select : communications that count for `selected`
    group_by : what the work of devices is put together by (`--group_by`), instead of all operations
    rows : of a step log nothing but what a diagnosis looks at, of each step however many there are
    """

    durations: bool = False
    breakdown: bool = False
    operations: bool = False
    spent: bool = False
    may_lack: bool = False
    select: Collection[str] = ()
    group_by: str | None = None
    rows: bool = False

    @property
    def needs(self) -> Collection[Need]:
        """The purposes for which events' args are decoded."""
        return {Need.STEPS} if self.group_by in (None, KERNEL_KIND) else {Need.STEPS, Need.ORIGIN}


class RankFigures(Struct, frozen=True, omit_defaults=True):
    """The figures of one rank; those that were not asked for are empty.

    Attributes
    ----------
    name : what the rank is called in its job
    breakdown : of all whole steps, or of some in the middle; see `in_the_middle`
    rule : which operations count as what in it, a sentence
    longest : the computation with most time of its own in the median step of these, and that time (ns)
    annotated : the same of annotations
    operations : step by step; None where there are too many, or none were asked for
    selected : the operations without communications that were not selected
    values : numbers of each whole step other than durations; None or NaN where they are not known
    rows : each step of a step log that has more of them than figures by step have
    communications : what the communications that can be selected are called
    own_streams : kernels that count as computation and have a stream of their own
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
    longest: tuple[str, float] = ("", 0.0)
    annotated: tuple[str, float] = ("", 0.0)
    operations: Operations | None = None
    selected: Operations | None = None
    communications: Sequence[str] = ()
    own_streams: Sequence[str] = ()
    world_size: int = 0
    values: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    rows: LogRows | None = None

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>``, or what of it is known."""
        return self.source.prefix.rstrip(".")

    @property
    def in_the_middle(self) -> Breakdowns:
        """Where the time of steps in the middle of a large trace goes; of all steps of another one."""
        if not self.is_sampled:
            return self.breakdown
        labels = {step.label for step in _middle(self.steps.whole, self.n_slices)}
        return self.breakdown.only(labels)

    @property
    def is_sampled(self) -> bool:
        """Whether `in_the_middle` are some of the steps only."""
        return self.n_slices > _MOST_SLICES and self.steps.width == 1


def rank_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Return the figures of a rank whose trace was read for the `needs` of `wanted`.

    What it shares with other ranks of its host tells its steps, and is in the host's figures else.

    TraceError where its operations are too many to be looked at step by step, and these may not lack.
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
    steps = system.find_steps(trace, step_by)
    figures: dict[str, Any] = {"steps": steps}
    if wanted.group_by is not None:
        return figures | _of_groups(trace, steps, wanted)
    trace = trace.own
    if not (wanted.breakdown or wanted.operations):
        return figures | _of_middle(trace, steps.whole)
    roles = system.roles(trace)
    if wanted.breakdown:
        figures |= {"breakdown": breakdown(trace, roles, steps.whole)}
        figures |= {"rule": system.rule(trace) if len(trace) else ""}
        figures |= {"own_streams": own_streams(trace, roles, system.device_work(trace))}
    if wanted.durations:
        figures |= _of_middle(trace, steps.whole) | figures
    if wanted.operations:
        try:
            figures["operations"], _ = operations_of(trace, steps, roles, spent=wanted.spent)
        except TraceError:
            if not wanted.may_lack:
                raise
            return figures
    if wanted.select:
        known: dict[str, None] = {}
        left = selected_of(trace, source.prefix, wanted.select, known)
        figures["selected"] = operations_of(left, steps, system.roles(left), spent=False)[0]
        figures["communications"] = list(known)
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
        figures["operations"], _ = operations_of(work, steps, roles[groups.row], spent=wanted.spent)
    return figures


# ---- where the time of steps in the middle goes


def _middle(steps: Sequence[Step], n_slices: int) -> Sequence[Step]:
    """Return so many steps in the middle of a trace that looking at them takes little time, one at least."""
    if n_slices <= _MOST_SLICES:
        return steps
    n_kept = max(1, len(steps) * _MOST_SLICES // n_slices)
    return steps[(len(steps) - n_kept) // 2 :][:n_kept]


def _of_middle(trace: Trace, whole: Sequence[Step]) -> dict[str, Any]:
    """Return the breakdown of steps in the middle, and what takes longest in the median one of them."""
    steps = _middle(whole, len(trace))
    if len(trace) > _MOST_SLICES and not steps:
        return {}
    if len(trace) > _MOST_SLICES:
        # the args by which steps are found would make it seem that work launched earlier has no launch
        marks = dialects.of(trace).args.get(Need.STEPS, ())
        trace = replace(trace, args={key: one for key, one in trace.args.items() if key not in marks})
        trace = trace.select((trace.ts_ns < steps[-1].end_ns) & (trace.end_ns > steps[0].start_ns))
    if not len(trace):  # or steps that take no time
        return {}
    roles = dialects.of(trace).roles(trace)
    parts = breakdown(trace, roles, steps)
    middle = int(np.argsort(parts.wall_ns, kind="stable")[(len(parts) - 1) // 2])
    bounds = int(parts.start_ns[middle]), int(parts.start_ns[middle] + parts.wall_ns[middle])
    longest, annotated = _longest_own(trace, roles, *bounds)
    return {"breakdown": parts, "longest": longest, "annotated": annotated}


def _longest_own(
    trace: Trace, roles: NDArray[np.int8], start_ns: int, end_ns: int
) -> tuple[tuple[str, float], tuple[str, float]]:
    """Return the computation with most time in a step, what lies inside it left out, and that time.

    What lies inside and only frames it, as Python's functions do, is its own. Next, the same of annotations.
    """
    is_near = (trace.ts_ns < end_ns) & (trace.end_ns > start_ns)
    part, roles = trace.select(is_near), roles[is_near]
    annotates = dialects.of(trace).annotations(part) & (roles == Role.FRAME)
    chosen = annotates | ~np.isin(roles, (Role.FRAME, Role.HOST, Role.CALL, Role.IGNORED))
    part, computes = part.select(chosen), (roles == Role.COMPUTE)[chosen]
    row, begin, end = innermost(part.ts_ns, part.end_ns, part.track_id)
    inside = np.minimum(end, end_ns) - np.maximum(begin, start_ns)
    own_ns = np.bincount(row, np.maximum(inside, 0), len(part))
    return _largest(part, own_ns * computes), _largest(part, own_ns * annotates[chosen])


def _largest(part: Trace, own_ns: NDArray[np.float64]) -> tuple[str, float]:
    by_name = np.bincount(part.name_id, own_ns, len(part.names))
    longest = int(by_name.argmax())
    return part.names[longest], float(by_name[longest])
