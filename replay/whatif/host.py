"""A host that takes no time, so that the device is the limit."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from dag.step_graph import Recording, StepGraph
from dialects.step_parts import Operation
from replay.edit import Edit, EditRequest, Job
from replay.even_work import scaled

NAME = "host=none"
HELP = "the host launches in no time; what the device has to do begins as soon as what is before it ends"

#: From the end of a kernel to the begin of one that was launched long ago.
BACK_TO_BACK_NS = 2_000
#: Between operations of a host Python runs for less than this; a longer gap is a pause of something else.
PAUSE_NS = 1_000_000
#: Of its time, what a host keeps that takes none: no operation becomes shorter than can be measured.
_NO_TIME = 0.001


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that leaves the host no time; None for any other request."""
    if not request.asks("host", "none"):
        return None
    return Edit(lambda recording, _: without_host(recording))


def prepares(one: Operation) -> bool:
    """Whether an operation is computation of the host, which launches what the device does."""
    return one.is_traced and one.is_compute and not one.on_device


def without_host(recording: Recording) -> Recording:
    """Return the recording in which the host takes no time, and a launch has no latency.

    Work of a device that has piled up begins as soon as what is before it ends.
    """
    kinds = recording.table.kinds
    cats = {one.cat for one in kinds if prepares(one)} - {one.cat for one in kinds if not prepares(one)}
    on_host, device = recording.which(lambda one: one.cat in cats), recording.which(lambda one: one.on_device)

    def launched(step: StepGraph) -> StepGraph:
        usual = np.minimum(step.gap_ns, BACK_TO_BACK_NS)
        gap_ns = np.where(device[step.operation], usual, step.gap_ns)
        is_python = on_host[step.operation] & (gap_ns < PAUSE_NS)
        return replace(step, gap_ns=np.where(is_python, 0, gap_ns))

    return scaled(recording, np.where(on_host, _NO_TIME, 1.0)).edited(launched)
