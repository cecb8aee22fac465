"""The pictures of a diagnosis: what each fix would save, where the time goes, and the steps it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
from analyzer.answers.diagnose.finding import Finding
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64
from analyzer.base.units import in_ms
from analyzer.cli.step_timeline import group_of, step_timeline
from analyzer.reading.dialects.name_rules import OTHER, kernel_kind
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.step_parts import Operation
from analyzer.report.result import Bars, Chart, HeatMap
from dag_utils import critical_path

#: Bars of the steps; of more steps each is the longest of some.
_MOST_EVERY_STEP = 800
#: Most ranks and cells of a map of rank and step.
_MOST_ROWS, _MOST_CELLS = 64, 2_000
#: Parts of a path in one bar at most, the least of one, and of what is left.
_MOST_SHARES, _LEAST_SHARE, _LEAST_REST = 7, 0.02, 0.005
#: How long several ranks took for a step, and the mean of what each took for its own.
_OF_ALL = "step time, slowest rank (ms)", "mean of the ranks"
#: So many steps have room in half a page.
_FEW_STEPS = 40
#: Steps that a page draws at most, and boxes of those that nobody asked for; a box takes 50 bytes of it.
_MOST_STEPS, _MOST_BOXES = 12, 10_000


def diagnosis_charts(
    diagnosis: Diagnosis,
    ranked: Sequence[tuple[int, Ranked]],
    first: Sequence[Chart],
) -> list[Chart]:
    """Return charts of the findings that are shown, each with its place, after those that come `first`."""
    scopes = [one.finding.scope for _, one in ranked]
    few = [scope.ranks for scope in scopes if len(scope.ranks) < len(diagnosis.ranks)]
    named, view = [rank for ranks in few for rank in ranks], diagnosis.view
    return [
        *first,
        *_excess_map(diagnosis),
        *_every_step(diagnosis),
        *(_of_steps(view, [found for _, found in ranked], named) if view else ()),
    ]


def path_shares(view: JobView) -> list[Chart]:
    """Return the shares of the critical path by kind of work, the mean over steps, as one bar.

    Not as milliseconds: the path is longer than a rank's step where ranks begin at different times.
    """
    sums = {"gap": float(view.path.gap_ns.sum())}
    for kind, ns in zip(view.recording.table.kinds, view.path.work_ns.tolist(), strict=True):
        sums[_group(kind)] = sums.get(_group(kind), 0.0) + ns
    whole = sum(sums.values())
    largest = sorted(sums, key=lambda group: -sums[group])[:_MOST_SHARES]
    large = {group: sums[group] for group in largest if sums[group] >= _LEAST_SHARE * whole}
    rest = whole - sum(large.values())
    if rest >= _LEAST_REST * whole:
        large["rest"] = rest
    if not whole:
        return []
    shares = {group: [100 * ns / whole] for group, ns in large.items()}
    label = "% of the critical path, mean of the steps"
    label += "; gap: idle, waiting or not recorded" if "gap" in large else ""
    return [Bars("Where a step's time goes", label, ["a step"], shares, unit="%", is_small=True)]


def _group(operation: Operation) -> str:
    """Return the kind of a kernel, where its name tells; else the group of the operation."""
    is_computation = operation.is_kernel and operation.role is not Role.COPY
    kind = kernel_kind(operation.name) if is_computation else OTHER
    return group_of(operation) if kind == OTHER else kind


def _of_steps(view: JobView, found: Sequence[Ranked], first: Sequence[str]) -> list[Chart]:
    """Return the timelines of steps, with the ranks to be drawn `first`.

    The usual step comes first, then the worst of those that are far longer than the others, then those in
    which findings were seen, then the others, the longest first: as many as there is room for.
    """
    recording = view.recording
    what = {recording.choose_step(): ", of typical length," if len(view.rows) > 1 else ""}
    for one in _outliers(found):
        what.setdefault(recording.choose_step(one.evidence[0].step), ", far longer than the others,")
    named = [recording.choose_step(seen) for one in found if (seen := _seen(one)) is not None]
    by_length = np.argsort(-view.job_ns, kind="stable").tolist()
    lasts_ns = dict(zip(view.rows, view.job_ns.tolist(), strict=True))
    is_alone = len(view.rows) == 1 and len(recording.owners) > 1  # no chart of all steps shows the mean
    timelines: list[Chart] = []
    room = _MOST_BOXES
    for row in list(dict.fromkeys([*what, *named, *(view.rows[at] for at in by_length)]))[:_MOST_STEPS]:
        step = recording.steps[row]
        path = critical_path(step)
        title = f"Step {step.number}{what.get(row, '').removesuffix(',')}"
        timeline = step_timeline(
            title, recording, step, path, first=first, lasts_ns=None if is_alone else lasts_ns[row]
        )
        if row not in what:
            room -= len(timeline.spans)
            if room < 0:
                break
        timelines.append(timeline._replace(step=str(step.number)))
    return timelines


def _outliers(found: Iterable[Ranked]) -> list[Finding]:
    """Return the findings about steps that are far longer than the others."""
    return [one.finding for one in found if one.finding.kind == "outlier_steps"]


def _seen(one: Ranked) -> int | None:
    """Return the step in which a finding was seen."""
    return next((seen.step for seen in one.finding.evidence if seen.step is not None), None)


def _every_step(diagnosis: Diagnosis) -> list[Chart]:
    """Return how long the job took for each step, where there are several, beside what the headline says."""
    numbers = diagnosis.numbers
    if len(numbers) < 2:
        return []
    far = {number for finding in _outliers(diagnosis.findings) for number in finding.scope.steps}
    scopes = [ranked.finding.scope for ranked in diagnosis.findings]
    spans = [scope.span for scope in scopes if scope.span and not scope.steps]
    slow = {number for span in spans for number in numbers if span.first <= number <= span.last} - far
    groups = {
        "iteration time": {*numbers} - far - slow,
        "slow steps": slow,
        "far longer": far,
    }
    rows = [[at in group for at in numbers] for group in groups.values()]
    names, ms = _joined(
        list(map(str, numbers)), np.where(rows, diagnosis.job_ns / 1e6, np.nan), _MOST_EVERY_STEP
    )
    series = {
        name: [None if np.isnan(value) else value for value in row]
        for (name, group), row in zip(groups.items(), ms.tolist(), strict=True)
        if group
    }
    label, mean = ("ms", "mean") if len(diagnosis.ranks) == 1 else _OF_ALL
    mean_ns = float(diagnosis.iteration_ns.mean())
    level = mean_ns / 1e6, f"{mean}: {in_ms(mean_ns)}"
    is_small = len(numbers) <= _FEW_STEPS
    return [Bars("Length of each step", label, names, series, by_step=True, level=level, is_small=is_small)]


def _excess_map(diagnosis: Diagnosis) -> list[Chart]:
    """Draw how much longer than the median rank each rank worked in each step, where that is known.

    Of many ranks those that differ most from the median, of many steps the largest of some that follow each
    other.
    """
    if diagnosis.excess is None:
        return []
    numbers, excess_ns = diagnosis.excess
    means = excess_ns.mean(axis=1)
    shown = np.sort(np.argsort(-np.abs(means - np.median(means)), kind="stable")[:_MOST_ROWS])
    steps, ms = _joined(list(map(str, numbers)), excess_ns[shown] / 1e6, _MOST_CELLS // len(shown))
    ranks = [diagnosis.ranks[rank] for rank in shown.tolist()]
    title = "Longer than the median rank, by rank and step"
    return [HeatMap(title, "", "step", "rank", steps, ranks, ms.tolist(), by_step=True)]


def _joined(steps: Sequence[str], values: Float64, most: int) -> tuple[Sequence[str], Float64]:
    """Reduce `values` (rows, steps) to at most `most` columns; return also their names.

    Where there are more steps, each column has the largest values of some that follow each other.
    """
    every = -(-len(steps) // most)
    if every <= 1:
        return steps, values
    begins = range(0, len(steps), every)
    groups = [steps[begin : begin + every] for begin in begins]
    names = [group[0] if len(group) == 1 else f"{group[0]}–{group[-1]}" for group in groups]
    return names, np.fmax.reduceat(values, list(begins), axis=1)
