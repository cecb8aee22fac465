"""`--option compare`: what changed between runs, and whether it is real."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError
from result import Bars, Cell, Chart, Column, Kind, Result, Table

if TYPE_CHECKING:
    from analysis.compare import Change, Comparison, OpChange
    from analysis.measured import MeasuredRun

HELP = "what changed between two runs (or more, the first is the base), and whether it is real"
EXAMPLE = "analyze.py --option compare --path examples/lenet examples/lenet-100mbit --sort --head 20"

_REGRESSED = 3  # exit code of --fail_above
_MOST_BARS = 20

_CHANGE = (
    Column("avg_absolute_ms", "change (ms)", "float", scale="diverging"),
    Column("avg_relative", "change", "percent", 1, scale="diverging"),
    Column("ci_low_ms", "95 % from (ms)", "float", minor=True),
    Column("ci_high_ms", "to (ms)", "float", minor=True),
    Column("p_value", "p", "float", 4),
    Column("significant", "significant", "bool"),
)


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare the flag of this option alone."""
    group.add_argument("--fail_above", metavar="PERCENT", type=_percent,
        help="exit code 3 if the iteration time grew significantly, and by more than that")  # fmt: skip


def run(args: Namespace) -> Result:
    """Compare each further run with the first.

    Raises
    ------
    UsageError
        Fewer than two paths, or a file among directories.
    TraceError
        A path holds no trace, or two runs have no operation in common.
    """
    check_paths(args.path)
    from analysis.compare import compare
    from analysis.measured import labels, load_run

    runs = [load_run(path, jobs=args.jobs, progress=args.progress) for path in args.path]
    names = labels(args.path)
    pairs = [
        _Pair(compare(runs[0], other, wanted=args.filter, jobs=args.jobs), names[0], name)
        for other, name in zip(runs[1:], names[1:], strict=True)
    ]
    regressed = [pair for pair in pairs if _regressed(pair.found, args.fail_above)]
    return Result(
        "compare",
        f"{names[0]} (base) against {', '.join(names[1:])}",
        _document(pairs, args),
        tables=[
            *(table for pair in pairs for table in _tables(pair, args, alone=len(pairs) == 1)),
            *(_input_table(run, name) for run, name in zip(runs, names, strict=True)),
        ],
        charts=_charts(pairs[0]),
        figures=[figure for pair in pairs for figure in _figures(pair)],
        read=[_read_line(each) for each in runs],
        notes=[
            *(note for pair in pairs for note in _notes(pair, alone=len(pairs) == 1)),
            *(f"{pair.b}: slower than --fail_above {args.fail_above:g} allows" for pair in regressed),
        ],
        repairs=list(dict.fromkeys(line for each in runs for line in each.repairs)),
        xlsx_default=_beside(args.path[0], "compare.xlsx"),
        html_default=_beside(args.path[0], "compare.html"),
        exit_code=_REGRESSED if regressed else 0,
    )


@dataclass(frozen=True, slots=True)
class _Pair:
    """A comparison and the names of its runs."""

    found: Comparison
    a: str
    b: str


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"{text!r} is no percentage")
    return value


def check_paths(paths: Sequence[Path], option: str = "compare") -> None:
    """Refuse a single path, and files among directories."""
    if len(paths) < 2:
        raise UsageError(f"{option} needs two paths or more: --path BASE NEW")
    files = [path for path in paths if path.is_file()]
    folders = [path for path in paths if path.is_dir()]
    if files and folders:
        raise UsageError(
            f"{files[0]} is a file, {folders[0]} a directory: compare files with files, "
            "or directories with directories"
        )


def _regressed(found: Comparison, percent: float | None) -> bool:
    grown = found.iteration.relative
    return percent is not None and grown is not None and found.iteration.significant and grown > percent / 100


# ---- the document


def _document(pairs: Sequence[_Pair], args: Namespace) -> dict[str, Any]:
    """Return the JSON answer: the first pair's, and under `comparisons` every pair's if there are more."""
    parts = [_pair_document(pair, args) for pair in pairs]
    document = {"option": "compare", "paths": [str(path) for path in args.path], **parts[0]}
    if len(pairs) > 1:
        others = (part["iteration_ms"][1] for part in parts[1:])
        document["iteration_ms"] = [*parts[0]["iteration_ms"], *others]
        document["comparisons"] = parts
    return document


