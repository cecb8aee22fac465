"""Many runs side by side: the average time of each operation and category in each of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from analyzer.base.errors import TraceError
from analyzer.base.opname import OpName
from analyzer.model.figures.job_figures import JobFigures
from analyzer.model.figures.operations_by_step import Operations
from analyzer.reading import dialects
from analyzer.reading.dialects import System

_Totals = dict[tuple[str, str], list[float]]  # (operation, category) -> nanoseconds, events


class SweepRow(Struct, frozen=True):
    """The averages (ns) of an operation, or of a category, per run; None where a run lacks it."""

    name: str
    cat: str
    mean_ns: Sequence[float | None]


def sweep(runs: Sequence[JobFigures]) -> tuple[list[SweepRow], list[SweepRow]]:
    """Average each operation, grouped by category, and each category over all ranks of each run.

    Partitions of a communication count as one operation. Raises `TraceError` where no operation occurs in
    more than one run.
    """
    parts = [(run.operations(tell_workers=False), dialects.named(run.dialects[0])) for run in runs]
    cats = _rows([_totals(*part, merged=True) for part in parts])
    order = {row.cat: at for at, row in enumerate(cats)}
    rows = sorted(_rows([_totals(*part, merged=False) for part in parts]), key=lambda row: order[row.cat])
    if not any(sum(mean is not None for mean in row.mean_ns) > 1 for row in rows):
        raise TraceError(f"{runs[0].path} and the other runs have no operation in common")
    return rows, cats


def _totals(ops: Operations, system: System, *, merged: bool) -> _Totals:
    """Add up time and events of each operation, partitions together; or, `merged`, of each category."""
    table: _Totals = {}
    for key, ns, events in zip(ops.keys, ops.total_ns.sum(1), ops.count.sum(1), strict=True):
        cat = system.category(key.name, key.cat)
        name = cat if merged else str(OpName.parse(key.name)._replace(key=None))
        total = table.setdefault((name, cat), [0, 0])
        total[0] += float(ns)
        total[1] += int(events)
    return table


def _rows(tables: Sequence[_Totals]) -> list[SweepRow]:
    """Average each row's events per run; rows come by first appearance."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [
        SweepRow(*key, [table[key][0] / table[key][1] if key in table else None for table in tables])
        for key in keys
    ]
