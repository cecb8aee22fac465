"""Training steps, and ways to find them where the recording does not mark them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import union_length
from analyzer.base.arrays.numbering import numbered, places_by_value
from analyzer.base.errors import TraceError
from analyzer.reading.dialects.name_rules import is_parameter_update
from analyzer.reading.dialects.roles import by_cat, by_name
from analyzer.reading.dialects.tolerances import (
    BODY_ALIKE,
    BODY_ALONE,
    BODY_COVERS,
    LEAST_REPEATS,
    ROUNDED_TIMES_NS,
)
from analyzer.reading.formats.columns import Trace


class Step(NamedTuple):
    """One training step, from `start_ns` to just before `end_ns`."""

    label: int  # the number in the trace (``ProfilerStep#7``, a batch's number), else counted from 1
    start_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        """The length of the step."""
        return self.end_ns - self.start_ns


class Steps(NamedTuple):
    """The steps of one trace, in order, and how they were found."""

    whole: tuple[Step, ...]  # begin and end are both in the trace
    partial: tuple[Step, ...]  # recorded only in part (the last one): ends with its last event
    how: str  # a phrase for the user; "" where the trace marks no steps
    is_guess: bool = False  # from repetition on one thread: other threads may run the same
    kind: str = ""  # where a recording has steps of several kinds
    note: str = ""  # a sentence on the steps of other kinds


NO_STEPS = Steps((), (), "")


def step_table(steps: Sequence[Step]) -> Int64:
    """Convert steps to rows (n, 3): number, begin, end."""
    return np.array(steps, np.int64).reshape(-1, 3)


def windows(steps: Int64) -> Int64:
    """Extend each step of a table (n, 3) to the start of the next one.

    A step before a pause (a number left out, or a time longer than the step) keeps its end.
    """
    number, begin, end = steps.T
    pause = begin[1:] - end[:-1]
    goes_on = (np.diff(number) == 1) & (pause >= 0) & (pause <= (end - begin)[:-1])
    extended: Int64 = steps.copy()
    extended[:-1, 2] = np.where(goes_on, begin[1:], np.minimum(end[:-1], begin[1:]))
    return extended


def between(marks: Int64) -> list[Step]:
    """Make steps from each of `marks` to the next, labelled from 1."""
    times = marks.tolist()
    return [Step(i, start, end) for i, (start, end) in enumerate(itertools.pairwise(times), 1)]


def rounds(begin_ns: int, ends_ns: Int64, how: str) -> Steps:
    """Make steps from each end to the next; the first is partial, as only its end is marked."""
    whole = (step._replace(label=step.label + 1) for step in between(ends_ns))
    return Steps(tuple(whole), (Step(1, begin_ns, int(ends_ns[0])),), how)


def spans(trace: Trace, rows: Int64, labels: Sequence[int]) -> list[Step]:
    """Take the slices `rows` as steps, in order of time."""
    steps = map(Step, labels, trace.ts_ns[rows].tolist(), trace.end_ns[rows].tolist())
    return sorted(steps, key=lambda step: step.start_ns)


def in_first_process(trace: Trace, rows: Int64) -> Int64:
    """Select the rows of the process of the first row."""
    pids = [trace.tracks[track].pid for track in trace.track_id[rows].tolist()]
    return rows[[pid == pids[0] for pid in pids]] if pids else rows


def with_slices(trace: Trace, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Drop empty steps: the profiler may close one when it stops."""
    n_inside = np.diff(np.searchsorted(np.sort(trace.ts_ns), step_table(steps)[:, 1:]), axis=1)[:, 0]
    return tuple(step for step, n in zip(steps, n_inside.tolist(), strict=True) if n > 1)


def numbered_once(steps: Steps) -> Steps:
    """Drop duplicates; if two steps have the same number, count all from 1 in order of time."""
    every = sorted({*steps.whole, *steps.partial}, key=lambda step: step[1:])
    if len({step.label for step in every}) == len(steps.whole) + len(steps.partial):
        return steps
    number = {step: i for i, step in enumerate(every, 1)}
    whole, partial = (
        tuple(step._replace(label=number[step]) for step in dict.fromkeys(part))
        for part in (steps.whole, steps.partial)
    )
    return steps._replace(whole=whole, partial=partial)


#: Common names of the argument that numbers the step of a slice.
STEP_ARGS = ("step", "iteration")


# ---- steps that nothing marks: the training loop shows them


