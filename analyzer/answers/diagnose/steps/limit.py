"""The limit of a step: what most of its critical path waits for."""

from __future__ import annotations

from typing import Literal

from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.reading.dialects.roles import Phase
from analyzer.reading.dialects.step_parts import Operation
from replay.real_step import RealJob

#: Of the path: what the limit still has of it with the most and the least cost of the profiler.
_STILL = 0.4

Limit = Literal["host", "device", "communication", "input", "undecided"]


def limit(view: JobView, real: RealJob | None) -> Limit:
    """Name what has most of the critical path; undecided if that may be another without the profiler."""
    parts = _parts(view)
    largest = max(parts, key=lambda part: parts[part])
    for recording in real.extremes if real is not None and real.step.differs else ():
        extreme = _parts(JobView(view.loaded, recording, job=view.job))
        if extreme.get(largest, 0.0) < _STILL * sum(extreme.values()):
            return "undecided"
    return largest


def _parts(view: JobView) -> dict[Limit, float]:
    """Add up the time on the path of each part of the machine."""
    sums: dict[Limit, float] = {"host": float(view.path.gap_ns.sum())}
    for operation, ns in zip(view.recording.operations.kinds, view.path.work_ns.tolist(), strict=True):
        part = _part(operation, view.has_device)
        sums[part] = sums.get(part, 0.0) + ns
    return sums


def _part(operation: Operation, has_device: bool) -> Limit:
    """Assign work to a part of the machine; without a recorded device, what computes is the device."""
    if operation.is_communication:
        return "communication"
    if operation.phase is Phase.INPUT:
        return "input"
    return "device" if operation.on_device or (operation.is_compute and not has_device) else "host"
