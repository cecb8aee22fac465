"""Iteration time of each step of a GPU, and its forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.reading import dialects
from analyzer.reading.dialects.steps import Step
from analyzer.reading.formats.columns import Trace


class StepTime(NamedTuple):
    """Duration of one step; FW+BW from its first forward to the end of its last backward operation."""

    step: int
    fw_bw_ns: float | None  # None if the step lacks one of them
    iteration_ns: float


class Gpu(Struct, frozen=True):
    """One GPU (or one rank's trace) with its steps; the job as a whole has no files."""

    name: str
    path: Path | None
    trace: Path | None
    events: Mapping[str, int]
    steps: Sequence[StepTime]  # the whole steps of the recording
    #: From one load of input data to the next, numbered from the job's first step; BytePS's profiler records
    #: those before the traced steps, too.
    loads: Sequence[Step]
    how: str  # phrase on the mark of a step; "" without marks

    @property
    def mean_ns(self) -> float | None:
        """Average iteration time; None without a whole step."""
        return known_mean(step.iteration_ns for step in self.steps)

    @property
    def fw_bw_ns(self) -> float | None:
        """Average FW+BW; None where no step has it."""
        return known_mean(step.fw_bw_ns for step in self.steps)

    @property
    def ms(self) -> list[float]:
        """The iteration times in milliseconds."""
        return [step.iteration_ns / 1e6 for step in self.steps]


def iterations(trace: Trace, step_by: str | None = None) -> tuple[list[StepTime], list[Step], str]:
    """Find `Gpu.steps`, `Gpu.loads` and `Gpu.how`; see `System.find_steps`."""
    recorded = dialects.of(trace).find_steps(trace, step_by)
    passes = fw_bw_ns(trace, recorded.whole)
    steps = [StepTime(s.label, fw_bw, s.dur_ns) for s, fw_bw in zip(recorded.whole, passes, strict=True)]
    return steps, dialects.of(trace).loads(trace), recorded.how


def fw_bw_ns(trace: Trace, steps: Sequence[Step]) -> list[int | None]:
    """Measure each step from its first forward to its last backward's end; None without both."""
    forward, backward = dialects.of(trace).passes(trace)
    starts = np.sort(trace.ts_ns[forward])
    order = np.argsort(trace.ts_ns[backward], kind="stable")
    bw_starts, bw_ends = trace.ts_ns[backward][order], trace.end_ns[backward][order]
    durations: list[int | None] = []
    for step in steps:
        bounds = (step.start_ns, step.end_ns)
        fw = starts[slice(*np.searchsorted(starts, bounds))]
        ends = bw_ends[slice(*np.searchsorted(bw_starts, bounds))]
        durations.append(int(ends.max() - fw[0]) if len(fw) and len(ends) else None)
    return durations


def together(ranks: Sequence[Sequence[StepTime]]) -> list[StepTime]:
    """List the steps that all ranks have, with means over the ranks."""
    by_step = [{time.step: time for time in rank} for rank in ranks]
    common = [
        [rank[step] for rank in by_step] for step in by_step[0] if all(step in rank for rank in by_step)
    ]
    return [
        StepTime(times[0].step, known_mean(t.fw_bw_ns for t in times), fmean(t.iteration_ns for t in times))
        for times in common
    ]


def known_mean(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
