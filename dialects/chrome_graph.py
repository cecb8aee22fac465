"""Any chrome trace as steps: the spans of the threads of one process, which is a rank."""

from __future__ import annotations

import numpy as np

from dialects.classify import communication
from dialects.span_graph import Meaning, record_spans
from dialects.step_parts import RankSteps
from dialects.steps import Step, find_steps
from errors import TraceError
from formats.columns import Trace


def record(name: str, trace: Trace) -> RankSteps:
    """Return the steps of one rank; where nothing marks steps, the whole recording is step 1.

    Raises
    ------
    TraceError
        No slice lasts any time.
    """
    if not trace.dur_ns.any():
        raise TraceError(f"{trace.path}: no operation with a duration is recorded in it")
    steps = find_steps(trace).whole or whole_recording(trace)
    comm = communication(trace)
    nothing = np.zeros(len(trace), np.bool_)
    return record_spans(name, trace, steps, Meaning(nothing, comm, comm, {}))


def whole_recording(trace: Trace) -> tuple[Step]:
    """Return the whole recording as one step."""
    return (Step(1, int(trace.ts_ns.min()), int(trace.end_ns.max())),)