def loop_steps(trace: Trace, may_be_body: Mask) -> Steps:
    """Find the steps of the training loop.

    They last from the end of one call of the optimizer to the end of the next, else from one of the outermost
    spans that repeat to the next (see `_body`), of `may_be_body` (n,).
    """
    rows = outer_rows(trace, lambda name: name.startswith("Optimizer.step#"))
    if len(rows) < 2:
        return _by_outermost(trace, may_be_body)
    how = f"end of {trace.names[trace.name_id[rows[0]]]} to the next"
    return rounds(int(trace.ts_ns.min()), trace.end_ns[rows], how)


def steps_by_name(trace: Trace, name: str) -> Steps:
    """Make steps from one annotation of that name (before a ``#``, or whole) to the next.

    Without an annotation, from one instant of that name to the next; for ``args.KEY``, by that argument.
    TraceError where the trace has neither.
    """
    if (key := argument(name)) is not None:
        return steps_by_argument(trace, key)

    def accept(name_in_trace: str) -> bool:
        return name in (name_in_trace, name_in_trace.split("#")[0])

    rows = outer_rows(trace, accept)
    if len(rows):
        return _from_spans(trace, rows, name)
    points = trace.points
    accepted = np.array([*map(accept, trace.names), False], np.bool_)
    instants = np.flatnonzero(accepted[points.name_id])
    if len(trace) and not len(instants):
        raise TraceError(f"{trace.path}: --step_by {name}: no annotation and no instant has that name")
    marks = np.sort(points.ts_ns[instants[points.track_id[instants] == points.track_id[instants[:1]]]])
    end = int(trace.end_ns.max(initial=0))
    last = [Step(len(marks), int(mark), end) for mark in marks[-1:].tolist() if end > mark]
    return Steps(tuple(between(marks)), tuple(last), f"one {name} to the next")


def steps_by_argument(trace: Trace, key: str) -> Steps:
    """Make steps from an argument of the slices: its number, or its index among other values.

    A step begins with its first slice and lasts until the next one begins; the last one gets the usual pause.
    Where numbers are missing, single steps are recorded: each ends with its last slice.
    """
    column = trace.args.get(key)
    if column is None or not len(column.rows):
        return NO_STEPS
    distinct, index = numbered(map(str, column.values))
    begin, end = np.full(len(distinct), trace.end_ns.max()), np.full(len(distinct), trace.ts_ns.min())
    np.minimum.at(begin, index, trace.ts_ns[column.rows])
    np.maximum.at(end, index, trace.end_ns[column.rows])
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    numbers = natural_numbers(distinct)
    number = np.arange(1, len(order) + 1) if numbers is None else np.array(numbers, np.int64)[order]
    if len(number) > 1 and (np.diff(number) == 1).all():
        end[-1] += max(int(np.median(begin[1:] - end[:-1])), 0)
        end[:-1] = begin[1:]
    end[:-1] = np.minimum(end[:-1], begin[1:])
    steps = map(Step, number.tolist(), begin.tolist(), end.tolist())
    return Steps(tuple(step for step in steps if step.dur_ns > 0), (), f"the slices of one {key}")


def argument(field: str | None) -> str | None:
    """Extract KEY from ``args.KEY``; None for any other field."""
    return field.removeprefix("args.") if field is not None and field.startswith("args.") else None


def natural_numbers(values: Iterable[object]) -> list[int] | None:
    """Convert integers from 0 on, or texts of such, to integers; None if a value is something else."""
    texts = [str(value) if isinstance(value, int | str) else "" for value in values]
    return [int(text) for text in texts] if all(t.isdecimal() and len(t) <= 9 for t in texts) else None


def says_step(trace: Trace) -> str:
    """Name the argument that numbers the step of every slice, ``step`` or ``iteration``; "" for none."""
    for key in STEP_ARGS:
        column = trace.args.get(key)
        if column is None or not len(column.rows) == len(trace) > 0:
            continue
        if natural_numbers(dict.fromkeys(map(str, column.values))) is not None:
            return key
    return ""


