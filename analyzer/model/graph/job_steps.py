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
from analyzer.model.clocks.job_clocks import aligned, shifted
from analyzer.model.clocks.offsets import Clock
from analyzer.model.graph.critical_path import CriticalPath
from analyzer.model.graph.dependencies import dag_from_gml
from analyzer.model.graph.join_ranks import join
from analyzer.model.graph.path_summary import OperationSlack, Scope, scopes_of, step_operations
from analyzer.model.graph.step_graph import Recording, StepGraph
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
    from analyzer.reading.formats.chrome_writer import ThreadRow
    from collector.network.network_evidence import NetworkEvidence


class Partitions(Struct, frozen=True):
    """A job's partitions by logs, by their keys: bytes, and the server that keeps them."""

    bytes_of: Mapping[int, int] = field(default_factory=dict)
    server_of: Mapping[int, int] = field(default_factory=dict)


class RankFacts(Struct, frozen=True):
    """Optional columns of a rank's trace, beside its steps.

    Attributes
    ----------
    path : of the trace, as the user gave it
    rank, world_size : as the trace itself says, else None
    rule : by which its slices count as communication and computation
    sizes : its collectives and what they move, of a trace read for `Need.SIZES`
    sizes_end_ns : when each of these ends
    memory : samples of its devices' memory, where wished for and recorded
    machine : on which it ran, "" where the trace does not say
    frames : as of `System.frames`
    loads_ahead : as of `System.loads_ahead`
    """

    path: str
    rank: int | None = None
    world_size: int | None = None
    rule: str = ""
    sizes: Collectives = NO_COLLECTIVES
    sizes_end_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    memory: MemorySamples | None = None
    machine: str = ""
    frames: Frames | None = None
    loads_ahead: bool = False


class RankRecord(Struct, frozen=True):
    """One rank's steps on its own clock, or why there are none, and what joining them needs beside.

    `broken` says why the graph beside the trace cannot be used.
    """

    steps: RankSteps | AnalyzeError
    facts: RankFacts
    points: SyncPoints
    broken: str = ""

    def later(self, by_ns: int) -> RankRecord:
        """Return the record with all times `by_ns` later."""
        if by_ns == 0 or isinstance(self.steps, AnalyzeError):
            return self
        facts, memory = self.facts, self.facts.memory
        if memory is not None:
            memory = replace(memory, at_ns=memory.at_ns + by_ns)
        frames = None if facts.frames is None else facts.frames.later(by_ns)
        facts = replace(facts, sizes_end_ns=facts.sizes_end_ns + by_ns, memory=memory, frames=frames)
        return replace(self, steps=self.steps.later(by_ns), facts=facts)


def record_rank(source: Source, trace: Trace, request: Request, partitions: Partitions) -> RankRecord:
    """Return the record of a rank's trace.

    For `Need.SIZES` it also tells the samples of memory, and what calls of collectives move.
    """
    if not len(trace):
        return RankRecord(AnalyzeError(f"{trace.path}: no operation"), RankFacts(trace.path), {})
    system = dialects.of(trace)
    edges, broken = _graph(source, trace)
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
    facts = _facts(source, rank, sized=Need.SIZES in request.needs)
    return RankRecord(steps, facts, system.sync_points(trace), broken)


def _graph(source: Source, trace: Trace) -> tuple[list[tuple[str, str]] | None, str]:
    """Return the edges of the ``dag.gml`` beside a trace, None without one; and why it cannot be used."""
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


def _facts(source: Source, rank: RankTrace, *, sized: bool) -> RankFacts:
    trace, system = rank.trace, dialects.of(rank.trace)
    sizes = system.collectives(rank) if sized else NO_COLLECTIVES
    return RankFacts(
        path=trace.path,
        rank=trace.rank,
        world_size=trace.world_size,
        rule=system.rule(trace),
        sizes=sizes,
        sizes_end_ns=trace.end_ns[sizes.row],
        memory=_memory(source, trace) if sized else None,
        machine=system.machine(trace),
        frames=system.frames(trace),
        loads_ahead=system.loads_ahead(trace),
    )


def _memory(source: Source, trace: Trace) -> MemorySamples | None:
    system = dialects.of(trace)
    if system.memory_event not in trace.names:
        return None
    return system.memory(trace, read_args(source.path, {system.memory_event}))


#: More steps say little more of what usually happens, and take a millisecond each.
_MOST_STEPS = 2_000