def _pair_document(pair: _Pair, args: Namespace) -> dict[str, Any]:
    from analysis.verdict import verdict

    found = pair.found
    return {
        "paths": [str(found.a.path), str(found.b.path)],
        "operations": [_op_record(op) for op in _shown(found.operations, args)],
        "only_in": [[key.name for key in keys] for keys in found.only_in],
        "categories": [
            {
                "cat": each.cat,
                "count": list(each.count),
                **_change_record(each.average),
                **_explained_record(each.explained),
            }
            for each in found.categories
        ],
        "ranks": [
            {
                "rank": each.name,
                "iteration_ms": _both(each.iteration),
                "own_ms": _both(each.own),
                "comm_ms": _both(each.communication),
                "p_value": each.iteration.p,
                "significant": each.iteration.significant,
                "top": each.top[0],
                "top_ms": each.top[1] / 1e6,
            }
            for each in found.ranks
        ],
        "straggler": None if found.straggler is None else found.straggler.name,
        "iteration_ms": _both(found.iteration),
        "iteration": {"steps": list(found.steps), **_test_record(found.iteration)},
        "verdict": verdict(found),
    }


def _op_record(op: OpChange) -> dict[str, Any]:
    return {
        "name": op.name,
        "cat": op.cat,
        "count": list(op.count),
        **_change_record(op.average),
        **_explained_record(op.explained),
        "renamed_to": op.renamed_to,
    }


def _change_record(change: Change) -> dict[str, Any]:
    return {"avg_ms": _both(change), **_test_record(change)}


def _test_record(change: Change) -> dict[str, Any]:
    return dict(zip((column.key for column in _CHANGE), _test_cells(change), strict=True))


def _explained_record(change: Change) -> dict[str, Any]:
    """Return what of a step's time the operations took, and what of its change they explain."""
    return {"step_ms": _both(change), "explained_ms": _ms(change.ns), "explains": change.significant}


def _both(change: Change) -> list[float | None]:
    return [_ms(change.a_ns), _ms(change.b_ns)]


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


# ---- tables and charts


def _shown(ops: Sequence[OpChange], args: Namespace) -> Sequence[OpChange]:
    if args.sort:
        ops = sorted(ops, key=_relative_increase, reverse=True)
    return ops[: args.head]


def _relative_increase(op: OpChange) -> float:
    relative = op.average.relative
    return math.inf if relative is None else relative  # it took no time in the base


def _test_cells(change: Change) -> tuple[Cell, ...]:
    bounds = (_ms(change.low_ns), _ms(change.high_ns))
    return (_ms(change.ns), change.relative, *bounds, change.p, change.significant)


def _tables(pair: _Pair, args: Namespace, *, alone: bool) -> list[Table]:
    tables = [_operations(pair, args), _categories(pair)]
    if pair.found.ranks:
        tables.append(_ranks(pair))
    if any(pair.found.only_in):
        tables.append(_only(pair))
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


def _operations(pair: _Pair, args: Namespace) -> Table:
    columns = (
        Column("name", "operation"),
        Column("cat", "category", minor=True),
        *_sides("count_*", "count", "int", minor=True),
        *_sides("avg_*_ms", "avg (ms)", "float"),
        *_CHANGE,
        Column("explained_ms", "explains of the step (ms)", "float", minor=True, scale="diverging"),
        Column("renamed_to", "name in the new run", minor=True),
    )
    rows = [
        (op.name, op.cat, *op.count, *_both(op.average), *_test_cells(op.average),
         _ms(op.explained.ns), op.renamed_to)
        for op in _shown(pair.found.operations, args)
    ]  # fmt: skip
    return Table("operations", "Operations", columns, rows)


def _categories(pair: _Pair) -> Table:
    columns = (
        Column("cat", "category"),
        *_sides("step_*_ms", "step (ms)", "float"),
        Column("explained_ms", "explains (ms)", "float", scale="diverging"),
        Column("explains", "significantly", "bool"),
        *_sides("count_*", "count", "int", minor=True),
        *_sides("avg_*_ms", "avg (ms)", "float", minor=True),
        *(replace(column, minor=True) for column in _CHANGE),
    )
    rows = [
        (each.cat or "(none)", *_both(each.explained), _ms(each.explained.ns), each.explained.significant,
         *each.count, *_both(each.average), *_test_cells(each.average))
        for each in pair.found.categories
    ]  # fmt: skip
    note = (
        "Each instant of a step counts once: for what computed, else communicated, else prepared it. "
        "So the columns of the step add up to the iteration time."
    )
    return Table("categories", "Categories: what they took of a step", columns, rows, note)


