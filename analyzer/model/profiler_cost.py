"""The profiler's cost: how much of a host's time is there only because it was recorded.

A profiler hardly slows a device, but it slows the host between the events that it records: each event costs
time, and a host that is slow itself pays more for it. So the cost is a share of the short stretches of host
time, those between two events that follow each other closely; a long stretch is mostly the job's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.step_parts import Operation

#: A longer stretch of host time loses no more to the profiler than one of this length (ns). On the jobs of
#: docs/dev/accuracy.md with known step times, 10 and 40 µs give the same limits, and errors of 5 and 6 %
#: instead of 3 % in the median.
SHORT_NS = 20_000


def is_slowed(operation: Operation) -> bool:
    """Recognise work of a host, which the profiler slows."""
    return operation.is_traced and not (operation.on_device or operation.is_communication)


def without_cost(recording: Recording, share: float) -> Callable[[StepGraph], StepGraph]:
    """Make the edit that takes the profiler's `share` of short stretches, and its own work, from a step.

    Stretches are the host's work between two events and the gaps before events; those before a device's work
    are launches.
    """
    slowed, launched = recording.which(is_slowed), recording.which(lambda op: op.on_device)
    is_profiler = recording.which(lambda op: op.is_of_profiler)

    def edit(step: StepGraph) -> StepGraph:
        of_host = slowed[step.operation]
        work_ns = np.where(is_profiler[step.operation], 0, _shorter(step.work_ns, of_host, share))
        gap_ns = _shorter(step.gap_ns, of_host | launched[step.operation], share)
        return replace(step, work_ns=work_ns, gap_ns=gap_ns)

    return edit


def _shorter(stretch_ns: Int64, chosen: Mask, share: float) -> Int64:
    cost_ns = np.rint(share * np.clip(stretch_ns, 0, SHORT_NS)).astype(np.int64)
    return np.where(chosen, stretch_ns - cost_ns, stretch_ns)
