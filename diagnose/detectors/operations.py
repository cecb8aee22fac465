"""Single operations and single steps that take longer than the rest; traced steps than those before them."""

from __future__ import annotations

from collections.abc import Iterator
from math import erfc, sqrt
from typing import Any

import numpy as np

from arrays.change_points import LEAST_STEPS, Shape, higher_spans, why_higher
from arrays.distributions import rank_sum
from arrays.median import FEWEST, WARM_UP
from dag.step_graph import Bool
from dag_utils import CATS, GAP, critical_path
from diagnose.detectors.device import NO_COMPUTATION, computes
from diagnose.finding import BREAKDOWN, Evidence, Finding, Skipped, edit
from diagnose.finding_thresholds import CHANCE, FASTER, HALF, HOT, NEARLY_ALL, NOTICEABLE
from diagnose.job_view import JobView
from dialects.name_rules import may_wait
from dialects.roles import Phase, Role
from errors import counted, listed
from function_names import brief, named
from replay.whatif.outliers import at_usual_length
from replay.whatif.scaling import GONE
from units import in_ms, in_percent

#: Roles of what a job computes, unlike calls that only hand work to a device.
_OF_THE_JOB = (Role.COMPUTE, Role.HOST, Role.UPDATE)
#: An operation with this share of all work of its phase, which has few more, stands for the phase.
_FEW = 3


def hot_operation(view: JobView) -> Iterator[Finding | Skipped]:
    """Find the operation that makes up much of the critical path.

    Neither an annotation, whose own time is something else's, nor a call of the runtime is one.
    """
    names, kind = view.kind_of
    works = view.which(lambda one: computes(one) and not one.is_span and one.role in _OF_THE_JOB)
    if not works.any():
        yield Skipped("hot_operation", NO_COMPUTATION)
        return
    by_name = view.by_name(np.where(view.of_kinds(works), view.path_work_by_kind, 0.0))
    hottest = int(by_name.argmax())
    share = by_name[hottest] / max(float(view.iteration_ns.mean()), 1.0)
    if share <= HOT:
        return
    chosen = works & (kind == hottest)
    if _is_whole_phase(view, chosen):
        yield Skipped("hot_operation", "forward and backward passes are recorded as one operation each")
        return
    on_device = any(one.on_device for one in view.recording.chosen_kinds(chosen))
    yield Finding(
        kind="hot_operation",
        title=f"{brief(names[hottest])} makes up {in_percent(share)} of the critical path",
        cause=f"it takes {in_ms(by_name[hottest])} there",
        action="make this one faster first: another algorithm or precision, a fused or tuned kernel"
        if on_device
        else "make this one faster first, or call it less often; profile it alone to see what it does",
        edits=[edit(names[hottest], 1 - FASTER)],
        operations=[names[hottest]],
        evidence=view.show(chosen, 3),
        caveat=f"the gain assumes that it takes {in_percent(FASTER)} less",
        is_assumed=True,
    )


def start_up(view: JobView) -> Iterator[Finding]:
    """Find a warm-up, or else a call that takes nearly all the time of its name as it is the first."""
    recording = view.loaded.recording
    if n_first := recording.n_warm_up:
        bounds = [recording.bounds[row] for row in recording.every_whole_step]
        lengths_ns, numbers = [step.mean_ns for step in bounds], [step.number for step in bounds[:n_first]]
        usual = float(np.median(lengths_ns[n_first:]))
        more = float(np.mean(lengths_ns[:n_first])) - usual
        steps = f"the first {n_first} recorded steps"
        if n_first == 1:
            steps = f"step {numbers[0]}, the first recorded,"
        yield _not_repeated(f"{steps} took {in_ms(more)} longer than the others", more / usual, steps=numbers)
    called = view.which(lambda one: one.role is Role.CALL and not may_wait(one.name))
    names, kind = view.kind_of
    on_path = view.by_name(np.where(view.of_kinds(called), view.path_work_by_kind, 0.0))
    path_ns = max(float(view.iteration_ns.mean()), 1.0)
    for number in np.flatnonzero(on_path >= NOTICEABLE * path_ns).tolist():
        share = view.start_up_ns(called & (kind == number)) / len(view.rows) / path_ns
        if share >= NOTICEABLE:
            title = f"one call of {brief(names[number])} is start-up, {in_percent(share)} of the step"
            shown = view.show(called & (kind == number), 1)
            yield _not_repeated(title, share, operations=[names[number]], evidence=shown, leads=share > HALF)


