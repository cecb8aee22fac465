"""`--option critical`: what makes a step as long as it is, and how much slack everything else has."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analyzer.base.errors import TraceError, UsageError, whole_number
from analyzer.base.units import LazySequence, in_ms
from analyzer.cli import READING, WHAT_IF, add_flags, asked, command, damage_notes, recorded_notes, refuse
from analyzer.report.result import Cell, Chart, Column, Result, Table, key_of, ms_column, stretch_key

if TYPE_CHECKING:
    from analyzer.model.graph.path_summary import OperationSlack
    from dag_utils import LoadedSteps, NamedPath, Scope

HELP = "the chain of operations that sets the length of a step, and the slack of the others"
EXAMPLE = "analyze.py critical TRACE_DIR --head 10"
#: The reason for refusing a flag; see `refuse`.
NO_STEP = "needs a recorded step; a .gml file and --step mean have none"

_NAME, _CAT = Column("name", "operation"), Column("cat", "category")
_CHAIN = (_NAME, _CAT, Column("dur_ms", "average (ms)", "float"))
_OPERATIONS = (
    _NAME, _CAT,
    ms_column("dur_ms", "duration", "dur_ns"),
    ms_column("slack_ms", "slack", "slack_ns"),
)  # fmt: skip
_WHAT = (_NAME, _CAT, Column("rank", "rank", value=lambda share: share.owner))
#: Columns of a `NameShare`.
BY_NAME = (
    *_WHAT,
    Column("count", "count", "int", value=lambda share: share.stretches),
    ms_column("ms", "on the path", "ns"),
    Column("share", "share", "percent", 1),
)
#: Columns of `NamedPath.rows`.
PATH = (
    *_WHAT,
    Column("ts_ms", "after the step's start (ms)", "float"),
    Column("dur_ms", "on the path (ms)", "float"),
    Column("because", "after"),
)
#: Columns of `NamedPath.rows` with the rules.
PATH_WITH_RULES = (*PATH, Column("rule", "rule", "sentence"))
_MOST_SCOPES = 4  # in the key figures


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "step", "del_queue", "sort", "head", "output")
    parser.add_argument("--why", action="store_true", help="the path in order, with the rule of each edge")


def run(args: Namespace) -> Result:
    """Find the path of every scope; with `--output`, write the recorded timeline with the path marked."""
    from analyzer.reading.formats.gml import is_gml

    return (_mean if args.step == "mean" or any(map(is_gml, args.path)) else _recorded)(args)


def step_number(text: str | None) -> int | None:
    """Read the number in `--step`: ``7`` or, as Kineto writes it, ``ProfilerStep#7``."""
    if text is None:
        return None
    number = whole_number(text.rpartition("#")[2])
    if number is None:
        raise UsageError(f"--step {text}: not the number of a step")
    return number


def recorded_step(args: Namespace) -> tuple[LoadedSteps, int]:
    """Load the job; return it and the row of the step that `--step` names, or of that of median length."""
    from dag_utils import load_steps

    loaded = load_steps(args.path, asked(args))
    return loaded, loaded.recording.choose_step(step_number(args.step))


