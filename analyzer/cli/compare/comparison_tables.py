"""The tables and charts of a comparison; `cli.compare` is the option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from analyzer.base.units import LazySequence, ms_of
from analyzer.report.result import MOST_BARS, Bars, Cell, Chart, Column, Table, ms_column

if TYPE_CHECKING:
    from analyzer.answers.compare.comparison import Comparison, OpChange
    from analyzer.answers.compare.significance import Change
    from analyzer.model.figures.job_figures import JobFigures

_EXPLAINS = "What explains the change of the step"
_MOST = "Operations that explain most of the change"
_LEAST_SHOWN = 0.01  # least share of the base's step for a category on standard output


def both_ms(change: Change) -> list[float | None]:
    """Convert both sides to milliseconds."""
    return [ms_of(change.a_ns), ms_of(change.b_ns)]


#: The columns of a tested quantity; their items are `Change`s.
CHANGE = (
    ms_column("avg_absolute_ms", "change", "ns", scale="diverging"),
    Column("avg_relative", "change", "percent", 1, scale="diverging", value=attrgetter("relative")),
    Column("significant", "significant", "bool"),
    ms_column("ci_low_ms", "95 % from", "low_ns"),
    ms_column("ci_high_ms", "to", "high_ns"),
    Column("p_value", "p", "float", 6, value=attrgetter("p")),
)
_COUNTS = (
    Column("count_a", "base count", "int", value=lambda item: item.count[0]),
    Column("count_b", "new count", "int", value=lambda item: item.count[1]),
)


def _applied(columns: Iterable[Column], part: Callable[[Any], Any]) -> list[Column]:
    """Apply columns to a part of each item."""

    def of_part(cell: Callable[[Any], Cell]) -> Callable[[Any], Cell]:
        return lambda item: cell(part(item))

    return [column._replace(value=of_part(column.value or attrgetter(column.key))) for column in columns]


def part_of_the_change(op: OpChange) -> tuple[float, float]:
    """Make the sort key of the largest part of the step's change first."""
    return -abs(op.explained.ns or 0.0), -abs(op.average.ns or 0.0) * max(op.count)


def change_record(change: Change) -> dict[str, Cell]:
    """Make the cells of the columns `CHANGE`, by their keys."""
    return Table.of("", "", CHANGE, [change]).records()[0]


def tables_of(pair: Comparison) -> list[Table]:
    """Make the tables of one comparison."""
    return [
        *_device(pair),
        *_operations(pair),
        *_categories(pair),
        *([_only(pair)] if any(pair.only_in) else []),
    ]


def tables_of_runs(pairs: Sequence[Comparison]) -> list[Table]:
    """Make a table of the steps of several runs, and for files and `--full` the tables of each comparison."""
    title, largest_first = "Iteration time against the base", lambda pair: -abs(pair.iteration.ns or 0.0)
    details = [(pair.names[1], table) for pair in pairs for table in tables_of(pair) if not table.brief]
    return [
        Table.of("runs", title, _RUNS, pairs, largest_first),
        *(
            table._replace(name=f"{table.name} {run}", title=f"{table.title}: {run}", full=True)
            for run, table in details
        ),
    ]


def _sides(key: str, what: str, of: str) -> list[Column]:
    """Make the columns of both sides of the change `of`; in `key` a ``*`` stands for the side."""
    return [
        ms_column(key.replace("*", side), f"{name} {what}", f"{of}.{side}_ns")
        for side, name in (("a", "base"), ("b", "new"))
    ]


def tested_columns(of: str = "average") -> list[Column]:
    """Apply the columns `CHANGE` to the change `of` items."""
    return _applied(CHANGE, attrgetter(of))


#: Columns of a run beside the base; their items are `Comparison`s.
_RUNS = (
    Column("run", "run", value=lambda pair: pair.names[1]),
    *_sides("iteration_*_ms", "step", "iteration"),
    *tested_columns("iteration"),
)


_NAME, _CAT = Column("name", "operation"), Column("cat", "category")
_EXPLAINED = ms_column("explained_ms", "explains of the step", "explained.ns", scale="diverging")
_SURELY = Column("explains", "significantly", "bool", value=attrgetter("explained.significant"))
_TESTED = tested_columns()
_OPERATIONS = (
    _NAME, _CAT, *_sides("avg_*_ms", "avg", "average"), *_TESTED, _EXPLAINED, _SURELY, *_COUNTS,
)  # fmt: skip
_EXPLAINING = (
    _NAME,
    _EXPLAINED,
    # without steps, of the average
    _SURELY._replace(value=lambda op: (op.average if op.explained.p is None else op.explained).significant),
    *_sides("avg_*_ms", "avg", "average"),
)