def _not_repeated(title: str, weight: float, **more: Any) -> Finding:
    """Return a note on time that later steps do not repeat, so it claims no gain."""
    return Finding(
        kind="profiling_overhead",
        title=title,
        cause="what is done only once (a device's context, loading, compiling, tuning) is in the first steps",
        action="leave more steps to the warm-up before the recording begins",
        weight=weight,
        **more,
    )


def slow_callbacks(view: JobView) -> Iterator[Finding]:
    """Find callbacks of the training loop that take time on the path."""
    chosen = view.which(lambda one: one.phase is Phase.CALLBACK)
    on_path = view.path_work_ns(chosen)
    if on_path < NOTICEABLE * view.step_ns:
        return
    largest, is_largest = view.largest(chosen)
    yield Finding(
        kind="hot_operation",
        title="callbacks are on the critical path",
        cause=f"{in_ms(on_path)}, mostly {named(largest)}",
        action="call them less often, or hand their work to another thread",
        edits=[edit(Phase.CALLBACK.word, GONE)],
        operations=largest,
        evidence=view.show(chosen & is_largest, 3),
    )


def _is_whole_phase(view: JobView, chosen: Bool) -> bool:
    purposes = {one.purpose for one in view.recording.chosen_kinds(chosen)} - {""}
    of_phase = view.which(lambda one: one.purpose in purposes)
    if not purposes or len(view.mains(of_phase)) > _FEW:
        return False
    return bool(view.owner_work_ns(chosen).sum() > NEARLY_ALL * view.owner_work_ns(of_phase).sum())


def outlier_steps(view: JobView) -> Iterator[Finding | Skipped]:
    """Find steps that take much longer than the others."""
    times, recording = view.job_ns, view.recording
    if len(times) < FEWEST:
        yield Skipped(
            "outlier_steps", f"{counted(len(times), 'whole step')}; {FEWEST} are needed to tell an outlier"
        )
        return
    middle = float(np.median(times))
    places = [place for place in view.far_longer if not view.waits_for_input(place)]
    if not places:
        return
    rows = [view.rows[place] for place in places]
    numbers = [view.numbers[place] for place in places]
    worst = rows[int(np.argmax(times[places]))]
    grown = _grown(view, worst)
    yield Finding(
        kind="outlier_steps",
        title=f"step{'s' if len(rows) > 1 else ''} {listed([str(one) for one in numbers], 5)} "
        f"take{'' if len(rows) > 1 else 's'} much longer than the others",
        cause=f"up to {in_ms(times[places].max())} instead of {in_ms(middle, unit='')}; "
        f"what grew most in step {recording.steps[worst].number}: {brief(grown.name)} on {grown.rank}",
        action="look at what else ran then: checkpoints, evaluation, other processes, garbage collection",
        edits=[edit(",".join(f"step{one}" for one in numbers), "usual")],
        ranks=[grown.rank],
        steps=numbers,
        operations=[grown.name],
        evidence=[grown],
        look=("critical", "--step", str(recording.steps[worst].number)),
    )


