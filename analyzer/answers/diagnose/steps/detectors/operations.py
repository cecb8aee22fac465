"""Single operations, steps, spans of steps and first steps that take longer than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.answers.diagnose.finding import (
    BREAKDOWN,
    EXPOSED,
    FASTER,
    HALF,
    HOT,
    NEARLY_ALL,
    NOTICEABLE,
    Evidence,
    Finding,
    FindingScope,
    ListPlace,
    Skipped,
    StepSpan,
    edit,
)
from analyzer.answers.diagnose.steps.causes import cause_of_long_steps
from analyzer.answers.diagnose.steps.detectors.device import NO_COMPUTATION, computes, start_up_ns
from analyzer.answers.diagnose.steps.detectors.one_off import (
    ONE_OFF,
    WARM_UP,
    first_launches,
    path_length_ns,
)
from analyzer.answers.diagnose.steps.job_view import (
    JobView,
    event_of,
    gap_before,
    longest_events,
    names_of,
    tail_of,
)
from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.change_points import LEAST_STEPS, higher_spans
from analyzer.base.arrays.distributions import FEWEST
from analyzer.base.errors import counted, listed
from analyzer.base.names import brief
from analyzer.base.units import in_ms, in_percent, in_range
from analyzer.reading.dialects.name_rules import is_launch, may_wait
from analyzer.reading.dialects.roles import Role
from dag_utils import critical_path
from replay.whatif.straggler import at_usual_length


def outlier_steps(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps that take much longer than the others."""
    times, steps = view.job_ns, view.recording.steps
    if len(times) < FEWEST:
        yield Skipped(
            "outlier_steps", f"{counted(len(times), 'whole step')}; {FEWEST} are needed to tell an outlier"
        )
        return
    if not view.outliers:
        return
    rows = [view.rows[index] for index in view.outliers]
    numbers = [steps[row].number for row in rows]
    worst = rows[int(np.argmax(times[view.outliers]))]
    grown = _grown(view, worst)
    lost_ns = float((times[view.outliers] - np.median(times)).sum())
    cause = cause_of_long_steps(view, view.outliers)
    which = f"step{'s' if len(rows) > 1 else ''} {listed(list(map(str, numbers)), 5)}"
    title = f"{which} take{'' if len(rows) > 1 else 's'} much longer than the others"
    if cause is not None:
        title += f": {'they' if len(rows) > 1 else 'it'} {cause.title}"
    yield Finding(
        kind="outlier_steps",
        title=title,
        cause=f"up to {in_range(times[view.outliers].max(), np.median(times), to=' instead of ')}; "
        f"most of the increase in step {steps[worst].number} is in {brief(grown.name)} on {grown.rank}",
        action="look at what else ran then: checkpoints, evaluation, other processes, garbage collection"
        if cause is None
        else cause.action,
        edits=[edit(",".join(f"step{number}" for number in numbers), "usual")],
        weight=0.0 if cause is None else lost_ns / float(times.sum()),
        place=ListPlace.FIRST
        if cause is not None and lost_ns > EXPOSED * float(times.sum())
        else ListPlace.BY_GAIN,
        scope=FindingScope([grown.rank], numbers, [grown.name]),
        evidence=[grown],
        look=("critical", "--step", str(steps[worst].number)),
    )


def _grown(view: JobView, row: int) -> Evidence:
    """Find the part of a step's critical path that exceeds its usual length most.

    It is an operation's work, its gaps, or the step's tail; of an operation the longest event or gap.
    """
    recording = view.recording
    step, usual = recording.steps[row], at_usual_length(recording, [row]).steps[row]
    of_event = view.kind_of[1][step.operation] * len(recording.owners) + step.owner
    path = critical_path(step)
    more = []
    for is_part, grown_ns in (
        (path.is_work, step.work_ns - usual.work_ns),
        (path.is_gap, step.gap_ns - usual.gap_ns),
    ):
        chosen = (path.event >= 0) & is_part
        on_path = np.bincount(path.event[chosen], (path.end_ns - path.start_ns)[chosen], len(step))
        more.append(np.minimum(grown_ns, on_path))
    by_kind = [np.bincount(of_event, more_ns, 1) for more_ns in more]
    tail = (step.tail_ns - usual.tail_ns) * (np.arange(len(step.tail_ns)) == path.owner)
    most = int(np.argmax([more_ns.max() for more_ns in (*by_kind, tail)]))
    if most == len(more):
        return tail_of(view, step, int(tail.argmax()))
    grew = np.where(of_event == by_kind[most].argmax(), more[most], -1)
    return (event_of, gap_before)[most](view, step, int(grew.argmax()))


def slower_span(view: JobView) -> Iterator[Finding]:
    """Find a span of longer steps."""
    kept = np.delete(np.arange(len(view.rows)), view.far_longer)  # these have a finding of their own
    if len(kept) < 2 * LEAST_STEPS:
        return
    sure = float(np.sqrt(2 * np.log(len(kept) ** 2)))
    for begin, end in higher_spans(view.job_ns[kept], NOTICEABLE * view.step_ns, sure)[:1]:
        inside, outside = kept[begin:end], np.delete(kept, np.s_[begin:end])
        slow, usual = view.job_ns[inside], view.job_ns[outside]
        middle_ns = (float(np.median(slow)) + float(np.median(usual))) / 2
        if min(np.mean(slow > middle_ns), np.mean(usual < middle_ns)) >= NEARLY_ALL:
            yield _slower(view, inside, outside, "on" if end == len(kept) else "")


