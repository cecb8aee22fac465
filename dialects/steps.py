"""Where the training steps of a trace begin and end: each dialect marks them differently."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.columns import Int64, Trace
from opname import OpName

Mask = NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one trace, in order, and how they were told."""

    whole: tuple[Step, ...]  # begin and end are both in the trace
    partial: tuple[Step, ...]  # recorded only in part (the last one): ends with its last event
    how: str  # a phrase for the user; "" where the trace marks no steps


NO_STEPS = Steps((), (), "")


def step_bounds(trace: Trace, *, whole: bool = True) -> list[Step]:
    """Return the steps of `trace`, in order; [] where it marks none.

    `whole=False` adds a step of which only a part is recorded, bounded by the events that are there.
    See `find_steps` for what marks a step.
    """
    steps = find_steps(trace)
    return list(steps.whole) if whole else sorted(steps.whole + steps.partial, key=lambda step: step.start_ns)


def find_steps(trace: Trace) -> Steps:
    """Return the steps of `trace` and how they were told.

    - Composer: ``event/batch``; its number where `trace.args` has ``batch``.
    - Kineto: ``ProfilerStep#N`` of the CPU (the GPU's annotation of that name is another interval).
    - BytePS: from one load of input data (``I/O``) to the next where every step has exactly one, else
      from the first forward operation to the next, else the period of the first gradient.
    - Horovod: from the end of one round of reductions over all tensors to the end of the next.

    Of a trace that holds several ranks, the first rank's markers are taken: the ranks of a
    synchronous job step together.
    """
    for find in (_batches, _annotated, _byteps, _horovod):
        steps = find(trace)
        if steps.whole or steps.partial:
            return steps
    return NO_STEPS


def io_steps(trace: Trace) -> list[Step]:
    """Return the periods from one ``I/O`` to the next, labelled 1, 2, …: also of steps not traced.

    BytePS's profiler records the loads of every step from the first, warm-up included, though the
    operations only of the traced ones.
    """
    ops = _first_rank(trace)
    return _between(_starts(trace, _names_where(trace, ops, lambda op: op.cat == "I/O")))


def fw_bw_ns(trace: Trace, steps: list[Step]) -> list[int | None]:
    """Return per step the time from the start of its first forward to the end of its last backward.

    BytePS's ``FW.`` and ``BW.`` operations, Composer's ``event/forward`` and ``event/backward``; None
    for a step without them.
    """
    ops = _first_rank(trace)
    forward = _names_where(trace, ops, lambda op: op.cat == "FW" or op == OpName(None, "event/forward"))
    backward = _names_where(trace, ops, lambda op: op.cat == "BW" or op == OpName(None, "event/backward"))
    starts = _starts(trace, forward)
    rows = np.flatnonzero(backward[trace.name_id])
    order = np.argsort(trace.ts_ns[rows], kind="stable")
    bw_starts, bw_ends = trace.ts_ns[rows][order], trace.end_ns[rows][order]
    found: list[int | None] = []
    for step in steps:
        fw = starts[np.searchsorted(starts, step.start_ns) : np.searchsorted(starts, step.end_ns)]
        ends = bw_ends[np.searchsorted(bw_starts, step.start_ns) : np.searchsorted(bw_starts, step.end_ns)]
        found.append(int(ends.max() - fw[0]) if len(fw) and len(ends) else None)
    return found


# ---- Kineto and Composer: spans that are the steps

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


def _annotated(trace: Trace) -> Steps:
    numbers = {
        i: int(match[1]) for i, name in enumerate(trace.names) if (match := _PROFILER_STEP.fullmatch(name))
    }
    if not numbers:
        return NO_STEPS
    on_gpu = np.array([cat == "gpu_user_annotation" for cat in trace.cats], np.bool_)
    rows = np.flatnonzero(np.isin(trace.name_id, list(numbers)) & ~on_gpu[trace.cat_id])
    rows = rows[[len(rows) > 0 and _same_process(trace, int(row), int(rows[0])) for row in rows]]
    spans = _spans(trace, rows, [numbers[i] for i in trace.name_id[rows].tolist()])
    return Steps(tuple(span for span in spans if _has_inside(trace, span)), (), "ProfilerStep annotations")


def _batches(trace: Trace) -> Steps:
    if "event/batch" not in trace.names:
        return NO_STEPS
    rows = np.flatnonzero(trace.name_id == trace.names.index("event/batch"))
    rows = rows[[_same_process(trace, int(row), int(rows[0])) for row in rows]]
    known = trace.args["batch"].as_dict() if "batch" in trace.args else {}
    labels = [known.get(row, i) for i, row in enumerate(rows.tolist(), 1)]
    if not all(isinstance(label, int) for label in labels):
        labels = list(range(1, len(rows) + 1))
    return Steps(tuple(_spans(trace, rows, labels)), (), "event/batch spans")


