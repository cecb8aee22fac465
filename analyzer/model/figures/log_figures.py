"""The figures of one rank of a step log: its rows tell how long the parts of each step took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.opname import OpName
from analyzer.model.figures.durations import operation_stats
from analyzer.model.figures.operations_by_step import Operations, OpKey
from analyzer.model.figures.rank_figures import LogRows, RankFigures, Wanted
from analyzer.model.figures.time_by_role import Breakdown
from analyzer.reading import dialects
from analyzer.reading.dialects import Role, is_communication
from analyzer.reading.dialects.steps import Step, Steps
from analyzer.reading.dialects.system import StepRows
from analyzer.reading.formats.columns import Trace
from trace_utils import Source

#: Steps of a rank by which figures go. Those of a longer log are means of as many in a row as are needed: a
#: page shows 2,000 cells, and 1,000 ranks with so many steps take half a gigabyte.
MOST_STEPS = 1_000


class _Rows(NamedTuple):
    """k steps of a rank: the step and its m - 1 parts, (m, k) each, and v other numbers (v, k).

    Each step is the mean of `n` (k,) in a row.
    """

    label: Int64
    begin_ns: Int64
    n: Int64
    events: Int64
    total_ns: Float64
    values: Float64

    @property
    def mean_ns(self) -> Float64:
        """How long the step and its parts took (m, k)."""
        return np.asarray(self.total_ns / self.n)


def log_figures(source: Source, trace: Trace, wanted: Wanted, step_by: str | None = None) -> RankFigures:
    """Work out the figures of a rank of a step log."""
    system = dialects.of(trace)
    recorded = system.step_rows(trace, step_by)
    parts = {name: part for name, part in recorded.parts.items() if part[1].any()}
    names = [trace.names[0], *parts]
    roles = [Role.FRAME, *(role for role, _ in parts.values())]
    rows = _rows(recorded, trace, [took for _, took in parts.values()])
    steps, width = _stretched(rows)
    figures = RankFigures(source, trace.dialect, int(rows.events.sum()))
    means_ns = _spent(steps)
    if wanted.rows:
        spent_ns = means_ns if width == 1 else _spent(rows).astype(np.float32)
        values = dict(zip(recorded.values, steps.values, strict=True))
        log = LogRows(names, roles, rows.label, spent_ns, steps.label, means_ns, values)
        return replace(figures, log=log)
    keys = [OpKey(name, OpName.parse(name).cat or "") for name in names]
    if wanted.durations:
        op, step = np.nonzero(rows.events)
        stats = operation_stats(keys, op.astype(np.int32), rows.total_ns[op, step].astype(np.int64))
        category_ns = {keys[0].cat: int(rows.total_ns[0].sum())}
        figures = replace(figures, durations=stats, category_ns=category_ns)
    if wanted.operations:
        labels = steps.label.tolist()
        operations = Operations(keys, steps.events, steps.total_ns, labels, means_ns)
        figures = replace(figures, operations=operations)
    note = f"Each step is the mean of {width} in a row: the log has more than {MOST_STEPS:,}."
    return replace(
        figures,
        steps=Steps(_steps(steps), (), "rows of the log", note=note if width > 1 else ""),
        breakdown=_breakdown(steps, np.array(roles, np.int8), system.rule(trace)),
    )


def _rows(recorded: StepRows, trace: Trace, parts: Sequence[Float64]) -> _Rows:
    """Sort the rows by step; of a step that several files have the last row holds."""
    label, took = recorded.label, np.array([trace.dur_ns, *parts], np.float64)
    values = np.array([*recorded.values.values()]).reshape(-1, len(label))
    order = np.argsort(label, kind="stable")
    order = order[np.append(np.diff(label[order]) > 0, True)]
    took = took[:, order]
    n, events = np.ones(len(order), np.int64), (took > 0).astype(np.int64)
    return _Rows(label[order], trace.ts_ns[order], n, events, took, values[:, order])


def _stretched(rows: _Rows) -> tuple[_Rows, int]:
    """Join steps in a row where there are more than `MOST_STEPS`; also of how many each is the mean."""
    if len(rows.label) <= MOST_STEPS:
        return rows, 1
    first, label, width = _stretches(rows.label)
    n = np.diff(first, append=len(rows.label))
    events, total_ns, values = (
        np.add.reduceat(column, first, axis=1) for column in (rows.events, rows.total_ns, rows.values)
    )
    return _Rows(label, rows.begin_ns[first], n, events, total_ns, values / n), width


def _steps(rows: _Rows) -> tuple[Step, ...]:
    ends_ns = rows.begin_ns + np.rint(rows.mean_ns[0]).astype(np.int64)
    return tuple(map(Step, rows.label.tolist(), rows.begin_ns.tolist(), ends_ns.tolist()))


def _spent(rows: _Rows) -> Float64:
    """Return the time of each operation, the step first and nothing last, in each step (k, m + 1)."""
    spent: Float64 = np.column_stack([rows.mean_ns.T, np.zeros(len(rows.label))])
    spent[:, 0] -= rows.mean_ns[1:].sum(0)
    return np.asarray(np.maximum(spent, 0.0))


def _stretches(label: Int64) -> tuple[Int64, Int64, int]:
    """Return the first row of each stretch of as many steps that follow each other, its number, and how many.

    All ranks have the same: they begin at multiples of a power of two of what one step is to the next.
    """
    usual = max(1, int(np.median(np.diff(label))))
    width = 1 << int(np.ceil(np.log2(len(label) / MOST_STEPS)))
    stretch = label // (usual * width)
    first = np.flatnonzero(np.diff(stretch, prepend=stretch[0] - 1))
    return first, stretch[first] * (usual * width), width


def _breakdown(rows: _Rows, role: NDArray[np.int8], rule: str) -> Breakdown:
    """Split the time of each step by role; parts of a step come one after the other."""
    parts_ns, role = rows.mean_ns[1:], role[1:]
    computes = (role == Role.COMPUTE) | (role == Role.UPDATE)
    is_of = (computes, is_communication(role), role == Role.COPY)
    wall, compute, comm, copies = (
        np.rint(took).astype(np.int64)
        for took in (rows.mean_ns[0], *(parts_ns[chosen].sum(0) for chosen in is_of))
    )
    return Breakdown(rows.label.tolist(), wall, compute, comm, 0 * wall, wall - compute - comm - copies, rule)
