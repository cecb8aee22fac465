"""`--option critical`: what makes a step as long as it is, and how much slack everything else has."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from errors import AnalyzeError, DagError, UsageError, whole_number
from result import Bars, Cell, Chart, Column, Made, Result, Table, in_ms

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from dag_utils import (
        ContractedStep,
        CriticalPath,
        CriticalPaths,
        Dag,
        LoadedSteps,
        LongestPath,
        NamedPath,
        Recording,
        StepGraph,
    )
    from formats.columns import Int64

HELP = "the critical path of a recorded step, per GPU, worker and job, and the slack of everything else"
EXAMPLE = "analyze.py --option critical --path TRACE_DIR --head 10"
FLAGS = frozenset({"sub_option", "filter", "step_by", "step", "scope", "del_queue", "sort", "head", "output"})

_SCOPE = Column("scope", "scope")
_NAME, _CAT = Column("name", "operation"), Column("cat", "category")
_CHAIN = (_NAME, _CAT, Column("dur_ms", "average (ms)", "float"))
_BY_CAT = (  # of a category, its nanoseconds and its share
    Column("cat", "category", value=lambda row: row[0]),
    Column("ms", "on the path (ms)", "float", value=lambda row: row[1] / 1e6),
    Column("share", "share", "percent", 1, value=lambda row: row[2]),
)  # fmt: skip
_OPERATIONS = (
    _NAME, _CAT,
    Column("dur_ms", "duration (ms)", "float", value=lambda operation: operation.dur_ns / 1e6),
    Column("slack_ms", "slack (ms)", "float", value=lambda operation: operation.slack_ns / 1e6),
)  # fmt: skip
_LEAST = 3  # importance of a column that says nothing new
_MOST_BARS = 32
_FEW_SCOPES = 16  # of a kind, whose lengths are told one by one
SCOPES = ("GPU", "worker", "job", "all")


def add_arguments(group: _ArgumentGroup) -> None:
    """Declare `--step` (graph knows it too) and `--scope`."""
    group.add_argument("--step", metavar="N", help="one recorded step by its number instead of the one of "
                       "median length; mean: average durations through the DAG per GPU, no gaps")  # fmt: skip
    group.add_argument("--scope", choices=SCOPES, help="which paths the table shows (default: the widest)")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A GPU, a worker or the job, and how the critical path through its events is found."""

    name: str
    worker: int
    length_ns: int
    path: Callable[[], NamedPath]  # of many scopes most are never asked for theirs

    @property
    def kind(self) -> str:
        """What it covers: one of `SCOPES`."""
        return self.name.partition("-")[0]

    def shares(self, path: NamedPath) -> list[tuple[str, int, float]]:
        """Return (category, ns, share) of its path."""
        from dag_utils import by_category

        length = max(self.length_ns, 1)
        return [(cat, ns, ns / length) for cat, ns in by_category(path).items()]

    def document(self, path: NamedPath, rows: object, **more: object) -> dict[str, Any]:
        """Return the scope for JSON, with its path as records (`rows`) and `more` about it."""
        length = {"length_ms": self.length_ns / 1e6}
        by_cat = {cat: ns / 1e6 for cat, ns, _ in self.shares(path)}
        return {"scope": self.name, "worker": self.worker, **length, "path": rows, **more, "by_cat": by_cat}


@dataclass(slots=True)
class _Operation:
    """All events of one name in a step: their durations together, and the least slack."""

    name: str
    cat: str
    dur_ns: int
    slack_ns: int


def run(args: Namespace) -> Result:
    """Find the path of every scope; with `--output`, write the recorded timeline with the path marked."""
    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: critical has no variants")
    from formats.gml import is_gml

    if args.step == "mean" or any(is_gml(path) for path in args.path):
        return _mean(args)
    return _recorded(args)


def step_number(text: str | None) -> int | None:
    """Return the number that `--step` gives: ``7`` or, as Kineto calls it, ``ProfilerStep#7``."""
    if text is None:
        return None
    number = whole_number(text.rpartition("#")[2])
    if number is None:
        raise UsageError(f"--step {text}: not the number of a step")
    return number


