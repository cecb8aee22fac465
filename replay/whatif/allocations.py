"""Calls of the driver that allocate and free memory of the device, gone."""

from __future__ import annotations

import re

import numpy as np

from dag.step_graph import Recording
from dialects.step_parts import Operation
from replay.edit import Edit, EditRequest, Job
from replay.even_work import scaled
from replay.whatif.synchronisation import without_synchronisation

NAME = "allocations=none"
HELP = "memory of the device takes no time to allocate and free, and nobody waits for it"

#: Calls of the driver for memory of the device; not those for pinned memory of the host.
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?:3D|Array|Async|Managed|Pitch)?"
    r"|(?:cu|hip)Mem(?:Alloc|Create|Free|Map|Release|SetAccess|Unmap)(?:Async)?"
)


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit without allocations; None for any other request."""
    if not request.asks("allocations", "none"):
        return None
    return Edit(lambda recording, _: without_allocations(recording))


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
