"""The DAG of each GPU, from GML or from the inputs in event args, with average durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.arrays.numbering import unique
from analyzer.base.errors import TraceError, counted, missing
from analyzer.base.names import FORWARD, OUTPUT, OpName
from analyzer.model.graph.model import Dag, category_of_name, dag_from_gml, one_step
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, Role
from analyzer.reading.dialects.edge_rules import EdgeKind
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.gml import is_gml, read_gml
from analyzer.reading.formats.stream import find_file
from trace_utils import Request, Source, read_ranks

_INPUT = re.compile(r"(?:input|arg)[0-9]+")


def dag_from_inputs(trace: Trace) -> Dag | None:
    """Make the graph of the inputs in events' args (``input0``, …, or ``arg0``, …); None without any.

    Operations are the distinct names, and names that occur only as an input, without sub-tasks of
    communications. An OUTPUT has no event that could name its inputs: it waits for the forward operations
    that no other forward operation waits for. TraceError for a cycle within the step.
    """
    columns = [column for key, column in trace.args.items() if _INPUT.fullmatch(key)]
    used = [trace.names[i] for i in unique(trace.name_id).tolist()]
    recorded = {name for name in used if OpName.parse(name).cat is not None}
    edges: dict[tuple[str, str], None] = {}
    for column in columns:
        names = trace.name_id[column.rows].tolist()
        for name_id, source in dict.fromkeys(zip(names, map(str, column.values), strict=True)):
            if trace.names[name_id] in recorded:
                edges[_main(source), _main(trace.names[name_id])] = None
    if not edges:
        return None
    edges.update(dict.fromkeys(_edges_to_outputs(list(edges))))
    seen = [_main(name) for name in used if name in recorded]
    names = list(dict.fromkeys([*seen, *(end for edge in edges for end in edge)]))
    index = {name: i for i, name in enumerate(names)}
    rows = [(index[a], index[b], EdgeKind.DATA) for a, b in edges if a != b]
    dag = Dag.of(names, [category_of_name(name) for name in names], [0] * len(names))
    return one_step(dag, np.array(rows, np.int64).reshape(-1, 3), trace.path)


def _edges_to_outputs(edges: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Make the edges from the last forward operations to the outputs without known inputs."""
    awaited, targets = {a for a, b in edges if category_of_name(b) == FORWARD}, {b for _, b in edges}
    cats = {name: category_of_name(name) for edge in edges for name in edge}
    last = [name for name, cat in cats.items() if cat == FORWARD and name not in awaited]
    outputs = [name for name, cat in cats.items() if cat == OUTPUT and name not in targets]
    return [(a, b) for a in last for b in outputs]


def _main(name: str) -> str:
    op = OpName.parse(name)
    return name if op.queue is None and op.prefix == "" else str(op.main.bare())


def mean_dags(
    paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None
) -> tuple[Sequence[tuple[str, int, Dag]], list[str], list[str]]:
    """Load the DAGs at `paths`: a GML file, GPU directories, or traces that carry their dependencies.

    They are those of each GPU after its name and its worker; also return notes, and a line for each flaw of
    the files. TraceError if there are none, or a graph is broken.
    """
    if is_gml(paths[0]):
        if not paths[0].exists():
            raise missing(paths[0])
        return [("GPU-0", 0, dag_from_gml(read_gml(paths[0]), str(paths[0])))], [], []
    job = read_ranks(paths, request=Request({Need.EDGES}, jobs=jobs, progress=progress))
    gpus: list[tuple[str, int, Dag]] = []
    notes: list[str] = []
    for source, trace in zip(job.job.sources, job.made, strict=True):
        dag = _with_means(_structure(source, trace), trace, source.path.parent)
        gpus.append((f"GPU-{source.rank or 0}", source.worker or 0, dag))
        notes += _one_sided_notes(dag)
    return gpus, list(dict.fromkeys(notes)), job.repairs


def _structure(source: Source, trace: Trace) -> Dag:
    gml = find_file(source.path.parent, "dag.gml")
    dag = dag_from_inputs(trace) if gml is None else dag_from_gml(read_gml(gml), str(gml))
    if dag is None:
        raise TraceError(f"{source.path}: neither a dag.gml beside it nor its events say what waits for what")
    return dag


def _with_means(dag: Dag, trace: Trace, directory: Path) -> Dag:
    """Add the average duration of each operation in `trace`, of `directory`."""
    system = dialects.of(trace)
    parameters = system.parameters(directory)
    names = [system.main_name(name, parameters) for name in trace.names]
    count = np.bincount(trace.name_id, minlength=len(names))
    total = np.bincount(trace.name_id, _work_ns(trace), minlength=len(names))
    sums: dict[str, tuple[int, float]] = {}
    for i in np.flatnonzero(count).tolist():
        name = names[i]
        if name is not None:
            n, ns = sums.get(name, (0, 0.0))
            sums[name] = n + int(count[i]), ns + float(total[i])
    dur = dag.dur_ns.copy()
    for node, name in enumerate(dag.names):
        if name in sums:
            n, ns = sums[name]
            dur[node] = round(ns / n)
    return replace(
        dag,
        dur_ns=dur,
        unrecorded=[node for node, name in enumerate(dag.names) if name not in sums],
        ungraphed=[name for name in sums if name not in set(dag.names)],
    )


def _work_ns(trace: Trace) -> Int64:
    """Measure the duration of each slice (n,); an update begins when the communications in it have ended."""
    roles = dialects.of(trace).roles(trace)
    work_ns: Int64 = trace.dur_ns.copy()
    end = trace.end_ns
    over = np.sort(end[roles == Role.WHOLE_COMM])
    updates = np.flatnonzero(roles == Role.UPDATE)
    if len(over):
        before = np.searchsorted(over, end[updates], side="right") - 1
        waited = np.where(before < 0, 0, over[before] - trace.ts_ns[updates])
        work_ns[updates] -= np.maximum(waited, 0)
    return work_ns


def _one_sided_notes(dag: Dag) -> list[str]:
    """Write a note on the operations that only the graph has, and on those that only the trace has."""
    sides = {
        "in the graph but not in the trace": [dag.names[i] for i in dag.unrecorded],
        "in the trace but not in the graph": dag.ungraphed,
    }
    return [
        f"{counted(len(names), 'operation')} {where}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for where, names in sides.items()
        if names
    ]