def refuse(args: Namespace, *flags: str) -> None:
    """Refuse (`UsageError`) flags that only a recorded step can heed, not averages through a DAG."""
    for flag in flags:
        if getattr(args, flag):
            raise UsageError(f"--{flag} needs a recorded step; a .gml file and --step mean have none")


def recorded_step(args: Namespace) -> tuple[LoadedSteps, int]:
    """Load the job; return it and the row of the step that `--step` names, or of that of median length."""
    from dag_utils import choose_step, load_steps

    loaded = load_steps(
        args.path, only=args.filter, step_by=args.step_by, jobs=args.jobs, progress=args.progress
    )
    return loaded, choose_step(loaded.recording, step_number(args.step))


def usual_step(args: Namespace, paths: Sequence[Path], name: str) -> list[Chart]:
    """Return the timeline of the step of median length; [] where there is none that can be drawn."""
    from dag_utils import choose_step, critical_path, load_steps, step_timeline

    step_by = getattr(args, "step_by", None)
    try:
        loaded = load_steps(paths, only=args.filter, step_by=step_by, jobs=args.jobs, progress=args.progress)
    except AnalyzeError:  # what is asked for does without
        return []
    recording = loaded.recording
    step = recording.steps[choose_step(recording)]
    title = f"{name}: step {step.number}, of median length, and its critical path"
    return [step_timeline(title, recording, step, critical_path(step))]


def _recorded(args: Namespace) -> Result:
    """Return the critical paths of one recorded step, gaps and waits included."""
    from dag_utils import BY_NAME, PATH, by_name, examined, headline

    loaded, row = recorded_step(args)
    recording = loaded.recording
    step = examined(recording, row)
    scopes, path = _scopes(loaded, step, args.del_queue)
    shown = [(scope, scope.path()) for scope in _shown(scopes, args.scope)]
    slack = _slack_table(args, _operations(recording, step))
    of_names = [(scope, Table.of("", "", BY_NAME, by_name(found)).rows) for scope, found in shown]
    of_cats = [(scope, Table.of("", "", _BY_CAT, scope.shares(found)).rows) for scope, found in shown]
    stretches = [(scope, found.rows()) for scope, found in shown]
    document: dict[str, Any] = {
        "step": step.number,
        "iteration_ms": path.length_ns / 1e6,
        "scopes": Made(scopes, lambda scope: _document(recording, scope)),
        "operations": slack.records(),
    }
    notes = [*recording.notes, *_longer(scopes, path, recording)]
    if args.output is not None:
        _write_timeline(args.output, loaded, recording.steps[row], path)
        document["output"] = str(args.output)
        notes.append(f"timeline written to {args.output}")
    return Result(
        "critical",
        "",
        document,
        headline=headline(recording, step.number, path, scopes[-1].path()),
        tables=[
            _per_scope(args, "by_name", "Critical path by operation", BY_NAME, of_names, about=(3, 1)),
            replace(slack, rows=slack.rows[: args.head], about=_about_operations(recording, slack)),
            _per_scope(args, "by_cat", "Share of each category", _BY_CAT, of_cats),
            replace(
                _per_scope(args, "path", "Critical path", PATH, stretches),
                detail=not args.full,
                about=_about_stretches(scopes[-1], shown),
            ),
        ],
        charts=_charts(recording, recording.steps[row], path, scopes, parts=args.del_queue)
        if args.html or args.picture or args.xlsx
        else (),
        figures=_figures(scopes),
        notes=notes,
        repairs=loaded.repairs,
        beside=args.path[0],
    )


def _document(recording: Recording, scope: _Scope) -> dict[str, Any]:
    """Return a scope of a recorded step for JSON."""
    from dag_utils import BY_NAME, by_name, records

    path = scope.path()
    sums = Table.of("", "", BY_NAME, by_name(path)).records()
    return scope.document(path, records(path, owned=len(recording.owners) > 1), by_name=sums)


def _slack_table(args: Namespace, operations: list[_Operation]) -> Table:
    if args.sort:
        operations.sort(key=lambda operation: (operation.slack_ns, -operation.dur_ns))
    return Table.of("operations", "Slack", _OPERATIONS, operations)


