"""The tables and charts of a comparison; `options.compare` is the option."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from result import Bars, Cell, Chart, Column, Kind, Table

if TYPE_CHECKING:
    from compare.change import Change
    from compare.comparison import Comparison, OpChange
    from compare.run_table import MeasuredRun

_MOST_BARS = 20

#: What is said of every quantity that was tested.
CHANGE = (
    Column("avg_absolute_ms", "change (ms)", "float", scale="diverging"),
    Column("avg_relative", "change", "percent", 1, scale="diverging"),
    Column("significant", "significant", "bool"),
    Column("p_value", "p", "float", 4, floor=1e-4, minor=True),
    Column("ci_low_ms", "95 % from (ms)", "float", minor=True),
    Column("ci_high_ms", "to (ms)", "float", minor=True),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A comparison and the names of its runs."""

    found: Comparison
    a: str
    b: str


def shown(ops: Sequence[OpChange], args: Namespace) -> Sequence[OpChange]:
    """Return the operations that `--sort` and `--head` ask for."""
    if args.sort:
        ops = sorted(ops, key=_relative_increase, reverse=True)
    return ops[: args.head]


def _relative_increase(op: OpChange) -> float:
    relative = op.average.relative
    return math.inf if relative is None else relative  # it took no time in the base


def tested_cells(change: Change) -> tuple[Cell, ...]:
    """Return the cells of the columns `CHANGE`."""
    bounds = (ms_of(change.low_ns), ms_of(change.high_ns))
    return (ms_of(change.ns), change.relative, change.significant, change.p, *bounds)


def tables_of(pair: Pair, args: Namespace, *, alone: bool) -> list[Table]:
    """Return the tables of one comparison; unless it is the only one, their names tell which."""
    tables = [_operations(pair, args), _categories(pair)]
    if pair.found.ranks:
        tables.append(_ranks(pair))
    if any(pair.found.only_in):
        tables.append(_only(pair, args))
    if alone:
        return tables
    return [
        replace(table, name=f"{table.name} {pair.b}", title=f"{table.title}: {pair.b}") for table in tables
    ]


def _sides(key: str, what: str, kind: Kind, *, minor: bool = False) -> list[Column]:
    """Return two columns, the base's and the other's; `key` has a ``*`` where they differ."""
    return [
        Column(key.replace("*", side), f"{name} {what}", kind, minor=minor)
        for side, name in (("a", "base"), ("b", "new"))
    ]


def _operations(pair: Pair, args: Namespace) -> Table:
    columns = (
        Column("name", "operation"),
        Column("cat", "category", minor=True),
        *_sides("count_*", "count", "int", minor=True),
        *_sides("avg_*_ms", "avg (ms)", "float"),
        *CHANGE,
        Column("explained_ms", "explains of the step (ms)", "float", minor=True, scale="diverging"),
        Column("renamed_to", "name in the new run", minor=True),
    )
    rows = [
        (op.name, op.cat, *op.count, *both_ms(op.average), *tested_cells(op.average),
         ms_of(op.explained.ns), op.renamed_to)
        for op in shown(pair.found.operations, args)
    ]  # fmt: skip
    return Table("operations", "Operations", columns, rows, certain="significant")


def _categories(pair: Pair) -> Table:
    columns = (
        Column("cat", "category"),
        *_sides("step_*_ms", "step (ms)", "float"),
        Column("explained_ms", "explains (ms)", "float", scale="diverging"),
        Column("explains", "significantly", "bool"),
        *_sides("count_*", "count", "int", minor=True),
        *_sides("avg_*_ms", "avg (ms)", "float", minor=True),
        *(replace(column, minor=True) for column in CHANGE),
    )
    rows = [
        (each.cat or "(none)", *both_ms(each.explained), ms_of(each.explained.ns), each.explained.significant,
         *each.count, *both_ms(each.average), *tested_cells(each.average))
        for each in pair.found.categories
    ]  # fmt: skip
    note = (
        "Each instant of a step counts once: for what computed, else communicated, else prepared it. "
        "So the columns of the step add up to the iteration time."
    )
    title = "Categories: what they took of a step"
    return Table("categories", title, columns, rows, note, certain="explains")