def _device(pair: Comparison) -> list[Table]:
    """Make the table of the device's time by kind of kernel, which no profiler distorts."""
    if not pair.device:
        return []
    sides = (ms_column("a_ms", "base", "a_ns"), ms_column("b_ms", "new", "b_ns"))
    columns = (Column("kind", "kernels", value=itemgetter(0)), *_applied((*sides, *CHANGE), itemgetter(1)))
    title = "Device time of a step by kind of kernel"
    return [Table.of("device", title, columns, pair.device, certain="significant")]


def _operations(pair: Comparison) -> list[Table]:
    """Make the table of all operations, and the brief table for standard output."""
    whole = Table.of(
        "operations", "Operations", _OPERATIONS, pair.operations, part_of_the_change,
        certain="significant", full=True,
    )  # fmt: skip
    brief = Table.of(
        "operations", _MOST, _EXPLAINING, _explaining(pair), certain="explains", brief=True, full=False
    )
    return [whole, brief] if brief.rows else [whole]


def _explaining(pair: Comparison) -> list[OpChange]:
    """Sort the changed operations by their part of the step's change, the largest first."""
    changed = [op for op in pair.of_either if op.explained.ns or op.average.ns]
    return sorted(changed, key=part_of_the_change)


def _categories(pair: Comparison) -> list[Table]:
    """Make the table of all categories, and the brief table for standard output."""
    category = Column("cat", "category", value=lambda change: change.cat or "(none)")
    sides = _sides("step_*_ms", "step", "explained")
    explains = _EXPLAINED._replace(title="explains (ms)")
    averages = _sides("avg_*_ms", "avg", "average")
    columns = (category, *sides, explains, _SURELY, *_COUNTS, *averages, *_TESTED)
    note = (
        "Overlapping time is counted once: computation first, then communication, then the rest. "
        "So the columns of the step add up to the iteration time."
    )
    title, categories = "Categories: what they took of a step", pair.categories
    whole = Table.of("categories", title, columns, categories, note=note, certain="explains")
    base = sum(change.explained.a_ns or 0.0 for change in categories)
    if not base:  # no steps
        columns = (category, *_COUNTS, *averages, *_TESTED)
        return [Table.of("categories", "Categories", columns, categories, certain="significant")]
    large = [change for change in categories if abs(change.explained.ns or 0.0) > _LEAST_SHOWN * base]
    few = (category, explains, _SURELY, *sides)
    brief = Table.of("categories", _EXPLAINS, few, large, certain="explains", brief=True, full=False)
    return [whole._replace(full=True), *([brief] if large else [])]


def _only(pair: Comparison) -> Table:
    of_operation = _applied((_NAME, _CAT, _EXPLAINED), itemgetter(1))
    columns = (Column("run", "only in", value=itemgetter(0)), *of_operation)
    rows = [(name, op) for name, ops in zip(pair.names, pair.only_in, strict=True) for op in ops]
    return Table.of("only_in", "Operations of one run only", columns, rows, full=True)


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
    rows = range(len(ops.keys))
    cells = LazySequence(rows, lambda row: (*ops.keys[row], *(figure[row].item() for figure in figures)))
    return Table(name, f"Operations of {name}", columns, cells, detail=True)


def charts_of(pair: Comparison) -> list[Chart]:
    """Draw the changes of the step by category and by operation, with intervals, the largest first."""
    from analyzer.cli.compare.verdict import doubt

    categories = sorted(pair.categories, key=lambda change: -abs(change.explained.ns or 0.0))
    by_title = {
        _EXPLAINS: {change.cat or "(none)": change.explained for change in categories[:MOST_BARS]},
        _MOST: {op.name: op.explained for op in _explaining(pair)[:MOST_BARS]},
    }
    charts: list[Chart] = []
    for title, changes in by_title.items():
        if not (shown := {name: change for name, change in changes.items() if change.ns}):
            continue
        bounds = [(change.low_ns, change.high_ns) for change in shown.values()]
        between = [None if low is None or high is None else (low / 1e6, high / 1e6) for low, high in bounds]
        label = "change of a step (ms)" + (" and its 95 % interval" if any(between) else "")
        series = {"change": [ms_of(change.ns) for change in shown.values()]}
        names = [f"{name}{doubt(change)}" for name, change in shown.items()]
        charts.append(Bars(title, label, names, series, between=between, is_small=True))
    return charts
