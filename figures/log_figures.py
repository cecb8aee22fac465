"""The figures of one rank of a step log: its rows tell how long the parts of each step took."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from msgspec import Struct

from arrays import Float64, Int64, NDArray
from dialects import Role, is_communication
from dialects.steps import Step, Steps
from dialects.system import System
from figures.durations import Durations, sketched
from figures.operations_by_step import Operations, OpKey
from figures.time_by_role import Breakdowns
from formats.columns import Trace
from opname import OpName

#: Steps of a rank by which figures go. Those of a longer log are means of as many in a row as are needed: a
#: page shows 2,000 cells, and 1,000 ranks with so many steps take half a gigabyte.
MOST_STEPS = 1_000


class LogRows(Struct, frozen=True):
    """Each step of a rank's log: `labels` (k,), and `spent_ns` (k, m + 1) as of `Operations`."""

    labels: Int64
    spent_ns: NDArray[np.floating]


def log_figures(
    trace: Trace, system: System, by: str | None, *, durations: bool, operations: bool, rows: bool
) -> dict[str, Any]:
    """Return the figures of `RankFigures`; as of `Wanted`, with some of them, or `rows` and little else."""
    found = system.step_rows(trace, by)
    label, begin = found.label, trace.ts_ns
    parts = {name: took for name, (_, took) in found.parts.items() if took.any()}
    role = np.array([Role.FRAME, *(found.parts[name][0] for name in parts)], np.int8)
    took = np.array([trace.dur_ns, *parts.values()], np.float64)  # (m, k)
    values = np.array([*found.values.values()]).reshape(-1, len(label))
    if not (np.diff(label) > 0).all():  # of a step that several files have the last row holds
        order = np.lexsort((np.arange(len(label)), label))
        order = order[np.append(np.diff(label[order]) > 0, True)]
        label, begin, took, values = label[order], begin[order], took[:, order], values[:, order]
    keys = [OpKey(name, OpName.parse(name).cat or "") for name in (trace.names[0], *parts)]
    count, total, width = (took > 0).astype(np.int64), took, 1
    figures: dict[str, Any] = {"n_slices": int(count.sum())}
    if durations:
        each = _durations(keys, took)
        figures["durations"] = each if len(label) <= MOST_STEPS else sketched(each)
        figures["category_ns"] = {keys[0].cat: int(took[0].sum())}
    if len(label) > MOST_STEPS:
        if rows:
            figures["rows"] = LogRows(label, _spent(took).astype(np.float32))
        first, label, width = _stretches(label)
        n = np.diff(first, append=took.shape[1])
        count, total, values = (np.add.reduceat(one, first, axis=1) for one in (count, took, values))
        begin, took, values = begin[first], total / n, values / n
    labels = label.tolist()
    figures["values"] = {
        name: array("d", one.tobytes()) for name, one in zip(found.values, values, strict=True)
    }
    if rows:
        count, total = count[:, :0], total[:, :0]
    else:
        begins, ends = begin.tolist(), (begin + np.rint(took[0]).astype(np.int64)).tolist()
        note = f"Each step is the mean of {width} in a row: the log has more than {MOST_STEPS:,}."
        steps = tuple(map(Step, labels, begins, ends))
        figures["steps"] = Steps(steps, (), "rows of the log", note=note if width > 1 else "", width=width)
        figures |= {"breakdown": _breakdown(labels, begin, role, took), "rule": system.rule(trace)}
    if operations or rows:
        figures["operations"] = Operations(keys, count, total, role, labels, _spent(took))
    return figures


def _spent(took: Float64) -> Float64:
    """Return the time of each operation, the step first and nothing last, in each step (k, m + 1)."""
    spent: Float64 = np.column_stack([took.T, np.zeros(took.shape[1])])
    spent[:, 0] -= took[1:].sum(0)
    return np.asarray(np.maximum(spent, 0.0))


def _durations(keys: list[OpKey], took: Float64) -> Durations:
    """Return how long each operation took wherever it ran."""
    values = [np.sort(one[one > 0]).astype(np.int64) for one in took]
    return Durations(list(keys), np.concatenate(values), np.cumsum([0, *map(len, values)]))


def _stretches(label: Int64) -> tuple[Int64, Int64, int]:
    """Return the first row of each stretch of as many steps that follow each other, its number, and how many.

    All ranks have the same: they begin at multiples of a power of two of what one step is to the next.
    """
    usual = max(1, int(np.median(np.diff(label))))
    width = 1 << int(np.ceil(np.log2(len(label) / MOST_STEPS)))
    stretch = label // (usual * width)
    first = np.flatnonzero(np.diff(stretch, prepend=stretch[0] - 1))
    return first, stretch[first] * (usual * width), width


def _breakdown(labels: list[int], begin: Int64, role: NDArray[np.int8], took: Float64) -> Breakdowns:
    """Return where the time of each step goes; parts of a step come one after the other."""
    role = role[1:]
    whole, *rest = (
        np.rint(one).astype(np.int64)
        for one in (took[0], *(took[1:][chosen].sum(0) for chosen in (
            (role == Role.COMPUTE) | (role == Role.UPDATE), is_communication(role), role == Role.COPY)))
    )  # fmt: skip
    compute, comm, copies = rest
    return Breakdowns("", labels, begin, whole, compute, comm, 0 * whole, whole - compute - comm - copies)
