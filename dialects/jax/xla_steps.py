"""The steps in XLA's profiles: what the host numbers, a device's own, and the runs of a program."""

from __future__ import annotations

import re

import numpy as np

from arrays.intervals import lies_inside
from dialects.jax.xla_devices import device_of_slices, lines_of
from dialects.masks import by_name
from dialects.owners import SHARED
from dialects.steps import NO_STEPS, Step, Steps, in_first_process, spans
from dialects.system import whole_number
from formats.columns import Trace

_RUN = re.compile(r"\(.*")  # XLA's modules on a TPU are called ``jit_step(1234567)``


def numbered_spans(trace: Trace) -> Steps:
    """Return the annotations with a `step_num` of the first thread that has some; none inside another."""
    column = trace.args.get("step_num")
    if column is None or not len(column.rows):
        return NO_STEPS
    label = {row: whole_number(value) for row, value in column.as_dict().items()}
    is_mark = np.isin(np.arange(len(trace)), column.rows) & (
        trace.track_id == trace.track_id[column.rows[trace.ts_ns[column.rows].argmin()]]
    )
    is_mark &= ~lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, is_mark)
    rows = np.flatnonzero(is_mark)
    how = f"{trace.names[trace.name_id[rows[0]]]} annotations"
    return Steps(tuple(spans(trace, rows, [label[row] for row in rows.tolist()])), (), how)


def steps_of_device(trace: Trace) -> Steps:
    """Return the steps that a thread of the first device has, each called by its number."""
    rows = np.flatnonzero(lines_of(trace).steps[trace.track_id] & by_name(trace, str.isdecimal))
    if not len(rows):
        return NO_STEPS
    rows = in_first_process(trace, rows)
    numbers = [int(trace.names[i][:18]) for i in trace.name_id[rows].tolist()]
    return Steps(tuple(spans(trace, rows, numbers)), (), "the device's steps")


def runs(trace: Trace) -> Steps:
    """Return the runs of the program that takes longest, on the device where that tells, as steps."""
    if "run_id" not in trace.args or not len(trace.args["run_id"].rows):
        return NO_STEPS
    run, lines, device = trace.args["run_id"].as_dict(), lines_of(trace), device_of_slices(trace)
    module = trace.args["hlo_module"].as_dict() if "hlo_module" in trace.args else {}
    rows = trace.args["run_id"].rows
    of_device = rows[
        (device[rows] != SHARED) & (lines.programs[trace.track_id[rows]] | np.isin(rows, list(module)))
    ]
    bounds: dict[str, dict[str, tuple[int, int]]] = {}
    for row in (of_device if len(of_device) else rows).tolist():
        program = re.sub(_RUN, "", str(module.get(row, trace.names[trace.name_id[row]])))
        begin, end = int(trace.ts_ns[row]), int(trace.end_ns[row])
        runs = bounds.setdefault(program, {})
        known = runs.get(str(run[row]), (begin, end))
        runs[str(run[row])] = min(begin, known[0]), max(end, known[1])
    main = max(bounds, key=lambda program: sum(end - begin for begin, end in bounds[program].values()))
    ordered = sorted(bounds[main].values())
    if len(ordered) < 2:
        return NO_STEPS
    steps = [Step(i, *times) for i, times in enumerate(ordered, 1)]
    return Steps(tuple(steps), (), f"runs of {main}")
