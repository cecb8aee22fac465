"""The iteration time of a recording: every step, its forward and backward part, and steps not traced."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dialects.steps import Step, find_steps, fw_bw_ns, io_steps
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
    first : the number of the first traced step among `loads`; None where these do not tell
    how : what marks a step, a phrase; "" where nothing does
    """

    steps: tuple[Step, ...]
    fw_bw_ns: tuple[int | None, ...]
    loads: tuple[Step, ...]
    first: int | None
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

    def number(self, step: Step) -> int:
        """Return the number of a step within the job where that is known, else its label."""
        return step.label if self.first is None else self.first + step.label - 1


def iterations(trace: Trace) -> Iterations:
    """Return the iteration times that `trace` tells; see `dialects.steps.find_steps` for how."""
    found = find_steps(trace)
    steps = list(found.whole)
    loads = io_steps(trace)
    begins = {load.start_ns: load.label for load in loads}
    return Iterations(
        steps=found.whole,
        fw_bw_ns=tuple(fw_bw_ns(trace, steps)),
        loads=tuple(loads),
        first=begins.get(steps[0].start_ns) if steps else None,
        how=found.how,
    )
