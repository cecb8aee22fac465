"""The change of the step without the profiler, and of the device's time, between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, hypot, sqrt

import numpy as np
from msgspec.structs import replace

from analyzer.answers.compare.significance import Change, changes, sample
from analyzer.base.arrays import Float64
from analyzer.model.figures.job_figures import RealSteps
from replay.answer import Z_95


def step_change(a: RealSteps, b: RealSteps) -> Change:
    """Test the change of the step.

    The profiler has the same cost in both runs, be it the most or the least; the interval joins the change
    with these two and that of Welch's test, and the p-value is that of its end towards 0.
    """
    tested = changes(sample(a.length_ns), sample(b.length_ns))[0]
    ns, low_ns, high_ns = tested.ns, tested.low_ns, tested.high_ns
    if ns is None or low_ns is None or high_ns is None:
        return tested
    others = [b.most_cost_ns - a.most_cost_ns, b.least_cost_ns - a.least_cost_ns]
    below, above = hypot(ns - low_ns, ns - min(ns, *others)), hypot(high_ns - ns, max(ns, *others) - ns)
    error = (below if ns > 0 else above) / Z_95
    p = erfc(abs(ns) / error / sqrt(2)) if error else float(ns == 0)
    return replace(tested, low_ns=ns - below, high_ns=ns + above, p=p)


def device_changes(a: RealSteps, b: RealSteps) -> list[tuple[str, Change]]:
    """Test the device's time in a step by kind of kernel, the largest change first."""
    kinds = list(dict.fromkeys([*a.kinds, *b.kinds]))
    if not kinds:
        return []
    times = [sample(_of_kinds(run, kinds)) for run in (a, b)]
    tested = zip(kinds, changes(*times), strict=True)
    return sorted(tested, key=lambda of_kind: -abs(of_kind[1].ns or 0.0))


def _of_kinds(run: RealSteps, kinds: Sequence[str]) -> Float64:
    nothing = np.zeros(run.device_ns.shape[1])
    return np.array(
        [run.device_ns[run.kinds.index(kind)] if kind in run.kinds else nothing for kind in kinds]
    )
