"""The only door to graphs: the recorded steps of whatever was loaded, the DAGs of GML files, critical paths.

- `load_steps`: the recorded steps of a job, whatever the system, as `StepGraph`s in a `Recording`
- `read_partitions`: what logs tell about a job's partitions
- `choose_step`: the row of a step by its number, or of the one of median length
- `critical_path`, `CriticalPaths`, `slack_ns`: what makes a step as long as it is, and the room of the rest
- `named_path`, `by_name`, `by_category`, `headline`, `records`: a path in words; `PATH`, `BY_NAME`: in tables
- `drawn_step`: a step as a `Dag`; `draw`: where its nodes are drawn
- `marked_events`: the timeline of a step with the path on it, as a trace; `step_timeline`: as a chart, whose
  boxes and stretches tables are about by `key_of` and `stretch_key`; `path_waterfall`, `waterfall`: its parts
- `mean_dags`, `longest_path`: average durations through the DAG of a GPU
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import dialects
from clocks.job_clocks import align_job, on_one_clock, remarks
from dag.critical_path import CriticalPath, CriticalPaths, critical_path, slack_ns
from dag.dependencies import dag_from_gml
from dag.drawn_step import drawn_step
from dag.join_ranks import join
from dag.layout import MOST_IN_A_STILL, MOST_NODES, draw
from dag.marked_timeline import marked_events
from dag.mean_graph import mean_dags
from dag.model import Dag, LongestPath, longest_path
from dag.path_summary import (
    BY_NAME,
    PATH,
    Label,
    NamedPath,
    by_category,
    by_name,
    category,
    headline,
    named_path,
    records,
)
from dag.step_graph import Recording, StepGraph
from dag.step_timeline import key_of, path_waterfall, step_timeline, stretch_key, waterfall
from dialects.byteps import inputs
from dialects.byteps.gradient_names import read_parameters
from dialects.step_parts import RankTrace
from errors import DagError, TraceError
from formats.gml import read_gml
from formats.stream import find_file
from trace_utils import LoadedJob, Source, load_paths

__all__ = [
    "BY_NAME", "MOST_IN_A_STILL", "MOST_NODES", "PATH", "CriticalPath", "CriticalPaths", "Dag", "Label",
    "LoadedSteps", "LongestPath", "NamedPath", "Partitions", "Recording", "StepGraph", "by_category",
    "by_name", "category", "choose_step", "critical_path", "draw", "drawn_step", "headline", "key_of",
    "load_steps", "longest_path", "marked_events", "mean_dags", "named_path", "path_waterfall",
    "read_partitions", "records", "slack_ns", "step_timeline", "stretch_key", "waterfall",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Partitions:
    """What logs tell about a job's partitions, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedSteps:
    """A job's recording, the traces that it was made of, and a line for each flaw of its files."""

    recording: Recording
    job: LoadedJob  # an owner of the recording per trace, in the same order; times on one clock
    broken: Sequence[str] = ()  # a line for each graph that cannot be used

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line per file."""
        return [*self.job.repairs, *self.broken]


def read_partitions(paths: Sequence[Path]) -> Partitions:
    """Return what the logs in or beside a job's directories say about its partitions."""
    from collector.network.partition_keys import read_keys
    from result import Repairs

    bytes_of: dict[int, int] = {}
    servers: dict[int, int] = {}
    for path in paths:
        keys = read_keys(path, Repairs())
        servers |= keys.servers
        bytes_of |= keys.partition_bytes()
    return Partitions(bytes_of, servers)


