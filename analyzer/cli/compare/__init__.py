"""`--option compare`: what changed between runs, and whether it is significant."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import NoteKind, UsageError, counted, notes_of
from analyzer.base.lazy_sequence import LazySequence
from analyzer.base.units import in_ms, in_percent, ms_of
from analyzer.cli import READING, above_zero, add_flags, command
from analyzer.cli.compare.comparison_tables import (
    both_ms,
    change_record,
    charts_of,
    input_table,
    shown,
    tables_of,
)
from analyzer.cli.runs import check_runs, digest_note, group_of, labels, load_runs
from analyzer.report.result import Result, Table

if TYPE_CHECKING:
    from analyzer.answers.compare.comparison import Comparison, OpChange
    from analyzer.model.figures.job_figures import JobFigures

HELP = "what changed between two runs (or more, the first is the base), and whether it is significant"
EXAMPLE = "analyze.py compare examples/lenet examples/lenet-100mbit --sort --head 20"

_PERCENTAGE = above_zero("percentage", lambda text: float(text.removesuffix("%")), or_zero=True)
_REGRESSED = 3  # exit code of --fail_above
_MOST_SHOWN = 3  # pairs of runs in a headline, and in the tables of a terminal


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "group_by", "sort", "head", "save")
    parser.add_argument("--fail_above", metavar="PERCENT", type=_PERCENTAGE,
        help="exit code 3 if the iteration time grew significantly, and by more than that, or if a recording "
        "lost work of its device")  # fmt: skip


def run(args: Namespace) -> Result:
    """Compare each further run with the first."""
    if args.group_by == "rank":
        raise UsageError(
            "--group_by rank has no effect with --option compare: its operations are those of all ranks"
        )
    if group_of(args) is not None and args.filter:
        raise UsageError(f"--filter has no effect with --group_by {args.group_by}")
    check_runs(args)
    from analyzer.answers.compare.comparison import compare
    from analyzer.cli.compare.verdict import verdict
    from analyzer.model.figures.rank_figures import Wanted

    runs = load_runs(args, Wanted(operations=True, spent=True))
    names = labels(args.path)
    pairs = [
        compare(runs[0], other, (names[0], name), wanted=args.filter)
        for other, name in zip(runs[1:], names[1:], strict=True)
    ]
    detailed = _most_changed(pairs)
    left = (
        [f"{len(pairs) - len(detailed)} more runs, which changed less"] if len(detailed) < len(pairs) else []
    )
    limit = math.inf if args.fail_above is None else args.fail_above / 100
    regressed = [pair for pair in pairs if pair.iteration.significant]
    regressed = [pair for pair in regressed if (pair.iteration.relative or 0) > limit]
    lost = [] if args.fail_above is None else _lost_work(runs, names)
    return Result(
        "compare",
        f"{names[0]} → {', '.join(names[1:])}",
        _document(pairs, args),
        headline="; ".join(
            [f"{pair.names[1]} against {pair.names[0]}: {verdict(pair)}" for pair in detailed] + left
        )
        + ".",
        tables=[
            *(table for pair in pairs for table in _tables(pair, args, detailed)),
            *(input_table(run, name) for run, name in zip(runs, names, strict=True)),
        ],
        charts=charts_of(detailed[0]),
        figures=[
            figure for pair in pairs for figure in _figures(pair)[: 1 if _is_left(pair, detailed) else None]
        ],
        notes=[
            *(note for pair in pairs for note in _notes(pair, alone=len(pairs) == 1)),
            *_limit(pairs, regressed, args.fail_above),
            *lost,
            *(
                [f"--full shows the tables of all {len(pairs)} comparisons."]
                if left and not args.full
                else []
            ),
            *digest_note(args, names[-1]),
        ],
        repairs=list(dict.fromkeys(line for each in runs for line in each.repairs)),
        exit_code=_REGRESSED if regressed or lost else 0,
        ask=command(args, "diagnose", paths=args.path[-1:]),
    )


def _most_changed(pairs: Sequence[Comparison]) -> Sequence[Comparison]:
    """Return the pairs to show in detail: of many those whose iteration time changed most."""
    if len(pairs) <= _MOST_SHOWN:
        return pairs
    return sorted(pairs, key=lambda pair: -abs(pair.iteration.ns or 0))[:_MOST_SHOWN]


def _tables(pair: Comparison, args: Namespace, detailed: Sequence[Comparison]) -> list[Table]:
    """Return the tables of a pair; those of a pair without details are for files and `--full`."""
    tables = tables_of(pair, args, alone=len(detailed) == 1)
    left = not args.full and _is_left(pair, detailed)
    return [table._replace(detail=left or table.detail) for table in tables]


def _is_left(pair: Comparison, detailed: Sequence[Comparison]) -> bool:
    return pair.names[1] not in {one.names[1] for one in detailed}


def _limit(pairs: Sequence[Comparison], regressed: Sequence[Comparison], percent: float | None) -> list[str]:
    """Say which runs are over the limit of `--fail_above`, and for which it cannot be told."""
    if percent is None:
        return []
    return [f"{pair.names[1]}: slower than --fail_above {percent:g} allows" for pair in regressed] + [
        f"{pair.names[1]}: too few steps to tell whether it is slower than --fail_above {percent:g} allows"
        for pair in pairs
        if pair.iteration.p is None
    ]


def _lost_work(runs: Sequence[JobFigures], names: Sequence[str]) -> list[str]:
    """Name the runs of which `--fail_above` cannot say that they are as fast: their recordings lost work."""
    return [
        f"{name}: not passed by --fail_above: {note.partition(':')[0]}"
        for run, name in zip(runs, names, strict=True)
        for note in dict.fromkeys(
            note for file in run.files for note in notes_of(NoteKind.LOST_WORK, file.repairs)
        )
    ]


def _document(pairs: Sequence[Comparison], args: Namespace) -> dict[str, Any]:
    """Return the JSON answer: the first pair's, and under `comparisons` every pair's if there are more."""
    parts = [_pair_document(pair, args) for pair in pairs]
    document = {**parts[0], "paths": [str(path) for path in args.path]}
    if len(pairs) > 1:
        others = (part["iteration_ms"][1] for part in parts[1:])
        document["iteration_ms"] = [*parts[0]["iteration_ms"], *others]
        document["comparisons"] = parts
    return document


def _pair_document(pair: Comparison, args: Namespace) -> dict[str, Any]:
    from analyzer.cli.compare.verdict import verdict

    return {
        "paths": [str(pair.a.path), str(pair.b.path)],
        "operations": LazySequence(
            shown(pair.operations, args), lambda op: {"name": op.name, "cat": op.cat, **_item_record(op)}
        ),
        "only_in": [LazySequence(keys, attrgetter("name")) for keys in pair.only_in],
        "categories": [{"cat": each.cat, **_item_record(each)} for each in pair.categories],
        "iteration_ms": both_ms(pair.iteration),
        "iteration": {"steps": list(pair.steps), **change_record(pair.iteration)},
        "verdict": verdict(pair),
    }


def _item_record(each: OpChange) -> dict[str, Any]:
    """Return how the average changed, what of a step's time it took, and what of its change it explains."""
    return {
        "count": list(each.count),
        "avg_ms": both_ms(each.average),
        **change_record(each.average),
        "step_ms": both_ms(each.explained),
        "explained_ms": ms_of(each.explained.ns),
        "explains": each.explained.significant,
    }


