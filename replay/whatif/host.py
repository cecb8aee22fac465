"""Edits of the host: no launch time, no synchronisation, no allocation of device memory."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.step_parts import Operation
from replay.edit import Edit, EditRequest, Job
from replay.usual_times import scaled

#: Usual gap before a kernel that was launched early.
BACK_TO_BACK_NS = 2_000
#: Python between two host operations takes less than this share of a step; a longer gap has another cause.
PYTHON = 0.01
#: Remaining share of host time: no operation becomes shorter than can be measured.
_NO_TIME = 0.001
#: Driver calls for device memory, not for pinned host memory.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?:3D|Array|Async|Managed|Pitch)?"
    r"|(?:cu|hip)Mem(?:Alloc|Create|Free|Map|Release|SetAccess|Unmap)(?:Async)?"
)


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `host=`, `sync=` and `allocations=`; None for any other request."""
    spared = next((edit for name, edit in _SPARED.items() if request.asks(name, "none")), None)
    return None if spared is None else Edit(spared, of_host=True)


def prepares(operation: Operation) -> bool:
    """Check for host computation, which launches device work."""
    return operation.is_traced and operation.is_compute and not (operation.on_device or operation.is_overhead)


def without_host(recording: Recording) -> Recording:
    """Remove the time of the host and the latency of launches.

    Queued device work starts as soon as the work before it ends.
    """
    on_host, device = recording.which(prepares), recording.which(lambda op: op.on_device)

    def launched(step: StepGraph) -> StepGraph:
        usual = np.minimum(step.gap_ns, BACK_TO_BACK_NS)
        gap_ns = np.where(device[step.operation], usual, step.gap_ns)
        is_python = on_host[step.operation] & (gap_ns < _python_ns(step))
        return replace(step, gap_ns=np.where(is_python, 0, gap_ns))

    return scaled(recording, np.where(on_host, _NO_TIME, 1.0)).edited(launched)


def _python_ns(step: StepGraph) -> float:
    return PYTHON * float((step.end_of_owners_ns - step.begin_ns).mean())


def is_sync(edges: Int64, device: Mask) -> Mask:
    """Mask of edges (e,) by which a host call waits for device work; `device` is per event."""
    is_wait = kinds_of(edges) == EdgeKind.SYNCHRONISE
    return np.asarray(is_wait & device[edges[:, 0]] & ~device[edges[:, 1]])


def without_synchronisation(recording: Recording, calls: Mask | None = None) -> Recording:
    """Remove the waits of host calls, or of `calls` (n,), for a device.

    A host that does not wait runs ahead: device work that started a launch latency after a blocking call then
    follows the work before it directly.
    """
    device = recording.which(lambda op: op.on_device)

    def edited(step: StepGraph) -> StepGraph:
        waits = is_sync(step.edges, device[step.operation])
        if calls is not None:
            waits &= calls[step.operation[step.edges[:, 1]]]
        if not waits.any():
            return step
        call, work = step.edges[kinds_of(step.edges) == EdgeKind.LAUNCH, :2].T
        waited_ns = step.start_ns[work] - step.start_ns[call]
        is_latency = (step.gap_ns[work] == waited_ns) & (waited_ns < _python_ns(step))
        late = work[device[step.operation[work]] & is_latency]
        gap_ns = step.gap_ns.copy()
        gap_ns[late] = np.minimum(gap_ns[late], BACK_TO_BACK_NS)
        return replace(step, edges=step.edges[~waits], gap_ns=gap_ns)

    return recording.edited(edited)


def allocates(operation: Operation) -> bool:
    """Check for a host call that allocates or frees device memory."""
    return not operation.on_device and is_allocation(operation.name)


def is_allocation(name: str) -> bool:
    """Check for the name of a call that allocates or frees device memory."""
    return _ALLOCATES.fullmatch(name) is not None


def without_allocations(recording: Recording) -> Recording:
    """Make allocating and freeing device memory free, without synchronisation."""
    calls = recording.which(allocates)
    return scaled(without_synchronisation(recording, calls), np.where(calls, 0.0, 1.0))


_SPARED = {"host": without_host, "sync": without_synchronisation, "allocations": without_allocations}
