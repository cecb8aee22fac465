"""`--option critical`: what makes a step as long as it is, and how much slack everything else has."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import DagError, UsageError
from result import Bars, Cell, Column, Result, Table

if TYPE_CHECKING:
    from dag_utils import CriticalPath, Dag, LoadedSteps, LongestPath, PathItem, Recording, StepGraph

HELP = "the critical path of a recorded step, per GPU, worker and job, and the slack of everything else"
EXAMPLE = "analyze.py --option critical --path TRACE_DIR --head 10"
FLAGS = frozenset(
    {"sub_option", "filter", "step_by", "step", "scope", "full", "del_queue", "sort", "head", "output"}
)

_BY_NAME = (
    Column("scope", "Scope", minor=True), Column("name", "Operation"), Column("cat", "Category"),
    Column("rank", "Rank"), Column("count", "Count", "int", minor=True),
    Column("ms", "Time on the path (ms)", "float"), Column("share", "Share", "percent", 1),
)  # fmt: skip
_PATH = (
    Column("scope", "Scope", minor=True), Column("name", "Operation"), Column("cat", "Category"),
    Column("rank", "Rank"), Column("ts_ms", "Since the step's begin (ms)", "float"),
    Column("dur_ms", "Time on the path (ms)", "float"), Column("because", "After", minor=True),
)  # fmt: skip
_BY_CAT = (
    Column("scope", "Scope"), Column("cat", "Category"), Column("ms", "Time on the path (ms)", "float"),
    Column("share", "Share", "percent", 1),
)  # fmt: skip
_OPERATIONS = (
    Column("name", "Operation"), Column("cat", "Category"), Column("dur_ms", "Duration (ms)", "float"),
    Column("slack_ms", "Slack (ms)", "float"),
)  # fmt: skip
_SHOWN = 20  # rows of a table in a terminal without --full or --head
SCOPES = ("GPU", "worker", "job", "all")


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare `--step` (graph knows it too) and `--scope`."""
    group.add_argument("--step", metavar="N", help="one recorded step by its number instead of the one of "
                       "median length; mean: average durations through the DAG per GPU, no gaps")  # fmt: skip
    group.add_argument("--scope", choices=SCOPES, help="which paths the table shows (default: the widest)")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A GPU, a worker or the job, and the critical path through its events."""

    name: str
    worker: int
    path: CriticalPath
    items: Sequence[PathItem]

    @property
    def kind(self) -> str:
        """What it covers: one of `SCOPES`."""
        return self.name.partition("-")[0]


def run(args: Namespace) -> Result:
    """Find the path of every scope; with `--output`, write the recorded timeline with the path marked."""
    from dag_utils import choose_step, load_steps, slack_ns

    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: critical has no variants")
    if args.step == "mean" or any(_is_gml(path) for path in args.path):
        return _mean(args)
    loaded = load_steps(
        args.path, only=args.filter, step_by=args.step_by, jobs=args.jobs, progress=args.progress
    )
    recording = loaded.recording
    row = choose_step(recording, _step_number(args.step))
    step = recording.steps[row]
    scopes = _scopes(loaded, step, args.del_queue)
    operations = _operation_rows(recording, step, slack_ns(step))
    if args.sort:
        operations.sort(key=lambda row: (float(row[3] or 0), -float(row[2] or 0)))
    written = _write_timeline(args, loaded, step, scopes[-1])
    return _result(args, loaded, step, scopes, operations, written)


def _is_gml(path: Path) -> bool:
    return path.name.lower().endswith((".gml", ".gml.gz"))


def _step_number(text: str | None) -> int | None:
    """Return the number that `--step` gives: ``7`` or, as Kineto calls it, ``ProfilerStep#7``."""
    if text is None:
        return None
    digits = text.rpartition("#")[2]
    if not digits.isdecimal():
        raise UsageError(f"--step {text}: is not the number of a step; expected a number or mean")
    return int(digits)


def _scopes(loaded: LoadedSteps, step: StepGraph, parts: bool) -> list[_Scope]:
    """Return each GPU, each worker and the job with their paths, the widest last."""
    from dag_utils import critical_path, path_items

    recording = loaded.recording
    scopes = []
    for name, worker, owners in _groups(recording, loaded.job.job.kind):
        path = critical_path(step, owners)
        scopes.append(_Scope(name, worker, path, path_items(recording, step, path, parts=parts)))
    return scopes


def _groups(recording: Recording, kind: str) -> list[tuple[str, int, list[int]]]:
    """Return (name, worker, owners) of each GPU, each worker and the job, as far as they differ."""
    everyone = list(range(len(recording.owners)))
    workers = [worker or 0 for worker in recording.workers]
    gpus = [(f"GPU-{recording.ranks[owner] or 0}", workers[owner], [owner]) for owner in everyone]
    if len(everyone) == 1:
        return gpus
    if kind == "worker":
        return [*gpus, ("worker-0", 0, everyone)]
    if len(set(workers)) == 1:
        return [*gpus, ("job", 0, everyone)]
    members = {worker: [i for i in everyone if workers[i] == worker] for worker in sorted(set(workers))}
    return [*gpus, *((f"worker-{w}", w, owners) for w, owners in members.items()), ("job", 0, everyone)]


