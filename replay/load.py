"""From the paths of a job to its recording, whatever the dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dag_utils import read_gml
from errors import TraceError
from formats.columns import Trace
from replay import byteps
from replay.recording import Recording
from trace_utils import LoadedJob, Source, load_paths

#: Keys of the events' args that name what an operation waits for.
_INPUTS = ("input*", "arg*")


@dataclass(frozen=True, slots=True)
class Partitions:
    """What logs tell about a job's partitions, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A job's recording, where it came from, and a line for each flaw of its files."""

    recording: Recording
    job: LoadedJob

    @property
    def sources(self) -> Sequence[Source]:
        """The traces' files, an owner each."""
        return self.job.job.sources


def load_recording(
    paths: Sequence[Path],
    *,
    partitions: Partitions | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Loaded:
    """Load the job at `paths` and return its recorded steps.

    Raises
    ------
    TraceError
        No trace there, none of a dialect whose steps can be replayed, or no step in it.
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
        raise TraceError(f"{paths[0]}: a trace of dialect {dialect} cannot be replayed; those of {known} can")
    return Loaded(_RECORDERS[dialect](job, partitions or Partitions()), job)


def owner_name(source: Source) -> str:
    """Return ``wk<i>.rank<r>`` or ``rank<r>``."""
    return source.prefix.rstrip(".") if source.rank is not None else f"{source.prefix}rank0"


def _byteps(job: LoadedJob, partitions: Partitions) -> Recording:
    gpus = [
        byteps.GpuTrace(
            prefix=owner_name(source),
            worker=source.worker,
            trace=trace,
            dag_edges=_dependencies(source.path.parent, trace),
            parameters=_parameters(source.path.parent),
            bytes_of=partitions.bytes_of,
            server_of=partitions.server_of,
        )
        for source, trace in zip(job.job.sources, job.traces, strict=True)
    ]
    return byteps.record(gpus)


def _dependencies(directory: Path, trace: Trace) -> list[tuple[str, str]]:
    """Return who comes before whom: from ``dag.gml`` beside the trace, else from the events' inputs."""
    path = directory / "dag.gml"
    if path.is_file():
        gml = read_gml(path)
        pairs = zip(gml.source.tolist(), gml.target.tolist(), strict=True)
        return [(str(gml.labels[a]), str(gml.labels[b])) for a, b in pairs]
    found = {
        (str(value), trace.names[trace.name_id[row]])
        for column in trace.args.values()
        for row, value in zip(column.rows.tolist(), column.values, strict=True)
    }
    return sorted(found)


def _parameters(directory: Path) -> dict[str, str]:
    """Return the parameter of each ``byteps.gradient_<i>``, as the profiler renames them."""
    path = directory / "gradient_name_list.txt"
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {f"byteps.gradient_{i}": line.strip() for i, line in enumerate(lines)}


_RECORDERS: Mapping[str, Callable[[LoadedJob, Partitions], Recording]] = {"byteps": _byteps}