def _per_scope(
    args: Namespace,
    name: str,
    title: str,
    columns: Sequence[Column],
    parts: Sequence[tuple[_Scope, Sequence[Sequence[Cell]]]],
    about: tuple[int, int] | None = None,
) -> Table:
    """Return one table of several scopes' rows, the scope in its first column.

    `about` are the columns with the rank and the operation that a row is about.
    """
    from dag_utils import key_of

    scopes = [scope for scope, _ in parts]
    titles = [_title(scopes, scope) for scope in scopes]

    def cells(place: tuple[int, int]) -> list[Cell]:
        part, at = place
        return [titles[part], *parts[part][1][at]]

    rows = Made(_places([own for _, own in parts])[: args.head], cells)
    keys = Made(rows, lambda row: (key_of(str(row[about[0]]), str(row[about[1]])),)) if about else ()
    scope = _SCOPE if len(parts) > 1 else replace(_SCOPE, minor=_LEAST)  # then the figures name it
    return Table(name, title, (scope, *columns), rows, about=keys)


def _places(parts: Sequence[Sized]) -> Made[tuple[int, int]]:
    """Return (part, place in it) of each item of all parts, in order."""
    import numpy as np

    first = np.cumsum([0, *map(len, parts)])

    def place(at: int) -> tuple[int, int]:
        part = int(np.searchsorted(first, at, side="right")) - 1
        return part, at - int(first[part])

    return Made(range(int(first[-1])), place)


def _about_stretches(widest: _Scope, shown: Sequence[tuple[_Scope, NamedPath]]) -> Made[Sequence[str]]:
    """Return the keys of the stretches of the scopes' paths; the timeline shows the widest's."""
    from dag_utils import stretch_key

    def keys(place: tuple[int, int]) -> Sequence[str]:
        part, at = place
        return (stretch_key(at),) if shown[part][0] is widest else ()

    return Made(_places([path for _, path in shown]), keys)


def _about_operations(recording: Recording, slack: Table) -> Made[Sequence[str]]:
    """Return the keys of the operations in a table of slack, where several ranks prefix the names."""
    from dag_utils import key_of

    several = len(recording.owners) > 1
    return Made(
        slack.rows,
        lambda row: (str(row[0]) if several else key_of(recording.owners[0], str(row[0])),),
    )


def _scopes(
    loaded: LoadedSteps, step: StepGraph | ContractedStep, parts: bool
) -> tuple[list[_Scope], CriticalPath]:
    """Return each GPU, each worker and the job with their paths, the widest last; and that one's path."""
    from dag_utils import critical_paths, named_path

    def scope(name: str, worker: int, paths: CriticalPaths, part: int) -> _Scope:
        def path() -> NamedPath:
            return named_path(loaded.recording, paths.path(part), parts=parts)

        return _Scope(name, worker, paths.length_ns(part), path)

    scopes = []
    for groups in _groups(loaded.recording, loaded.job.kind):
        paths = critical_paths(step, [owners for _, _, owners in groups])
        scopes += [scope(name, worker, paths, i) for i, (name, worker, _) in enumerate(groups)]
    widest = paths.path(len(groups) - 1)
    named = named_path(loaded.recording, widest, parts=parts)  # which every face shows
    scopes[-1] = replace(scopes[-1], path=lambda: named)
    return scopes, widest


def _groups(recording: Recording, kind: str) -> list[list[tuple[str, int, list[int]]]]:
    """Return (name, worker, owners) of each GPU, of each worker and of the job, as far as they differ."""
    everyone = list(range(len(recording.owners)))
    workers = [worker or 0 for worker in recording.workers]
    gpus = [(f"GPU-{recording.ranks[owner] or 0}", workers[owner], [owner]) for owner in everyone]
    if len(everyone) == 1:
        return [gpus]
    if kind == "worker":
        return [gpus, [("worker-0", 0, everyone)]]
    if len(set(workers)) == 1:
        return [gpus, [("job", 0, everyone)]]
    members = {worker: [i for i in everyone if workers[i] == worker] for worker in sorted(set(workers))}
    return [gpus, [(f"worker-{w}", w, owners) for w, owners in members.items()], [("job", 0, everyone)]]


def _shown(scopes: Sequence[_Scope], wanted: str | None) -> list[_Scope]:
    """Return the scopes whose paths the tables show; refuse a kind of which the job has none."""
    if wanted == "all":
        return list(scopes)
    kind = wanted or scopes[-1].kind
    shown = [scope for scope in scopes if scope.kind == kind]
    if not shown:
        have = ", ".join(dict.fromkeys(scope.kind for scope in scopes))
        raise UsageError(f"--scope {wanted}: this recording has no such scope; it has {have}")
    return shown


