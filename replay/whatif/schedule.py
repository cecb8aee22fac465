"""Links with another order of service."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from analyzer.model.graph.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job, Order

NAME = "schedule=priority|fifo"
HELP = "links serve the lowest tensor index first, or first come, first served, instead of the recorded order"


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `schedule=`; None for any other request."""
    if not request.asks("schedule", "priority", "fifo"):
        return None
    by_priority = request.value == "priority"
    return Edit(lambda recording: rescheduled(recording, by_priority=by_priority), order=Order.WAITS)


def rescheduled(recording: Recording, *, by_priority: bool) -> Recording:
    """Serve links by tensor index, or first come, first served."""
    priority = recording.column(lambda op: max(op.transfer.tensor, 0))

    def served(step: StepGraph) -> StepGraph:
        turn = priority[step.operation] * by_priority
        return replace(step, turn=turn, overtaken=np.empty((0, 2), np.int64))

    return recording.edited(served)
