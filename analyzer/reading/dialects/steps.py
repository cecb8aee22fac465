"""Training steps: what they are, and how to find them where the recording does not mark them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from analyzer.base.arrays import Int64, Mask, NDArray
from analyzer.base.arrays.intervals import union_length
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
    """One training step, from `start_ns` to just before `end_ns`.

    `label` is the number the trace gives it (``ProfilerStep#7``, a batch's number), else 1 for the
    first recorded step.
    """

    label: int
    start_ns: int
    end_ns: int

    @property
    def dur_ns(self) -> int:
        """How long the step took."""
        return self.end_ns - self.start_ns


class Steps(NamedTuple):
    """The steps of one trace, in order, and how they were found."""

    whole: tuple[Step, ...]  # begin and end are both in the trace
    partial: tuple[Step, ...]  # recorded only in part (the last one): ends with its last event
    how: str  # a phrase for the user; "" where the trace marks no steps
    is_guess: bool = False  # by what repeats on one thread: others may run the same beside it
    kind: str = ""  # what these steps do, where a recording has steps of several kinds
    note: str = ""  # a sentence on the steps of other kinds


NO_STEPS = Steps((), (), "")


def step_table(steps: Sequence[Step]) -> Int64:
    """Return number, begin and end of each step (n, 3)."""
    return np.array(steps, np.int64).reshape(-1, 3)


def between(marks: Int64) -> list[Step]:
    """Return the steps from each of `marks` to the next, labelled from 1."""
    times = marks.tolist()
    return [Step(i, start, end) for i, (start, end) in enumerate(itertools.pairwise(times), 1)]


def rounds(begin_ns: int, ends_ns: Int64, how: str) -> Steps:
    """Return the steps from each of the ends to the next; of the first only the end is marked."""
    whole = (step._replace(label=step.label + 1) for step in between(ends_ns))
    return Steps(tuple(whole), (Step(1, begin_ns, int(ends_ns[0])),), how)


def spans(trace: Trace, rows: Int64, labels: Sequence[int]) -> list[Step]:
    """Return the slices `rows` as steps, in order of time."""
    steps = map(Step, labels, trace.ts_ns[rows].tolist(), (trace.ts_ns[rows] + trace.dur_ns[rows]).tolist())
    return sorted(steps, key=lambda step: step.start_ns)


def in_first_process(trace: Trace, rows: Int64) -> Int64:
    """Return those of `rows` that are of the first one's process."""
    pids = [trace.tracks[track].pid for track in trace.track_id[rows].tolist()]
    return rows[[pid == pids[0] for pid in pids]] if pids else rows


def with_slices(trace: Trace, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps in which another slice begins: the profiler may close an empty one when it stops."""
    bounds = np.array([(step.start_ns, step.end_ns) for step in steps], np.int64).reshape(-1, 2)
    n_inside = np.diff(np.searchsorted(np.sort(trace.ts_ns), bounds), axis=1)[:, 0]
    return tuple(step for step, n in zip(steps, n_inside.tolist(), strict=True) if n > 1)


def numbered_once(steps: Steps) -> Steps:
    """Return the steps, each once; where two have one number they are counted from 1 in order of time."""
    every = sorted({*steps.whole, *steps.partial}, key=lambda step: step[1:])
    if len({step.label for step in every}) == len(steps.whole) + len(steps.partial):
        return steps
    number = {step: i for i, step in enumerate(every, 1)}
    whole, partial = (
        tuple(step._replace(label=number[step]) for step in dict.fromkeys(part))
        for part in (steps.whole, steps.partial)
    )
    return steps._replace(whole=whole, partial=partial)


#: Arguments that say the step of a slice, as writers of timelines call them.
STEP_ARGS = ("step", "iteration")


# ---- steps that nothing marks: the training loop shows them


def loop_steps(trace: Trace, may_be_body: Mask) -> Steps:
    """Return the steps of the training loop that the recording shows.

    From the end of one call of the optimizer to the end of the next, else from one outermost span that
    repeats to the next: at least three of a name that contain others, last about as long, and cover half of
    the time in which their thread is busy.
    `may_be_body` (n,) are the slices that may be such a span.
    """
    steps = _by_optimizer(trace)
    return steps if steps.whole else _by_outermost(trace, may_be_body)


def steps_by_name(trace: Trace, name: str) -> Steps:
    """Return the steps from one annotation of that name (before a ``#``, or whole) to the next.

    Without an annotation, from one instant so called to the next; of ``args.KEY``, by that argument.
    TraceError where the trace has no annotation, and was read with no instant, of that name.
    """
    if (key := argument(name)) is not None:
        return steps_by_argument(trace, key)
    accepted = np.array([name in (own, own.split("#")[0]) for own in trace.names], np.bool_)
    rows = outer_rows(trace, lambda own: name in (own, own.split("#")[0]))
    if len(rows):
        return _from_spans(trace, rows, name)
    points = trace.points
    at = np.flatnonzero(accepted[points.name_id]) if len(accepted) else np.empty(0, np.int64)
    if len(trace) and not len(at):
        raise TraceError(f"{trace.path}: --step_by {name}: no annotation and no instant has that name")
    marks = np.sort(points.ts_ns[at[points.track_id[at] == points.track_id[at[:1]]]])
    end = int(trace.end_ns.max(initial=0))
    last = [Step(len(marks), int(one), end) for one in marks[-1:].tolist() if end > one]
    return Steps(tuple(between(marks)), tuple(last), f"one {name} to the next")


def steps_by_argument(trace: Trace, key: str) -> Steps:
    """Return the steps that slices tell by an argument: its number, or its place among other values.

    A step begins with its first slice and lasts until the next one begins; the last one as long after its
    slices as the others usually do. Where numbers are left out, single steps are recorded: each ends itself.
    """
    column = trace.args.get(key)
    if column is None or not len(column.rows):
        return NO_STEPS
    values = list(map(str, column.values))
    places = {value: i for i, value in enumerate(dict.fromkeys(values))}
    place = np.fromiter(map(places.__getitem__, values), np.int64, len(values))
    begin, end = np.full(len(places), np.iinfo(np.int64).max), np.full(len(places), np.iinfo(np.int64).min)
    np.minimum.at(begin, place, trace.ts_ns[column.rows])
    np.maximum.at(end, place, trace.end_ns[column.rows])
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    told = natural_numbers(places)
    number = np.arange(1, len(order) + 1) if told is None else np.array(told, np.int64)[order]
    if len(number) > 1 and (np.diff(number) == 1).all():
        end[-1] += max(int(np.median(begin[1:] - end[:-1])), 0)
        end[:-1] = begin[1:]
    end[:-1] = np.minimum(end[:-1], begin[1:])
    found = map(Step, number.tolist(), begin.tolist(), end.tolist())
    return Steps(tuple(step for step in found if step.dur_ns > 0), (), f"the slices of one {key}")


_ARGS = "args."


def argument(field: str | None) -> str | None:
    """Return the key of the events' args that ``args.KEY`` names; None for any other field, or none."""
    return field.removeprefix(_ARGS) if field is not None and field.startswith(_ARGS) else None


def natural_numbers(values: Iterable[object]) -> list[int] | None:
    """Return values as integers from 0 on, written as such or as text; None if one is something else."""
    texts = [
        str(value) if isinstance(value, int | str) and not isinstance(value, bool) else "" for value in values
    ]
    return [int(text) for text in texts] if all(t.isdecimal() and len(t) <= 9 for t in texts) else None


def says_step(trace: Trace) -> str:
    """Name the argument that numbers the step of every slice, ``step`` or ``iteration``; "" for none."""
    has = (key for key in STEP_ARGS if key in trace.args and len(trace.args[key].rows) == len(trace) > 0)
    return next(
        (key for key in has if natural_numbers(dict.fromkeys(map(str, trace.args[key].values))) is not None),
        "",
    )


def _by_optimizer(trace: Trace) -> Steps:
    rows = outer_rows(trace, lambda name: name.startswith("Optimizer.step#"))
    if len(rows) < 2:
        return NO_STEPS
    how = f"end of {trace.names[trace.name_id[rows[0]]]} to the next"
    return rounds(int(trace.ts_ns.min()), trace.ts_ns[rows] + trace.dur_ns[rows], how)


def steps_by_updates(trace: Trace, works: Mask) -> Steps:
    """Take steps from the last update of parameters to the next, if all do the same operations.

    `works` (n,) are the slices that compute. One step may update many parameters in a row.
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
    found: list[Int64] = []
    for every in _groups(np.arange(len(trace)), trace.track_id):
        rows = every[may_be_body[every]]
        names = np.sort(trace.name_id[rows])
        if not (names[LEAST_REPEATS - 1 :] == names[: 1 - LEAST_REPEATS]).any():
            continue
        rows = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows]))]
        if len(body := _body(trace, rows, every)):
            found.append(body)
    if not found:
        return NO_STEPS
    rows = max(found, key=lambda body: int(trace.dur_ns[body].sum()))
    return _from_spans(trace, rows, trace.names[trace.name_id[rows[0]]])._replace(is_guess=True)


def _body(trace: Trace, rows: Int64, every: Int64) -> Int64:
    """Find the outermost of a thread's `rows` that repeat, as a loop's body does; or none.

    They contain others of these and cover half of the time of the outermost; or they contain only others of
    its slices (`every`), and cover nearly all of the time in which it is busy.
    """
    busy_ns = union_length(trace.ts_ns[every], trace.end_ns[every])
    middle_ns = (trace.ts_ns[rows] + trace.end_ns[rows]) // 2
    begun = np.searchsorted(np.sort(trace.ts_ns[every]), [trace.ts_ns[rows], middle_ns])
    name, depth = trace.name_id[rows], _depths(trace, rows)
    has_children = np.append(depth[1:] > depth[:-1], False)
    least_ns = BODY_COVERS * int(trace.dur_ns[rows[depth == 0]].sum())
    for places in _groups(np.arange(len(rows)), depth):
        for own in _groups(places, name):
            dur_ns = trace.dur_ns[rows[own]]
            if dur_ns.sum() < (least_ns if has_children[own].all() else BODY_ALONE * busy_ns):
                continue
            if (np.diff(begun[:, own], axis=0) < 2).any():  # nothing in it but itself
                continue
            low, high = np.quantile(dur_ns, (0.25, 0.75))
            if low >= BODY_ALIKE * high:
                return np.asarray(rows[own])
    return np.empty(0, np.int64)


def _groups(places: Int64, number: NDArray[np.integer]) -> Iterator[Int64]:
    """Yield the places of each number that is not rare, in order; the numbers ascend."""
    order = places[np.argsort(number[places], kind="stable")]
    ordered = number[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    count = np.diff(np.append(first, len(ordered)))
    often = count >= LEAST_REPEATS
    for at, n in zip(first[often].tolist(), count[often].tolist(), strict=True):
        yield order[at : at + n]


def _depths(trace: Trace, rows: Int64) -> Int64:
    """Count the slices of the track that contain each of `rows`, in order of time.

    One that only seems to begin before another one ends, as times are rounded, follows it.
    """
    depth = np.empty(len(rows), np.int64)
    open_ends: list[int] = []
    starts, ends = trace.ts_ns[rows].tolist(), (trace.ts_ns[rows] + trace.dur_ns[rows]).tolist()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while open_ends and open_ends[-1] <= (start if end <= open_ends[-1] else start + ROUNDED_TIMES_NS):
            open_ends.pop()
        depth[i] = len(open_ends)
        open_ends.append(end)
    return depth


def _from_spans(trace: Trace, rows: Int64, name: str) -> Steps:
    """Return the steps from one of the spans `rows` to the next; the last ends with its span."""
    if not len(rows):
        return NO_STEPS
    last = int(rows[-1])
    marks = np.append(trace.ts_ns[rows], trace.ts_ns[last] + trace.dur_ns[last])
    return Steps(tuple(between(marks)), (), f"one {name} to the next")


def outer_rows(trace: Trace, accept: Callable[[str], bool]) -> Int64:
    """Return the slices of accepted names, of the first one's thread, in order; none inside another."""
    rows = np.flatnonzero(by_name(trace, accept) & ~by_cat(trace, "gpu_user_annotation".__eq__))
    if not len(rows):
        return rows
    rows = rows[np.lexsort((-trace.dur_ns[rows], trace.ts_ns[rows]))]
    rows = rows[trace.track_id[rows] == trace.track_id[rows[0]]]
    return np.asarray(rows[_depths(trace, rows) == 0])
