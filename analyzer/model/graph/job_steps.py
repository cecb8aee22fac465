"""The recorded steps of a job, whatever the system: its ranks on one clock, joined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Int64
from analyzer.base.errors import AnalyzeError, TraceError
from analyzer.model.clocks.offsets import Clock, aligned, shifted
from analyzer.model.graph.dag import dag_from_gml
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.path_summary import marked_rows
from analyzer.model.graph.step_graph import Recording
from analyzer.reading import dialects
from analyzer.reading.dialects import Need
from analyzer.reading.dialects.recorded_collectives import NO_COLLECTIVES, Collectives, SyncPoints
from analyzer.reading.dialects.step_parts import RankSteps, RankTrace
from analyzer.reading.dialects.system import Frames, MemorySamples
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.gml import read_gml
from analyzer.reading.formats.stream import find_file
from analyzer.reading.traces.paths import JobFiles
from analyzer.reading.traces.ranks import Ranks
from analyzer.reading.traces.split import TraceFile
from trace_utils import Request, Source, read_args, read_ranks

if TYPE_CHECKING:
    from analyzer.model.graph.critical_path import CriticalPath
    from analyzer.model.graph.step_graph import StepGraph
    from analyzer.reading.formats.chrome_writer import ThreadRow
    from collector.network.network_evidence import NetworkEvidence


class Partitions(Struct, frozen=True):
    """A job's partitions by logs, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


class RankFacts(Struct, frozen=True):
    """A rank's trace: its steps on its own clock, until ranks are joined, and data beside them."""

    path: str  # as the user gave it
    steps: RankSteps | AnalyzeError | None = None  # or why there are none
    points: SyncPoints = field(default_factory=dict)
    broken: str = ""  # why the graph beside the trace cannot be used
    rank: int | None = None  # recorded in the trace, as are the next two
    world_size: int | None = None
    machine: str = ""
    rule: str = ""  # by which slices count as communication and computation
    sizes: Collectives = NO_COLLECTIVES  # of a trace read for `Need.SIZES`
    sizes_end_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))  # end of each collective
    memory: MemorySamples | None = None  # of a trace read for `Need.SIZES`
    frames: Frames | None = None
    loads_ahead: bool = False  # see `System.loads_ahead`

    def later(self, by_ns: int) -> RankFacts:
        """Move all times but `points` later."""
        if by_ns == 0 or not isinstance(self.steps, RankSteps):
            return self
        return replace(
            self,
            steps=self.steps.later(by_ns),
            sizes_end_ns=self.sizes_end_ns + by_ns,
            memory=self.memory and replace(self.memory, at_ns=self.memory.at_ns + by_ns),
            frames=self.frames and self.frames.later(by_ns),
        )


def record_rank(source: Source, trace: Trace, request: Request, partitions: Partitions) -> RankFacts:
    """Find the steps and facts in a rank's trace."""
    if not len(trace):
        return RankFacts(trace.path, AnalyzeError(f"{trace.path}: no operation"))
    system = dialects.of(trace)
    edges, broken = _graph_edges(source, trace)
    parameters = system.parameters(source.path.parent)
    rank = RankTrace(
        *("", trace, source.worker, edges, parameters, partitions.bytes_of, partitions.server_of),
        most_steps=request.most_steps,
        args_of=lambda names: read_args(source.path, names, slices=True),
    )
    steps: RankSteps | AnalyzeError
    try:
        steps = system.rank_steps(rank, request.step_by).compact()
    except AnalyzeError as error:
        steps = error
    sizes, memory = NO_COLLECTIVES, None
    if Need.SIZES in request.needs:
        sizes = system.collectives(rank)
        if system.memory_event in trace.names:
            memory = system.memory(trace, read_args(source.path, {system.memory_event}))
    return RankFacts(
        path=trace.path,
        steps=steps,
        points=system.sync_points(trace),
        broken=broken,
        rank=trace.rank,
        world_size=trace.world_size,
        rule=system.rule(trace),
        sizes=sizes,
        sizes_end_ns=trace.end_ns[sizes.row],
        memory=memory,
        machine=system.machine(trace),
        frames=system.frames(trace),
        loads_ahead=system.loads_ahead(trace),
    )


def _graph_edges(source: Source, trace: Trace) -> tuple[list[tuple[str, str]] | None, str]:
    """Read the edges of the ``dag.gml`` beside a trace; None without one, and the reason if it is damaged."""
    path = find_file(source.path.parent, "dag.gml")
    if path is None:
        return None, ""
    given = Path(trace.path).parent / path.name
    try:
        dag = dag_from_gml(read_gml(path), str(given))
    except TraceError as error:
        return None, str(error).replace(str(path), str(given))
    pairs = [*dag.edges[:, :2].tolist(), *dag.next_edges.tolist()]
    return [(dag.names[a], dag.names[b]) for a, b in pairs], ""


#: More steps hardly change what is usual, and take a millisecond each.
_MOST_STEPS = 2_000


class LoadedSteps(Struct, frozen=True):
    """A job's recording, its files, and a line for each flaw of these."""

    recording: Recording
    job: JobFiles
    files: Sequence[TraceFile]
    ranks: Sequence[RankFacts]  # of the recording's owners
    load_traces: Callable[..., list[Trace]]  # of the owners, on one clock; takes other `needs`
    broken: Sequence[str] = ()  # a line for each empty trace, and each graph that cannot be used
    unread: Sequence[str] = ()  # a line for each trace that could not be read, as in the job's notes

    def marked_rows(self, step: StepGraph, path: CriticalPath) -> tuple[list[ThreadRow], int]:
        """Make the recorded timeline with a row for the path of a step, and the nanosecond of its time 0."""
        return marked_rows(self.load_traces(needs={Need.ALL}), self.recording, step, path)

    @property
    def repairs(self) -> list[str]:
        """Repairs, omissions and missing ranks: a line per file."""
        lines = [line for file in self.files for line in file.repair_lines]
        return [*self.job.notes, *lines, *self.broken]


