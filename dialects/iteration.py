"""The iteration time of a recording: every step, its forward and backward part, and steps not traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import dialects
from dialects.steps import Step
from formats.columns import Trace


@dataclass(frozen=True, slots=True)
class Iterations:
    """The steps of one rank.

    Attributes
    ----------
    steps : the whole steps of the recording
    fw_bw_ns : per step, from its first forward to the end of its last backward operation; or None
    loads : all periods from one load of input data to the next, numbered from the job's first step;
        of BytePS's profiler they also cover the steps before the traced ones
    how : what marks a step, a phrase; "" where nothing does
    """

    steps: tuple[Step, ...]
    fw_bw_ns: tuple[int | None, ...]
    loads: tuple[Step, ...]
    how: str

    @property
    def mean_ns(self) -> float | None:
        """Average iteration time; None without a whole step."""
        return float(np.mean([step.dur_ns for step in self.steps])) if self.steps else None

    @property
    def fw_bw_mean_ns(self) -> float | None:
        """Average time of forward and backward pass; None where no step has both."""
        known = [value for value in self.fw_bw_ns if value is not None]
        return float(np.mean(known)) if known else None


def iterations(trace: Trace, step_by: str | None = None) -> Iterations:
    """Return the iteration times that `trace` tells; see `dialects.find_steps` for how."""
    found = dialects.find_steps(trace, step_by)
    steps = list(found.whole)
    loads = dialects.of(trace).loads(trace)
    return Iterations(
        steps=found.whole,
        fw_bw_ns=tuple(fw_bw_ns(trace, steps)),
        loads=tuple(loads),
        how=found.how,
    )


def fw_bw_ns(trace: Trace, steps: Sequence[Step]) -> list[int | None]:
    """Return per step the time from the start of its first forward to the end of its last backward.

    None for a step without them; see `System.passes`.
    """
    forward, backward = dialects.of(trace).passes(trace)
    starts = np.sort(trace.ts_ns[forward])
    order = np.argsort(trace.ts_ns[backward], kind="stable")
    bw_starts = trace.ts_ns[backward][order]
    bw_ends = (trace.ts_ns + trace.dur_ns)[backward][order]
    found: list[int | None] = []
    for step in steps:
        fw = starts[np.searchsorted(starts, step.start_ns) : np.searchsorted(starts, step.end_ns)]
        ends = bw_ends[np.searchsorted(bw_starts, step.start_ns) : np.searchsorted(bw_starts, step.end_ns)]
        found.append(int(ends.max() - fw[0]) if len(fw) and len(ends) else None)
    return found
