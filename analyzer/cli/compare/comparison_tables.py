"""The tables and charts of a comparison; `cli.compare` is the option."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from analyzer.base.lazy_sequence import LazySequence
from analyzer.base.units import ms_of
from analyzer.report.result import Bars, Cell, Chart, Column, Table, ms_column

if TYPE_CHECKING:
    from analyzer.answers.compare.comparison import Comparison, OpChange
    from analyzer.answers.compare.significance import Change
    from analyzer.model.figures.job_figures import JobFigures

_MOST = "Operations that explain most of the change"
#: Bars of a chart at most.
_MOST_BARS = 20
#: Share of the base's step from which the change of a category is shown.
_LEAST_SHOWN = 0.01


def both_ms(change: Change) -> list[float | None]:
    """Convert both sides to milliseconds."""
    return [ms_of(change.a_ns), ms_of(change.b_ns)]


#: The columns of a tested quantity; their items are `Change`s.
CHANGE = (
    ms_column("avg_absolute_ms", "change", "ns", scale="diverging"),
    Column("avg_relative", "change", "percent", 1, scale="diverging", value=attrgetter("relative")),
    Column("significant", "significant", "bool"),
    Column("p_value", "p", "float", 6, value=attrgetter("p")),
    ms_column("ci_low_ms", "95 % from", "low_ns"),
    ms_column("ci_high_ms", "to", "high_ns"),
)
_COUNTS = (
    Column("count_a", "base count", "int", value=lambda item: item.count[0]),
    Column("count_b", "new count", "int", value=lambda item: item.count[1]),
)
_CHANGE_CELLS = [(column, column.value or attrgetter(column.key)) for column in CHANGE]


def part_of_the_change(op: OpChange) -> tuple[float, float]:
    """Make a sort key: the operations that explain most of the step's change come first."""
    return -abs(op.explained.ns or 0.0), -abs(op.average.ns or 0.0)


def change_record(change: Change) -> dict[str, Cell]:
    """Make the cells of the columns `CHANGE`, by their keys."""
    return {column.key: cell(change) for column, cell in _CHANGE_CELLS}


def tables_of(pair: Comparison) -> list[Table]:
    """Make the tables of one comparison."""
    return [*_operations(pair), *_categories(pair), *([_only(pair)] if any(pair.only_in) else [])]


def tables_of_runs(pairs: Sequence[Comparison]) -> list[Table]:
    """Make a table of the steps of several runs, and for files and `--full` those of each comparison."""
    runs = Table.of("runs", "Iteration time against the base", _RUNS, pairs, _by_change)
    details = [(pair.names[1], table) for pair in pairs for table in tables_of(pair) if not table.brief]
    return [
        runs,
        *(
            table._replace(name=f"{table.name} {run}", title=f"{table.title}: {run}", full=True)
            for run, table in details
        ),
    ]


def _by_change(pair: Comparison) -> float:
    """Make a sort key: the run whose step changed most comes first."""
    return -abs(pair.iteration.ns or 0.0)


def _sides(key: str, what: str, of: str) -> list[Column]:
    """Make the columns of both sides of the change `of`; in `key` a ``*`` stands for the side."""
    return [
        ms_column(key.replace("*", side), f"{name} {what}", f"{of}.{side}_ns")
        for side, name in (("a", "base"), ("b", "new"))
    ]


def tested_columns(of: str = "average") -> list[Column]:
    """Apply the columns `CHANGE` to the change `of` items."""
    change = attrgetter(of)

    def of_item(value: Callable[[Any], Cell]) -> Callable[[Any], Cell]:
        return lambda item: value(change(item))

    return [column._replace(value=of_item(cell)) for column, cell in _CHANGE_CELLS]


#: Columns of a run beside the base; their items are `Comparison`s.
_RUNS = (
    Column("run", "run", value=lambda pair: pair.names[1]),
    *_sides("iteration_*_ms", "step", "iteration"),
    *tested_columns("iteration"),
)


def _operations(pair: Comparison) -> list[Table]:
    """Make the table of all operations, and what standard output shows of it without `--full`."""
    tested = tested_columns()
    columns = (
        Column("name", "operation"),
        Column("cat", "category"),
        *_sides("avg_*_ms", "avg", "average"),
        *tested[:2],
        ms_column("explained_ms", "explains of the step", "explained.ns", scale="diverging"),
        *tested[2:],
        *_COUNTS,
    )
    whole = Table.of(
        "operations",
        "Operations",
        columns,
        pair.operations,
        part_of_the_change,
        certain="significant",
        full=True,
    )
    explaining = _most(pair)
    return [whole, explaining] if explaining.rows else [whole]


def _explaining(pair: Comparison) -> list[OpChange]:
    """Sort the changed operations: those that explain most of the step's change first."""
    changed = [op for op in pair.of_either if op.explained.ns or op.average.ns]
    return sorted(changed, key=part_of_the_change)