def _same_process(trace: Trace, row: int, other: int) -> bool:
    return bool(trace.tracks[trace.track_id[row]].pid == trace.tracks[trace.track_id[other]].pid)


def _spans(trace: Trace, rows: Int64, labels: list[int]) -> list[Step]:
    steps = map(Step, labels, trace.ts_ns[rows].tolist(), trace.end_ns[rows].tolist())
    return sorted(steps, key=lambda step: step.start_ns)


def _has_inside(trace: Trace, step: Step) -> bool:
    """Whether any other slice begins in `step`: the profiler may close an empty one when it stops."""
    return int(np.count_nonzero((trace.ts_ns >= step.start_ns) & (trace.ts_ns < step.end_ns))) > 1


# ---- BytePS: one step is one passage through the model


def _byteps(trace: Trace) -> Steps:
    ops = _first_rank(trace)
    marks, how = _passages(trace, ops)
    loads = _starts(trace, _names_where(trace, ops, lambda op: op.cat == "I/O"))
    work = _work_starts(trace, ops)
    if len(marks):
        refined = _one_load_each(loads, marks, work)
        if refined is not None:
            marks, how = refined, "I/O to I/O"
    elif len(loads):
        marks, how = loads, "I/O to I/O"
    else:
        marks, how = _starts(trace, _names_where(trace, ops, lambda op: op.cat == "STEP")), "STEP to STEP"
    if not len(marks):
        return NO_STEPS
    return Steps(tuple(_between(marks)), _unfinished(trace, work, marks), how)


def _passages(trace: Trace, ops: list[OpName | None]) -> tuple[Int64, str]:
    """Return when each passage through the model begins, and what usually begins it."""
    forward = _names_where(trace, ops, lambda op: op.cat == "FW")
    if forward[trace.name_id].any():
        first = _first_forward(trace, forward)
        return _starts(trace, np.arange(len(ops)) == first), f"{trace.names[first]} to {trace.names[first]}"
    gradient = _first_gradient(trace, ops)
    if gradient is None:
        return np.empty(0, np.int64), ""
    return _first_gradients(trace, ops, gradient), f"period of {trace.names[gradient]}"


def _first_gradients(trace: Trace, ops: list[OpName | None], usual: int) -> Int64:
    """Return when the first communication of each step starts: mostly, not always, the one called `usual`.

    The n-th event of every communication that occurs as often is the n-th step's.
    """
    names = _whole_comms(trace, ops)
    counts = np.bincount(trace.name_id, minlength=len(names))
    rows = np.flatnonzero((names & (counts == counts[usual]))[trace.name_id])
    rows = rows[np.lexsort((trace.ts_ns[rows], trace.name_id[rows]))]
    starts: Int64 = trace.ts_ns[rows].reshape(-1, counts[usual]).min(axis=0)
    return starts


def _first_forward(trace: Trace, forward: Mask) -> int:
    """Return the name id of the operation that begins the forward pass.

    The one that depends on the input or the last update where `trace.args` tells; otherwise the one
    that typically follows the longest pause among forward operations: backward, communication and
    update lie in it.
    """
    told = _fed_by_input(trace, forward)
    if told is not None:
        return told
    rows = np.flatnonzero(forward[trace.name_id])
    rows = rows[np.argsort(trace.ts_ns[rows], kind="stable")]
    ids = trace.name_id[rows]
    pause = trace.ts_ns[rows][1:] - np.maximum.accumulate(trace.end_ns[rows])[:-1]
    distinct = list(dict.fromkeys(ids.tolist()))
    medians = {i: np.median(pause[ids[1:] == i]) for i in distinct if (ids[1:] == i).any()}
    return int(ids[0]) if not medians else max(medians, key=lambda i: medians[i])


def _fed_by_input(trace: Trace, forward: Mask) -> int | None:
    fed = [
        int(trace.name_id[row])
        for key, column in trace.args.items()
        if key.startswith(("input", "arg"))
        for row, value in zip(column.rows.tolist(), column.values, strict=True)
        if forward[trace.name_id[row]] and OpName.parse(str(value)).cat in ("I/O", "STEP")
    ]
    counts = Counter(fed)
    return min(counts, key=lambda i: (-counts[i], int(_starts_of(trace, i)[0]))) if counts else None


def _first_gradient(trace: Trace, ops: list[OpName | None]) -> int | None:
    """Return the name id of the communication that is the first of its step, on average.

    Only those that occur in the most steps count: of a file that was cut, some tensors are short.
    """
    counts = np.bincount(trace.name_id, minlength=len(ops)) * _whole_comms(trace, ops)
    if not counts.any():
        return None
    origin = int(trace.ts_ns.min())
    total = np.bincount(trace.name_id, (trace.ts_ns - origin).astype(np.float64), len(ops))
    mean = np.where(counts == counts.max(), total / np.maximum(counts, 1), np.inf)
    return int(mean.argmin())


