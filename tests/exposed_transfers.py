"""What each transfer takes of a step while its rank computes nothing, by the events of the graph."""

from __future__ import annotations

import numpy as np

from analyzer.answers.diagnose.steps.job_view import JobView
from analyzer.base.arrays import Float64
from analyzer.model.figures.time_by_role import Slices, time_of_ids


def exposed_ns(view: JobView) -> Float64:
    """Return the exposed time of each operation (n,) in an average step of its rank.

    Of transfers that run at once each has its part, so that all add up to what is exposed of them.
    """
    recording, n = view.recording, len(view.recording.operations)
    role = recording.column(lambda one: one.role).astype(np.int8)
    taken = np.zeros(n)
    for step in view.steps:
        for owner, events in enumerate(step.events_by_owner(np.ones(n, np.bool_))):
            ends = step.end_ns[events]
            slices = Slices.of(step.start_ns[events], ends, events, role[step.operation[events]])
            begin, over = step.begin_ns[[owner]], step.next_ns[[owner]]
            over = np.where(over > begin, over, ends.max(initial=0))  # what goes on is in the next step, too
            taken += time_of_ids(slices, step.operation[events], n, begin, over)[0]
    return np.where(view.is_communication, taken, 0.0) / max(len(view.rows), 1)
