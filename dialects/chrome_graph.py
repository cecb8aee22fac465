"""Any chrome trace as steps: the spans of the threads of one process, which is a rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dialects.span_graph import Category, Meaning, record_spans
from dialects.step_parts import RankSteps
from dialects.steps import Step
from dialects.system import Activity, is_communication
from errors import TraceError
from formats.columns import Trace


def record(
    name: str, trace: Trace, steps: Sequence[Step], activities: NDArray[np.int8], category: Category
) -> RankSteps:
    """Return the steps of one rank; where nothing marks steps, the whole recording is step 1.

    Parameters
    ----------
    activities : (n,) `Activity` of each slice
    category : of an operation, from its name and the category in the trace

    Raises
    ------
    TraceError
        No slice lasts any time.
    """
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    comm = is_communication(activities)
    meaning = Meaning(activities == Activity.IGNORED, comm, comm, {}, category)
    return record_spans(name, trace, steps or whole_recording(trace), meaning)


def whole_recording(trace: Trace) -> tuple[Step]:
    """Return the whole recording as one step."""
    return (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
