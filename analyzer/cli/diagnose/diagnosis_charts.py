"""The charts of a diagnosis: the critical path by kind of work, the lengths of steps, timelines of steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.answers.diagnose.diagnosis import Diagnosis, Ranked
from analyzer.answers.diagnose.finding import Finding
from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64
from analyzer.base.units import in_ms
from analyzer.cli.step_timeline import step_timeline
from analyzer.reading.dialects.name_rules import OTHER, kernel_kind
from analyzer.reading.dialects.roles import Role
from analyzer.report.result import Bars, Chart, HeatMap
from dag_utils import critical_path

#: Most bars of the chart of all steps; of more steps, each bar is the longest of neighbours.
_MOST_EVERY_STEP = 800
#: Most ranks and cells of a map of rank and step.
_MOST_ROWS, _MOST_CELLS = 64, 2_000
#: Most parts of the bar of the critical path; least share of a part, and of the rest.
_MOST_SHARES, _LEAST_SHARE, _LEAST_REST = 7, 0.02, 0.005
#: With several ranks: the label of the steps' bars, and of the line across them.
_OF_ALL = "step time, slowest rank (ms)", "mean of the ranks"
#: Most steps of a chart of half width.
_FEW_STEPS = 40
#: Most steps with a timeline, and most boxes of the steps without a title; a page has 50 bytes for a box.
_MOST_STEPS, _MOST_BOXES = 12, 10_000


def diagnosis_charts(diagnosis: Diagnosis, shown: Sequence[Ranked], first: Sequence[Chart]) -> list[Chart]:
    """Draw the findings `shown`, after the charts that come `first`."""
    few = [ranked.finding.scope.ranks for ranked in shown]
    named = [rank for ranks in few if len(ranks) < len(diagnosis.ranks) for rank in ranks]
    timelines = (
        _timelines(diagnosis.view, [ranked.finding for ranked in shown], named) if diagnosis.view else []
    )
    return [*first, *_excess_map(diagnosis), *_every_step(diagnosis), *timelines]


def path_shares(view: JobView) -> list[Chart]:
    """Draw the shares of the critical path by kind of work, the mean over steps, as one bar.

    Not as milliseconds: the path is longer than a rank's step if ranks begin at different times.
    """
    sums = {"gap": float(view.path.gap_ns.sum())}
    for operation, ns in zip(view.recording.operations.kinds, view.path.work_ns.tolist(), strict=True):
        is_computation = operation.is_kernel and operation.role is not Role.COPY
        kind = kernel_kind(operation.name) if is_computation else OTHER
        group = operation.stage_or_kind if kind == OTHER else kind
        sums[group] = sums.get(group, 0.0) + ns
    whole = sum(sums.values())
    if not whole:
        return []
    largest = sorted(sums, key=lambda group: -sums[group])[:_MOST_SHARES]
    large = {group: sums[group] for group in largest if sums[group] >= _LEAST_SHARE * whole}
    rest = whole - sum(large.values())
    if rest >= _LEAST_REST * whole:
        large["rest"] = rest
    shares = {group: [100 * ns / whole] for group, ns in large.items()}
    label = "% of the critical path, mean of the steps"
    label += "; gap: idle, waiting or not recorded" if "gap" in large else ""
    return [Bars("Where a step's time goes", label, ["a step"], shares, unit="%", is_small=True)]


def _timelines(view: JobView, findings: Sequence[Finding], first: Sequence[str]) -> list[Chart]:
    """Draw steps, with the ranks to be drawn `first`.

    The usual step comes first, then the worst outliers, then the steps of the findings' evidence, then the
    longest of the others: as many as there is room for.
    """
    recording = view.recording
    titles = {recording.choose_step(): ", of typical length" if len(view.rows) > 1 else ""}
    for finding in findings:
        if finding.kind == "outlier_steps":
            titles.setdefault(recording.choose_step(finding.evidence[0].step), ", far longer than the others")
    evidence = [[seen.step for seen in finding.evidence if seen.step is not None] for finding in findings]
    named = [recording.choose_step(steps[0]) for steps in evidence if steps]
    by_length = [view.rows[i] for i in np.argsort(-view.job_ns, kind="stable").tolist()]
    lasts_ns = dict(zip(view.rows, view.job_ns.tolist(), strict=True))
    is_alone = len(view.rows) == 1 and len(recording.owners) > 1  # no chart of all steps shows the mean
    timelines: list[Chart] = []
    room = _MOST_BOXES
    for row in list(dict.fromkeys([*titles, *named, *by_length]))[:_MOST_STEPS]:
        step = recording.steps[row]
        title, length = f"Step {step.number}{titles.get(row, '')}", None if is_alone else lasts_ns[row]
        timeline = step_timeline(title, recording, step, critical_path(step), first=first, lasts_ns=length)
        if row not in titles:
            room -= len(timeline.spans)
            if room < 0:
                break
        timelines.append(timeline._replace(step=str(step.number)))
    return timelines


def _every_step(diagnosis: Diagnosis) -> list[Chart]:
    """Draw the length of each step, if there are several, with the headline's mean."""
    numbers = diagnosis.numbers
    if len(numbers) < 2:
        return []
    findings = [ranked.finding for ranked in diagnosis.findings]
    outliers = [finding.scope.steps for finding in findings if finding.kind == "outlier_steps"]
    far = {number for steps in outliers for number in steps}
    spans = [finding.scope.span for finding in findings if finding.scope.span and not finding.scope.steps]
    slow = {number for span in spans for number in numbers if span.first <= number <= span.last} - far
    groups = {"iteration time": {*numbers} - far - slow, "slow steps": slow, "far longer": far}
    is_in = [[number in group for number in numbers] for group in groups.values()]
    names, ms = _joined(numbers, np.where(is_in, diagnosis.job_ns / 1e6, np.nan), _MOST_EVERY_STEP)
    series = {
        name: [None if np.isnan(value) else value for value in row]
        for (name, group), row in zip(groups.items(), ms.tolist(), strict=True)
        if group
    }
    label, mean = ("ms", "mean") if len(diagnosis.ranks) == 1 else _OF_ALL
    mean_ns = float(diagnosis.iteration_ns.mean())
    level = mean_ns / 1e6, f"{mean}: {in_ms(mean_ns)}"
    is_small = len(numbers) <= _FEW_STEPS
    is_profiled = diagnosis.real is not None and diagnosis.real.differs
    title = f"Length of each step{', while profiled' if is_profiled else ''}"
    return [Bars(title, label, names, series, by_step=True, level=level, is_small=is_small)]