def _recorded(args: Namespace) -> Result:
    from analyzer.base.outputs.atomic import NO_FILE
    from dag_utils import scopes_of, step_operations

    loaded, row = recorded_step(args)
    recording = loaded.recording
    step = recording.steps[row]
    scopes, path = scopes_of(recording, loaded.job.kind, step, parts=args.del_queue)
    widest = scopes[-1].path()
    slack = _slack_table(step_operations(recording, step))
    shares, stretches = widest.by_name(), widest.rows(why=args.why)
    about = [(key_of(share.owner, share.name),) for share in shares]
    several = len(recording.owners) > 1  # then the names have prefixes
    slack_keys = LazySequence(
        slack.rows, lambda row: (row[0] if several else key_of(recording.owners[0], row[0]),)
    )
    kind = Column("kind", "kind", value=lambda share: share.kind)  # of work, in place of the category
    columns = (BY_NAME[0], kind, *BY_NAME[2:])
    tables = [
        Table.of("by_name", "Critical path by operation", columns, shares, about=about),
        slack._replace(about=slack_keys, full=None if args.sort else True),
        Table(
            "path",
            "Critical path",
            PATH_WITH_RULES if args.why else PATH,
            stretches,
            full=None if args.why else True,
            about=LazySequence(range(len(stretches)), lambda row: (stretch_key(row),)),
        ),
    ]
    document = {
        "step": step.number,
        "iteration_ms": path.length_ns / 1e6,
        "scopes": LazySequence(scopes, lambda scope: _document(scope, owned=several, why=args.why)),
        "operations": slack,
    }
    notes = [*recording.notes, *damage_notes(loaded.files), *recorded_notes(loaded)]
    wide = [scope for scope in scopes if scope.kind != "GPU"] or scopes
    if args.output not in (None, NO_FILE):
        from analyzer.reading.formats.chrome_writer import write_timeline

        rows, zero = loaded.marked_rows(step, path)
        write_timeline(args.output, rows, baseTimeNanoseconds=zero)
        notes.append(f"timeline written to {args.output}")
    charts: list[Chart] = []
    if args.html:
        from analyzer.cli.step_timeline import step_timeline

        title = f"Step {step.number} and its critical path"
        charts = [step_timeline(title, recording, step, path, parts=args.del_queue)]
    return Result(
        "critical",
        ", ".join(map(str, args.path)),
        document,
        headline=widest.headline(recording, step, path),
        tables=tables,
        charts=charts,
        figures=[(scope.name, in_ms(scope.length_ns)) for scope in wide[-_MOST_SCOPES:] if len(wide) > 1],
        notes=[*notes, command(args, WHAT_IF)],
        repairs=loaded.repairs,
    )


def _document(scope: Scope, *, owned: bool, why: bool) -> dict[str, Any]:
    """Make a scope's entry in the document; `owned` and `why` as for `NamedPath.rows`."""
    path = scope.path()
    return {
        "scope": scope.name,
        "worker": scope.worker,
        "length_ms": scope.length_ns / 1e6,
        "path": records(path, owned=owned, why=why),
        "by_name": Table.of("", "", BY_NAME, path.by_name()).objects,
        "by_cat": {cat: ns / 1e6 for cat, ns in path.by_category().items()},
    }


def records(path: NamedPath, *, owned: bool, why: bool = False) -> LazySequence[dict[str, Cell]]:
    """Make the path's entries in the document; `owned` and `why` as for `NamedPath.rows`."""
    columns = PATH_WITH_RULES if why else PATH
    return Table("", "", columns, path.rows(owned=owned, why=why)).objects


def _slack_table(operations: Sequence[OperationSlack]) -> Table:
    return Table.of("operations", "Slack", _OPERATIONS, operations, lambda of: (of.slack_ns, -of.dur_ns))


def _mean(args: Namespace) -> Result:
    """Find the longest chain of average durations through the DAG of each GPU, without gaps."""
    from dag_utils import longest_chain, mean_dags

    refuse(args, NO_STEP, *READING, "del_queue", "output", "why")
    if args.step != "mean":
        refuse(args, NO_STEP, "step")
    gpus, notes, repairs = mean_dags(args.path, jobs=args.jobs, progress=args.progress)
    if not any(dag.dur_ns.any() for _, _, dag in gpus):
        why = f" ({'; '.join(repairs)})" if repairs else ""
        raise TraceError(
            f"{args.path[0]}: the graph has no durations{why}; give the GPU's directory with its trace"
        )
    chains = [longest_chain(*gpu) for gpu in gpus]
    scopes = [scope for scope, _ in chains]
    operations = [operation for _, slack in chains for operation in slack]
    longest = max(scopes, key=lambda scope: scope.length_ns)
    worker = "" if longest.worker is None or len(scopes) == 1 else f"worker-{longest.worker} "
    path = longest.path()
    rows = [(name, cat, ms) for name, cat, _, _, ms, _ in path.rows()]
    table = Table("path", "Longest chain", _CHAIN, rows)
    return Result(
        "critical",
        "",
        {
            "step": "mean",
            "iteration_ms": longest.length_ns / 1e6,
            "scopes": [_document(scope, owned=False, why=False) for scope in scopes],
            "operations": _slack_table(operations),
        },
        headline=f"The longest chain of average durations is {in_ms(longest.length_ns)}, "
        f"on {worker}{longest.name}, without gaps and waits.",
        tables=(table,),
        notes=notes,
        repairs=repairs,
    )
