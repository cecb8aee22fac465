"""The DAG of each GPU with average durations: what was meant to wait for what, without gaps and waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import dialects
from arrays import Int64
from dag.dependencies import dag_from_gml, dag_from_inputs
from dag.model import Dag
from dialects import Need, Role
from errors import DagError, TraceError, counted
from formats.columns import Trace
from formats.gml import is_gml, read_gml
from formats.stream import find_file
from traces.paths import Source
from traces.ranks import Request, load_paths

_NAMED = 3  # one-sided operations that a note names


class MeanDags(Struct, frozen=True):
    """Per GPU its scope's name, its worker and its graph; a line for each flaw of the files."""

    gpus: Sequence[tuple[str, int, Dag]]
    repairs: Sequence[str] = ()
    notes: Sequence[str] = ()


def mean_dags(paths: Sequence[Path], *, jobs: int | None = None, progress: bool | None = None) -> MeanDags:
    """Return the DAGs at `paths`: a GML file, GPU directories, or traces that carry their dependencies.

    Raises
    ------
    DagError
        Nothing there says what waits for what, or a graph is broken.
    TraceError
        There is no such path, or nothing under it is a trace.
    """
    if is_gml(paths[0]):
        if not paths[0].exists():
            raise TraceError(f"{paths[0]}: no such file or directory")
        return MeanDags([("GPU-0", 0, dag_from_gml(read_gml(paths[0]), str(paths[0])))])
    job = load_paths(paths, Request({Need.EDGES}, jobs=jobs, progress=progress))
    gpus: list[tuple[str, int, Dag]] = []
    notes: list[str] = []
    for source, trace in zip(job.job.sources, job.made, strict=True):
        dag = _with_means(_structure(source, trace), trace, source.path.parent)
        gpus.append((f"GPU-{source.rank or 0}", source.worker or 0, dag))
        notes += one_sided_notes(dag)
    return MeanDags(gpus, job.repairs, list(dict.fromkeys(notes)))


def _structure(source: Source, trace: Trace) -> Dag:
    gml = find_file(source.path.parent, "dag.gml")
    dag = dag_from_inputs(trace) if gml is None else dag_from_gml(read_gml(gml), str(gml))
    if dag is None:
        raise DagError(f"{source.path}: neither a dag.gml beside it nor its events say what waits for what")
    return dag


def _with_means(dag: Dag, trace: Trace, directory: Path) -> Dag:
    """Return `dag` with the average duration of each of its operations in `trace`, of `directory`."""
    system = dialects.of(trace)
    parameters = system.parameters(directory)
    names = [system.main_name(name, parameters) for name in trace.names]
    count = np.bincount(trace.name_id, minlength=len(names))
    total = np.bincount(trace.name_id, _own_ns(trace), minlength=len(names))
    sums: dict[str, tuple[int, float]] = {}
    for i in np.flatnonzero(count).tolist():
        name = names[i]
        if name is not None:
            n, ns = sums.get(name, (0, 0.0))
            sums[name] = n + int(count[i]), ns + float(total[i])
    known = {node: sums[name] for node, name in enumerate(dag.names) if name in sums}
    dur = dag.dur_ns.copy()
    for node, (n, ns) in known.items():
        dur[node] = round(ns / n)
    return replace(
        dag,
        dur_ns=dur,
        unrecorded=[node for node in range(len(dag)) if node not in known],
        ungraphed=[name for name in sums if name not in set(dag.names)],
    )


def _own_ns(trace: Trace) -> Int64:
    """Return the duration of each slice (n,); an update's from the end of the communications in it on."""
    roles = dialects.of(trace).roles(trace)
    own: Int64 = trace.dur_ns.copy()
    end = trace.end_ns
    over = np.sort(end[roles == Role.WHOLE_COMM])
    updates = np.flatnonzero(roles == Role.UPDATE)
    if len(over):
        before = np.searchsorted(over, end[updates], side="right") - 1
        waited = np.where(before < 0, 0, over[before] - trace.ts_ns[updates])
        own[updates] -= np.maximum(waited, 0)
    return own


def one_sided_notes(dag: Dag) -> list[str]:
    """Return a sentence for each side that knows operations which the other lacks, naming the first."""
    sides = (
        ([dag.names[i] for i in dag.unrecorded], "in the graph but not in the trace"),
        (list(dag.ungraphed), "in the trace but not in the graph"),
    )
    notes = []
    for names, where in sides:
        if names:
            more = ", …" if len(names) > _NAMED else ""
            notes.append(f"{counted(len(names), 'operation')} {where}: {', '.join(names[:_NAMED])}{more}")
    return notes
