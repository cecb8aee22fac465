"""A host that takes no time, waits for nothing, or does not allocate memory of the device."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.model.graph.step_graph import Bool, Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.step_parts import Operation
from replay.edit import Edit, EditRequest, Job
from replay.even_work import scaled

NAME = "host=none, sync=none, allocations=none"
HELP = (
    "the host launches in no time, and what the device has to do begins as soon as what is before it ends; "
    "no call of the host waits for the device; memory of the device takes no time to allocate and free"
)

#: From the end of a kernel to the start of one that was launched long ago.
BACK_TO_BACK_NS = 2_000
#: Between operations of a host Python runs for less than this; a longer gap is a pause of something else.
PYTHON_NS = 1_000_000
#: Of its time, what a host keeps that takes none: no operation becomes shorter than can be measured.
_NO_TIME = 0.001
#: Calls of the driver for memory of the device; not those for pinned memory of the host.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?:3D|Array|Async|Managed|Pitch)?"
    r"|(?:cu|hip)Mem(?:Alloc|Create|Free|Map|Release|SetAccess|Unmap)(?:Async)?"
)


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that spares the host something; None for any other request."""
    spared = next((edit for name, edit in _SPARED.items() if request.asks(name, "none")), None)
    return None if spared is None else Edit(spared)


def prepares(one: Operation) -> bool:
    """Whether an operation is computation of the host, which launches what the device does."""
    return one.is_traced and one.is_compute and not (one.on_device or one.is_overhead)


def without_host(recording: Recording) -> Recording:
    """Return the recording in which the host takes no time, and a launch has no latency.

    Work of a device that has piled up begins as soon as what is before it ends.
    """
    on_host, device = recording.which(prepares), recording.which(lambda one: one.on_device)

    def launched(step: StepGraph) -> StepGraph:
        usual = np.minimum(step.gap_ns, BACK_TO_BACK_NS)
        gap_ns = np.where(device[step.operation], usual, step.gap_ns)
        is_python = on_host[step.operation] & (gap_ns < PYTHON_NS)
        return replace(step, gap_ns=np.where(is_python, 0, gap_ns))

    return scaled(recording, np.where(on_host, _NO_TIME, 1.0)).edited(launched)


def is_sync(edges: Int64, device: Bool) -> Bool:
    """Return which edges (e,) let a call of the host wait for work of a device; `device` is per event."""
    found: Bool = (kinds_of(edges) == EdgeKind.SYNCHRONISE) & device[edges[:, 0]] & ~device[edges[:, 1]]
    return found


def without_synchronisation(recording: Recording, calls: Bool | None = None) -> Recording:
    """Return the recording in which no call of the host, or none of `calls` (n,), waits for a device.

    A host that does not wait is ahead: what began a launch's latency later, while its call blocked, follows
    the work before it.
    """
    device = recording.which(lambda one: one.on_device)

    def edited(step: StepGraph) -> StepGraph:
        waits = is_sync(step.edges, device[step.operation])
        if calls is not None:
            waits &= calls[step.operation[step.edges[:, 1]]]
        if not waits.any():
            return step
        call, work = step.edges[kinds_of(step.edges) == EdgeKind.LAUNCH, :2].T
        waited_ns = step.start_ns[work] - step.start_ns[call]
        is_latency = (step.gap_ns[work] == waited_ns) & (waited_ns < PYTHON_NS)
        late = work[device[step.operation[work]] & is_latency]
        gap_ns = step.gap_ns.copy()
        gap_ns[late] = np.minimum(gap_ns[late], BACK_TO_BACK_NS)
        return replace(step, edges=step.edges[~waits], gap_ns=gap_ns)

    return recording.edited(edited)


def allocates(one: Operation) -> bool:
    """Whether an operation is a call of the host that allocates or frees memory of the device."""
    return not one.on_device and is_allocation(one.name)


def is_allocation(name: str) -> bool:
    """Whether that is the name of a call that allocates or frees memory of a device."""
    return _ALLOCATES.fullmatch(name) is not None


def without_allocations(recording: Recording) -> Recording:
    """Return the recording in which memory of the device takes no time to have, and nobody waits for it."""
    calls = recording.which(allocates)
    return scaled(without_synchronisation(recording, calls), np.where(calls, 0.0, 1.0))


_SPARED = {"host": without_host, "sync": without_synchronisation, "allocations": without_allocations}
