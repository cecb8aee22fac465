"""From the paths of a job to its recording, whatever the dialect."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dag_utils import Dag, read_dag
from dialects.gradient_names import read_names
from errors import AnalyzeError, DagError, TraceError
from formats.columns import Trace
from opname import OpName
from replay import byteps, horovod, kineto
from replay.anchors import Aligner, aligned
from replay.recording import Recording
from trace_utils import LoadedJob, Source, load_paths

#: Keys of the events' args that name what an operation waits for, or which call launched it.
_INPUTS = ("input*", "arg*", "correlation")


@dataclass(frozen=True, slots=True)
class Partitions:
    """What logs tell about a job's partitions, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Beside:
    """What lies beside a job's traces: graphs by their directory, and what logs tell."""

    graphs: Mapping[Path, Dag]
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job's recording, where it came from, and a line for each flaw of its files."""

    recording: Recording
    job: LoadedJob
    broken: Sequence[str] = ()  # a line for each graph that cannot be used

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line each file."""
        return [*self.job.repairs, *self.broken]

    @property
    def sources(self) -> Sequence[Source]:
        """The traces' files, an owner each."""
        return self.job.job.sources


def load_recording(
    paths: Sequence[Path],
    *,
    partitions: Partitions | None = None,
    only: Collection[str] = (),
    align: Aligner | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Loaded:
    """Load the job at `paths` and return its recorded steps.

    Parameters
    ----------
    partitions : what is known of BytePS's partitions beside the traces
    only : names of the only communications to keep; () keeps all
    align : estimates what puts the hosts' times on one clock; None takes them as they are
    jobs, progress : as for `trace_utils.read_traces`

    Raises
    ------
    TraceError
        No trace there, none of a dialect whose steps can be replayed, or no step in it.
    DagError
        The graphs of all GPUs are broken.
    AnalyzeError
        A name in `only` is no communication of the job.
    """
    job = load_paths(paths, args=_INPUTS, jobs=jobs, progress=progress)
    dialects = {trace.dialect for trace in job.traces}
    if len(dialects) > 1:
        raise TraceError(
            f"{paths[0]}: traces of different systems ({', '.join(sorted(dialects))}) are no job"
        )
    dialect = next(iter(dialects))
    if dialect not in _RECORDERS:
        known = ", ".join(_RECORDERS)
        if not any(len(trace) for trace in job.traces):
            raise TraceError(f"{paths[0]}: the trace holds no operation with a duration: nothing to replay")
        raise TraceError(f"{paths[0]}: a trace of dialect {dialect} cannot be replayed; those of {known} can")
    if align is not None and dialect in ("byteps", "kineto") and len(job.traces) > 1:
        job = replace(job, traces=aligned(job.traces, _hosts(job.job.sources), align))
    record = _RECORDERS[dialect]
    graphs, broken = _graphs(job.job.sources) if dialect == "byteps" else ({}, [])
    beside = _Beside(graphs, partitions or Partitions())
    if only:
        _check_names(only, record(job, beside, frozenset()))
    return Loaded(record(job, beside, frozenset(only)), job, broken)


def _graphs(sources: Sequence[Source]) -> tuple[dict[Path, Dag], list[str]]:
    """Return the ``dag.gml`` of each directory, and a line for every broken one, as long as not all are."""
    graphs: dict[Path, Dag] = {}
    errors: list[DagError] = []
    directories = list(dict.fromkeys(source.path.parent for source in sources))
    for directory in directories:
        path = directory / "dag.gml"
        try:
            if path.is_file():
                graphs[directory] = read_dag(path)
        except DagError as error:
            errors.append(error)
    if len(errors) == len(directories):
        raise errors[0]
    return graphs, [f"{error}; left out" for error in errors]


def _check_names(only: Collection[str], recording: Recording) -> None:
    """Raise if a name in `only` is no communication of the job."""
    known = {one.main for one in recording.operations if one.is_communication}
    for name in only:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 3)
            hint = f"; the nearest are {', '.join(near)}" if near else ""
            raise AnalyzeError(f"--filter {name}: no communication of the job is called so{hint}")


