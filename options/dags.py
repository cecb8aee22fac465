"""What `graph` and `critical` share: the graphs that a command line's paths describe."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from errors import DagError, TraceError, UsageError

if TYPE_CHECKING:
    from dag_utils import Dag, Gpu


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph of those that a path describes: ``GPU-0``, ``worker-1`` or ``job``."""

    name: str
    worker: int
    dag: Dag


@dataclass(frozen=True, slots=True)
class Dags:
    """What the paths describe: one graph, or the GPUs of a job that are merged on demand."""

    scopes: Sequence[Scope]  # smallest first; the last covers everything
    repairs: list[str] = field(default_factory=list)

    def whole(self) -> Dag:
        """Return the graph of everything."""
        return self.scopes[-1].dag


def load_dags(args: Namespace, *, every_scope: bool = False) -> Dags:
    """Return the graphs of `args.path`; with `every_scope` also those of the parts of a job.

    Raises
    ------
    DagError, TraceError
        Nothing there says what waits for what, or a file is broken.
    UsageError
        Paths of different kinds.
    """
    paths: list[Path] = args.path
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or directory")
    if len(paths) == 1 and paths[0].name.lower().endswith((".gml", ".gml.gz")):
        return _from_gml(paths[0])
    if any(path.name.endswith(".gml") for path in paths):
        raise UsageError("--path: one GML file at a time, or the directories of the GPUs")
    from trace_utils import find_gpus

    if all(path.is_dir() and find_gpus(path) for path in paths):
        return _from_gpus(args, every_scope)
    return _from_traces(args)


def _from_gml(path: Path) -> Dags:
    from dag_utils import read_dag

    return Dags([Scope("GPU-0", 0, read_dag(path))])


def _from_gpus(args: Namespace, every_scope: bool) -> Dags:
    from dag_utils import load_gpus, merge
    from trace_utils import find_gpus

    loaded = load_gpus(args.path, jobs=args.jobs, progress=args.progress)
    gpus = loaded.gpus
    if not any(len(gpu.dag) for gpu in gpus):
        raise DagError(f"{args.path[0]}: neither a dag.gml nor a trace with dependencies")
    scopes = []
    alone = len(args.path) == 1 and find_gpus(args.path[0])[0].path == args.path[0]
    for name, worker, members in _scopes(gpus, every_scope, alone):
        dag = merge(members, del_queue=args.del_queue, lenders=gpus)
        scopes.append(Scope(name, worker, _filtered(dag, args)))
    return Dags(scopes, list(loaded.repairs))


def _scopes(gpus: Sequence[Gpu], every: bool, alone: bool) -> list[tuple[str, int, Sequence[Gpu]]]:
    """Return (name, worker, members) of the scopes: each GPU, each worker, the job; a GPU `alone` is all."""
    workers = sorted({gpu.worker for gpu in gpus})
    scopes: list[tuple[str, int, Sequence[Gpu]]] = [(f"GPU-{gpu.rank}", gpu.worker, [gpu]) for gpu in gpus]
    for worker in workers:
        members = [gpu for gpu in gpus if gpu.worker == worker]
        if not alone:
            scopes.append((f"worker-{worker}", worker, members))
    if len(workers) > 1:
        scopes.append(("job", 0, gpus))
    return scopes if every else scopes[-1:]


def _from_traces(args: Namespace) -> Dags:
    from dag_utils import INPUT_ARGS, gpu_of_trace, merge
    from trace_utils import load_paths

    job = load_paths(args.path, args=INPUT_ARGS, jobs=args.jobs, progress=args.progress)
    gpu = gpu_of_trace(job.traces[0])
    return Dags([Scope("GPU-0", 0, _filtered(merge([gpu], del_queue=args.del_queue), args))], job.repairs)


def _filtered(dag: Dag, args: Namespace) -> Dag:
    """Return `dag` with only the communications of `--filter`, and all that is none."""
    if not args.filter:
        return dag
    from dag_utils import without_others

    return without_others(dag, args.filter)
