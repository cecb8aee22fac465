"""From the paths of a BytePS job to its GPUs: each one's dependencies and recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dag.byteps import Gpu
from dag.dependencies import category, dag_from_gml, dag_from_inputs
from dag.gml import read_gml
from dag.model import Dag, new_dag
from dag.recording import Recording, no_recording, record, without
from dialects.gradient_names import read_names
from errors import DagError, TraceError
from formats.columns import Trace
from opname import OpName
from trace_utils import GpuDir, find_gpus, read_traces

#: Keys of the events' args that name what an operation waits for.
INPUT_ARGS = ("input*", "arg*")


@dataclass(frozen=True, slots=True)
class LoadedGpus:
    """The GPUs of a job, workers and ranks in order, and a line for each flaw of its files."""

    gpus: Sequence[Gpu]
    repairs: Sequence[str] = ()

    @property
    def workers(self) -> list[int]:
        """The workers' indices, in order."""
        return sorted({gpu.worker for gpu in self.gpus})


def load_gpus(
    paths: Sequence[Path],
    *,
    stand_ins: Mapping[Path, Path] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> LoadedGpus:
    """Load all GPUs at or below `paths`; several paths are the workers of a job, in the order given.

    A GPU's dependencies come from its ``dag.gml``, else from the inputs in its events' args; its times
    from the profiler's final trace, else from ``comm.json``. What one GPU lacks is a line in `repairs`.
    Names get the prefix ``rank<r>.`` where there are several ranks, ``wk<i>.rank<r>.`` where there are
    several workers. `stand_ins` gives GPU directories another trace than the one that lies there; their
    STEP (which contains the communications before it) counts only if every other GPU's was recorded too.

    Raises
    ------
    DagError
        No GPU directory there, or none of them holds a graph or a trace; every GML is broken, and no
        trace says what waits for what.
    TraceError
        The trace of the only GPU cannot be read.
    """
    directories = _find(paths)
    tried = [_try_gml(directory) for directory in directories]
    broken = {i: one for i, one in enumerate(tried) if isinstance(one, DagError)}
    graphs = [one if isinstance(one, Dag) else None for one in tried]
    other = stand_ins or {}
    sources = [other.get(gpu.path) or gpu.final_trace() or gpu.file("comm.json") for gpu in directories]
    traces, repairs = _read(directories, sources, graphs, jobs, progress)
    several_workers = len({gpu.worker for gpu in directories}) > 1
    gpus = []
    for directory, graph, trace in zip(directories, graphs, traces, strict=True):
        prefix = _prefix(directory, several_workers, len(directories))
        gpu, lines = _one(directory, graph, trace)
        gpus.append(replace(gpu, prefix=prefix))
        repairs += lines
    if len(broken) == len(gpus) and not any(gpu.dag.n_edges for gpu in gpus):
        raise broken[0]
    repairs = [_instead(error, gpus[i].dag) for i, error in broken.items()] + repairs
    own = [gpu for gpu, directory in zip(gpus, directories, strict=True) if directory.path not in other]
    if any("STEP" not in gpu.recording.names and gpu.recording.names for gpu in own):
        gpus = [
            replace(gpu, recording=without(gpu.recording, "STEP")) if directory.path in other else gpu
            for gpu, directory in zip(gpus, directories, strict=True)
        ]
    return LoadedGpus(gpus, repairs)


def gpus_of_trace(trace: Trace) -> list[Gpu]:
    """Return the GPUs that one trace with inputs in its events' args describes (read it with `INPUT_ARGS`).

    A trace in which several were combined (``wk0.rank1.FW.x``) gives one for each prefix; one of them
    without inputs gives operations without dependencies.

    Raises
    ------
    DagError
        No event says what it waits for, or the inputs form a cycle.
    """
    names = [OpName.parse(name) for name in trace.names]
    prefixes = dict.fromkeys((op.prefix, op.worker, op.rank) for op in names if op.cat is not None)
    gpus, tells = [], False
    for prefix, worker, rank in sorted(prefixes, key=lambda key: (key[1] or 0, key[2] or 0)):
        own = np.array([op.prefix == prefix and op.cat is not None for op in names], np.bool_)
        part = trace.select(own[trace.name_id])
        dag = dag_from_inputs(part)
        tells |= dag is not None
        recording = record(part)
        several = len(prefixes) > 1
        gpus.append(
            Gpu(dag or _unconnected(recording), recording, worker or 0, rank or 0, prefix if several else "")
        )
    if not tells:
        raise DagError(f"{trace.path}: no event says what it waits for (input0, arg0); give a GPU directory")
    return gpus


def _find(paths: Sequence[Path]) -> list[GpuDir]:
    found: list[GpuDir] = []
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
        gpus = find_gpus(path)
        if not gpus:
            raise DagError(f"{path}: no directory of a GPU there (dag.gml, comm.json, bps_trace*.json)")
        base = 1 + max((gpu.worker or 0 for gpu in found), default=-1) if len(paths) > 1 else 0
        found += [replace(gpu, worker=base + (gpu.worker or 0)) for gpu in gpus]
    return found


def _instead(error: DagError, dag: Dag) -> str:
    """Return the line about a broken GML: what `dag` was made of without it."""
    return f"{error}; {'the inputs in the events say what waits instead' if dag.n_edges else 'left out'}"


def _try_gml(gpu: GpuDir) -> Dag | DagError | None:
    try:
        return _gml_of(gpu)
    except DagError as error:
        return error


def _gml_of(gpu: GpuDir) -> Dag | None:
    """Return the graph in the directory's GML file; None where there is none."""
    path = gpu.file("dag.gml") or next(iter(sorted(gpu.path.glob("*.gml"))), None)
    return None if path is None else dag_from_gml(read_gml(path), str(path))


def _read(
    directories: Sequence[GpuDir],
    sources: Sequence[Path | None],
    graphs: Sequence[Dag | None],
    jobs: int | None,
    progress: bool | None,
) -> tuple[list[Trace | None], list[str]]:
    """Read the traces that are there, with the inputs only where no graph is."""
    traces: list[Trace | None] = [None] * len(sources)
    repairs: list[str] = []
    for wanted in (True, False):
        rows = [i for i, g in enumerate(graphs) if (g is None) == wanted and sources[i] is not None]
        paths = [path for i in rows if (path := sources[i]) is not None]
        for i, trace in zip(rows, _read_some(paths, wanted, jobs, progress, repairs), strict=True):
            traces[i] = trace
    for i, (source, trace) in enumerate(zip(sources, traces, strict=True)):
        if source is not None and not (trace and len(trace)):
            traces[i] = _communications(directories[i], source, graphs[i], repairs) or trace
    if len(sources) == 1 and repairs and graphs[0] is None and traces[0] is None:
        raise TraceError(repairs[0])
    repairs += [f"{trace.path}: {'; '.join(trace.repairs)}" for trace in traces if trace and trace.repairs]
    return traces, repairs


def _read_some(
    paths: Sequence[Path], inputs: bool, jobs: int | None, progress: bool | None, repairs: list[str]
) -> list[Trace | None]:
    args = INPUT_ARGS if inputs else ()
    try:
        return list(read_traces(paths, args=args, jobs=jobs, progress=progress)) if paths else []
    except TraceError:
        return [_try(path, args, repairs) for path in paths]


def _try(path: Path, args: Sequence[str], repairs: list[str]) -> Trace | None:
    try:
        return read_traces([path], args=args, jobs=1, progress=False)[0]
    except TraceError as error:
        repairs.append(str(error))
        return None


def _communications(gpu: GpuDir, source: Path, graph: Dag | None, repairs: list[str]) -> Trace | None:
    """Return what the GPU's ``comm.json`` holds, for a trace `source` without any; None if nothing."""
    path = gpu.file("comm.json")
    trace = (
        None if path is None or path == source else _try(path, INPUT_ARGS if graph is None else (), repairs)
    )
    if trace is None or not len(trace):
        return None
    repairs.append(f"{gpu.path}: comm.json is read instead of {source.name}, which gives no operation")
    return trace


def _one(directory: GpuDir, graph: Dag | None, trace: Trace | None) -> tuple[Gpu, list[str]]:
    """Return the GPU of one directory, and what its files lack."""
    lines: list[str] = []
    rename = _parameter_names(directory, lines) if trace is not None else {}
    recording = no_recording() if trace is None else record(trace, rename)
    if graph is None and trace is not None:
        graph = dag_from_inputs(trace)
        if graph is None:
            lines.append(f"{directory.path}: no dag.gml, and no event says what it waits for: "
                         "operations without dependencies")  # fmt: skip
            graph = _unconnected(recording)
    elif graph is None:
        lines.append(f"{directory.path}: neither a dag.gml nor a trace")
        graph = new_dag([], [], [])
    elif not recording.names:
        lines.append(f"{directory.path}: a graph without a trace: no durations")
    elif not any(name.startswith(("FW", "BW")) for name in recording.names):
        lines.append(f"{directory.path}: only communications are recorded; --option collect adds the rest")
    worker, rank = directory.worker or 0, directory.rank or 0
    return Gpu(graph, recording, worker, rank), lines


def _unconnected(recording: Recording) -> Dag:
    sub_tasks = {task for tasks in recording.parts.values() for _, _, task in tasks}
    names = [name for i, name in enumerate(recording.names) if i not in sub_tasks]
    return new_dag(names, [category(name) for name in names], [0] * len(names))


def _parameter_names(directory: GpuDir, lines: list[str]) -> Mapping[str, str]:
    """Return ``Comm.byteps.gradient_<i>`` -> the communication's name with its parameter."""
    try:
        names = read_names(directory.path)
    except TraceError as error:
        lines.append(str(error))
        return {}
    parameters = {} if names is None else names.parameters
    return {f"Comm.{gradient}": f"Comm.{parameter}" for gradient, parameter in parameters.items()}


def _prefix(gpu: GpuDir, several_workers: bool, n_gpus: int) -> str:
    if n_gpus < 2:
        return ""
    worker = f"wk{gpu.worker or 0}." if several_workers else ""
    return f"{worker}rank{gpu.rank or 0}."
