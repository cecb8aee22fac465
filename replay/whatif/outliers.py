"""Outlier steps at their usual length."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from analyzer.model.graph.step_graph import Recording
from replay.edit import Edit, EditRequest, Job, Order
from replay.occurrences import slots, usual

_STEP = re.compile(r"step(\d{1,18})")


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Parse `step<n>=usual`; None for any other request."""
    if request.value != "usual":
        return None
    row_of = {step.number: row for row, step in enumerate(job.recording.bounds)}
    rows = []
    for name in request.name.split(","):
        match = _STEP.fullmatch(name)
        if match is None or int(match[1]) not in row_of:
            raise request.refused(f"there is no such step; the steps are {min(row_of)} to {max(row_of)}")
        rows.append(row_of[int(match[1])])

    def apply(recording: Recording) -> Recording:
        return at_usual_length(recording, rows, job.apart)

    return Edit(apply, order=Order.LIMITS, as_recorded=True)


def at_usual_length(recording: Recording, rows: Sequence[int], of: Recording | None = None) -> Recording:
    """Shorten each event of the steps `rows`, and the gap before it, to its median over the steps.

    The medians are of the same recording, or of a recording `of` the same events. Events in few steps (an
    evaluation) take no time.
    """
    of = recording if of is None else of
    number = slots(of.steps)
    longest_ns = {}
    for column in ("work_ns", "gap_ns"):
        times, median_ns = usual(column, of.steps, number)
        longest_ns[column] = np.where(2 * times < len(of.steps), 0, median_ns)
    usual_tail = np.median([step.tail_ns for step in of.steps], axis=0).astype(np.int64)
    steps = list(recording.steps)
    for row in rows:
        step, slot = steps[row], number[row]
        limited = {
            column: np.minimum(getattr(step, column), longest[slot]) for column, longest in longest_ns.items()
        }
        steps[row] = replace(step, **limited, tail_ns=np.minimum(step.tail_ns, usual_tail))
    return recording.with_steps(steps)