def _result(
    args: Namespace,
    loaded: LoadedSteps,
    step: StepGraph,
    scopes: Sequence[_Scope],
    operations: list[list[Cell]],
    written: Path | None,
) -> Result:
    from dag_utils import headline

    recording, widest = loaded.recording, scopes[-1]
    first = headline(recording, step, widest.path, widest.items)
    shown = _shown(scopes, args.scope)
    document: dict[str, Any] = {
        "option": "critical",
        "headline": first,
        "step": step.number,
        "iteration_ms": widest.path.length_ns / 1e6,
        "scopes": [_scope_document(scope, len(recording.owners) > 1) for scope in scopes],
        "operations": Table("operations", "", _OPERATIONS, operations).records(),
    }
    if written:
        document["output"] = str(written)
    tables = [
        _cut(args, Table("by_name", "Critical path by operation", _BY_NAME,
                         [row for scope in shown for row in _name_rows(scope)])),
        _cut(args, Table("operations", "Slack", _OPERATIONS, operations)),
        _cut(args, Table("by_cat", "Share of each category", _BY_CAT,
                         [row for scope in shown for row in _cat_rows(scope)])),
        Table("path", "Critical path", _PATH, [row for scope in shown for row in _path_rows(scope)],
              detail=not args.full),
    ]  # fmt: skip
    return Result(
        "critical",
        first,
        document,
        tables=tables,
        charts=(_bars(scopes),),
        figures=[(_title(scopes, scope), f"{scope.path.length_ns / 1e6:.3f} ms") for scope in scopes],
        notes=[*recording.notes, *([f"timeline written to {written}"] if written else [])],
        repairs=loaded.repairs,
        xlsx_default=_beside(args.path[0], "critical.xlsx"),
        html_default=_beside(args.path[0], "critical.html"),
    )


def _shown(scopes: Sequence[_Scope], wanted: str | None) -> list[_Scope]:
    """Return the scopes whose paths the tables show.

    Raises
    ------
    UsageError
        The job has no scope of the kind that is wanted.
    """
    if wanted == "all":
        return list(scopes)
    kind = wanted or scopes[-1].kind
    found = [scope for scope in scopes if scope.kind == kind]
    if not found:
        have = ", ".join(dict.fromkeys(scope.kind for scope in scopes))
        raise UsageError(f"--scope {wanted}: this recording has no such scope; it has {have}")
    return found


def _cut(args: Namespace, table: Table) -> Table:
    """Return the table with the rows that a terminal shows; files and JSON have all."""
    from dataclasses import replace

    rows = list(table.rows)[: args.head]
    whole = args.full or args.head is not None or args.xlsx or args.html or args.format != "table"
    if whole or len(rows) <= _SHOWN:
        return replace(table, rows=rows)
    note = f"{len(rows) - _SHOWN:,} more rows with --full"
    return replace(table, rows=rows[:_SHOWN], note=note)


