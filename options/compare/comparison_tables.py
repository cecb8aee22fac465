"""The tables and charts of a comparison; `options.compare` is the option."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from opname import without_partition
from result import Bars, Cell, Chart, Column, LazySequence, Table, ms_column, ms_of

if TYPE_CHECKING:
    from compare.comparison import Comparison, OpChange
    from compare.significance import Change
    from figures.job_figures import JobFigures

_MOST_SHOWN = 10  # operations in a terminal
_MOST = "Operations that explain most of the change"


def both_ms(change: Change) -> list[float | None]:
    """Return both sides in milliseconds."""
    return [ms_of(change.a_ns), ms_of(change.b_ns)]


#: The columns that tell how a tested quantity changed; their items are `Change`s.
CHANGE = (
    ms_column("avg_absolute_ms", "change", "ns", scale="diverging"),
    Column("avg_relative", "change", "percent", 1, scale="diverging", value=attrgetter("relative")),
    Column("significant", "significant", "bool"),
    Column("p_value", "p", "float", 4, floor=1e-4, minor=2, value=attrgetter("p")),
    ms_column("ci_low_ms", "95 % from", "low_ns", minor=2),
    ms_column("ci_high_ms", "to", "high_ns", minor=2, paired=True),
)
_COUNTS = (
    Column("count_a", "base count", "int", minor=3, value=lambda item: item.count[0]),
    Column("count_b", "new count", "int", minor=3, paired=True, value=lambda item: item.count[1]),
)
_CHANGE_CELLS = [(column, column.value or attrgetter(column.key)) for column in CHANGE]


def shown(ops: Sequence[OpChange], args: Namespace) -> Sequence[OpChange]:
    """Return the operations that `--sort` and `--head` ask for."""
    if args.sort:
        ops = sorted(ops, key=_relative_increase, reverse=True)
    return ops[: args.head]


def _relative_increase(op: OpChange) -> float:
    relative = op.average.relative
    return math.inf if relative is None else relative  # it took no time in the base


def change_record(change: Change) -> dict[str, Cell]:
    """Return the cells of the columns `CHANGE` by their keys."""
    return {column.key: cell(change) for column, cell in _CHANGE_CELLS}


def tables_of(pair: Comparison, args: Namespace, *, alone: bool) -> list[Table]:
    """Return the tables of one comparison; unless it is the only one, their names tell which."""
    tables = [_operations(pair, args), _categories(pair, args)]
    if pair.ranks:
        tables.append(_ranks(pair)._replace(detail=not args.full))
    if any(pair.only_in):
        tables.append(_only(pair, args)._replace(detail=not args.full))
    if alone:
        return tables
    return [_named(table, pair.names[1]) for table in tables]


def _named(table: Table, run: str) -> Table:
    brief = table.brief and _named(table.brief, run)
    return table._replace(name=f"{table.name} {run}", title=f"{table.title}: {run}", brief=brief)


def _sides(key: str, what: str, of: str, *, minor: bool = False) -> list[Column]:
    """Return the columns of both sides of the change `of`; `key` has a ``*`` where they differ."""
    return [
        ms_column(
            key.replace("*", side), f"{name} {what}", f"{of}.{side}_ns", minor=minor, paired=side == "b"
        )
        for side, name in (("a", "base"), ("b", "new"))
    ]


def _tested_columns(*, minor: bool) -> list[Column]:
    """Return the columns `CHANGE` for the average durations of items."""

    def of(value: Callable[[Any], Cell]) -> Callable[[Any], Cell]:
        return lambda item: value(item.average)

    return [column._replace(minor=max(minor, column.minor), value=of(cell)) for column, cell in _CHANGE_CELLS]


def _operations(pair: Comparison, args: Namespace) -> Table:
    tested = _tested_columns(minor=False)
    columns = (
        Column("name", "operation"),
        Column("cat", "category", minor=2),
        *_sides("avg_*_ms", "avg", "average"),
        *tested[:2],
        ms_column("explained_ms", "explains of the step", "explained.ns", minor=True, scale="diverging"),
        *tested[2:],
        *_COUNTS,
        Column("renamed_to", "name in the new run", minor=True),
    )
    ops = shown(pair.operations, args)
    brief = None if args.sort or args.full else _most(pair, args.head or _MOST_SHOWN)
    return Table.of("operations", "Operations", columns, ops, certain="significant", brief=brief)


class _Explaining(NamedTuple):
    """An operation, or all partitions of one transfer: what it explains and its averages (ms)."""

    name: str
    explains_ms: float
    base_ms: float | None
    new_ms: float | None
    sure: bool
    n_ops: int

    @property
    def longer_ms(self) -> float:
        """How much longer it takes on average than in the base."""
        return (self.new_ms or 0.0) - (self.base_ms or 0.0)


def _explaining(comparison: Comparison) -> list[_Explaining]:
    """Return operations that explain most of the change first, without those that explain next to nothing."""
    from options.step_charts import LEAST_DRAWN

    alike: dict[str, list[OpChange]] = {}
    for op in comparison.of_either:
        alike.setdefault(without_partition(op.name), []).append(op)
    rows = [
        _Explaining(
            f"{name} ×{len(ops)}" if len(ops) > 1 else ops[0].name,
            sum(op.explained.ns or 0.0 for op in ops) / 1e6,
            _mean_ms([op.average.a_ns for op in ops]),
            _mean_ms([op.average.b_ns for op in ops]),
            all(_is_certain(op) for op in ops),
            len(ops),
        )
        for name, ops in alike.items()
    ]
    rows.sort(key=lambda row: (-abs(row.explains_ms), -abs(row.longer_ms)))
    least = LEAST_DRAWN * max((abs(row.explains_ms) for row in rows), default=0.0)
    explaining = [row for row in rows if abs(row.explains_ms) > least]
    return explaining or [row for row in rows if row.longer_ms]


def _mean_ms(values_ns: Sequence[float | None]) -> float | None:
    known = [ns for ns in values_ns if ns is not None]
    return sum(known) / len(known) / 1e6 if known else None


def _is_certain(op: OpChange) -> bool:
    """Whether its duration changed for certain; of one run only, whether it takes part of the steps."""
    return (op.average if all(op.count) else op.explained).significant


def _most(comparison: Comparison, n_rows: int) -> Table:
    """Return the operations that explain most of the change."""
    largest = _explaining(comparison)[:n_rows]
    n_ops, n_all = sum(row.n_ops for row in largest), len(comparison.of_either)
    columns = (
        Column("name", "operation"),
        Column("explained_ms", "explains of the step (ms)", "float", scale="diverging", bar=True),
        Column("avg_a_ms", "base avg (ms)", "float"),
        Column("avg_b_ms", "new avg (ms)", "float"),
        Column("sure", "more than chance", "bool"),
    )
    note = f"{n_ops:,} of {n_all:,} operations; --full shows all" if n_ops < n_all else ""
    return Table("operations", _MOST, columns, [row[:5] for row in largest], note, certain="sure")


def _categories(pair: Comparison, args: Namespace) -> Table:
    from options.step_charts import LEAST_SHOWN

    columns = (
        Column("cat", "category", value=lambda each: each.cat or "(none)"),
        *_sides("step_*_ms", "step", "explained"),
        ms_column("explained_ms", "explains", "explained.ns", scale="diverging"),
        Column("explains", "significantly", "bool", value=attrgetter("explained.significant")),
        *_COUNTS,
        *_sides("avg_*_ms", "avg", "average", minor=True),
        *_tested_columns(minor=True),
    )
    note = (
        "Each instant of a step counts once: for what computed, else communicated, else prepared it. "
        "So the columns of the step add up to the iteration time."
    )
    title, categories = "Categories: what they took of a step", pair.categories
    base = sum(each.explained.a_ns or 0.0 for each in categories)
    large = [each for each in categories if abs(each.explained.ns or 0.0) > LEAST_SHOWN * base]
    first, a, b, explains, sure = columns[:5]
    few = (first, explains._replace(bar=True), a, b, sure._replace(title="more than chance"))
    brief = None
    if base and not args.full:
        brief = Table.of("categories", "What explains the change of the step", few, large, certain="explains")
    return Table.of("categories", title, columns, categories, note=note, certain="explains", brief=brief)


def _ranks(pair: Comparison) -> Table:
    straggler = pair.straggler
    columns = (
        Column("rank", "rank", value=attrgetter("name")),
        *_sides("iteration_*_ms", "iteration", "iteration"),
        ms_column("own_absolute_ms", "own work changed by", "own.ns", scale="diverging"),
        ms_column("comm_absolute_ms", "exposed comm changed by", "communication.ns", scale="diverging"),
        Column("straggler", "straggler", "bool", value=lambda rank: rank is straggler),
        Column("top", "own work that changed most", value=lambda rank: rank.top[0]),
        Column("top_ms", "by (ms)", "float", paired=True, value=lambda rank: rank.top[1] / 1e6),
        *_sides("own_*_ms", "own work", "own", minor=True),
        *_sides("comm_*_ms", "exposed comm", "communication", minor=True),
    )
    note = "Exposed: communication that no computation hides, a transfer or waiting for another rank."
    return Table.of("ranks", "Ranks", columns, pair.ranks, note=note)


def _only(pair: Comparison, args: Namespace) -> Table:
    columns = (
        Column("run", "only in"),
        Column("name", "operation"),
        Column("cat", "category"),
        Column("explained_ms", "explains of the step (ms)", "float", scale="diverging"),
    )
    sides = zip(pair.names, pair.only_in, strict=True)
    shown = [(name, op) for name, ops in sides for op in ops[: args.head]]
    hidden = sum(map(len, pair.only_in)) - len(shown)
    note = f"{hidden:,} more; without --head all are shown." if hidden else ""
    rows = LazySequence(shown, lambda row: (row[0], row[1].name, row[1].cat, ms_of(row[1].explained.ns)))
    return Table("only_in", "Operations of one run only", columns, rows, note)


def input_table(run: JobFigures, name: str) -> Table:
    """Return all operations of one input, for the files."""
    ops, _ = run.operations(tell_workers=len(run.workers) > 1)
    columns = (
        Column("name", "operation"),
        Column("cat", "category"),
        Column("count", "count", "int"),
        Column("total_ms", "total (ms)", "float"),
        Column("avg_ms", "avg (ms)", "float"),
    )
    figures = (ops.count.sum(1), ops.total_ns.sum(1) / 1e6, ops.mean_ns / 1e6)
    rows = LazySequence(
        range(len(ops.keys)), lambda at: (*ops.keys[at], *(each[at].item() for each in figures))
    )
    return Table(name, f"Operations of {name}", columns, rows, detail=True)


def charts_of(pair: Comparison) -> list[Chart]:
    """Return from where to where the step changed, by category, and which operations changed it most."""
    from options.step_charts import MOST_BARS, before_after

    charts: list[Chart] = []
    if any(each.explained.ns for each in pair.categories):
        changes = {each.cat: each.explained for each in pair.categories}
        charts.append(before_after("What explains the change of the step", pair.names, changes))
    rows = _explaining(pair)[:MOST_BARS]
    by_step = any(row.explains_ms for row in rows)
    changes_ms = {row.name: row.explains_ms if by_step else row.longer_ms for row in rows}
    if most := {name: ms for name, ms in changes_ms.items() if ms}:
        label = "change of a step (ms)" if by_step else "change (ms)"
        title = _MOST if by_step else "Averages that changed most"
        charts.append(
            Bars(
                title, label, "", list(most), {"change": list(most.values())}, horizontal=True, is_small=True
            )
        )
    return charts
