"""`--option 3dcompare`: many runs side by side, as a map that a page shows in 3-D, too, and as tables."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.base.errors import UsageError
from analyzer.base.inputs import is_digest
from analyzer.base.units import in_ms, ms_of
from analyzer.cli import READING, add_flags, command, damage_notes, name_files
from analyzer.cli.runs import check_runs, digest_note, folder_labels, load_runs
from analyzer.report.result import Bars, Chart, Column, HeatMap, Result, Table

if TYPE_CHECKING:
    from analyzer.answers.compare.comparison import SweepRow

HELP = "many runs side by side: the average time of each operation in each run, as a map and in 3-D"
EXAMPLE = "analyze.py 3dcompare examples/lenet examples/lenet-100mbit --output sweep.html"

_SUFFIXES = (".html", ".png", ".svg", ".pdf")
_RUNS = (
    Column("run", "run"),
    Column("steps", "steps", "int"),
    Column("iteration_ms", "iteration (ms)", "float"),
)
_MOST_ROWS = 80  # of a map


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "sort", "head", "output", "picture", "save")


def run(args: Namespace) -> Result:
    """Put the runs side by side, in the order given."""
    check_runs(args)
    output = Path("3dcompare.html") if args.output is None else args.output
    if args.html is True and output == Path("3dcompare.html"):  # two files cannot have one name
        args.html = Path("3dcompare-page.html")
    name_files(args, output.parent)
    if output.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--output {output}: the picture must be one of {', '.join(_SUFFIXES)}")
    from analyzer.answers.compare.comparison import profiler_notes, sweep
    from analyzer.base.outputs.atomic import check_output
    from analyzer.model.figures.job_figures import Wanted, filtered

    check_output(output, is_named=args.output is not None)
    args.output = output
    loaded = load_runs(args, Wanted(operations=True))
    runs = filtered(loaded, args.filter)
    names = folder_labels(args.path)
    rows, categories = sweep(runs)
    columns = (
        Column("cat", "category", value=lambda row: row.cat or "(none)"),
        *map(_average, count(), names),
    )
    steps = [run.iteration_ns for run in loaded]
    iteration_ms = [float(of_run.mean()) / 1e6 if len(of_run) else None for of_run in steps]
    tables = (
        Table.of("operations", "Operations", (Column("name", "operation"), *columns), rows, _by_longest),
        Table.of("categories", "Categories", columns, categories),
        Table("runs", "Iteration time", _RUNS, list(zip(names, map(len, steps), iteration_ms, strict=True))),
    )
    return Result(
        "3dcompare",
        f"Average times of {', '.join(names)}",
        {
            "runs": names,
            "paths": [str(path) for path in args.path],
            "iteration_ms": iteration_ms,
            "categories": Table.of("", "", _RECORD[1:], categories).objects,
            "operations": Table.of("", "", _RECORD, rows, _by_longest),
            "output": str(output),
        },
        headline=_headline(names, iteration_ms),
        tables=tables,
        charts=_charts(rows, names, iteration_ms),
        figures=(("runs", str(len(names))), ("operations", f"{len(rows):,}")),
        notes=[
            *_notes(rows, output),
            *profiler_notes(loaded),
            *damage_notes(file for run in loaded if not is_digest(run.path) for file in run.files),
            *digest_note(args, names[-1]),
            command(args, "compare", paths=args.path[:2]),
        ],
        repairs=list(dict.fromkeys(line for each in runs for line in each.repairs)),
    )


def _headline(names: Sequence[str], iteration_ms: Sequence[float | None]) -> str:
    """Name the runs with the shortest and the longest steps."""
    known = sorted((ms, name) for ms, name in zip(iteration_ms, names, strict=True) if ms)
    if not known:
        return f"Average times of {', '.join(names)}; no run marks its steps."
    (least, fastest), (most, slowest) = known[0], known[-1]
    sentence = f"{fastest} has the shortest steps, {in_ms(least * 1e6)}"
    if len(known) > 1:
        sentence += f"; {slowest} the longest, {in_ms(most * 1e6)} ({most / least:.2f} times)"
    return f"{sentence}."


def _by_longest(row: SweepRow) -> float:
    """Make the sort key of the longest average in any run first."""
    return -max((mean for mean in row.mean_ns if mean is not None), default=0.0)


def _charts(
    rows: Sequence[SweepRow], names: Sequence[str], iteration_ms: Sequence[float | None]
) -> list[Chart]:
    """Draw the longest operations, and the steps of each run."""
    from analyzer.reading.dialects.system import is_frame_of_all

    parts = [row for row in rows if not is_frame_of_all(row.name)] or rows  # frames dwarf their operations
    shown = sorted(parts, key=_by_longest)[:_MOST_ROWS]
    operations, values = [row.name for row in shown], [_ms(row) for row in shown]
    title = "Average time per operation and run"
    steps = Bars("Iteration time", "mean step (ms)", names, {"iteration time": iteration_ms}, is_small=True)
    return [HeatMap(title, "average", "run", "operation", names, operations, values, in_3d=True), steps]


def _notes(rows: Sequence[SweepRow], output: Path) -> list[str]:
    notes = []
    if gaps := sum(None in row.mean_ns for row in rows):
        notes.append(f"{gaps:,} operations are missing in some run: gaps, not zeros.")
    if len(rows) > _MOST_ROWS:
        notes.append(f"The chart shows the {_MOST_ROWS} longest of {len(rows):,} operations.")
    return [*notes, f"Picture: {output}"]


def _average(run: int, name: str) -> Column:
    return Column(f"avg_ms {name}", f"{name} (ms)", "float", value=lambda row: _ms(row)[run])


def _ms(row: SweepRow) -> list[float | None]:
    return list(map(ms_of, row.mean_ns))


#: Columns of an operation in JSON.
_RECORD = (Column("name", ""), Column("cat", ""), Column("avg_ms", "", value=_ms))