def _slower(view: JobView, inside: Int64, outside: Int64, until: str) -> Finding:
    usual_ns, longer_ns = (float(np.median(view.job_ns[places])) for places in (outside, inside))
    lost_ns = float((view.job_ns[inside] - usual_ns).sum())
    grown = [
        np.median(ns[inside], axis=0) - np.median(ns[outside], axis=0)
        for ns in (view.work_by_kind, view.gap_by_kind)
    ]
    is_gap, kind = divmod(int(np.argmax(grown)), len(grown[0]))
    operation = view.recording.operations.kinds[kind]
    rank = view.recording.owners[operation.owner]
    first, last = (view.recording.steps[view.rows[index]].number for index in inside[[0, -1]])
    return Finding(
        kind="outlier_steps",
        title=f"from step {first} {until or f'to step {last}'} a step takes "
        f"{in_ms(longer_ns - usual_ns)} longer",
        cause=f"{in_range(longer_ns, usual_ns, to=' instead of ')}; most of the increase, "
        f"{in_ms(np.max(grown))}, is {'before' if is_gap else 'in'} {brief(operation.label)} on {rank}",
        action="look at what changed then: clocks and temperature of a device, other processes, input",
        scope=FindingScope([rank], operations=[operation.label], span=StepSpan(first, last, lost_ns)),
        look=BREAKDOWN,
        weight=lost_ns / float(view.job_ns.sum()),
    )


def start_up(view: JobView) -> Iterator[Finding]:
    """Find a warm-up, and first calls that take nearly all the time of their name."""
    yield from _warm_up(view)
    launches = list(first_launches(view))
    yield from launches
    called = view.which(lambda operation: operation.role is Role.CALL and not may_wait(operation.name))
    if launches:
        called &= ~view.which(lambda operation: is_launch(operation.name))
    names, kind = view.kind_of
    on_path = view.by_name(np.where(view.of_kinds(called), view.path.work_ns, 0.0))
    path_ns = path_length_ns(view)
    for number in np.flatnonzero(on_path >= NOTICEABLE * path_ns).tolist():
        chosen = called & (kind == number)
        share = start_up_ns(view, chosen) / len(view.rows) / path_ns
        if share >= NOTICEABLE:
            yield Finding(
                kind="profiling_overhead",
                title=f"one call of {brief(names[number])} is start-up, {in_percent(share)} of the step",
                cause=ONE_OFF,
                action=WARM_UP,
                scope=FindingScope(operations=[names[number]]),
                evidence=longest_events(view, chosen, 1),
                weight=share,
                place=ListPlace.FIRST if share > HALF else ListPlace.BY_GAIN,
            )


def _warm_up(view: JobView) -> Iterator[Finding]:
    recording = view.loaded.recording
    n_first = recording.n_warm_up
    if not n_first:
        return
    bounds = [recording.bounds[row] for row in recording.every_whole_step]
    lengths_ns, numbers = [step.mean_ns for step in bounds], [step.number for step in bounds[:n_first]]
    usual_ns = float(np.median(lengths_ns[n_first:]))
    more_ns = float(np.mean(lengths_ns[:n_first])) - usual_ns
    steps = (
        f"step {numbers[0]}, the first recorded," if n_first == 1 else f"the first {n_first} recorded steps"
    )
    yield Finding(
        kind="profiling_overhead",
        title=f"{steps} took {in_ms(more_ns)} longer than the others",
        cause=ONE_OFF,
        action=WARM_UP,
        scope=FindingScope(steps=numbers),
        weight=more_ns / usual_ns,
    )


# ---- operations

#: Roles of a job's computation, without calls that only hand work to a device.
_OF_THE_JOB = (Role.COMPUTE, Role.HOST, Role.UPDATE)
#: If a phase has at most so many operations and one takes nearly all of its time, it is the whole phase.
_FEW = 3


def hot_operation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the operation that makes up much of the critical path, not an annotation or a runtime call."""
    names, kind = view.kind_of
    works = view.which(
        lambda operation: computes(operation) and not operation.is_span and operation.role in _OF_THE_JOB
    )
    if not works.any():
        yield Skipped("hot_operation", NO_COMPUTATION)
        return
    by_name = view.by_name(np.where(view.of_kinds(works), view.path.work_ns, 0.0))
    hottest = int(by_name.argmax())
    share = by_name[hottest] / path_length_ns(view)
    if share <= HOT:
        return
    chosen = works & (kind == hottest)
    if _is_whole_phase(view, chosen):
        yield Skipped("hot_operation", "forward and backward passes are recorded as one operation each")
        return
    yield Finding(
        kind="hot_operation",
        title=f"{brief(names[hottest])} makes up {in_percent(share)} of the critical path",
        cause=f"it takes {in_ms(by_name[hottest])} there",
        action="make this one faster first: another algorithm or precision, a fused or tuned kernel, "
        "fewer calls",
        edits=[edit(names[hottest], 1 - FASTER)],
        scope=FindingScope(operations=[names[hottest]]),
        evidence=longest_events(view, chosen, 3),
        caveat=f"the gain assumes that it takes {in_percent(FASTER)} less",
        place=ListPlace.LAST,
    )


def _is_whole_phase(view: JobView, chosen: Mask) -> bool:
    purposes = {operation.purpose for operation in view.recording.chosen_kinds(chosen)} - {""}
    of_phase = view.which(lambda operation: operation.purpose in purposes)
    if not purposes or len(names_of(view, of_phase)) > _FEW:
        return False
    return bool(view.owner_work_ns(chosen).sum() > NEARLY_ALL * view.owner_work_ns(of_phase).sum())
