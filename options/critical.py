"""`--option critical`: the chain of operations that makes a step as long as it is; slack of the rest."""

from __future__ import annotations

import itertools
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import DagError, UsageError
from result import Bars, Cell, Column, Result, Table

if TYPE_CHECKING:
    from dag_utils import CriticalPath, Dag
    from options.dags import Dags, Scope

HELP = "the longest chain of operations of a step, per GPU, worker and job, and the slack of the rest"
EXAMPLE = "analyze.py --option critical --path TRACE_DIR --sort --head 10"

_PATH = (
    Column("scope", "Scope"), Column("name", "Operation"), Column("cat", "Category"),
    Column("dur_ms", "Time on the path (ms)", "float"), Column("share", "Share", "percent", 1),
    Column("because", "Entered by"),
)  # fmt: skip
_BY_CAT = (
    Column("scope", "Scope"), Column("cat", "Category"), Column("ms", "Time on the path (ms)", "float"),
    Column("share", "Share", "percent", 1),
)  # fmt: skip
_OPERATIONS = (
    Column("name", "Operation"), Column("cat", "Category"), Column("dur_ms", "Duration (ms)", "float"),
    Column("slack_ms", "Slack (ms)", "float"),
)  # fmt: skip
_SHOWN = 20  # operations in a terminal without --head
_STOPS = 60  # operations of paths in a terminal; shorter ones between them are summed


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare `--step` (graph knows it too)."""
    group.add_argument("--step", metavar="N", help="one recorded step instead of averages: the N-th, "
                       "or ProfilerStep#N (also for graph)")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Found:
    """A scope, and the path through it."""

    scope: Scope
    path: CriticalPath

    @property
    def dag(self) -> Dag:
        return self.scope.dag


def run(args: Namespace) -> Result:
    """Find the path of every scope; with `--output`, write the recorded timeline with the path marked."""
    from dag.path_summary import one_sided
    from dag_utils import critical_path
    from options.dags import load_dags

    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: critical has no variants")
    dags = load_dags(args, every_scope=True)
    _check(args, dags)
    found = [_Found(scope, critical_path(scope.dag)) for scope in dags.scopes]
    written = _write_timeline(args, dags, found[-1])
    rows = [_path_rows(each) for each in found]
    paths = list(itertools.chain.from_iterable(rows))
    shares = [row for each in found for row in _share_rows(each)]
    operations = _operation_rows(found[-1])
    if args.sort:
        paths.sort(key=lambda row: float(row[3] or 0), reverse=True)
        operations.sort(key=lambda row: (float(row[3] or 0), -float(row[2] or 0)))
    operations = operations[: args.head]
    full = args.head is not None or args.xlsx or args.html or args.format != "table"
    if not full:
        paths = paths[:_STOPS] if args.sort else _summed(paths, len(found))
    shown = operations if full else operations[:_SHOWN]
    rest = f"{len(operations):,} operations; all with --format json, --head, --xlsx or --html"
    only_in_graph, only_in_trace = one_sided(dags.whole)
    document = {
        "option": "critical",
        "step": dags.step or None,
        "scopes": [_scope_document(each, of_scope) for each, of_scope in zip(found, rows, strict=True)],
        "operations": Table("operations", "", _OPERATIONS, operations).records(),
        "only_in_graph": only_in_graph,
        "only_in_trace": only_in_trace,
    }
    if written:
        document["output"] = str(written)
    return Result(
        "critical",
        f"Critical path of {', '.join(map(str, args.path))}",
        document,
        tables=(
            Table("path", "Critical path", _PATH, paths[: args.head]),
            Table("by_cat", "Share of each category", _BY_CAT, shares),
            Table("operations", "Slack", _OPERATIONS, shown, rest if len(shown) < len(operations) else ""),
        ),
        charts=(_bars(found),),
        figures=[(_title(found, each), f"{each.path.length_ns / 1e6:.3f} ms") for each in found],
        notes=[*dags.notes, *_notes(found), *([f"timeline written to {written}"] if written else [])],
        repairs=dags.repairs,
        xlsx_default=_beside(args.path[0], "critical.xlsx"),
        html_default=_beside(args.path[0], "critical.html"),
    )


def _check(args: Namespace, dags: Dags) -> None:
    """Refuse a graph of which no duration is known: its longest chain says nothing."""
    dag = dags.whole
    if not len(dag) or dag.dur_ns.any():
        return
    if dag.ungraphed:
        raise DagError(f"{args.path[0]}: the graph and its trace have no operation in common")
    if not dag.step_dur_ns.size:
        why = f" ({'; '.join(dags.repairs)})" if dags.repairs else ""
        raise DagError(
            f"{args.path[0]}: a graph without durations{why}; give the GPU's directory with its trace"
        )


def _beside(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name


def _scope_document(found: _Found, rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    from dag.path_summary import by_category, iteration_ns, overlap_ns

    iteration = iteration_ns(found.dag)
    return {
        "scope": found.scope.name,
        "worker": found.scope.worker,
        "length_ms": found.path.length_ns / 1e6,
        "iteration_ms": None if iteration is None else iteration / 1e6,
        "overlap_ms": overlap_ns(found.dag, found.path)[0] / 1e6,
        "path": [{"name": row[1], "cat": row[2], "dur_ms": row[3], "because": row[5]} for row in rows],
        "by_cat": {cat: ns / 1e6 for cat, ns in by_category(found.dag, found.path).items()},
    }


def _path_rows(found: _Found) -> list[list[Cell]]:
    """Return a row for every operation of the path; the points where ranks meet are no operations."""
    from dag_utils import MEETING, Kind

    dag, path = found.dag, found.path
    rows: list[list[Cell]] = []
    for node, part, kind in zip(path.nodes, path.part_ns, path.kinds, strict=True):
        if dag.cats[node] == MEETING:
            continue
        share = part / path.length_ns if path.length_ns else None
        because = "" if kind < 0 else Kind(kind).label
        rows.append([found.scope.name, dag.names[node], dag.cats[node], part / 1e6, share, because])
    return rows


def _summed(rows: list[list[Cell]], n_scopes: int) -> list[list[Cell]]:
    """Return the rows of paths with runs of short operations as one row each, so that they fit a screen."""
    kept: list[list[Cell]] = []
    most = max(_STOPS // n_scopes, 8)
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        of_scope = list(group)
        longest = sorted((float(row[3] or 0) for row in of_scope), reverse=True)
        least = longest[most - 1] if len(longest) > most else -1.0
        for short, run in itertools.groupby(of_scope, key=lambda row: float(row[3] or 0) < least):
            members = list(run)
            kept += [_sum_row(members)] if short and len(members) > 1 else members
    return kept


def _sum_row(rows: Sequence[list[Cell]]) -> list[Cell]:
    time, share = (sum(float(row[i] or 0) for row in rows) for i in (3, 4))
    return [rows[0][0], f"… {len(rows):,} shorter operations", "", time, share, ""]


def _share_rows(found: _Found) -> list[list[Cell]]:
    from dag.path_summary import by_category

    shares = by_category(found.dag, found.path)
    length = found.path.length_ns
    return [
        [found.scope.name, cat, ns / 1e6, ns / length if length else None] for cat, ns in shares.items() if ns
    ]


def _operation_rows(found: _Found) -> list[list[Cell]]:
    """Return name, category, duration and slack of every operation of the widest scope.

    Events of the same name (Kineto) are one operation: their durations together, the least slack.
    """
    from dag_utils import MEETING

    rows: dict[tuple[str, str], list[Cell]] = {}
    columns = (found.dag.names, found.dag.cats, found.dag.dur_ns.tolist(), found.path.slack_ns.tolist())
    for name, cat, dur, slack in zip(*columns, strict=True):
        if cat == MEETING:
            continue
        row = rows.get((name, cat))
        if row is None:
            rows[name, cat] = [name, cat, dur / 1e6, slack / 1e6]
        else:
            row[2] = float(row[2] or 0) + dur / 1e6
            row[3] = min(float(row[3] or 0), slack / 1e6)
    return list(rows.values())


def _title(found: Sequence[_Found], each: _Found) -> str:
    doubled = sum(other.scope.name == each.scope.name for other in found) > 1
    return f"worker {each.scope.worker}, {each.scope.name}" if doubled else each.scope.name


def _notes(found: Sequence[_Found]) -> list[str]:
    """Return what must be known to trust a path: what was not recorded, and where it contradicts itself."""
    from dag.path_summary import iteration_ns, one_sided_notes, overlap_ns

    whole = found[-1].dag
    notes = [*one_sided_notes(whole), *whole.notes]
    widest = found[-1]
    iteration, (overlap, worst) = iteration_ns(whole), overlap_ns(whole, widest.path)
    if iteration:
        notes.append(f"the recorded steps take {iteration / 1e6:.3f} ms on average")
    if worst is not None and overlap > 0.01 * widest.path.length_ns:
        notes.append(
            f"{widest.scope.name}: {overlap / 1e6:.3f} ms of the path overlap in the recording, most of "
            f"it {whole.names[worst]} beside what it waits for: the chain is longer than it took"
        )
    return notes


def _bars(found: Sequence[_Found]) -> Bars:
    from dag.path_summary import by_category

    shares = [by_category(each.dag, each.path) for each in found]
    cats = dict.fromkeys(cat for share in shares for cat in share)
    return Bars(
        "Critical path by category", "", "ms",
        [_title(found, each) for each in found],
        {cat or "other": [share.get(cat, 0) / 1e6 for share in shares] for cat in cats},
        stacked=True,
    )  # fmt: skip


def _write_timeline(args: Namespace, dags: Dags, widest: _Found) -> Path | None:
    """Write the recorded timeline with the widest scope's path marked to `--output`."""
    if args.output is None:
        return None
    import msgspec

    from atomic_output import open_output
    from dag.marked_timeline import marked_events, stops
    from options.dags import load_recorded
    from output_marks import MEMBER, PROGRAM

    if not widest.dag.n_steps:
        raise DagError(f"--output {args.output}: there is no recorded timeline to mark")
    sources, traces = load_recorded(args, dags)
    labels = [source.prefix if len(sources) > 1 else "" for source in sources]
    paths = stops(widest.dag, widest.path, sources, traces)
    events, zero = marked_events(traces, labels, paths)
    document = {MEMBER: PROGRAM, "displayTimeUnit": "ms", "baseTimeNanoseconds": zero, "traceEvents": events}
    with open_output(args.output) as file:
        file.write(msgspec.json.encode(document))
    return Path(args.output)