def _operations(recording: Recording, step: StepGraph | ContractedStep) -> list[_Operation]:
    """Return the operations of a step by name and category, in the order of their first events."""
    from dag_utils import slacks

    is_meeting = recording.which(lambda one: one.is_meeting)
    found: dict[tuple[str, str], _Operation] = {}
    for graph, slack_ns in slacks(step):
        _add_operations(found, recording, graph, slack_ns, is_meeting)
    return list(found.values())


def _add_operations(
    found: dict[tuple[str, str], _Operation],
    recording: Recording,
    graph: StepGraph,
    slack_ns: Int64,
    is_meeting: NDArray[np.bool_],
) -> None:
    import numpy as np

    from dag_utils import category

    number, first, place = np.unique(graph.operation, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    least = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(least, place, slack_ns)
    dur = np.bincount(place, graph.end_ns - graph.start_ns, len(number)).astype(np.int64).tolist()
    least_ns, firsts = least.tolist(), first.tolist()
    for one in np.argsort(first).tolist():
        at = int(number[one])
        if is_meeting[at]:
            continue
        key = recording.name_of(graph, firsts[one]), category(recording.operations[at])
        operation = found.setdefault(key, _Operation(*key, 0, least_ns[one]))
        operation.dur_ns += dur[one]
        operation.slack_ns = min(operation.slack_ns, least_ns[one])


def _longer(scopes: Sequence[_Scope], path: CriticalPath, recording: Recording) -> list[str]:
    """Return why a part of the job takes longer than the whole, where one does."""
    names = [_title(scopes, scope) for scope in scopes if scope.length_ns > scopes[-1].length_ns]
    if not names:
        return []
    last = f"{recording.owners[path.owner]}, which ends last"
    takes = f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''} took longer"
    return [f"{takes} than the {scopes[-1].kind}: the {scopes[-1].kind}'s step is that of {last}; "
            "the others had begun earlier"]  # fmt: skip


def _title(scopes: Sequence[_Scope], scope: _Scope) -> str:
    doubled = sum(other.name == scope.name for other in scopes) > 1
    return f"worker-{scope.worker} {scope.name}" if doubled else scope.name


def _figures(scopes: Sequence[_Scope]) -> list[tuple[str, str]]:
    """Return how long each scope's path is; of many of a kind the shortest and the longest."""
    figures = []
    scopes = _once(scopes)
    for kind in dict.fromkeys(scope.kind for scope in scopes):
        own = [scope for scope in scopes if scope.kind == kind]
        if len(own) <= _FEW_SCOPES:
            figures += [(_title(scopes, scope), f"{scope.length_ns / 1e6:.3f} ms") for scope in own]
        else:
            lengths = [scope.length_ns / 1e6 for scope in own]
            figures.append((f"{len(own):,} {kind}s", f"{min(lengths):.3f} to {max(lengths):.3f} ms"))
    return figures


def _charts(
    recording: Recording, step: StepGraph, path: CriticalPath, scopes: Sequence[_Scope], *, parts: bool
) -> list[Chart]:
    """Return the step with the path on it, and what the paths consist of."""
    from dag_utils import step_timeline

    title = f"Step {step.number} and its critical path"
    return [step_timeline(title, recording, step, path, parts=parts), _bars(scopes)]


def _once(scopes: Sequence[_Scope]) -> list[_Scope]:
    """Return the scopes without the GPUs of workers that have no other."""
    n_gpus = Counter(scope.worker for scope in scopes if scope.kind == "GPU")
    workers = {scope.worker for scope in scopes if scope.kind == "worker"}
    return [
        scope
        for scope in scopes
        if scope.kind != "GPU" or n_gpus[scope.worker] > 1 or scope.worker not in workers
    ]