def load_steps(
    paths: Sequence[Path],
    *,
    only: Collection[str] = (),
    partitions: Partitions | None = None,
    step_by: str | None = None,
    sizes: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> LoadedSteps:
    """Load the job at `paths` and return its recorded steps; with `sizes`, what collectives move as well.

    Raises
    ------
    TraceError
        No trace there, traces of different systems, or no step in them.
    DagError
        The graphs of all GPUs are broken.
    AnalyzeError
        A name in `only` is not a communication of the job.
    """
    args = (*dialects.EDGE_ARGS, *dialects.SIZE_ARGS) if sizes else dialects.EDGE_ARGS
    job = load_paths(paths, args=args, points=True, only=only, jobs=jobs, progress=progress)
    systems = sorted({trace.dialect for trace in job.traces if len(trace)})
    if len(systems) > 1:
        raise TraceError(f"{paths[0]}: traces of different systems ({', '.join(systems)}) are not one job")
    if not systems:
        raise TraceError(f"{paths[0]}: the trace holds no operation with a duration")
    job, empty = _with_operations(job)
    job, clocks = _on_one_clock(job)
    graphs, broken = _graphs(job.job.sources)
    known = partitions or Partitions()
    ranks = []
    for i, (name, source, trace) in enumerate(zip(job.names, job.job.sources, job.traces, strict=True)):
        edges = graphs.get(source.path.parent)
        if edges is None:  # who comes before whom as the events' own inputs say
            edges = sorted({(before, trace.names[trace.name_id[row]]) for row, before in inputs(trace)})
        parameters = read_parameters(source.path.parent)
        rank = RankTrace(name, trace, source.worker, edges, parameters, known.bytes_of, known.server_of)
        steps = dialects.of(trace).rank_steps(rank, step_by)
        ranks.append(replace(steps, worker=source.worker, rank=i if source.rank is None else source.rank))
    recording = join(ranks)
    return LoadedSteps(replace(recording, notes=[*clocks, *recording.notes]), job, [*empty, *broken])


def _on_one_clock(job: LoadedJob) -> tuple[LoadedJob, list[str]]:
    """Return the job with all times on the first host's clock, and what the reader must know of that."""
    sources = job.job.sources
    hosts = _hosts(sources)
    if max(hosts, default=0) == 0:
        return job, []
    alignment = align_job(job.traces, hosts)
    members = [
        [name for name, own in zip(job.names, hosts, strict=True) if own == h] for h in range(max(hosts) + 1)
    ]
    names = [own[0] if len(own) == 1 else own[0].partition(".")[0] for own in members]
    moved = on_one_clock(job.traces, hosts, alignment.clocks)
    return replace(job, traces=moved), remarks(names, alignment)


def _hosts(sources: Sequence[Source]) -> list[int]:
    """Return the host of each source: a worker's GPUs share one; of ranks it is not known."""
    if all(source.worker is None for source in sources):
        paths = list(dict.fromkeys(source.path.parent.parent for source in sources))
        is_worker = len(paths) == 1 and all(find_file(source.path.parent, "comm.json") for source in sources)
        files = list(dict.fromkeys(source.path for source in sources))  # the ranks of a file share its clock
        return [0 if is_worker else files.index(source.path) for source in sources]
    workers = sorted({source.worker or 0 for source in sources})
    return [workers.index(source.worker or 0) for source in sources]


def _with_operations(job: LoadedJob) -> tuple[LoadedJob, list[str]]:
    """Return the job without traces that hold no slice (a monitor's samples), and a line for each of them."""
    kept = [i for i, trace in enumerate(job.traces) if len(trace)]
    if len(kept) == len(job.traces):
        return job, []
    sources, traces = [job.job.sources[i] for i in kept], [job.traces[i] for i in kept]
    empty = [
        f"{trace.path}: no operation with a duration, left out" for trace in job.traces if not len(trace)
    ]
    return replace(job, job=replace(job.job, sources=sources), traces=traces), empty


def _graphs(sources: Sequence[Source]) -> tuple[dict[Path, list[tuple[str, str]]], list[str]]:
    """Return the edges of the ``dag.gml`` of each directory, and a line for every broken one.

    Raises
    ------
    DagError
        All of them are broken.
    """
    graphs: dict[Path, list[tuple[str, str]]] = {}
    errors: list[DagError] = []
    directories = list(dict.fromkeys(source.path.parent for source in sources))
    for directory in directories:
        path = find_file(directory, "dag.gml")
        try:
            if path is not None:
                dag = dag_from_gml(read_gml(path), str(path))
                pairs = [*dag.edges[:, :2].tolist(), *dag.next_edges.tolist()]
                graphs[directory] = [(dag.names[a], dag.names[b]) for a, b in pairs]
        except DagError as error:
            errors.append(error)
    if len(errors) == len(directories):
        raise errors[0]
    return graphs, [f"{error}; left out" for error in errors]


def choose_step(recording: Recording, number: int | None = None) -> int:
    """Return the row of the step called `number`; without one, that of the whole step of median length.

    Raises
    ------
    TraceError
        There is no such step.
    """
    numbers = [step.number for step in recording.steps]
    if number is not None:
        if number not in numbers:
            raise TraceError(f"--step {number}: no such step on every rank; there are {_ranges(numbers)}")
        return numbers.index(number)
    rows: Collection[int] = recording.whole_steps
    by_length = sorted(rows, key=lambda row: (int(recording.steps[row].iteration_ns.max()), row))
    return by_length[(len(by_length) - 1) // 2]


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text, consecutive ones as a range: ``2–4, 7–9``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("–".join(map(str, span)) for span in spans[:8]) + (", …" if len(spans) > 8 else "")
