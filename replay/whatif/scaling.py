"""Longer or shorter operations, categories, ranks and stages."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64, Mask
from analyzer.model.graph.step_graph import Recording, StepGraph
from replay.edit import Edit, EditRequest, Job, Order
from replay.selection import Selection, as_ratio, of_stage, select

#: The ratio by which `diagnose` removes the time of an operation.
GONE = "0.001"

_ADDED = re.compile(r"\+([0-9]+(?:\.[0-9]+)?)(s|ms|us)")
_UNITS_NS = {"s": 1e9, "ms": 1e6, "us": 1e3}
_STAGE = re.compile(r"stage(\d{1,18})(?:\.(.+))?", re.DOTALL)
_MOST_ADDED_NS = 86_400e9


def parse(request: EditRequest, job: Job) -> Edit:
    """Parse any request that no other edit knows: the name is of an operation, category, rank or stage."""
    factor, added_ns = _change(request)
    _chosen(job.recording, request)  # refuse an unknown name before simulating

    def apply(recording: Recording) -> Recording:
        return changed(recording, _chosen(recording, request), factor, added_ns)

    return Edit(apply, order=Order.SUMS if added_ns else Order.FACTORS)


def _chosen(recording: Recording, request: EditRequest) -> Selection:
    if stage := _STAGE.fullmatch(request.name):
        return of_stage(recording, request, int(stage[1]), stage[2] or "")
    return select(recording, request, request.name)


def _change(request: EditRequest) -> tuple[float, int]:
    """Parse the factor and the addend (ns) of a duration: ``1.5``, ``+400ms``, ``+20us``, ``+1s``."""
    if not request.value.startswith("+"):
        return as_ratio(request), 0
    added = _ADDED.fullmatch(request.value)
    if added is None:
        raise request.refused(f"an added time has a unit: {request.value}ms")
    added_ns = float(added[1]) * _UNITS_NS[added[2]]
    if added_ns > _MOST_ADDED_NS:
        raise request.refused("more than a day")
    return 1.0, round(added_ns)


def changed(recording: Recording, chosen: Selection, factor: float, added_ns: int = 0) -> Recording:
    """Multiply the work of the `chosen` operations by `factor`, and add `added_ns`.

    The time is added once per step and owner, before the first chosen operation, not to each piece of an
    operation recorded in pieces.
    """

    def edited(step: StepGraph) -> StepGraph:
        events = chosen.events(step)
        work, tail = _times(step.work_ns, factor, events), _times(step.tail_ns, factor, chosen.tails)
        events[step.continued[:, 1]] = False  # these started in the step before
        candidates = np.flatnonzero(events)
        candidates = candidates[np.argsort(step.start_ns[candidates], kind="stable")]
        first = candidates[np.unique(step.owner[candidates], return_index=True)[1]]
        work[first] += added_ns
        in_tail = chosen.tails.copy()
        in_tail[step.owner[first]] = False
        tail[in_tail] += added_ns
        return replace(step, work_ns=work, tail_ns=tail)

    return recording.edited(edited)


def _times(time_ns: Int64, factor: float, chosen: Mask) -> Int64:
    return np.where(chosen, np.rint(time_ns * factor), time_ns).astype(np.int64)