def _figures(pair: Comparison) -> list[tuple[str, str]]:
    change = pair.iteration
    changed = sum(op.average.significant for op in pair.operations)
    figures = [
        (f"changed operations in {pair.names[1]}", f"{changed:,} of {len(pair.operations):,} in common")
    ]
    if change.a_ns is not None and change.b_ns is not None:
        times = f"{in_ms(change.a_ns, unit='')} → {in_ms(change.b_ns)}"
        relative = "" if change.relative is None else f" ({in_percent(change.relative, 1, sign='+')})"
        figures.insert(0, (f"iteration time of {pair.names[1]}", times + relative))
    return figures


def _notes(pair: Comparison, *, alone: bool) -> list[str]:
    from analyzer.answers.compare.significance import FEWEST_STEPS

    notes = [*pair.notes]
    if few := sum(op.average.p is None for op in pair.operations):
        operations = f"{counted(few, 'operation')} {'occurs' if few == 1 else 'occur'}"
        notes.append(f"{operations} in fewer than {FEWEST_STEPS} steps of a run: no p-value.")
    if not all(pair.steps):
        notes.append(
            "No steps are marked: the tests take up to ten stretches of each operation's occurrences."
        )
    return [note if alone else f"{pair.names[1]}: {note}" for note in notes]
