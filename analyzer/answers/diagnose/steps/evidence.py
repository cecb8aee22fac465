"""Recorded events and gaps that show a finding."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from analyzer.answers.diagnose.finding import CHANCE, MOST_STEPS, MUCH, Evidence
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.base.arrays.distributions import FEWEST, student_cdf
from analyzer.model.graph.step_graph import StepGraph


def is_no_chance(excess: Float64, ratio: float, n_owners: int, *, always_most: bool = False) -> bool:
    """Tell if a rank's excess (steps,) over its peers, `ratio` times in the median step, is real.

    By a t-test over all `n_owners`, or if the ratio is large in most steps. With few steps: if the ratio is
    large, or if a rank would hardly have the most in all of them by chance.
    """
    if len(excess) < FEWEST:
        is_luck = float(n_owners) ** (1 - len(excess)) >= CHANCE
        return bool((excess > 0).all() and (ratio > MUCH or (always_most and not is_luck)))
    if ratio > MUCH and (excess > 0).mean() >= MOST_STEPS:
        return True
    return surely_positive(excess, CHANCE / n_owners)


def surely_positive(values: Float64, chance: float) -> bool:
    """Test if the mean of the values (n,) is above 0, with this probability of error."""
    if np.ptp(values) == 0:
        return bool(values[0] > 0)
    n = len(values)
    t = float(values.mean() / (values.std(ddof=1) / n**0.5))
    return student_cdf(n - 1, -t) < chance


def longest_events(
    view: JobView, chosen: Mask, most: int = 1, step: StepGraph | None = None
) -> list[Evidence]:
    """List the longest events of the `chosen` operations (n,) in a step (default: of median length)."""
    step = usual_step(view) if step is None else step
    return [event_of(view, step, event) for event in _longest(step, step.work_ns, chosen, most)]


def longest_gaps(view: JobView, chosen: Mask) -> list[Evidence]:
    """List the three longest gaps before the `chosen` operations (n,) in the step of median length."""
    step = usual_step(view)
    return [gap_before(view, step, event) for event in _longest(step, step.gap_ns, chosen, 3)]


def _longest(step: StepGraph, times: Int64, chosen: Mask, most: int) -> list[int]:
    events = np.flatnonzero(chosen[step.operation])
    longest: list[int] = events[np.argsort(-times[events], kind="stable")][:most].tolist()
    return longest


def usual_step(view: JobView) -> StepGraph:
    """Choose the step of median length."""
    return view.recording.steps[view.recording.choose_step()]


def busy_step(view: JobView, chosen: Mask) -> StepGraph:
    """Choose the step in which the `chosen` operations (n,) work as in the median one, or just longer."""
    work = view.work_by_kind[:, view.of_kinds(chosen)].sum(axis=1)
    much = np.flatnonzero(work >= np.median(work))
    return view.recording.steps[view.rows[int(much[np.argmin(work[much])])]]


def event_of(view: JobView, step: StepGraph, event: int) -> Evidence:
    """Describe an event of a step, with its recorded times."""
    step = view.recording.recorded_step(step)
    owner = int(step.owner[event])
    return Evidence(
        path=view.loaded.ranks[owner].path,
        rank=view.recording.owners[owner],
        step=step.number,
        name=view.recording.operations[int(step.operation[event])].label,
        start_ns=int(step.start_ns[event] - step.begin_ns[owner]),
        dur_ns=int(step.end_ns[event] - step.start_ns[event]),
    )


def gap_before(view: JobView, step: StepGraph, event: int) -> Evidence:
    """Describe the gap before an event of a step."""
    step = view.recording.recorded_step(step)
    after, gap_ns = event_of(view, step, event), int(step.gap_ns[event])
    end_ns, start_ns = int(step.start_ns[event]), after.start_ns - gap_ns
    function = _function_during(view, int(step.owner[event]), end_ns - gap_ns, end_ns)
    return replace(after, name=f"the gap before {after.name}{function}", start_ns=start_ns, dur_ns=gap_ns)


def tail_of(view: JobView, step: StepGraph, owner: int) -> Evidence:
    """Describe the time between an owner's last event of a step and the next step."""
    step = view.recording.recorded_step(step)
    tail_ns, end_ns = int(step.tail_ns[owner]), int(step.next_ns[owner])
    start_ns = int(step.last_end_ns[owner] - step.begin_ns[owner])
    path, rank = view.loaded.ranks[owner].path, view.recording.owners[owner]
    name = f"the gap before the next step{_function_during(view, owner, end_ns - tail_ns, end_ns)}"
    return Evidence(path, rank, step.number, name, start_ns, tail_ns)


def _function_during(view: JobView, owner: int, begin_ns: int, end_ns: int) -> str:
    """Name the Python function that ran between two instants, in words; "" where none is recorded."""
    frames = view.loaded.ranks[owner].frames
    function = frames.during(begin_ns, end_ns)[0] if frames is not None else ""
    return f", in which {function} ran" if function else ""
