"""The recorded steps of a job, whatever the system: its ranks on one clock, joined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

import dialects
from clocks.job_clocks import remarks, shifted
from clocks.offsets import Clock, align
from dag.join_ranks import join, number_ranges
from dag.rank_record import Partitions, RankFacts, RankRecord, Wish, record_rank
from dag.spill import Spill
from dag.step_graph import Recording
from dialects import Need
from dialects.sync_points import merged
from errors import AnalyzeError, DagError, TraceError
from formats.columns import Trace
from formats.stream import find_file
from traces.loading import load_paths
from traces.outlines import TraceFile, repair_lines
from traces.paths import Job, Source
from traces.ranks import MappedJob, map_again, map_ranks

if TYPE_CHECKING:
    from collector.network.network_evidence import NetworkEvidence


class LoadedSteps(Struct, frozen=True):
    """A job's recording, the files that it was made of, and a line for each flaw of these.

    `ranks` and the traces that `load_traces` reads again are those of the recording's owners, in order.
    """

    recording: Recording
    job: Job
    files: Sequence[TraceFile]
    ranks: Sequence[RankFacts]
    load_traces: Callable[..., list[Trace]]  # times on one clock; `args`: other keys of the events' args
    broken: Sequence[str] = ()  # a line for each graph that cannot be used
    unread: Sequence[str] = ()  # … for each trace that could not be read; the job's notes have it too

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line per file."""
        return [*repair_lines(self.job.notes, self.files), *self.broken]


def read_partitions(paths: Sequence[Path], network: NetworkEvidence | None = None) -> Partitions:
    """Return what the workers' logs in or beside a job's directories say about its partitions.

    What they do not tell, captures and the servers' logs do; `network` is that if it is known already.
    """
    from collector.network.network_evidence import read_evidence
    from collector.network.partition_keys import read_keys
    from result import Repairs

    found = network or read_evidence(paths)
    bytes_of = dict(found.bytes_of)
    servers: dict[int, int] = {}
    for path in paths:
        keys = read_keys(path, Repairs())
        servers |= keys.servers
        bytes_of |= keys.partition_bytes()
    return Partitions(bytes_of, servers or found.servers)  # the two may number the servers differently


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
    """Load the job at `paths` and return its recorded steps; with `sizes`, what moves and what memory holds.

    Raises
    ------
    TraceError
        No trace there, traces of different systems, or no step in them.
    DagError
        The graphs of all GPUs are broken.
    AnalyzeError
        A name in `only` is not a communication of the job.
    """
    needs = {Need.STEPS, Need.SYNC, Need.EDGES} | ({Need.SIZES} if sizes else set())
    how: dict[str, Any] = {
        "args": dialects.keys_for(needs),
        "points": True,
        "only": only,
        "jobs": jobs,
        "progress": progress,
    }
    wish = Wish(step_by, partitions or Partitions(), sizes=sizes)
    spill = Spill()
    keep: dict[str, Any] = {**how, "kept": partial(RankRecord.put_aside, spill=spill)}
    job: MappedJob[RankRecord] = map_ranks(paths, partial(record_rank, wish=wish), **keep)
    systems = sorted({rank.outline.dialect for rank in job.ranks if rank.outline.n_slices})
    if len(systems) > 1:
        raise TraceError(f"{paths[0]}: traces of different systems ({', '.join(systems)}) are not one job")
    if not systems:
        raise TraceError(f"{paths[0]}: the trace holds no operation with a duration")
    job, empty = _with_operations(job)
    job, hosts, clocks, notes = _on_one_clock(job, wish, keep)
    broken = _broken_graphs(job)
    names, sources = job.names, job.job.sources
    steps = []
    for i, (name, source, rank) in enumerate(zip(names, sources, job.ranks, strict=True)):
        own = rank.made.steps
        if isinstance(own, AnalyzeError):
            raise own
        number = i if source.rank is None else source.rank
        steps.append(replace(own, name=name, worker=source.worker, rank=number))
    recording = join(steps, spill)
    return LoadedSteps(
        replace(recording, notes=[*notes, *recording.notes]),
        job.job,
        job.files,
        [rank.made.facts for rank in job.ranks],
        partial(_load_traces, paths, how, hosts, clocks),
        [*empty, *broken],
        job.unread,
    )


