"""`--option graph`: a picture of what waits for what, and its size, depth and categories."""

from __future__ import annotations

from argparse import Namespace, _ArgumentGroup
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors import UsageError
from result import Column, Network, Result, Table

if TYPE_CHECKING:
    from dag.layout import Drawn
    from dag_utils import LongestPath
    from options.dags import Dags

HELP = "draw the dependency graph (.svg .png .pdf .dot .graphml .html by the suffix of --output)"
EXAMPLE = "analyze.py --option graph --path traces/0/dag.gml --output dag.html"

_STILLS = (".svg", ".png", ".pdf")
_SUFFIXES = (*_STILLS, ".dot", ".graphml", ".html")


def add_arguments(group: _ArgumentGroup) -> None:
    """No flags of its own: `--output` names the picture, `--del_queue` and `--step` choose what is drawn."""


def run(args: Namespace) -> Result:
    """Build the graph, lay it out and say how large it is."""
    from dag.layout import MOST_IN_A_STILL, MOST_NODES, draw
    from dag_utils import longest_path
    from options.dags import load_dags

    if args.sub_option is not None:
        raise UsageError(f"--sub_option {args.sub_option}: graph has no variants")
    output = _output(args)
    loaded = load_dags(args)
    dag = loaded.whole
    path = longest_path(dag)
    most = MOST_IN_A_STILL if output.suffix.lower() in _STILLS else MOST_NODES
    return _result(args, loaded, path, draw(dag, path, most=most), output)


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


def _result(args: Namespace, loaded: Dags, path: LongestPath, drawn: Drawn, output: Path) -> Result:
    from dag.path_summary import one_sided, one_sided_notes
    from dag_utils import components, depths

    dag = loaded.whole
    by_cat = Counter(cat or "other" for cat in dag.cats)  # with the points where ranks meet
    only_in_graph, only_in_trace = one_sided(dag)
    document: dict[str, Any] = {
        "option": "graph",
        "nodes": len(dag),
        "edges": dag.n_edges + len(dag.next_src),
        "components": components(len(dag), dag.src, dag.dst),
        "depth": max(depths(len(dag), dag.order(), dag.src, dag.dst), default=0),
        "by_cat": dict(by_cat),
        "only_in_graph": only_in_graph,
        "only_in_trace": only_in_trace,
        "output": str(output),
    }
    sides = one_sided_notes(dag) if dag.n_steps else []  # without a trace all is one-sided
    columns = (Column("cat", "Category"), Column("count", "Operations", "int"))
    rows = sorted(by_cat.items(), key=lambda item: item[1], reverse=True) if args.sort else by_cat.items()
    table = Table("by_cat", "Operations by category", columns, list(rows)[: args.head])
    title = f"{args.path[0]}: {len(dag):,} operations"
    figures = [(key, f"{document[key]:,}") for key in ("nodes", "edges", "components", "depth")]
    if path.length_ns:
        figures.append(("critical path", f"{path.length_ns / 1e6:.3f} ms"))
    return Result(
        "graph",
        f"Graph of {', '.join(map(str, args.path))}",
        document,
        tables=(table,),
        charts=(network(drawn, title, timed=bool(dag.dur_ns.any())),),
        figures=figures,
        notes=[
            *loaded.notes,
            *sides,
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
