"""Links with another order of service."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from analyzer.model.graph.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job, Order


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `schedule=`; None for any other request."""
    if not request.asks("schedule", "priority", "fifo"):
        return None

    def rescheduled(recording: Recording) -> Recording:
        priority = recording.column(lambda op: max(op.transfer.tensor, 0)) * (request.value == "priority")

        def served(step: StepGraph) -> StepGraph:
            return replace(step, turn=priority[step.operation], overtaken=np.empty((0, 2), np.int64))

        return recording.edited(served)

    return Edit(rescheduled, order=Order.WAITS)
