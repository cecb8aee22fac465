"""`--option compare`: what changed between runs, and whether it is significant."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import UsageError, counted
from analyzer.base.inputs import is_digest
from analyzer.base.units import LazySequence, ms_of
from analyzer.cli import READING, above_zero, add_flags, command, damage_notes
from analyzer.cli.compare.comparison_tables import (
    both_ms,
    change_record,
    charts_of,
    input_table,
    part_of_the_change,
    tables_of,
    tables_of_runs,
    tested_columns,
)
from analyzer.cli.runs import check_runs, digest_note, group_of, labels, load_runs
from analyzer.report.result import Column, Result, Table

if TYPE_CHECKING:
    from pathlib import Path

    from analyzer.answers.compare.comparison import Comparison
    from analyzer.model.figures.job_figures import JobFigures

HELP = "what changed between two runs (or more, the first is the base), and whether it is significant"
EXAMPLE = "analyze.py compare examples/lenet examples/lenet-100mbit --sort --head 20"

_PERCENTAGE = above_zero("percentage", lambda text: float(text.removesuffix("%")), or_zero=True)
_MILLISECONDS = above_zero("number of milliseconds", float)
_REGRESSED = 3  # exit code of --fail_above


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "as_recorded", "group_by", "sort", "head", "save")
    parser.add_argument("--real_step", metavar="BASE,NEW", type=_real_steps,
        help="the step times (ms) without the profiler, from your own logs, one for each run")  # fmt: skip
    parser.add_argument("--fail_above", metavar="PERCENT", type=_PERCENTAGE,
        help="exit code 3 if the iteration time grew significantly, and by more than that, or if a recording "
        "lost work of its device")  # fmt: skip


def _real_steps(text: str) -> dict[int, float]:
    """Read the step time of each run, counted from 1."""
    return dict(enumerate(map(_MILLISECONDS, text.split(",")), 1))


def run(args: Namespace) -> Result:
    """Compare each further run with the first."""
    if args.group_by == "rank":
        raise UsageError(
            "--group_by rank has no effect with --option compare: its operations are those of all ranks"
        )
    if group_of(args) is not None and args.filter:
        raise UsageError(f"--filter has no effect with --group_by {args.group_by}")
    check_runs(args)
    if args.real_step and (digests := [path for path in args.path if is_digest(path)]):
        raise UsageError(f"--real_step: {digests[0]} is a digest, which has its step; give the traces")
    if args.real_step and len(args.real_step) != len(args.path):
        example = ",".join(["28.6"] * len(args.path))
        raise UsageError(f"--real_step needs a step time for each of the {len(args.path)} runs: {example}")
    from analyzer.answers.compare.comparison import compare
    from analyzer.cli.compare.verdict import verdict
    from analyzer.model.figures.job_figures import Wanted

    runs = load_runs(args, Wanted(operations=True, spent=True))
    names = labels(args.path)
    pairs = [
        compare(runs[0], run, (names[0], name), wanted=args.filter)
        for run, name in zip(runs[1:], names[1:], strict=True)
    ]
    most = max(pairs, key=lambda pair: abs(pair.iteration.ns or 0))
    largest = f"{most.names[1]} changed most of {len(pairs)} runs: " if len(pairs) > 1 else ""
    failures, unsure = _fail_above(pairs, runs, names, args.fail_above)
    return Result(
        "compare",
        f"{names[0]} → {', '.join(names[1:])}",
        _document(pairs, args.path),
        headline=f"{largest}{verdict(most)}.",
        tables=[
            *(tables_of(most) if len(pairs) == 1 else tables_of_runs(pairs)),
            *(input_table(run, name) for run, name in zip(runs, names, strict=True)),
        ],
        charts=charts_of(most),
        figures=[] if len(pairs) > 1 else _figures(most),
        notes=[
            *(note for pair in pairs for note in _notes(pair, alone=len(pairs) == 1)),
            *failures,
            *unsure,
            *(["--full shows the tables of each comparison."] if len(pairs) > 1 and not args.full else []),
            *damage_notes(file for run in runs if not is_digest(run.path) for file in run.files),
            *digest_note(args, names[-1]),
            command(args, "diagnose", paths=args.path[-1:]),
        ],
        repairs=list(dict.fromkeys(line for job in runs for line in job.repairs)),
        exit_code=_REGRESSED if failures else 0,
    )


def _fail_above(
    pairs: Sequence[Comparison], runs: Sequence[JobFigures], names: Sequence[str], percent: float | None
) -> tuple[list[str], list[str]]:
    """List the failures of `--fail_above`, and the runs with too few steps for it."""
    if percent is None:
        return [], []
    limit = f"--fail_above {percent:g}"
    changes = [(pair.names[1], pair.iteration) for pair in pairs]
    slower = [name for name, step in changes if step.significant and (step.relative or 0) > percent / 100]
    failures = [f"{name}: slower than {limit} allows" for name in slower]
    for run, name in zip(runs, names, strict=True):  # a recording that lost work seems faster
        lost = [note for file in run.files for note in file.lost_work]
        failures += [
            f"{name}: not passed by --fail_above: {note.partition(':')[0]}" for note in dict.fromkeys(lost)
        ]
    unsure = [name for name, step in changes if step.p is None]
    return failures, [f"{name}: too few steps to compare with {limit}" for name in unsure]


def _document(pairs: Sequence[Comparison], paths: Sequence[Path]) -> dict[str, Any]:
    """Make the JSON answer: the first pair's, and under `comparisons` every pair's if there are more."""
    parts = [_pair_document(pair) for pair in pairs]
    document = {**parts[0], "paths": [str(path) for path in paths]}
    if len(pairs) > 1:
        times = (part["iteration_ms"][1] for part in parts[1:])
        document["iteration_ms"] = [*parts[0]["iteration_ms"], *times]
        document["comparisons"] = parts
    return document


def _pair_document(pair: Comparison) -> dict[str, Any]:
    from analyzer.cli.compare.verdict import verdict

    recorded = zip((pair.a, pair.b), pair.steps, strict=True)
    return {
        "paths": [str(pair.a.path), str(pair.b.path)],
        "operations": Table.of("", "", (Column("name", ""), *_RECORD), pair.operations, part_of_the_change),
        "only_in": [LazySequence(keys, attrgetter("name")) for keys in pair.only_in],
        "categories": Table.of("", "", _RECORD, pair.categories).objects,
        "iteration_ms": both_ms(pair.iteration),
        "iteration": {
            "steps": list(pair.steps),
            **change_record(pair.iteration),
            "recorded_ms": [float(run.iteration_ns.mean()) / 1e6 if n else None for run, n in recorded],
        },
        "verdict": verdict(pair),
    }


#: Columns of an operation or a category in JSON, with both sides in one list.
_RECORD = (
    Column("cat", ""),
    Column("count", "", value=lambda each: list(each.count)),
    Column("avg_ms", "", value=lambda each: both_ms(each.average)),
    *tested_columns(),
    Column("step_ms", "", value=lambda each: both_ms(each.explained)),
    Column("explained_ms", "", value=lambda each: ms_of(each.explained.ns)),
    Column("explains", "", value=lambda each: each.explained.significant),
)


def _figures(pair: Comparison) -> list[tuple[str, str]]:
    """Name both runs, and count the operations that changed."""
    changed = sum(op.average.significant for op in pair.operations)
    counts = f"{changed:,} of {len(pair.operations):,} operations in common"
    return [*zip(("base", "new"), pair.names, strict=True), ("changed averages", counts)]


def _notes(pair: Comparison, *, alone: bool) -> list[str]:
    from analyzer.answers.compare.significance import FEWEST_STEPS

    notes = [*pair.notes]
    if few := sum(op.average.p is None for op in pair.operations):
        operations = f"{counted(few, 'operation')} {'occurs' if few == 1 else 'occur'}"
        notes.append(f"{operations} in fewer than {FEWEST_STEPS} steps of a run: no p-value.")
    if not all(pair.steps):
        notes.append("No steps are marked: each operation's events are tested in up to ten groups.")
    return [note if alone else f"{pair.names[1]}: {note}" for note in notes]
