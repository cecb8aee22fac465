"""`--option graph`: a picture of what waits for what, and its size, depth and categories."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError
from result import Column, Network, Result, Table

if TYPE_CHECKING:
    from dag.layout import Drawn
    from dag_utils import Dag, LongestPath

HELP = "draw the dependency graph (.svg .png .pdf .dot .graphml .html by the suffix of --output)"
EXAMPLE = "analyze.py --option graph --path traces/0/dag.gml --output dag.html"
FLAGS = frozenset({"sub_option", "filter", "step_by", "step", "del_queue", "sort", "head", "output"})

_STILLS = (".svg", ".png", ".pdf")
_SUFFIXES = (*_STILLS, ".dot", ".graphml", ".html")


def add_arguments(group: _ArgumentGroup) -> None:
    """No flags of its own: `--output` names the picture, `--del_queue` and `--step` choose what is drawn."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What is drawn: the graph, the path that is marked in it, and what is to be told of its files."""

    dag: Dag
    path: LongestPath
    headline: str
    notes: Sequence[str]
    repairs: Sequence[str]


def run(args: Namespace) -> Result:
    """Build the graph, lay it out and say how large it is."""
    from dag.layout import MOST_IN_A_STILL, MOST_NODES, draw

    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: graph has no variants")
    output = _output(args)
    alone = len(args.path) == 1 and (_is_gml(args.path[0]) or (args.path[0] / "dag.gml").is_file())
    loaded = _structure(args) if alone and not args.del_queue and args.step is None else _recorded(args)
    most = MOST_IN_A_STILL if output.suffix.lower() in _STILLS else MOST_NODES
    return _result(args, loaded, draw(loaded.dag, loaded.path, most=most), output)


def _is_gml(path: Path) -> bool:
    return path.name.lower().endswith((".gml", ".gml.gz"))


def _structure(args: Namespace) -> _Loaded:
    """Return the graph of a GML file or of one GPU, with average durations where a trace lies beside it."""
    from dag_utils import longest_path, mean_dags

    found = mean_dags(args.path, jobs=args.jobs, progress=args.progress)
    dag = found.gpus[0][2]
    path = longest_path(dag)
    ms = f"{path.length_ns / 1e6:.1f} ms"
    length = f"; its longest chain of average durations is {ms}" if path.length_ns else ""
    first = f"The graph has {len(dag):,} operations and {dag.n_edges + len(dag.next_src):,} edges{length}."
    return _Loaded(dag, path, first, found.notes, found.repairs)


def _recorded(args: Namespace) -> _Loaded:
    """Return the graph of a recorded step."""
    from dag_utils import choose_step, critical_path, drawn_step, headline, load_steps, path_items, slack_ns

    if args.step is not None and not args.step.rpartition("#")[2].isdecimal():
        raise UsageError(f"--step {args.step}: is not the number of a step")
    loaded = load_steps(
        args.path, only=args.filter, step_by=args.step_by, jobs=args.jobs, progress=args.progress
    )
    recording = loaded.recording
    number = None if args.step is None else int(args.step.rpartition("#")[2])
    step = recording.steps[choose_step(recording, number)]
    path = critical_path(step)
    dag, marked = drawn_step(recording, step, path, slack_ns(step), parts=args.del_queue)
    first = headline(recording, step, path, path_items(recording, step, path))
    return _Loaded(dag, marked, first, (), loaded.repairs)


def _output(args: Namespace) -> Path:
    path: Path = args.output or _default(args.path[0])
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--output {path}: a graph ends in {' '.join(_SUFFIXES)}")
    return path


def _default(path: Path) -> Path:
    """Return the graph's name with ``.svg``, beside it."""
    if path.is_dir():
        gmls = sorted(path.glob("*.gml"))
        return gmls[0].with_suffix(".svg") if gmls else path / "dag.svg"
    name = path.name[:-3] if path.suffix == ".gz" else path.name
    return path.with_name(name).with_suffix(".svg")


def _result(args: Namespace, loaded: _Loaded, drawn: Drawn, output: Path) -> Result:
    from dag_utils import components, depths

    dag, path = loaded.dag, loaded.path
    by_cat = Counter(cat or "other" for cat in dag.cats)
    document: dict[str, Any] = {
        "option": "graph",
        "headline": loaded.headline,
        "nodes": len(dag),
        "edges": dag.n_edges + len(dag.next_src),
        "components": components(len(dag), dag.src, dag.dst),
        "depth": max(depths(len(dag), dag.order(), dag.src, dag.dst), default=0),
        "by_cat": dict(by_cat),
        "only_in_graph": [dag.names[i] for i in dag.unrecorded],
        "only_in_trace": list(dag.ungraphed),
        "output": str(output),
    }
    columns = (Column("cat", "Category"), Column("count", "Operations", "int"))
    rows = sorted(by_cat.items(), key=lambda item: item[1], reverse=True) if args.sort else by_cat.items()
    table = Table("by_cat", "Operations by category", columns, list(rows)[: args.head])
    title = f"{args.path[0]}: {len(dag):,} operations"
    figures = [(key, f"{document[key]:,}") for key in ("nodes", "edges", "components", "depth")]
    if path.length_ns:
        figures.append(("critical path", f"{path.length_ns / 1e6:.3f} ms"))
    return Result(
        "graph",
        loaded.headline,
        document,
        tables=(table,),
        charts=(network(drawn, title, timed=bool(dag.dur_ns.any())),),
        figures=figures,
        notes=[
            *loaded.notes,
            *dag.notes,
            *([drawn.note] if drawn.note else []),
            f"drawn in {output}",
        ],
        repairs=loaded.repairs,
        picture=output,
    )


def network(drawn: Drawn, title: str, *, timed: bool) -> Network:
    """Return the drawn graph for the faces; without durations there is no slack to show either."""
    nodes = []
    for i, label in enumerate(drawn.labels):
        node: dict[str, Any] = {
            "label": label,
            "cat": drawn.cats[i],
            "x": drawn.x[i],
            "y": drawn.y[i],
            "dur_ms": drawn.dur_ns[i] / 1e6 if timed else None,
            "critical": drawn.critical[i],
        }
        if timed:
            node["slack_ms"] = drawn.slack_ns[i] / 1e6
        if drawn.members[i] > 1:
            node["operations"] = drawn.members[i]
        nodes.append(node)
    return Network(title, nodes, drawn.edges, drawn.note, drawn.path)