def _whole_comms(trace: Trace, ops: list[OpName | None]) -> Mask:
    """Return which names are whole communications; where there are none, their parts."""
    main = _names_where(trace, ops, lambda op: op.is_comm and op.queue is None)
    return main if main[trace.name_id].any() else _names_where(trace, ops, lambda op: op.is_comm)


def _work_starts(trace: Trace, ops: list[OpName | None]) -> Int64:
    """Return when what makes up a traced step begins: its communications, else its backward operations.

    An asynchronous engine begins the backward pass of a loss before the forward pass is through, so
    that of a step after the last traced one both can be there.
    """
    names = _whole_comms(trace, ops)
    if not names.any():
        names = _names_where(trace, ops, lambda op: op.cat == "BW")
    return _starts(trace, names)


def _one_load_each(loads: Int64, marks: Int64, work: Int64) -> Int64 | None:
    """Return the loads before each of `marks`, and the one that ends the last; None unless one each.

    Where no work follows the last mark, it only ends the step before it.
    """
    before = np.searchsorted(loads, marks, side="right") - 1
    if not len(loads) or before[0] < 0 or (np.diff(before) != 1).any():
        return None
    worked = len(work) > 0 and work[-1] >= marks[-1]
    return loads[before[0] : before[-1] + (2 if worked else 1)]


def _unfinished(trace: Trace, work: Int64, marks: Int64) -> tuple[Step, ...]:
    """Return the step that the last mark begins, if work of it is recorded.

    Data loaded, or the forward pass begun, for a step after the last traced one is no step.
    """
    if not len(work) or work[-1] < marks[-1]:
        return ()
    return (Step(len(marks), int(marks[-1]), int(trace.end_ns[trace.ts_ns >= marks[-1]].max())),)


# ---- Horovod: one step is one round over all tensors


def _horovod(trace: Trace) -> Steps:
    kinds = {name.removeprefix("NEGOTIATE_") for name in trace.names if name.startswith("NEGOTIATE_")}
    kinds -= {kind for kind in kinds if "BROADCAST" in kind}
    begins = trace.ts_ns[_named(trace, {f"NEGOTIATE_{kind}" for kind in kinds})]
    tensors = _rounds(trace, kinds)
    if not tensors or not len(begins):
        return NO_STEPS
    complete = min(map(len, tensors))
    ends = np.array([max(int(tensor[i]) for tensor in tensors) for i in range(complete)], np.int64)
    if not complete:
        return NO_STEPS
    whole = [step._replace(label=step.label + 1) for step in _between(ends)]
    return Steps(tuple(whole), (Step(1, int(begins.min()), int(ends[0])),), "rounds of reductions")


def _rounds(trace: Trace, kinds: set[str]) -> list[Int64]:
    """Return per tensor when its reductions end, of the tensors that are reduced once a step.

    A tensor is a process in a Horovod timeline; its n-th reduction belongs to the n-th step. Once a
    step are those as often as most are (one more or less where the recording was cut).
    """
    by_tensor: dict[object, list[int]] = {}
    for row in np.flatnonzero(_named(trace, kinds)).tolist():
        by_tensor.setdefault(trace.tracks[trace.track_id[row]].pid, []).append(row)
    if not by_tensor:
        return []
    usual = Counter(map(len, by_tensor.values())).most_common(1)[0][0]
    return [np.sort(trace.end_ns[rows]) for rows in by_tensor.values() if abs(len(rows) - usual) <= 1]


def _named(trace: Trace, names: set[str]) -> Mask:
    """Return which slices (n,) have one of these names."""
    return np.array([name in names for name in trace.names], np.bool_)[trace.name_id]


# ---- shared


def _first_rank(trace: Trace) -> list[OpName | None]:
    """Return the trace's names, parsed; None for those of other ranks than the first, and those unused."""
    used = set(np.unique(trace.name_id).tolist())
    ops = [OpName.parse(name) if i in used else None for i, name in enumerate(trace.names)]
    first = next((op for op in ops if op is not None and op.cat is not None), None)
    if first is None:
        return ops
    own = (first.worker, first.rank)
    return [op if op is not None and (op.worker, op.rank) == own else None for op in ops]


def _names_where(trace: Trace, ops: list[OpName | None], accept: Callable[[OpName], bool]) -> Mask:
    """Return which names (m,) are operations that `accept` takes."""
    return np.array([op is not None and accept(op) for op in ops], np.bool_)


def _starts(trace: Trace, names: Mask) -> Int64:
    return np.sort(trace.ts_ns[names[trace.name_id]])


def _starts_of(trace: Trace, name_id: int) -> Int64:
    return np.sort(trace.ts_ns[trace.name_id == name_id])


def _between(marks: Int64) -> list[Step]:
    """Return the steps from each of `marks` to the next, labelled from 1."""
    times = marks.tolist()
    return [Step(i, start, end) for i, (start, end) in enumerate(itertools.pairwise(times), 1)]