def _most(pair: Comparison) -> Table:
    columns = (
        Column("name", "operation"),
        ms_column("explained_ms", "explains of the step", "explained.ns", scale="diverging"),
        *_sides("avg_*_ms", "avg", "average"),
        Column("significant", "significant", "bool", value=_is_certain),
    )
    ops = _explaining(pair)
    return Table.of("operations", _MOST, columns, ops, certain="significant", brief=True, full=False)


def _is_certain(op: OpChange) -> bool:
    """Test the change of the average, or of the step where only one run has the operation."""
    return (op.average if all(op.count) else op.explained).significant


def _categories(pair: Comparison) -> list[Table]:
    """Make the table of all categories, and what standard output shows of it without `--full`."""
    columns = (
        Column("cat", "category", value=lambda each: each.cat or "(none)"),
        *_sides("step_*_ms", "step", "explained"),
        ms_column("explained_ms", "explains", "explained.ns", scale="diverging"),
        Column("explains", "significantly", "bool", value=attrgetter("explained.significant")),
        *_COUNTS,
        *_sides("avg_*_ms", "avg", "average"),
        *tested_columns(),
    )
    note = (
        "Overlapping time is counted once: computation first, then communication, then the rest. "
        "So the columns of the step add up to the iteration time."
    )
    title, categories = "Categories: what they took of a step", pair.categories
    base = sum(each.explained.a_ns or 0.0 for each in categories)
    large = [each for each in categories if abs(each.explained.ns or 0.0) > _LEAST_SHOWN * base]
    first, a, b, explains, sure = columns[:5]
    few = (first, explains, a, b, sure._replace(title="significant"))
    whole = Table.of("categories", title, columns, categories, note=note, certain="explains")
    if not base:
        return [whole]
    what = "What explains the change of the step"
    brief = Table.of("categories", what, few, large, certain="explains", brief=True, full=False)
    return [whole._replace(full=True), brief] if large else [whole._replace(full=True)]


def _only(pair: Comparison) -> Table:
    columns = (
        Column("run", "only in", value=lambda row: row[0]),
        Column("name", "operation", value=lambda row: row[1].name),
        Column("cat", "category", value=lambda row: row[1].cat),
        Column(
            "explained_ms",
            "explains of the step (ms)",
            "float",
            scale="diverging",
            value=lambda row: ms_of(row[1].explained.ns),
        ),
    )
    sides = zip(pair.names, pair.only_in, strict=True)
    of_runs = [(name, op) for name, ops in sides for op in ops]
    return Table.of("only_in", "Operations of one run only", columns, of_runs, full=True)


def input_table(run: JobFigures, name: str) -> Table:
    """List all operations of one input, for the files."""
    ops = run.operations(tell_workers=len(run.workers) > 1)
    columns = (
        Column("name", "operation"),
        Column("cat", "category"),
        Column("count", "count", "int"),
        Column("total_ms", "total (ms)", "float"),
        Column("avg_ms", "avg (ms)", "float"),
    )
    figures = (ops.count.sum(1), ops.total_ns.sum(1) / 1e6, ops.mean_ns / 1e6)
    rows = LazySequence(
        range(len(ops.keys)), lambda row: (*ops.keys[row], *(column[row].item() for column in figures))
    )
    return Table(name, f"Operations of {name}", columns, rows, detail=True)


def charts_of(pair: Comparison) -> list[Chart]:
    """Draw by how much categories and operations lengthened the step, the largest changes first."""
    categories = sorted(pair.categories, key=lambda each: -abs(each.explained.ns or 0.0))
    of_categories = {each.cat or "(none)": each.explained for each in categories[:_MOST_BARS]}
    of_operations = {op.name: op.explained for op in _explaining(pair)[:_MOST_BARS]}
    both = (("What explains the change of the step", of_categories), (_MOST, of_operations))
    return [chart for title, changes in both for chart in _changes(title, changes)]


def _changes(title: str, changes: Mapping[str, Change]) -> list[Bars]:
    """Draw changes as bars to either side of zero, with their intervals."""
    from analyzer.cli.compare.verdict import doubt

    changes = {name: change for name, change in changes.items() if change.ns}
    if not changes:
        return []
    names = [f"{name}{doubt(change)}" for name, change in changes.items()]
    ends = [
        None
        if change.low_ns is None or change.high_ns is None
        else (change.low_ns / 1e6, change.high_ns / 1e6)
        for change in changes.values()
    ]
    label = "change of a step (ms)" + (" and its 95 % interval" if any(ends) else "")
    series = {"change": [ms_of(change.ns) for change in changes.values()]}
    return [Bars(title, label, names, series, between=ends, is_small=True)]