def _ranks(pair: Pair) -> Table:
    columns = (
        Column("rank", "rank"),
        *_sides("iteration_*_ms", "iteration (ms)", "float"),
        Column("own_absolute_ms", "own work changed by (ms)", "float", scale="diverging"),
        Column("comm_absolute_ms", "only communicating by (ms)", "float", scale="diverging"),
        Column("straggler", "straggler", "bool"),
        Column("top", "own work that changed most"),
        Column("top_ms", "by (ms)", "float"),
        *_sides("own_*_ms", "own work (ms)", "float", minor=True),
        *_sides("comm_*_ms", "only communicating (ms)", "float", minor=True),
    )
    rows = [
        (each.name, *both_ms(each.iteration), ms_of(each.own.ns), ms_of(each.communication.ns),
         each is pair.found.straggler, each.top[0], each.top[1] / 1e6, *both_ms(each.own),
         *both_ms(each.communication))
        for each in pair.found.ranks
    ]  # fmt: skip
    note = "Only communicating: transferring, or waiting for another rank."
    return Table("ranks", "Ranks", columns, rows, note)


def _only(pair: Pair, args: Namespace) -> Table:
    columns = (Column("run", "only in"), Column("name", "operation"), Column("cat", "category"))
    sides = zip((pair.a, pair.b), pair.found.only_in, strict=True)
    rows = [(name, key.name, key.cat) for name, keys in sides for key in keys[: args.head]]
    hidden = sum(map(len, pair.found.only_in)) - len(rows)
    note = f"{hidden:,} more; without --head all are shown." if hidden else ""
    return Table("only_in", "Operations of one run only", columns, rows, note)


def input_table(run: MeasuredRun, name: str) -> Table:
    """Return all operations of one input, for the files."""
    from compare.run_table import operations

    ops = operations(run, tell_workers=len(run.workers) > 1)
    columns = (
        Column("name", "operation"),
        Column("cat", "category"),
        Column("count", "count", "int"),
        Column("total_ms", "total (ms)", "float"),
        Column("avg_ms", "avg (ms)", "float"),
    )
    count, total = ops.count.sum(1).tolist(), (ops.total_ns.sum(1) / 1e6).tolist()
    figures = zip(ops.keys, count, total, (ops.mean_ns / 1e6).tolist(), strict=True)
    return Table(
        name, f"Operations of {name}", columns, [(*key, *rest) for key, *rest in figures], detail=True
    )


def charts_of(pair: Pair) -> list[Chart]:
    """Return what the categories took of a step, and which operations changed it most."""
    found = pair.found
    charts: list[Chart] = []
    if any(each.explained.ns for each in found.categories):
        largest = found.categories[:_MOST_BARS]
        charts.append(
            Bars(
                "What a step's time was spent on",
                "category",
                "time of a step (ms)",
                [each.cat or "(none)" for each in largest],
                {
                    pair.a: [ms_of(each.explained.a_ns) for each in largest],
                    pair.b: [ms_of(each.explained.b_ns) for each in largest],
                },
            )
        )
    by_step = any(op.explained.ns for op in found.operations)
    parts = [(op.name, (op.explained if by_step else op.average).ns or 0.0) for op in found.operations]
    most = [part for part in sorted(parts, key=lambda part: -abs(part[1]))[:_MOST_BARS] if part[1]]
    if most:
        charts.append(
            Bars(
                "Operations that explain most of the change" if by_step else "Averages that changed most",
                "change of a step (ms)" if by_step else "change (ms)",
                "operation",
                [name for name, _ in most],
                {"change": [ms_of(ns) for _, ns in most]},
                horizontal=True,
            )
        )
    return charts


def both_ms(change: Change) -> list[float | None]:
    """Return both sides in milliseconds."""
    return [ms_of(change.a_ns), ms_of(change.b_ns)]


def ms_of(ns: float | None) -> float | None:
    """Return milliseconds; None stays."""
    return None if ns is None else ns / 1e6
