"""Calls of the host that wait for the device, and do not any more."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Bool, Recording, StepGraph
from dialects.step_parts import EdgeKind
from replay.edit import Edit, EditRequest, Job
from replay.whatif.host import BACK_TO_BACK_NS

NAME = "sync=none"
HELP = "no call of the host waits for the device"


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit without host synchronisation; None for any other request."""
    if not request.asks("sync", "none"):
        return None
    return Edit(lambda recording, _: without_synchronisation(recording))


def is_sync(edges: Int64, device: Bool) -> Bool:
    """Return which edges (e,) let a call of the host wait for work of a device; `device` is per event."""
    found: Bool = (edges[:, 3] == EdgeKind.SYNCHRONISE) & device[edges[:, 0]] & ~device[edges[:, 1]]
    return found


def without_synchronisation(recording: Recording, calls: Bool | None = None) -> Recording:
    """Return the recording in which no call of the host, or none of `calls` (n,), waits for a device.

    A host that does not wait is ahead: what began a launch's latency later follows the work before it.
    """
    device = recording.which(lambda one: one.on_device)

    def edited(step: StepGraph) -> StepGraph:
        waits = is_sync(step.edges, device[step.operation])
        if calls is not None:
            waits &= calls[step.operation[step.edges[:, 1]]]
        if not waits.any():
            return step
        call, work = step.edges[step.edges[:, 3] == EdgeKind.LAUNCH, :2].T
        late = work[
            device[step.operation[work]] & (step.gap_ns[work] == (step.start_ns[work] - step.start_ns[call]))
        ]
        gap_ns = step.gap_ns.copy()
        gap_ns[late] = np.minimum(gap_ns[late], BACK_TO_BACK_NS)
        return replace(step, edges=step.edges[~waits], gap_ns=gap_ns)

    return recording.edited(edited)