def steps_by_updates(trace: Trace, works: Mask) -> Steps:
    """Make steps from the last of each run of parameter updates to the next, if all do the same operations.

    `works` (n,) are the slices that compute.
    """
    rows, updates = np.flatnonzero(works), by_name(trace, is_parameter_update)
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    is_last = updates[rows] & ~np.append(updates[rows][1:], False)
    if is_last.sum() < LEAST_REPEATS:
        return NO_STEPS
    ends = np.maximum.accumulate(trace.end_ns[rows])[is_last]
    work = np.split(trace.name_id[rows], np.flatnonzero(is_last) + 1)[: len(ends)]
    if len({tuple(np.sort(names).tolist()) for names in work[1:]}) > 1:
        return NO_STEPS
    return rounds(int(trace.ts_ns.min()), ends, "one update of the parameters to the next")


def _by_outermost(trace: Trace, may_be_body: Mask) -> Steps:
    bodies: list[Int64] = []
    for every in _groups(np.arange(len(trace)), trace.track_id):
        rows = every[may_be_body[every]]
        names = np.sort(trace.name_id[rows])
        if not (names[LEAST_REPEATS - 1 :] == names[: 1 - LEAST_REPEATS]).any():
            continue
        rows = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows]))]
        if len(body := _body(trace, rows, every)):
            bodies.append(body)
    if not bodies:
        return NO_STEPS
    rows = max(bodies, key=lambda body: int(trace.dur_ns[body].sum()))
    return _from_spans(trace, rows, trace.names[trace.name_id[rows[0]]])._replace(is_guess=True)


def _body(trace: Trace, rows: Int64, every: Int64) -> Int64:
    """Find the outermost of a thread's `rows` that repeat like a loop's body; or none.

    They contain other candidates and cover half of the time of the outermost; or they contain only slices of
    other kinds (`every`) and cover nearly all of the thread's busy time.
    """
    busy_ns = union_length(trace.ts_ns[every], trace.end_ns[every])
    middle_ns = (trace.ts_ns[rows] + trace.end_ns[rows]) // 2
    begun = np.searchsorted(np.sort(trace.ts_ns[every]), [trace.ts_ns[rows], middle_ns])
    name, depth = trace.name_id[rows], _depths(trace, rows)
    has_children = np.append(depth[1:] > depth[:-1], False)
    least_ns = BODY_COVERS * int(trace.dur_ns[rows[depth == 0]].sum())
    for same_depth in _groups(np.arange(len(rows)), depth):
        for group in _groups(same_depth, name):
            dur_ns = trace.dur_ns[rows[group]]
            if dur_ns.sum() < (least_ns if has_children[group].all() else BODY_ALONE * busy_ns):
                continue
            if (np.diff(begun[:, group], axis=0) < 2).any():  # an empty span
                continue
            low, high = np.quantile(dur_ns, (0.25, 0.75))
            if low >= BODY_ALIKE * high:
                return np.asarray(rows[group])
    return np.empty(0, np.int64)


def _groups(rows: Int64, number: NDArray[np.integer]) -> list[Int64]:
    """List the rows of each number that occurs often enough; the numbers ascend."""
    groups = [rows[places] for places in places_by_value(number[rows])]
    return [group for group in groups if len(group) >= LEAST_REPEATS]


def _depths(trace: Trace, rows: Int64) -> Int64:
    """Count the slices of the track around each of `rows`, in order of time, despite rounded times."""
    depth = np.empty(len(rows), np.int64)
    open_ends: list[int] = []
    times = zip(trace.ts_ns[rows].tolist(), trace.end_ns[rows].tolist(), strict=True)
    for i, (start, end) in enumerate(times):
        while open_ends and open_ends[-1] <= (start if end <= open_ends[-1] else start + ROUNDED_TIMES_NS):
            open_ends.pop()
        depth[i] = len(open_ends)
        open_ends.append(end)
    return depth


def _from_spans(trace: Trace, rows: Int64, name: str) -> Steps:
    """Make steps from each of the spans `rows` to the next; the last ends with its span."""
    marks = np.append(trace.ts_ns[rows], trace.end_ns[rows[-1]])
    return Steps(tuple(between(marks)), (), f"one {name} to the next")


def outer_rows(trace: Trace, accept: Callable[[str], bool]) -> Int64:
    """Select the outermost slices of accepted names on the thread of the first, in order."""
    rows = np.flatnonzero(by_name(trace, accept) & ~by_cat(trace, "gpu_user_annotation".__eq__))
    if not len(rows):
        return rows
    rows = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows]))]
    rows = rows[trace.track_id[rows] == trace.track_id[rows[0]]]
    return np.asarray(rows[_depths(trace, rows) == 0])