def _bars(scopes: Sequence[_Scope]) -> Bars:
    scopes = _once(scopes)
    longest = sorted(scopes[:-1], key=lambda scope: -scope.length_ns)[:_MOST_BARS]
    scopes = [*longest, scopes[-1]] if len(scopes) > _MOST_BARS else scopes
    ms = [{cat: ns / 1e6 for cat, ns, _ in scope.shares(scope.path())} for scope in scopes]
    cats = dict.fromkeys(cat for of_scope in ms for cat in of_scope)
    series = {cat or "other": [of_scope.get(cat, 0.0) for of_scope in ms] for cat in cats}
    names = [_title(scopes, scope) for scope in scopes]
    return Bars("Critical path by category", "", "ms", names, series, stacked=True)


def _write_timeline(output: Path, loaded: LoadedSteps, step: StepGraph, path: CriticalPath) -> None:
    from dag_utils import marked_events
    from formats.chrome_writer import write_events

    events, zero = marked_events(loaded.load_traces(args=["*"]), loaded.recording, step, path)
    write_events(output, events, baseTimeNanoseconds=zero)


def _mean(args: Namespace) -> Result:
    """Return the longest chain of average durations through the DAG of each GPU, without gaps."""
    from dag_utils import longest_path, mean_dags

    refuse(args, "filter", "step_by", "scope", "del_queue", "output")
    if args.step != "mean":
        refuse(args, "step")
    loaded = mean_dags(args.path, jobs=args.jobs, progress=args.progress)
    if not any(dag.dur_ns.any() for _, _, dag in loaded.gpus):
        why = f" ({'; '.join(loaded.repairs)})" if loaded.repairs else ""
        raise DagError(
            f"{args.path[0]}: the graph has no durations{why}; give the GPU's directory with its trace"
        )
    scopes: list[_Scope] = []
    operations: list[_Operation] = []
    for name, worker, dag in loaded.gpus:
        path = longest_path(dag)
        rows = zip(dag.names, dag.cats, dag.dur_ns.tolist(), path.slack_ns.tolist(), strict=True)
        operations += [_Operation(*row) for row in rows]
        scopes.append(_Scope(name, worker, path.length_ns, partial(_chain, dag, path)))
    longest = max(scopes, key=lambda scope: scope.length_ns)
    chains = [Table("path", "", _CHAIN, _chain_rows(scope.path())) for scope in scopes]
    rows_of = [(scope, chain.rows) for scope, chain in zip(scopes, chains, strict=True)]
    table = _per_scope(args, "path", "Longest chain", _CHAIN, rows_of)
    return Result(
        "critical",
        "",
        {
            "step": "mean",
            "iteration_ms": None,
            "scopes": [
                scope.document(scope.path(), chain.records())
                for scope, chain in zip(scopes, chains, strict=True)
            ],
            "operations": _slack_table(args, operations).records(),
        },
        headline=f"The longest chain of average durations is {in_ms(longest.length_ns)}, "
        f"on {_title(scopes, longest)}; gaps and waits are not in it.",
        tables=(table,),
        charts=(_parts(longest),) if args.html or args.picture or args.xlsx else (),
        notes=loaded.notes,
        repairs=loaded.repairs,
        beside=args.path[0],
    )


def _parts(scope: _Scope) -> Chart:
    """Return what the longest chain of a GPU consists of."""
    from dag_utils import waterfall

    path = scope.path()
    sums: dict[tuple[str, str], int] = {}
    for label, ns in zip(path.labels, path.ns, strict=True):
        key = label.name, label.cat or "other"
        sums[key] = sums.get(key, 0) + ns
    title = f"The longest chain of average durations, on {scope.name}"
    return replace(waterfall(title, "ms, along the chain", sums, "the chain"), is_small=False)


def _chain(dag: Dag, chain: LongestPath) -> NamedPath:
    """Return the longest chain of a DAG as a path, without times of its own."""
    import numpy as np

    from dag_utils import Label, NamedPath

    nodes = np.array(chain.nodes, np.int64)
    labels = [Label(dag.names[node], dag.cats[node], "") for node in chain.nodes]
    nowhere = np.zeros(len(nodes), np.int64)
    return NamedPath(labels, np.arange(len(nodes)), nowhere, dag.dur_ns[nodes], nowhere - 1)


def _chain_rows(path: NamedPath) -> list[tuple[str, str, float]]:
    """Return the cells of `_CHAIN` for each operation of a chain."""
    return [(one.name, one.cat, ns / 1e6) for one, ns in zip(path.labels, path.ns, strict=True)]
