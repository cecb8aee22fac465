"""The overhead of recording: traced steps beside those before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from arrays.median import FEWEST, WARM_UP
from diagnose.finding import Finding, Skipped
from diagnose.finding_thresholds import CHANCE, NOTICEABLE
from diagnose.job_view import JobView
from dialects.steps import Step
from result import in_ms, in_percent


def profiling_overhead(view: JobView) -> Iterator[Finding | Skipped]:
    """Find that traced steps take longer than the untraced ones before them."""
    found = [before for rank in view.loaded.ranks if (before := _before(view, rank.loads)) is not None]
    if not found:
        yield Skipped("profiling_overhead", "no steps before the traced ones are recorded")
        return
    before = np.median(np.array([times[-min(map(len, found)) :] for times in found]), axis=0)
    if len(before) < FEWEST or len(view.rows) < FEWEST:
        yield Skipped("profiling_overhead", f"fewer than {FEWEST} steps before or in the trace")
        return
    usual, traced = float(np.median(before)), view.step_ns
    if traced < (1 + NOTICEABLE) * usual:
        return
    from scipy.stats import mannwhitneyu

    if mannwhitneyu(view.iteration_ns, before, alternative="greater").pvalue > CHANCE:
        return
    yield Finding(
        kind="profiling_overhead",
        title=f"traced steps take {in_percent(traced / usual - 1)} longer than those before them",
        cause=f"{in_ms(traced)} instead of {in_ms(usual, unit='')} in {len(before)} steps after the warm-up",
        action="trace less (no stacks, no shapes, fewer steps) before you trust small differences",
        ranks=view.recording.owners,
        caveat="untraced steps do not have this cost",
        look=("collect", "--sub_option", "iter_time"),
        weight=traced / usual - 1,
    )


def _before(view: JobView, loads: Sequence[Step]) -> list[int] | None:
    """Return how long the steps before the traced ones took (ns), without the warm-up; None for none."""
    recording = view.loaded.recording
    first = min(recording.bounds[row].number for row in recording.every_whole_step)
    times = [one.dur_ns for one in loads if WARM_UP < one.label < first]
    return times or None
