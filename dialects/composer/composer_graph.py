"""Composer's events of one rank as steps, with the operators of PyTorch's profiler where they are recorded.

A step lasts from the end of the batch before to the end of its batch: loading the batch is part of it, as
it is part of PyTorch's ``ProfilerStep``. Without PyTorch's profiler no communication is recorded. Then
ranks meet in the backward pass: none ends it before the last has begun it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dialects.masks import by_name
from dialects.span_graph import Category, Meaning, record_spans
from dialects.step_parts import RankSteps
from dialects.steps import Step
from dialects.system import is_communication
from formats.columns import Trace

_BACKWARD, _LOADER = "event/backward", "event/dataloader"
_PHASES = {
    _LOADER: "I/O",
    "event/forward": "FW",
    "event/loss": "FW",
    _BACKWARD: "BW",
    "event/optimizer": "STEP",
}
_CALL = re.compile(
    r"(?:gloo|nccl|mpi|ucc|xccl):.*"
)  # the collective itself, not the operator that asks for it
_MARK = re.compile(r"ProfilerStep#\d+")


def record(
    name: str, trace: Trace, batches: Sequence[Step], activities: NDArray[np.int8], category: Category
) -> RankSteps:
    """Return the steps of one rank, numbered as its batches are.

    Parameters
    ----------
    trace : with one time axis (`composer_axes.tie_axes`)
    activities : (n,) `Activity` of each slice
    category : of an operation, from its name and the category in the trace

    Raises
    ------
    TraceError
        No slice lasts any time.
    """
    calls = by_name(trace, _CALL.fullmatch)
    collective = calls if calls.any() else by_name(trace, _BACKWARD.__eq__)
    meaning = Meaning(
        by_name(trace, _MARK.fullmatch), is_communication(activities), collective, _PHASES, category
    )
    return record_spans(name, trace, with_loading(trace, batches), meaning)


def with_loading(trace: Trace, batches: Sequence[Step]) -> list[Step]:
    """Return each batch from the end of the one before it; the first from when it began to be loaded."""
    loads = np.sort(trace.ts_ns[by_name(trace, _LOADER.__eq__)])
    steps = []
    ended = int(trace.ts_ns.min()) if len(trace) else 0
    for batch, before in zip(batches, (None, *batches), strict=False):
        begin = batch.start_ns
        if before is not None and before.label == batch.label - 1 and before.end_ns <= batch.start_ns:
            begin = before.end_ns
        elif len(own := loads[(loads >= ended) & (loads < begin)]):
            begin = int(own[-1])
        steps.append(batch._replace(start_ns=begin))
        ended = batch.end_ns
    return steps
