"""What `graph` and `critical` share: the graphs that a command line's paths describe."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from errors import AnalyzeError, DagError, TraceError, UsageError
from temporary_files import temporary_directory

if TYPE_CHECKING:
    from dag_utils import Dag, Gpu
    from formats.columns import Trace
    from trace_utils import LoadedJob, Source


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph of those that a path describes: ``GPU-0``, ``worker-1`` or ``job``."""

    name: str
    worker: int
    dag: Dag


@dataclass(frozen=True, slots=True)
class Dags:
    """The graphs of a command line's paths.

    Attributes
    ----------
    scopes : smallest first; the last covers everything
    step : the recorded step that the durations are of, as the trace calls it; "" for averages
    traces : the traces whose rows ``attrs["row"]`` of the last graph gives (Kineto, DASF), else none
    offsets : per worker the nanoseconds that were added to its timestamps
    """

    scopes: Sequence[Scope]
    repairs: Sequence[str] = ()
    notes: Sequence[str] = ()
    step: str = ""
    traces: Sequence[Trace] = field(default_factory=list)
    offsets: Mapping[int, int] = field(default_factory=dict)

    @property
    def whole(self) -> Dag:
        """The graph of everything."""
        return self.scopes[-1].dag


def load_dags(args: Namespace, *, every_scope: bool = False) -> Dags:
    """Return the graphs of `args.path`; with `every_scope` also those of the parts of a job.

    Raises
    ------
    DagError, TraceError
        Nothing there says what waits for what, a file is broken, or `args.step` was not recorded.
    UsageError
        Paths of different kinds.
    """
    paths: list[Path] = args.path
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
    gmls = [path for path in paths if path.name.lower().endswith((".gml", ".gml.gz"))]
    if gmls and len(paths) > 1:
        raise UsageError("--path: one GML file at a time, or the directories of the GPUs")
    from trace_utils import find_gpus

    if gmls:
        dags = _from_gml(gmls[0])
    elif all(path.is_dir() and find_gpus(path) for path in paths):
        dags = _from_gpus(args, every_scope)
    else:
        return _from_traces(args, every_scope)
    return dags if args.step is None else _at_step(dags, args.step)


def _from_gml(path: Path) -> Dags:
    from dag_utils import read_dag

    return Dags([Scope("GPU-0", 0, read_dag(path))])


def _from_gpus(args: Namespace, every_scope: bool) -> Dags:
    from clocks.aligned import on_one_clock
    from dag_utils import load_gpus, merge
    from trace_utils import find_gpus

    with temporary_directory() as directory:
        stand_ins = _collected(args.path, directory)
        loaded = load_gpus(args.path, stand_ins=stand_ins, jobs=args.jobs, progress=args.progress)
    gpus, offsets, clocks = on_one_clock(loaded.gpus)
    if not any(len(gpu.dag) for gpu in gpus):
        raise DagError(f"{args.path[0]}: neither a dag.gml nor a trace with operations")
    alone = len(args.path) == 1 and find_gpus(args.path[0])[0].path == args.path[0]
    scopes = []
    for name, worker, members in _scopes(gpus, every_scope, alone):
        dag = merge(members, del_queue=args.del_queue, lenders=gpus)
        scopes.append(Scope(name, worker, _filtered(dag, args)))
    notes = [clocks] if clocks else []
    if stand_ins:
        have = "1 GPU has" if len(stand_ins) == 1 else f"{len(stand_ins)} GPUs have"
        notes.insert(0, f"{have} no final trace: read from the profiler's files")
    return Dags(scopes, loaded.repairs, notes, offsets=offsets)


def load_recorded(args: Namespace, dags: Dags) -> tuple[Sequence[Source], list[Trace]]:
    """Return whose the traces are that `dags` was made of, and the traces on its clock.

    A GPU without a final trace has that which `collect` would write.
    """
    from trace_utils import load_paths, read_trace

    job = load_paths(args.path, jobs=args.jobs, progress=False)
    sources = job.job.sources
    if dags.traces:
        return sources, list(dags.traces)
    with temporary_directory() as directory:
        stand_ins = _collected(args.path, directory)
        traces = [
            read_trace(stand_ins[source.path.parent]) if source.path.parent in stand_ins else trace
            for source, trace in zip(sources, job.traces, strict=True)
        ]
    offsets = [dags.offsets.get(source.worker or 0, 0) for source in sources]
    return sources, [replace(t, ts_ns=t.ts_ns + ns) for t, ns in zip(traces, offsets, strict=True)]


def _collected(paths: Sequence[Path], directory: Path) -> dict[Path, Path]:
    """Write into `directory` the final traces of the GPUs that have only the profiler's files; by GPU."""
    from collector.gpu.final_trace import gather
    from trace_utils import find_gpus

    found: dict[Path, Path] = {}
    for gpu in [gpu for path in paths for gpu in find_gpus(path)]:
        if gpu.final_trace() is None and gpu.file("temp.json") and gpu.file("dag.gml"):
            with contextlib.suppress(AnalyzeError):  # then comm.json has to do
                trace = directory / f"{len(found)}.json"
                trace.write_bytes(gather(gpu).encode())
                found[gpu.path] = trace
    return found


def _scopes(gpus: Sequence[Gpu], every: bool, alone: bool) -> list[tuple[str, int, Sequence[Gpu]]]:
    """Return (name, worker, members): each GPU, each worker, the job; a GPU `alone` is all there is."""
    workers = sorted({gpu.worker for gpu in gpus})
    scopes: list[tuple[str, int, Sequence[Gpu]]] = [(f"GPU-{gpu.rank}", gpu.worker, [gpu]) for gpu in gpus]
    for worker in workers:
        members = [gpu for gpu in gpus if gpu.worker == worker]
        if not alone:
            scopes.append((f"worker-{worker}", worker, members))
    if len(workers) > 1:
        scopes.append(("job", 0, gpus))
    return scopes if every else scopes[-1:]