def _ranks(pair: _Pair) -> Table:
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
        (each.name, *_both(each.iteration), _ms(each.own.ns), _ms(each.communication.ns),
         each is pair.found.straggler, each.top[0], each.top[1] / 1e6, *_both(each.own),
         *_both(each.communication))
        for each in pair.found.ranks
    ]  # fmt: skip
    note = "Only communicating: transferring, or waiting for another rank."
    return Table("ranks", "Ranks", columns, rows, note)


def _only(pair: _Pair) -> Table:
    columns = (Column("run", "only in"), Column("name", "operation"), Column("cat", "category"))
    sides = zip((pair.a, pair.b), pair.found.only_in, strict=True)
    return Table(
        "only_in",
        "Operations of one run only",
        columns,
        [(name, key.name, key.cat) for name, keys in sides for key in keys],
    )


def _input_table(run: MeasuredRun, name: str) -> Table:
    """Return all operations of one input, for the files."""
    from analysis.measured import operations

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


def _charts(pair: _Pair) -> list[Chart]:
    found = pair.found
    charts: list[Chart] = []
    if any(each.explained.ns for each in found.categories):
        shown = found.categories[:_MOST_BARS]
        charts.append(
            Bars(
                "What a step's time was spent on",
                "category",
                "time of a step (ms)",
                [each.cat or "(none)" for each in shown],
                {
                    pair.a: [_ms(each.explained.a_ns) for each in shown],
                    pair.b: [_ms(each.explained.b_ns) for each in shown],
                },
            )
        )
    by_step = any(op.explained.ns for op in found.operations)
    parts = [(op.name, (op.explained if by_step else op.average).ns or 0.0) for op in found.operations]
    largest = [part for part in sorted(parts, key=lambda part: -abs(part[1]))[:_MOST_BARS] if part[1]]
    if largest:
        charts.append(
            Bars(
                "Operations that explain most of the change" if by_step else "Averages that changed most",
                "operation",
                "change of a step (ms)" if by_step else "change (ms)",
                [name for name, _ in largest],
                {"change": [_ms(ns) for _, ns in largest]},
                horizontal=True,
            )
        )
    return charts


# ---- words


def _figures(pair: _Pair) -> list[tuple[str, str]]:
    change, found = pair.found.iteration, pair.found
    changed = sum(op.average.significant for op in found.operations)
    figures = [(f"changed operations in {pair.b}", f"{changed:,} of {len(found.operations):,} in common")]
    if change.a_ns is not None and change.b_ns is not None:
        times = f"{change.a_ns / 1e6:,.3f} → {change.b_ns / 1e6:,.3f} ms"
        relative = "" if change.relative is None else f" ({100 * change.relative:+.1f} %)"
        figures.insert(0, (f"iteration time of {pair.b}", times + relative))
    return figures


def _notes(pair: _Pair, *, alone: bool) -> list[str]:
    from analysis.significance import FEWEST_STEPS
    from analysis.verdict import verdict

    found = pair.found
    notes = [*found.notes]
    if few := sum(op.average.p is None for op in found.operations):
        notes.append(f"{few:,} operations occur in fewer than {FEWEST_STEPS} steps of a run: no p-value.")
    if renamed := sum(op.renamed_to is not None for op in found.operations):
        notes.append(
            f"{renamed:,} operations have another name in {pair.b}: paired by shape, count and place."
        )
    if not all(found.steps):
        notes.append(
            "No steps are marked: the tests take up to ten stretches of each operation's occurrences."
        )
    return [note if alone else f"{pair.b}: {note}" for note in [*notes, verdict(found)]]


def _read_line(run: MeasuredRun) -> str:
    ranks = f"{len(run.ranks)} rank{'s' if len(run.ranks) > 1 else ''}"
    return f"{run.path}: {', '.join(run.dialects)}, {ranks}, {run.n_slices:,} slices"


def _beside(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name