def slower_span(view: JobView) -> Iterator[Finding]:
    """Find since when, or from when to when, steps take longer, or that they take longer and longer."""
    times, kept = view.job_ns, np.delete(np.arange(len(view.rows)), view.far_longer)  # a finding of their own
    if (n := len(kept)) < 2 * LEAST_STEPS:
        return
    sure = float(np.sqrt(2 * np.log(n**2)))
    for begin, end in higher_spans(times[kept], NOTICEABLE * view.step_ns, sure)[:1]:
        change = why_higher(times[kept], begin, end)
        grows = change is Shape.RAMP and end == n
        if not grows and change is not Shape.LEVEL:
            continue
        inside, outside = np.zeros((2, len(times)), np.bool_)
        inside[kept[n - LEAST_STEPS :] if grows else kept[begin:end]] = True
        outside[kept[:LEAST_STEPS] if grows else np.delete(kept, np.s_[begin:end])] = True
        usual, longer = (float(np.median(times[which])) for which in (outside, inside))
        middle_ns = (usual + longer) / 2
        if min(np.mean(times[inside] > middle_ns), np.mean(times[outside] < middle_ns)) < NEARLY_ALL:
            continue  # two kinds of steps in turn, by chance more of one there
        begin = 0 if grows else begin
        more_ns, lost_ns = longer - usual, float((times[kept[begin:end]] - usual).sum())
        grown = [
            np.median(ns[inside], axis=0) - np.median(ns[outside], axis=0)
            for ns in (view.work_by_kind, view.gap_by_kind)
        ]
        of_gaps, kind = divmod(int(np.argmax(grown)), len(grown[0]))
        one = view.recording.table.kinds[kind]
        ranks = [view.recording.owners[one.owner]]
        what = f"{'the time before ' if of_gaps else ''}{brief(one.label)} on {ranks[0]}"
        first, last = (view.numbers[kept[at]] for at in (begin, end - 1))
        yield Finding(
            kind="outlier_steps",
            title=f"steps take longer and longer, by {in_ms(more_ns)} from step {first} to step {last}"
            if grows
            else f"from step {first} {'on' if end == n else f'to step {last}'} a step takes "
            f"{in_ms(more_ns)} longer",
            cause=f"{in_ms(longer)} instead of {in_ms(usual, unit='')}; "
            f"what grew most is {what}, by {in_ms(max(map(np.max, grown)))}",
            action="look at what changed then: clocks and temperature of a device, other processes, input",
            ranks=ranks,
            operations=[one.label],
            look=BREAKDOWN,
            weight=lost_ns / float(times.sum()),
            span=(first, last),
            lost_ns=lost_ns,
        )


def _grown(view: JobView, row: int) -> Evidence:
    """Return the part of a step's critical path that exceeds its usual length most.

    That is an operation's work, its gaps, or the step's tail; of an operation the longest of its events, or
    of the gaps before them. What grew elsewhere has waited for that, as far as the recording tells.
    """
    recording = view.recording
    step, usual = recording.steps[row], at_usual_length(recording, [row]).steps[row]
    of_event = view.kind_of[1][step.operation] * len(recording.owners) + step.owner
    path = critical_path(step)
    lengths = [
        np.bincount(path.event[chosen], (path.end_ns - path.start_ns)[chosen], len(step))
        for chosen in ((path.event >= 0) & (path.cat == CATS.index(cat)) for cat in ("", GAP))
    ]
    grown = (step.work_ns - usual.work_ns, step.gap_ns - usual.gap_ns)
    more = [np.minimum(own, on_path) for own, on_path in zip(grown, lengths, strict=True)]
    by_kind = [np.bincount(of_event, one, 1) for one in more]
    tail = (step.tail_ns - usual.tail_ns) * (np.arange(len(step.tail_ns)) == path.owner)
    most = int(np.argmax([one.max() for one in (*by_kind, tail)]))
    if most == len(more):
        return view.tail(step, int(tail.argmax()))
    grew = np.where(of_event == by_kind[most].argmax(), more[most], -1)
    return (view.event, view.gap_before)[most](step, int(grew.argmax()))


def profiling_overhead(view: JobView) -> Iterator[Finding | Skipped]:
    """Find that traced steps take longer than the untraced ones before them."""
    recording = view.loaded.recording
    first = min(recording.bounds[row].number for row in recording.every_whole_step)
    untraced = [
        [one.dur_ns for one in rank.loads if WARM_UP < one.label < first] for rank in view.loaded.ranks
    ]
    if not (found := list(filter(None, untraced))):
        yield Skipped("profiling_overhead", "no steps before the traced ones are recorded")
        return
    before = np.median(np.array([times[-min(map(len, found)) :] for times in found]), axis=0)
    if len(before) < FEWEST or len(view.rows) < FEWEST:
        yield Skipped("profiling_overhead", f"fewer than {FEWEST} steps before or in the trace")
        return
    usual, traced = float(np.median(before)), view.step_ns
    by_chance = erfc(rank_sum(view.iteration_ns, before) / sqrt(2)) / 2
    # loads of one moment tell nothing
    if usual <= 0 or traced < (1 + NOTICEABLE) * usual or by_chance > CHANCE:
        return
    yield Finding(
        kind="profiling_overhead",
        title=f"traced steps take {in_percent(traced / usual - 1)} longer than those before them",
        cause=f"{in_ms(traced)} instead of {in_ms(usual, unit='')} in {len(before)} steps after the warm-up",
        action="trace less (no stacks, no shapes, fewer steps) before you trust small differences",
        caveat="untraced steps do not have this cost",
        look=("collect", "--sub_option", "iter_time"),
        weight=traced / usual - 1,
    )
