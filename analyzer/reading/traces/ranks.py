"""Ranks from paths: find, read and split the files of a job, and apply a function to each rank."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from analyzer.base import parallel
from analyzer.base.arrays.numbering import ids_in
from analyzer.base.errors import TraceError, counted
from analyzer.base.outputs.atomic import is_temporary, temporary_directory
from analyzer.base.parallel import FilePart, OnRead, progress_bar
from analyzer.reading import dialects
from analyzer.reading.dialects import Need, is_communication
from analyzer.reading.dialects.steps import argument
from analyzer.reading.formats.columns import Trace, concatenate
from analyzer.reading.formats.reader import join_dumps
from analyzer.reading.traces.gpu_folders import GpuDir
from analyzer.reading.traces.layouts import find_paths
from analyzer.reading.traces.paths import JobFiles, Source, rank_in_head
from analyzer.reading.traces.readers import Decoding, decoded, decoding, read_trace
from analyzer.reading.traces.split import (
    CommFilter,
    TraceFile,
    in_time,
    mixed_ranks,
    owned_by,
    rank_names,
    remarks_on_ranks,
)

_T = TypeVar("_T")


class Request(NamedTuple):
    """The way to read a job."""

    needs: Collection[Need] = ()  # purposes for which the args of events are decoded
    points: bool = False  # read events that are not slices, too
    hosts: bool = False  # list a host shared by ranks after them; its slices are in their traces, too
    only: Collection[str] = ()  # the communications to keep (`--filter`); see `CommFilter`
    comm: Sequence[str] = ()  # parts of names of further communications (`--comm`)
    step_by: str | None = None  # the mark of a step, as for `System.find_steps`
    rank_by: str | None = None  # the field with a slice's rank, as for `split_by_field`; None: the system's
    most_steps: int | None = None  # make graphs of about this many steps; None: of all
    jobs: int | None = None  # files at a time; None: the cores this process may use
    progress: bool | None = None  # show a bar on standard error; None: only on a terminal


class Rank(Struct, Generic[_T], frozen=True):
    """The result for one rank, and facts of its trace before `Request.only`; times are 0 without slices."""

    source: Source
    paths: Sequence[Path]  # in time order
    dialect: str
    world_size: int | None
    n_slices: int
    begin_ns: int  # first begin of a slice
    end_ns: int  # last end of a slice
    made: _T
    known: Collection[str] = ()  # valid names for `Request.only`; () without it
    named: Sequence[str] = ()  # parts of `Request.comm` in names of operations
    n_steps: int | None = None  # of a file of unknown rank without communication, beside others


class Ranks(Struct, Generic[_T], frozen=True):
    """A job with a result for each rank, in the order of `job.sources`, and the files that were read."""

    job: JobFiles
    ranks: Sequence[Rank[_T]]
    files: Sequence[TraceFile]
    unread: Sequence[str] = ()  # a line for each trace that could not be read

    @property
    def made(self) -> list[_T]:
        """The result for each rank."""
        return [rank.made for rank in self.ranks]

    @property
    def names(self) -> list[str]:
        """The name of each rank; see `rank_names`."""
        return rank_names(self.job.sources, [rank.n_slices > 0 for rank in self.ranks])

    @property
    def repairs(self) -> list[str]:
        """Repairs, omissions and missing ranks: a line per file."""
        return [*self.job.notes, *(line for file in self.files for line in file.repair_lines)]

    def check_any(self) -> None:
        """Raise TraceError if no rank has a slice."""
        if not any(rank.n_slices for rank in self.ranks):
            dialect = self.files[0].dialect if self.files else ""
            repairs = "".join(f"; {phrase}" for phrase in self.files[0].repairs[:1]) if self.files else ""
            raise TraceError(f"{self.job.root}: {dialects.named(dialect).without_slices}{repairs}")


Make = Callable[[Source, Trace], _T]  # a function of a module, or a partial one, so that it can be sent


@overload
def read_ranks(paths: Sequence[Path], *, request: Request = Request()) -> Ranks[Trace]: ...
@overload
def read_ranks(paths: Sequence[Path], make: Make[_T], request: Request = Request()) -> Ranks[_T]: ...
def read_ranks(
    paths: Sequence[Path], make: Make[Any] | None = None, request: Request = Request()
) -> Ranks[Any]:
    """Apply `make` to each rank of the job at `paths`, in the process that reads it; else keep the traces.

    Several files of a rank (the cycles of a profiler) are joined if their names or beginnings have the rank,
    a combined file is split again, and a missing final trace of a GPU is collected from its profiler's files.
    Files of a directory that are not traces are left out with a note, if a trace is left. One file, or the
    files of one rank, are one task, so no process holds the events of all.

    TraceError if a path does not exist, or holds no readable trace; AnalyzeError if a name of `request.only`
    is not a communication of the job.
    """
    with files_to_read(paths, request.jobs) as (job, to_read, lines):
        results = _read_all(job, to_read, make, request)
    by_number = itemgetter(0)
    files = [file for _, file in sorted((pair for read in results for pair in read.files), key=by_number)]
    errors = [error for _, error in sorted((pair for read in results for pair in read.errors), key=by_number)]
    if errors and (job.kind == "file" or not files):
        raise errors[0]
    ranks = [rank for read in results for rank in read.ranks]
    if job.kind in ("ranks", "file"):
        ranks.sort(key=lambda rank: rank.source.order)
    unread = list(map(str, errors))
    notes = [*job.notes, *lines, *unread, *remarks_on_ranks(job, ranks)]
    CommFilter.check(request.only, {name for rank in ranks for name in rank.known})
    named = {name for rank in ranks for name in rank.named}
    notes += [
        f"{paths[0]}: no operation that may communicate has {name!r} in its name (--comm)"
        for name in request.comm
        if name not in named
    ]
    hosts = itertools.count()
    ranks = [
        rank if rank.source.host is None else replace(rank, source=replace(rank.source, host=next(hosts)))
        for rank in ranks
    ]
    return Ranks(replace(job, sources=[rank.source for rank in ranks], notes=notes), ranks, files, unread)


@contextmanager
def files_to_read(
    paths: Sequence[Path], jobs: int | None = None
) -> Iterator[tuple[JobFiles, list[Path], list[str]]]:
    """Yield the job at `paths`, the file to read for each source, and a line for each flaw of raw files.

    Two kinds of files exist only during the block: the trace of dumps that continue each other, and the
    missing final trace of a GPU, collected from its profiler's files. If that fails, its communications
    (``comm.json``) are read.
    """
    job = find_paths(paths)
    gpus = {s.path: GpuDir(s.raw, s.worker, s.rank) for s in job.sources if s.raw is not None}
    if not gpus and not any(source.more for source in job.sources):
        yield job, [source.path for source in job.sources], []
        return
    made: dict[Path, Path] = {}
    lines: list[str] = []
    with temporary_directory() as directory:
        if gpus:
            from collector.gpu.final_trace import collect_gpus

            reports = collect_gpus(list(gpus.values()), into=directory, jobs=jobs, progress=False)
            for path, report in zip(gpus, reports, strict=True):
                made[path] = next(iter(report.new.values()), path)
                lines += report.warnings
        for number, source in enumerate(job.sources):
            if source.more:
                made[source.path] = directory / f"joined-{number}.json"
                join_dumps([source.path, *source.more], made[source.path])
        yield job, [made.get(source.path, source.path) for source in job.sources], lines


# ---- tasks


class _Task(NamedTuple):
    """Files that are read together, and the function to apply to the ranks in them."""

    files: Sequence[tuple[int, Path, Source]]  # number in the job, the file to read, its source
    make: Make[Any] | None
    request: Request
    decoding: Decoding
    is_one_of_several: bool = False


class _Read(Struct):
    """The ranks in the files of a task; files and errors have the number of the file in the job."""

    ranks: list[Rank[Any]]
    files: list[tuple[int, TraceFile]]
    errors: list[tuple[int, TraceError]]


def _read_all(
    job: JobFiles, to_read: Sequence[Path], make: Make[Any] | None, request: Request
) -> list[_Read]:
    groups = [[(i, to_read[i], job.sources[i]) for i in group] for group in _together(job)]
    parts = []
    for group in groups:
        paths = [path for _, path, _ in group]
        is_shared = all(os.path.isfile(path) and not is_temporary(path) for path in paths)
        parts.append(FilePart(paths[0].absolute(), sum(map(parallel.size_of, paths)), is_shared))
    fields = filter(None, (request.step_by, request.rank_by))
    keys = [*dialects.keys_for(request.needs), *(argument(field) or field for field in fields)]
    points = request.points or not (request.step_by is None or argument(request.step_by))
    rank_by, step_by = (argument(field) or field for field in (request.rank_by, request.step_by))
    how = decoding(parts, keys, points)._replace(rank_by=rank_by, step_by=step_by)
    for number, group in enumerate(groups):
        # absolute, because another process may be in another directory
        files = [(i, path.absolute(), replace(source, raw=None, more=())) for i, path, source in group]
        task = _Task(files, make, request, how, len(job.sources) > 1)
        parts[number] = replace(parts[number], about=task)
    what = f"reading {counted(len(to_read), 'file')}"
    with progress_bar(sum(part.size for part in parts), "B", what=what, enabled=request.progress) as advance:
        return list(parallel.map_files(_run, parts, jobs=request.jobs, on_read=advance))


def _together(job: JobFiles) -> list[list[int]]:
    """Group the files that belong to one rank by their names or beginnings."""
    if job.kind not in ("ranks", "file") or len(job.sources) < 2:
        return [[i] for i in range(len(job.sources))]
    groups: dict[Hashable, list[int]] = {}
    for i, source in enumerate(job.sources):
        rank = rank_in_head(source.path) if source.rank is None else source.rank
        groups.setdefault(i if rank is None else (source.worker, rank), []).append(i)
    return list(groups.values())


def _run(part: FilePart, on_read: OnRead) -> _Read:
    """Read the files of a task, and apply its function to each rank in them."""
    task: _Task = part.about
    request, how = task.request, task.decoding._replace(on_read=on_read)
    read = _Read([], [], [])
    owned: list[tuple[Source, Trace]] = []
    of_files: list[tuple[int, Trace, list[Source]]] = []
    for number, path, source in task.files:
        try:
            trace = decoded(path, how)
            _check_arguments(path, trace, request)
        except TraceError as error:
            text = str(error).replace(str(path), str(source.path), 1)
            read.errors.append((number, TraceError(text)))
            continue
        if request.rank_by is None and (mixed := mixed_ranks(trace)):
            trace = replace(trace, repairs=[mixed, *trace.repairs])
        trace = replace(trace, path=str(source.path), comm=request.comm)
        of_file = [
            (owner, part)
            for owner, part in owned_by(source, trace, request.rank_by)
            if request.hosts or owner.host is None
        ]
        of_files.append((number, trace, [owner for owner, _ in of_file]))
        owned += of_file
    lost: defaultdict[Path, list[str]] = defaultdict(list)
    for parts in _joined(owned):
        sources, traces = zip(*parts, strict=True)
        trace = concatenate(traces)
        if text := dialects.of(trace).lost_work(trace):
            lost[sources[0].path].append(text)
        read.ranks.append(_rank(sources, trace, task))
    for number, trace, owners in of_files:
        read.files.append((number, TraceFile.of(trace, owners, lost)))
    return read


def _check_arguments(path: Path, trace: Trace, request: Request) -> None:
    """Raise TraceError if no event has an argument that the request names."""
    for flag, field in (("--rank_by", request.rank_by), ("--step_by", request.step_by)):
        if (key := argument(field)) is not None and len(trace) and key not in trace.args:
            known = sorted(read_trace(path, args=dialects.keys_for({Need.ALL})).args)
            there = f"there are {', '.join(known)}" if known else "they have none"
            raise TraceError(f"{path}: {flag} {field}: no event has this argument; {there}")


def _steps_of_a_lone_process(trace: Trace) -> int | None:
    """Count the steps of a trace without communication; None for any other trace."""
    system = dialects.of(trace)
    if not system.has_events or not len(trace) or is_communication(system.roles(trace)).any():
        return None
    return len(system.find_steps(trace).whole)


def _joined(owned: Sequence[tuple[Source, Trace]]) -> Iterator[list[tuple[Source, Trace]]]:
    """Yield the parts of each rank; files of one rank are parts if they follow each other in time."""
    groups: dict[Hashable, list[tuple[Source, Trace]]] = {}
    for i, (source, trace) in enumerate(owned):
        owner = i if source.rank is None else (source.worker, source.rank, trace.dialect)
        groups.setdefault(owner, []).append((source, trace))
    for parts in groups.values():
        yield from in_time(parts)


def _rank(sources: Sequence[Source], trace: Trace, task: _Task) -> Rank[Any]:
    """Apply the task's function to the trace of one rank, from the files of `sources`."""
    source = sources[0]
    begin, end = (int(trace.ts_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    named: Sequence[str] = ()
    if trace.comm:
        names = [trace.names[i] for i in ids_in(trace.name_id[dialects.of(trace).named_comm(trace)])]
        named = [part for part in trace.comm if any(part in name for name in names)]
    n_steps = None
    if task.is_one_of_several and not source.is_known:
        n_steps = _steps_of_a_lone_process(trace)
    rank = Rank(
        source, [source.path for source in sources], trace.dialect, trace.world_size, len(trace), begin, end,
        None, named=named, n_steps=n_steps,
    )  # fmt: skip
    if task.request.only:
        comm = CommFilter(dialects.of(trace), task.request.only, source.prefix)
        trace = comm.select(trace)
        rank = replace(rank, known=tuple(comm.known))
    if task.make is None:
        return replace(rank, made=trace)
    return replace(rank, made=task.make(replace(source, path=source.path.absolute()), trace))