def _on_one_clock(
    job: MappedJob[RankRecord], wish: Wish, how: Mapping[str, Any]
) -> tuple[MappedJob[RankRecord], Sequence[int], Sequence[Clock], list[str]]:
    """Return the job on the first host's clock, the host of each rank, the clocks, and remarks on them.

    What runs on a clock that drifts is recorded once more from its files: durations do not change.
    """
    sources = job.job.sources
    hosts = _hosts(sources)
    n_hosts = max(hosts, default=0) + 1
    if n_hosts == 1:
        return job, hosts, [Clock(bound_ns=0, is_tied=True)], []
    names, members = job.names, [[i for i, own in enumerate(hosts) if own == host] for host in range(n_hosts)]
    points = [merged(job.ranks[i].made.points for i in own) for own in members]
    outlines = [[job.ranks[i].outline for i in own] for own in members]
    spans = [(min(one.begin_ns for one in own), max(one.end_ns for one in own)) for own in outlines]
    machines = [job.ranks[own[0]].made.facts.machine for own in members]
    alignment = align(points, spans, machines)
    drifting = [i for i, host in enumerate(hosts) if alignment.clocks[host].drift_ppm]
    works = [partial(record_rank, wish=wish, clock=alignment.clocks[hosts[i]]) for i in drifting]
    moved = map_again(job, drifting, works, **how)
    ranks = [
        rank if i in drifting else replace(rank, made=rank.made.later(alignment.clocks[host].offset_ns))
        for i, (rank, host) in enumerate(zip(moved.ranks, hosts, strict=True))
    ]
    labels = [names[own[0]] if len(own) == 1 else names[own[0]].partition(".")[0] for own in members]
    return replace(moved, ranks=ranks), hosts, alignment.clocks, remarks(labels, alignment)


def _load_traces(
    paths: Sequence[Path],
    how: Mapping[str, Any],
    hosts: Sequence[int],
    clocks: Sequence[Clock],
    *,
    args: Collection[str] | None = None,
) -> list[Trace]:
    """Load the traces of a job whose clocks are known, without those that hold no slice."""
    wanted = how if args is None else {**how, "args": args}
    traces = [trace for trace in load_paths(paths, **wanted).traces if len(trace)]
    return [shifted(trace, clocks[host]) for trace, host in zip(traces, hosts, strict=True)]


def _hosts(sources: Sequence[Source]) -> list[int]:
    """Return the host of each source: a worker's GPUs share one; of ranks it is not known."""
    if all(source.worker is None for source in sources):
        paths = list(dict.fromkeys(source.path.parent.parent for source in sources))
        is_worker = len(paths) == 1 and all(find_file(source.path.parent, "comm.json") for source in sources)
        files = dict.fromkeys(source.path for source in sources)  # the ranks of a file share its clock
        place = {path: i for i, path in enumerate(files)}
        return [0 if is_worker else place[source.path] for source in sources]
    workers = sorted({source.worker or 0 for source in sources})
    return [workers.index(source.worker or 0) for source in sources]


def _with_operations(job: MappedJob[RankRecord]) -> tuple[MappedJob[RankRecord], list[str]]:
    """Return the job without traces that hold no slice (a monitor's samples), and a line for each of them."""
    kept = [rank for rank in job.ranks if rank.outline.n_slices]
    empty = [
        f"{rank.outline.path}: no operation with a duration, left out"
        for rank in job.ranks
        if not rank.outline.n_slices
    ]
    found = replace(job.job, sources=[rank.source for rank in kept])
    return (replace(job, job=found, ranks=kept) if empty else job), empty


def _broken_graphs(job: MappedJob[RankRecord]) -> list[str]:
    """Return a line for each ``dag.gml`` that cannot be used; DagError where that is so of all of them."""
    broken = {rank.source.path.parent: rank.made.broken for rank in job.ranks}
    errors = [error for error in broken.values() if error]
    if errors and len(errors) == len(broken):
        raise DagError(errors[0])
    return [f"{error}; left out" for error in errors]


def choose_step(recording: Recording, number: int | None = None) -> int:
    """Return the row of the step called `number`; without one, that of the whole step of median length.

    Raises
    ------
    TraceError
        There is no such step.
    """
    bounds = recording.bounds
    numbers = [one.number for one in bounds]
    if number is not None:
        if number not in numbers:
            raise TraceError(
                f"--step {number}: no such step on every rank; there are {number_ranges(numbers)}"
            )
        return numbers.index(number)
    rows: Collection[int] = recording.whole_steps
    by_length = sorted(rows, key=lambda row: (int(bounds[row].iteration_ns.max()), row))
    return by_length[(len(by_length) - 1) // 2]