def _hosts(sources: Sequence[Source]) -> list[int]:
    """Return the host of each source: a worker's GPUs share one; of ranks it is not known."""
    if all(source.worker is None for source in sources):
        return list(range(len(sources)))
    workers = sorted({source.worker or 0 for source in sources})
    return [workers.index(source.worker or 0) for source in sources]


def owner_name(source: Source) -> str:
    """Return ``wk<i>.rank<r>`` or ``rank<r>``."""
    return source.prefix.rstrip(".") if source.rank is not None else f"{source.prefix}rank0"


def partition_sizes(tensors: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    """Return the bytes of each partition, by its key, from (bytes, partitions) by declared key.

    All partitions but a tensor's last have the size of the job's bound; the tensor that fills its
    partitions best tells it.
    """
    bound = max((-(-total // n) for total, n in tensors.values() if n > 1), default=0)
    return {
        declared << 16 | part: total if n == 1 else min(bound, total - part * bound)
        for declared, (total, n) in tensors.items()
        for part in range(n)
    }


def _byteps(job: LoadedJob, beside: _Beside, only: frozenset[str]) -> Recording:
    gpus = [
        byteps.GpuTrace(
            prefix=owner_name(owner),
            worker=owner.worker,
            trace=part,
            dag_edges=_dependencies(beside.graphs.get(source.path.parent), part),
            parameters=_parameters(source.path.parent),
            bytes_of=beside.partitions.bytes_of,
            server_of=beside.partitions.server_of,
            only=only,
        )
        for source, trace in zip(job.job.sources, job.traces, strict=True)
        for owner, part in _by_owner(source, trace)
    ]
    return byteps.record(gpus)


def _by_owner(source: Source, trace: Trace) -> list[tuple[Source, Trace]]:
    """Return the trace of each GPU in a trace; those of a combined one are told by their names' prefixes."""
    names = [OpName.parse(name) for name in trace.names]
    owners = sorted({(name.worker, name.rank) for name in names if name.rank is not None}, key=str)
    if len(owners) < 2:
        return [(source, trace)]
    of_name = {
        owner: [i for i, name in enumerate(names) if (name.worker, name.rank) == owner] for owner in owners
    }
    return [
        (Source(source.path, worker, rank), trace.select(np.isin(trace.name_id, of_name[worker, rank])))
        for worker, rank in owners
    ]


def _dependencies(dag: Dag | None, trace: Trace) -> list[tuple[str, str]]:
    """Return who comes before whom: from the graph beside the trace, else from the events' inputs."""
    if dag is not None:
        pairs = zip(dag.src.tolist(), dag.dst.tolist(), strict=True)
        return [(dag.names[a], dag.names[b]) for a, b in pairs]
    found = {
        (str(value), trace.names[trace.name_id[row]])
        for column in (trace.args[key] for key in trace.args if key != "correlation")
        for row, value in zip(column.rows.tolist(), column.values, strict=True)
    }
    return sorted(found)


def _parameters(directory: Path) -> dict[str, str]:
    """Return the parameter of each ``byteps.gradient_<i>``; {} without a list that can be read."""
    with contextlib.suppress(TraceError):
        names = read_names(directory)
        return {} if names is None else names.parameters
    return {}


def _kineto(job: LoadedJob, beside: _Beside, only: frozenset[str]) -> Recording:
    return kineto.record(
        [
            kineto.RankTrace(f"rank{i if source.rank is None else source.rank}", trace, only)
            for i, (source, trace) in enumerate(zip(job.job.sources, job.traces, strict=True))
        ]
    )


def _horovod(job: LoadedJob, beside: _Beside, only: frozenset[str]) -> Recording:
    if len(job.traces) > 1:
        raise TraceError(
            f"{job.job.root}: {len(job.traces)} timelines; Horovod writes one a job: give that one"
        )
    return horovod.record(job.traces[0], only)


_RECORDERS: Mapping[str, Callable[[LoadedJob, _Beside, frozenset[str]], Recording]] = {
    "byteps": _byteps,
    "kineto": _kineto,
    "horovod": _horovod,
}