class LoadedSteps(Struct, frozen=True):
    """A job's recording, the files that it was made of, and a line for each flaw of these.

    `ranks` and the traces that `load_traces` reads again are those of the recording's owners, in order.
    """

    recording: Recording
    job: JobFiles
    files: Sequence[TraceFile]
    ranks: Sequence[RankFacts]
    load_traces: Callable[..., list[Trace]]  # times on one clock; `needs`: other ones
    broken: Sequence[str] = ()  # a line for each graph that cannot be used
    unread: Sequence[str] = ()  # … for each trace that could not be read; the job's notes have it too

    def scopes(self, step: StepGraph, *, parts: bool) -> tuple[list[Scope], CriticalPath]:
        """Find the paths of each GPU, each worker and the job, the widest last; and that one's path.

        `parts` is as for `NamedPath.of`.
        """
        return scopes_of(self.recording, self.job.kind, step, parts=parts)

    def operations(self, step: StepGraph) -> list[OperationSlack]:
        """List the operations of a step by name and category, in the order of their first events."""
        return step_operations(self.recording, step)

    def marked_rows(self, step: StepGraph, path: CriticalPath) -> tuple[list[ThreadRow], int]:
        """Make the recorded timeline with a row for the path of a step, and the nanosecond of its time 0."""
        from analyzer.model.graph.marked_timeline import marked_rows

        return marked_rows(self.load_traces(needs={Need.ALL}), self.recording, step, path)

    @property
    def repairs(self) -> list[str]:
        """Repairs, omissions and missing ranks: a line per file."""
        lines = [line for file in self.files for line in file.repair_lines]
        return [*self.job.notes, *lines, *self.broken]


def read_partitions(paths: Sequence[Path], network: NetworkEvidence | None = None) -> Partitions:
    """Return the partitions that the workers' logs in or beside a job's directories declare.

    What they do not tell, captures and the servers' logs do; `network` is that if it is known already.
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
    """Load the job at `paths` and return its recorded steps; with `sizes`, what moves and what memory holds.

    `asked` says which communications count, what marks steps and ranks, and how files are read. Those who ask
    for `sizes` ask what usually happens: they get some of very many steps.

    Raises
    ------
    TraceError
        No trace there, traces of different systems, or no step in them.
    AnalyzeError
        A name in `asked.only` is not a communication of the job.
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
    names, sources = job.names, job.job.sources
    steps = []
    for i, (name, source, rank) in enumerate(zip(names, sources, job.ranks, strict=True)):
        rank_steps = rank.made.steps
        if isinstance(rank_steps, AnalyzeError):
            raise rank_steps
        number = i if source.rank is None else source.rank
        steps.append(replace(rank_steps, name=name, worker=source.worker, rank=number))
    recording = join(steps)
    frames = [rank.made.facts.frames for rank in job.ranks]
    return LoadedSteps(
        replace(
            recording,
            notes=[*notes, *recording.notes],
            frames=frames,
            clock_bounds_ns=[clocks[host].bound_ns or 0 for host in hosts],
            clock_groups=[clocks[host].group for host in hosts],
        ),
        job.job,
        job.files,
        [rank.made.facts for rank in job.ranks],
        partial(_load_traces, paths, request, hosts, clocks),
        [*empty, *broken],
        job.unread,
    )


def _on_one_clock(
    job: Ranks[RankRecord],
) -> tuple[Ranks[RankRecord], Sequence[int], Sequence[Clock], list[str]]:
    """Return the job on the first host's clock, the host of each rank, the clocks, and remarks on them."""
    hosts = job.job.hosts
    if max(hosts, default=0) == 0:
        return job, hosts, [Clock(bound_ns=0, is_tied=True)], []
    spans = [(rank.begin_ns, rank.end_ns) for rank in job.ranks]
    points = [rank.made.points for rank in job.ranks]
    machines = [rank.made.facts.machine for rank in job.ranks]
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
    """Load the traces of a job whose clocks are known, without those that hold no slice."""
    wanted = request._replace(needs=needs or request.needs)
    traces = [trace for trace in read_ranks(paths, request=wanted).made if len(trace)]
    return [shifted(trace, clocks[host]) for trace, host in zip(traces, hosts, strict=True)]


def _with_operations(job: Ranks[RankRecord]) -> tuple[Ranks[RankRecord], list[str]]:
    """Return the job without traces that hold no slice (a monitor's samples), and a line for each of them."""
    kept = [rank for rank in job.ranks if rank.n_slices]
    empty = [
        f"{rank.source.path}: no operation with a duration, left out"
        for rank in job.ranks
        if not rank.n_slices
    ]
    files = replace(job.job, sources=[rank.source for rank in kept])
    return (replace(job, job=files, ranks=kept) if empty else job), empty
