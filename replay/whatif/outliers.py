"""Steps that take far longer than the others, at their usual length."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dag.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job, Order
from replay.occurrences import slots, usual

NAME = "step20=usual"
HELP = "no event of these steps (step20,step31) takes longer, or comes later, than in the median step"

_STEP = re.compile(r"step(\d{1,18})")


def parse(request: EditRequest, job: Job) -> Edit | None:
    """Return the edit that makes steps as the others usually are; None for any other request."""
    if request.value != "usual":
        return None
    row_of = {one.number: row for row, one in enumerate(job.recording.bounds)}
    rows = []
    for name in request.name.split(","):
        match = _STEP.fullmatch(name)
        if match is None or int(match[1]) not in row_of:
            raise request.refused(f"there is no such step; the steps are {min(row_of)} to {max(row_of)}")
        rows.append(row_of[int(match[1])])

    def apply(recording: Recording) -> Recording:
        return at_usual_length(recording, rows, job.apart)

    return Edit(apply, order=Order.LIMITS, as_recorded=True)


def at_usual_length(recording: Recording, rows: list[int], of: Recording | None = None) -> Recording:
    """Return the recording in which no event of the steps `rows` takes longer, or comes later, than usual.

    That is in the same recording, or in one `of` the same events.
    """
    of = recording if of is None else of
    number = slots(of.steps)
    columns = [_Usual(column, of, number) for column in ("work_ns", "gap_ns")]
    usual_tail = np.median([step.tail_ns for step in of.steps], axis=0).astype(np.int64)
    steps = list(recording.steps)
    for row in rows:
        work_ns, gap_ns = (column.of(steps[row], number[row]) for column in columns)
        tail_ns = np.minimum(steps[row].tail_ns, usual_tail)
        steps[row] = replace(steps[row], work_ns=work_ns, gap_ns=gap_ns, tail_ns=tail_ns)
    return recording.with_steps(steps)


class _Usual:
    """How long the events of a recording take as a rule, of a column (``work_ns``, ``gap_ns``).

    That is the median of the event's over the steps. What is not in most steps (an evaluation) takes no
    time as a rule, unless it is in the place of something else: then no more than all takes otherwise.
    """

    def __init__(self, column: str, recording: Recording, number: Sequence[Int64]) -> None:
        times, self._median = usual(column, recording.steps, number)
        self._column, self._is_rare = column, 2 * times < len(recording.steps)
        owners = len(recording.owners)
        totals = [np.bincount(step.owner, getattr(step, column), owners) for step in recording.steps]
        self._total = np.median(totals, axis=0)

    def of(self, step: StepGraph, number: Int64) -> Int64:
        """Return the times of a step's events (n,), none longer than usual; `number` are their slots."""
        own = getattr(step, self._column)
        is_rare, n_owners = self._is_rare[number], len(self._total)
        limited = np.minimum(own, self._median[number])
        usual, rare = (np.bincount(step.owner[one], limited[one], n_owners) for one in (~is_rare, is_rare))
        kept = np.clip((self._total - usual) / np.maximum(rare, 1), 0, 1)[step.owner]
        usual_ns: Int64 = np.where(is_rare, limited * kept, limited).astype(np.int64)
        return usual_ns