def _at_step(dags: Dags, step: str) -> Dags:
    """Return the graphs with the durations of one recorded step, the first of which is 1."""
    steps = dags.whole.n_steps
    if not step.isdecimal() or not 1 <= int(step) <= steps:
        have = f"steps 1 to {steps}" if steps else "no steps"
        raise DagError(f"--step {step}: not recorded, the trace holds {have}")
    scopes = []
    for scope in dags.scopes:
        if scope.dag.n_steps < int(step):
            continue  # a rank that recorded fewer steps than others
        scopes.append(replace(scope, dag=scope.dag.at_step(int(step) - 1)))
    return replace(dags, scopes=scopes, step=step)


def _from_traces(args: Namespace, every_scope: bool) -> Dags:
    """Return the graphs that traces carry themselves: Kineto's, DASF's, or BytePS's with inputs."""
    from dag_utils import INPUT_ARGS, LINK_ARGS, TASK_ARGS, dasf_dag, gpus_of_trace, merge
    from trace_utils import load_paths

    wanted = (*INPUT_ARGS, *LINK_ARGS, *TASK_ARGS)
    job = load_paths(args.path, args=wanted, points=True, jobs=args.jobs, progress=args.progress)
    dialects = {trace.dialect for trace in job.traces if len(trace)}
    if dialects == {"kineto"}:
        return _from_kineto(args, job, every_scope)
    if dialects == {"dasf"}:
        dag = dasf_dag(job.traces)
        if dag is None:
            raise DagError(f"{args.path[0]}: no record of a task (Compute) with its key")
        dags = Dags([Scope("job", 0, dag)], job.repairs, traces=job.traces)
    elif not dialects:
        raise DagError(f"{args.path[0]}: the trace holds no operation with a duration")
    elif dialects <= {"byteps", "chrome"} and len(job.traces) == 1:
        gpus = gpus_of_trace(job.traces[0])
        scopes = []
        for name, worker, members in _scopes(gpus, every_scope, len(gpus) == 1):
            dag = merge(members, del_queue=args.del_queue, lenders=gpus)
            scopes.append(Scope(name, worker, _filtered(dag, args)))
        dags = Dags(scopes, job.repairs)
    else:
        systems = ", ".join(sorted(dialects))
        raise DagError(f"{args.path[0]}: {systems} traces do not say what waits for what")
    return dags if args.step is None else _at_step(dags, args.step)


def _from_kineto(args: Namespace, job: LoadedJob, every_scope: bool) -> Dags:
    from clocks.aligned import traces_on_one_clock
    from dag_utils import kineto_dag

    sources = job.job.sources
    several = len(sources) > 1
    ranks = [source.rank if source.rank is not None else i for i, source in enumerate(sources)]
    traces, clocks = traces_on_one_clock(job.traces, [f"rank {rank}" for rank in ranks])
    step, windows, note = _windows(traces, args.step)
    prefixes = [f"rank{rank}." if several else "" for rank in ranks]
    scopes = []
    if every_scope or not several:
        for rank, trace, window, prefix in zip(ranks, traces, windows, prefixes, strict=True):
            scopes.append(Scope(f"GPU-{rank}", 0, kineto_dag([trace], [window], [prefix])))
    if several:
        scopes.append(Scope("job", 0, kineto_dag(traces, windows, prefixes)))
    notes = [text for text in (note, clocks) if text]
    return Dags(scopes, job.repairs, notes, step, traces)


def _windows(traces: Sequence[Trace], step: str | None) -> tuple[str, list[tuple[int, int] | None], str]:
    """Return the step's name, per rank its first and last nanosecond, and what is to be said about it.

    `step` is the number of a ``ProfilerStep#``, or the name of an annotation (its last occurrence); None
    takes the step of median length that all ranks have, or the whole trace if there are no steps.
    """
    from dialects.steps import find_steps

    steps = [{s.label: (s.start_ns, s.end_ns) for s in find_steps(trace).whole} for trace in traces]
    common = [label for label in steps[0] if all(label in of_rank for of_rank in steps)]
    if step is not None and not step.isdecimal():
        spans = [_annotation(trace, step) for trace in traces]
        return step, list(spans), ""
    if step is not None and int(step) in common:
        return step, [of_rank[int(step)] for of_rank in steps], ""
    if step is not None:
        have = ", ".join(map(str, common)) or "none"
        raise DagError(f"--step {step}: no such step on every rank; there are: {have}")
    if not common:
        return "", [None] * len(traces), "the trace marks no steps: the path is that of the whole recording"
    longest = sorted(common, key=lambda label: (steps[0][label][1] - steps[0][label][0], label))
    label = longest[(len(longest) - 1) // 2]
    note = f"step {label}, the one of median length of {len(common)} (operations differ from step to step)"
    return str(label), [of_rank[label] for of_rank in steps], note if len(common) > 1 else ""


def _annotation(trace: Trace, name: str) -> tuple[int, int]:
    if name not in trace.names:
        raise DagError(f"--step {name}: {trace.path} has no event of that name")
    row = max((trace.name_id == trace.names.index(name)).nonzero()[0].tolist(), key=trace.ts_ns.__getitem__)
    return int(trace.ts_ns[row]), int(trace.end_ns[row])


def _filtered(dag: Dag, args: Namespace) -> Dag:
    """Return `dag` with only the communications of `--filter`, and all that is none."""
    if not args.filter:
        return dag
    from dag_utils import without_others

    return without_others(dag, args.filter)
