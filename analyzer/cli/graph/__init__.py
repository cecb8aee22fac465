"""`--option graph`: a picture of what waits for what, and its size, depth and kinds of work."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from analyzer.base.errors import UsageError
from analyzer.base.units import in_ms
from analyzer.cli import READING, add_flags, command, damage_notes, refuse
from analyzer.cli.critical import NO_STEP, recorded_step
from analyzer.report.result import Column, Network, Result, Table

if TYPE_CHECKING:
    from dag_utils import Dag, LongestPath

HELP = "draw the dependency graph (.svg .png .pdf .dot .graphml .html by the suffix of --output)"
EXAMPLE = "analyze.py graph traces/0/dag.gml --output dag.html"

_TEXTS = (".dot", ".graphml")
_SUFFIXES = (".svg", ".png", ".pdf", *_TEXTS, ".html")


class _Loaded(NamedTuple):
    """The graph to draw, the path marked in it, and notes about its files."""

    dag: Dag
    path: LongestPath
    by_cat: Counter[str]  # number of operations per recorded category
    headline: str
    notes: Sequence[str]
    repairs: Sequence[str]
    owner: Sequence[int] = ()  # of each operation: an index into `lanes`
    lanes: Sequence[str] = ("",)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the flags of this option."""
    add_flags(parser, *READING, "step", "del_queue", "sort", "head", "output", "picture")


def run(args: Namespace) -> Result:
    """Build the graph, lay it out and say how large it is."""
    from analyzer.base.parallel import progress_bar
    from analyzer.cli.graph.layout import MOST_DRAWN, draw

    args.output = _output(args)
    loaded = _structure(args) if _has_dag(args) else _recorded(args)
    files = [str(file) for file in (args.output, args.html, args.picture) if file]
    is_text = [file.lower().endswith(_TEXTS) for file in files]
    is_drawn, joined = not all(is_text), not any(is_text)
    if is_drawn and len(loaded.dag) > MOST_DRAWN:
        raise UsageError(
            f"{args.path[0]}: the graph has {len(loaded.dag):,} nodes, a drawing at most {MOST_DRAWN:,}; "
            "--output FILE.dot or FILE.graphml writes it for other programs"
        )
    with progress_bar(1, "graphs", what="laying out", enabled=args.progress):
        title = f"What waits for what: {len(loaded.dag):,} operations"
        chart = draw(
            loaded.dag, loaded.path, title, loaded.owner, loaded.lanes, placed=is_drawn, joined=joined
        )
    return _result(args, loaded, chart)


def _has_dag(args: Namespace) -> bool:
    """Choose the DAG, of a GML file or of one GPU, unless a flag needs a recorded step."""
    from analyzer.reading.formats.gml import is_gml
    from analyzer.reading.formats.stream import find_file

    flags = (args.del_queue, args.filter, args.comm, args.step_by, args.rank_by, args.step is not None)
    has_gml = len(args.path) == 1 and find_file(args.path[0], "dag.gml") is not None
    return is_gml(args.path[0]) or (has_gml and not any(flags))


def _structure(args: Namespace) -> _Loaded:
    """Load the graph of a GML file or of one GPU, with the average durations of its trace."""
    from msgspec.structs import replace

    from dag_utils import mean_dags

    refuse(args, NO_STEP, *READING, "del_queue", "step")
    if len(args.path) > 1:
        raise UsageError(f"{args.path[1]}: one graph at a time; {args.path[0]} is one already")
    ((_, _, dag), *_), notes, repairs = mean_dags(args.path, jobs=args.jobs, progress=args.progress)
    path = dag.longest_path()
    if not path.length_ns:  # without durations any path would be arbitrary
        path = replace(path, nodes=[])
    ms = in_ms(path.length_ns)
    length = f"; its longest chain of average durations is {ms}" if path.length_ns else ""
    headline = f"The graph has {len(dag):,} operations and {dag.n_edges:,} edges{length}."
    next_step = [command(args, "critical", "--step", "mean")] if path.length_ns else []
    return _Loaded(dag, path, Counter(dag.cats), headline, [*notes, *next_step], repairs)


def _recorded(args: Namespace) -> _Loaded:
    from analyzer.cli.graph.layout import drawn_step
    from dag_utils import NamedPath, critical_path

    loaded, row = recorded_step(args)
    recording = loaded.recording
    step = recording.steps[row]
    path = critical_path(step)
    dag, marked, by_cat, owner = drawn_step(recording, step, path, step.slack_ns(), parts=args.del_queue)
    headline = NamedPath.of(recording, path).headline(recording, step, path)
    next_step = command(args, "critical", *(() if args.step is None else ("--step", args.step)))
    notes = [*recording.notes, *damage_notes(loaded.files), next_step]
    return _Loaded(dag, marked, by_cat, headline, notes, loaded.repairs, owner, recording.owners)


def _output(args: Namespace) -> Path:
    from analyzer.base.outputs.atomic import check_output

    path: Path | None = args.output
    if path is None:  # in the current directory, with the name of the DAG
        source: Path = args.path[0]
        gmls = sorted(source.glob("*.gml")) if source.is_dir() else [source]
        path = Path(gmls[0].name.removesuffix(".gz") if gmls else "dag").with_suffix(".svg")
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--output {path}: a graph ends in {' '.join(_SUFFIXES)}")
    check_output(path, is_named=args.output is not None)
    return path


def _result(args: Namespace, loaded: _Loaded, chart: Network) -> Result:
    dag, path = loaded.dag, loaded.path
    by_kind = Counter(kind or "other" for kind in dag.cats)
    sizes = {
        "nodes": len(dag),
        "edges": dag.n_edges,
        "components": dag.components(),
        "depth": max(dag.depths(), default=0),
    }
    columns = (Column("kind", "kind"), Column("count", "operations", "int"))
    rows, order = list(by_kind.items()), [-n for n in by_kind.values()]  # the most first
    kinds = Table("by_kind", "Operations by kind of work", columns, rows, order=order)
    figures = [(key, f"{size:,}") for key, size in sizes.items()]
    if path.length_ns:
        figures.append(("critical path", in_ms(path.length_ns)))
    return Result(
        "graph",
        str(args.path[0]),
        {
            **sizes,
            "by_cat": {cat or "other": n for cat, n in loaded.by_cat.items()},
            "only_in_graph": [dag.names[i] for i in dag.unrecorded],
            "only_in_trace": list(dag.ungraphed),
            "output": str(args.output),
        },
        headline=loaded.headline,
        tables=[kinds],
        charts=(chart,),
        figures=figures,
        notes=[*loaded.notes, f"Drawn in {args.output}."],
        repairs=loaded.repairs,
    )