def read_partitions(paths: Sequence[Path], network: NetworkEvidence | None = None) -> Partitions:
    """Read the partitions from the workers' logs in or beside a job's directories.

    Captures and the servers' logs complete them; `network` is that evidence if it is known already.
    """
    from analyzer.base.errors import Repairs
    from collector.network.network_evidence import read_evidence
    from collector.network.partition_keys import read_keys

    evidence = network or read_evidence(paths)
    bytes_of = dict(evidence.bytes_of)
    servers: dict[int, int] = {}
    for path in paths:
        keys = read_keys(path, Repairs())
        servers |= keys.servers
        bytes_of |= keys.partition_bytes()
    return Partitions(bytes_of, servers or evidence.servers)  # the two may number the servers differently


def load_steps(
    paths: Sequence[Path],
    asked: Request = Request(),
    *,
    partitions: Partitions | None = None,
    sizes: bool = False,
) -> LoadedSteps:
    """Load the recorded steps of the job at `paths`; with `sizes`, also the bytes moved and the memory held.

    `asked` says which communications count, what marks steps and ranks, and how files are read. With `sizes`
    a sample of very many steps is taken. TraceError if there is no trace or no step, or several systems.
    """
    needs = {Need.STEPS, Need.SYNC, Need.EDGES} | ({Need.SIZES} if sizes else set())
    most = _MOST_STEPS if sizes else None
    request = asked._replace(needs=needs, points=True, most_steps=most)
    record = partial(record_rank, request=request, partitions=partitions or Partitions())
    job = read_ranks(paths, record, request)
    systems = sorted({rank.dialect for rank in job.ranks if rank.n_slices})
    if len(systems) > 1:
        raise TraceError(
            f"{paths[0]}: traces of different systems ({', '.join(systems)}) are not one job; "
            "two jobs: analyze.py compare BASE NEW"
        )
    job.check_any()
    job, empty = _with_operations(job)
    job, hosts, clocks, notes = _on_one_clock(job)
    broken = dict.fromkeys(f"{rank.made.broken}; left out" for rank in job.ranks if rank.made.broken)
    steps = []
    for i, (name, source, rank) in enumerate(zip(job.names, job.job.sources, job.ranks, strict=True)):
        rank_steps = rank.made.steps
        if not isinstance(rank_steps, RankSteps):
            assert rank_steps is not None
            raise rank_steps
        number = i if source.rank is None else source.rank
        steps.append(replace(rank_steps, name=name, worker=source.worker, rank=number))
    recording = join(steps)
    facts = [replace(rank.made, steps=None, points={}) for rank in job.ranks]
    return LoadedSteps(
        replace(
            recording,
            notes=[*notes, *recording.notes],
            frames=[rank.frames for rank in facts],
            clock_bounds_ns=[clocks[host].bound_ns or 0 for host in hosts],
            clock_groups=[clocks[host].group for host in hosts],
        ),
        job.job,
        job.files,
        facts,
        partial(_load_traces, paths, request, hosts, clocks),
        [*empty, *broken],
        job.unread,
    )


def _on_one_clock(
    job: Ranks[RankFacts],
) -> tuple[Ranks[RankFacts], Sequence[int], Sequence[Clock], list[str]]:
    """Move the job to the first host's clock; list the host of each rank, the clocks, and notes."""
    hosts = job.job.hosts
    if max(hosts, default=0) == 0:
        return job, hosts, [Clock(bound_ns=0, is_tied=True)], []
    spans = [(rank.begin_ns, rank.end_ns) for rank in job.ranks]
    points = [rank.made.points for rank in job.ranks]
    machines = [rank.made.machine for rank in job.ranks]
    clocks, notes = aligned(job.names, hosts, points, spans, machines)
    ranks = [
        replace(rank, made=rank.made.later(clocks[host].offset_ns))
        for rank, host in zip(job.ranks, hosts, strict=True)
    ]
    return replace(job, ranks=ranks), hosts, clocks, notes


def _load_traces(
    paths: Sequence[Path],
    request: Request,
    hosts: Sequence[int],
    clocks: Sequence[Clock],
    *,
    needs: Collection[Need] = (),
) -> list[Trace]:
    """Load the traces that hold slices, on the job's clock."""
    wanted = request._replace(needs=needs or request.needs)
    traces = [trace for trace in read_ranks(paths, request=wanted).made if len(trace)]
    return [shifted(trace, clocks[host]) for trace, host in zip(traces, hosts, strict=True)]


def _with_operations(job: Ranks[RankFacts]) -> tuple[Ranks[RankFacts], list[str]]:
    """Drop traces without slices (a monitor's samples) from the job, and list a line for each."""
    kept = [rank for rank in job.ranks if rank.n_slices]
    empty = [rank.source.path for rank in job.ranks if not rank.n_slices]
    files = replace(job.job, sources=[rank.source for rank in kept])
    lines = [f"{path}: no operation with a duration, left out" for path in empty]
    return (replace(job, job=files, ranks=kept) if empty else job), lines