def _excess_map(diagnosis: Diagnosis) -> list[Chart]:
    """Draw the work of each rank beyond the median rank's, step by step; of many ranks the most different."""
    if diagnosis.excess is None:
        return []
    numbers, excess_ns = diagnosis.excess
    means = excess_ns.mean(axis=1)
    shown = np.sort(np.argsort(-np.abs(means - np.median(means)), kind="stable")[:_MOST_ROWS])
    steps, ms = _joined(numbers, excess_ns[shown] / 1e6, _MOST_CELLS // len(shown))
    ranks = [diagnosis.ranks[rank] for rank in shown.tolist()]
    title = "Longer than the median rank, by rank and step"
    return [HeatMap(title, "", "step", "rank", steps, ranks, ms.tolist(), by_step=True)]


def _joined(numbers: Sequence[int], values: Float64, most: int) -> tuple[list[str], Float64]:
    """Reduce `values` (rows, steps) to at most `most` columns, the largest of neighbours, and name these."""
    steps = list(map(str, numbers))
    every = -(-len(steps) // most)
    if every <= 1:
        return steps, values
    begins = range(0, len(steps), every)
    groups = [steps[begin : begin + every] for begin in begins]
    names = [group[0] if len(group) == 1 else f"{group[0]}–{group[-1]}" for group in groups]
    return names, np.fmax.reduceat(values, list(begins), axis=1)