def _beside(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name


def _scope_document(scope: _Scope, several: bool) -> dict[str, Any]:
    from dag_utils import by_category

    length = scope.path.length_ns
    return {
        "scope": scope.name,
        "worker": scope.worker,
        "length_ms": length / 1e6,
        "path": [
            {
                "name": f"{item.owner}.{item.name}" if several else item.name,
                "cat": item.cat,
                "rank": item.owner,
                "ts_ms": item.start_ns / 1e6,
                "dur_ms": item.dur_ns / 1e6,
                "because": item.because,
            }
            for item in scope.items
        ],
        "by_name": [dict(zip(_KEYS, row[1:], strict=True)) for row in _name_rows(scope)],
        "by_cat": {cat: ns / 1e6 for cat, ns in by_category(scope.items).items()},
    }


_KEYS = tuple(column.key for column in _BY_NAME[1:])


def _name_rows(scope: _Scope) -> list[list[Cell]]:
    from dag_utils import by_name

    length = max(scope.path.length_ns, 1)
    return [
        [scope.name, one.name, one.cat, one.owner, one.stretches, one.ns / 1e6, one.ns / length]
        for one in by_name(scope.items)
    ]


def _cat_rows(scope: _Scope) -> list[list[Cell]]:
    from dag_utils import by_category

    length = max(scope.path.length_ns, 1)
    return [[scope.name, cat, ns / 1e6, ns / length] for cat, ns in by_category(scope.items).items()]


def _path_rows(scope: _Scope) -> list[list[Cell]]:
    return [
        [scope.name, one.name, one.cat, one.owner, one.start_ns / 1e6, one.dur_ns / 1e6, one.because]
        for one in scope.items
    ]


def _operation_rows(recording: Recording, step: StepGraph, slack: Any) -> list[list[Cell]]:
    """Return name, category, duration and slack of every operation of the step.

    Events of the same name are one operation: their durations together, the least slack.
    """
    from dag_utils import category

    rows: dict[tuple[str, str], list[Cell]] = {}
    durations = (step.end_ns - step.start_ns).tolist()
    for event, (dur, free) in enumerate(zip(durations, slack.tolist(), strict=True)):
        operation = recording.operations[int(step.operation[event])]
        key = recording.name_of(step, event), category(operation)
        row = rows.setdefault(key, [*key, 0.0, free / 1e6])
        row[2] = float(row[2] or 0) + dur / 1e6
        row[3] = min(float(row[3] or 0), free / 1e6)
    return list(rows.values())


def _title(scopes: Sequence[_Scope], scope: _Scope) -> str:
    doubled = sum(other.name == scope.name for other in scopes) > 1
    return f"worker {scope.worker}, {scope.name}" if doubled else scope.name


def _bars(scopes: Sequence[_Scope]) -> Bars:
    from dag_utils import by_category

    shares = [by_category(scope.items) for scope in scopes]
    cats = dict.fromkeys(cat for share in shares for cat in share)
    return Bars(
        "Critical path by category", "", "ms",
        [_title(scopes, scope) for scope in scopes],
        {cat or "other": [share.get(cat, 0) / 1e6 for share in shares] for cat in cats},
        stacked=True,
    )  # fmt: skip


def _write_timeline(args: Namespace, loaded: LoadedSteps, step: StepGraph, widest: _Scope) -> Path | None:
    """Write the recorded timeline with the widest scope's path marked to `--output`."""
    if args.output is None:
        return None
    from dag_utils import marked_events
    from formats.chrome_writer import write_events

    events, zero = marked_events(loaded.job.traces, loaded.recording, step, widest.path)
    write_events(args.output, events, baseTimeNanoseconds=zero)
    return Path(args.output)


# ---- --step mean: averages through the DAG


def _mean(args: Namespace) -> Result:
    """Return the longest chain of average durations through the DAG of each GPU, without gaps."""
    from dag_utils import longest_path, mean_dags

    if args.output is not None:
        raise UsageError(f"--output {args.output}: --step mean has no recorded timeline to mark")
    loaded = mean_dags(args.path, jobs=args.jobs, progress=args.progress)
    found = [(name, worker, dag, longest_path(dag)) for name, worker, dag in loaded.gpus]
    if not any(dag.dur_ns.any() for _, _, dag, _ in found):
        why = f" ({'; '.join(loaded.repairs)})" if loaded.repairs else ""
        raise DagError(
            f"{args.path[0]}: the graph has no durations{why}; give the GPU's directory with its trace"
        )
    rows = [row for name, _, dag, path in found for row in _mean_rows(name, dag, path)]
    longest = max(found, key=lambda one: one[3].length_ns)
    first = (
        f"The longest chain of average durations is {longest[3].length_ns / 1e6:.1f} ms, "
        f"on {longest[0]}; gaps and waits are not in it."
    )
    columns = (_BY_NAME[0], _BY_NAME[1], _BY_NAME[2], Column("dur_ms", "Average (ms)", "float"))
    document = {
        "option": "critical",
        "headline": first,
        "step": "mean",
        "iteration_ms": None,
        "scopes": [_mean_document(*one) for one in found],
        "operations": [
            {"name": name, "cat": cat, "dur_ms": dur / 1e6, "slack_ms": slack / 1e6}
            for _, _, dag, path in found
            for name, cat, dur, slack in zip(
                dag.names, dag.cats, dag.dur_ns.tolist(), path.slack_ns.tolist(), strict=True
            )
        ],
    }
    return Result(
        "critical",
        first,
        document,
        tables=(Table("path", "Longest chain", columns, rows[: args.head]),),
        notes=loaded.notes,
        repairs=loaded.repairs,
        xlsx_default=_beside(args.path[0], "critical.xlsx"),
        html_default=_beside(args.path[0], "critical.html"),
    )


def _mean_rows(name: str, dag: Dag, path: LongestPath) -> list[list[Cell]]:
    return [
        [name, dag.names[node], dag.cats[node], part / 1e6]
        for node, part in zip(path.nodes, path.part_ns, strict=True)
    ]


def _mean_document(name: str, worker: int, dag: Dag, path: LongestPath) -> dict[str, Any]:
    shares: dict[str, float] = {}
    for node, part in zip(path.nodes, path.part_ns, strict=True):
        shares[dag.cats[node]] = shares.get(dag.cats[node], 0.0) + part / 1e6
    return {
        "scope": name,
        "worker": worker,
        "length_ms": path.length_ns / 1e6,
        "path": [{"name": row[1], "cat": row[2], "dur_ms": row[3]} for row in _mean_rows(name, dag, path)],
        "by_cat": shares,
    }
