"""From paths to ranks: finds, reads and splits the files of a job, and maps a function over its ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

import dialects
from arrays.numbering import ids_in
from dialects import Need
from dialects.steps import argument
from errors import TraceError
from formats.columns import Trace, concatenate
from outputs.atomic import temporary_directory
from traces.files import map_traces, read_trace
from traces.filter import check_known, selected_of
from traces.gpu_folders import GpuDir
from traces.layouts import find_paths
from traces.paths import JobFiles, Source, rank_in_head
from traces.split import (
    RankFile,
    TraceFile,
    in_time,
    owned_by,
    rank_file,
    rank_names,
    ranked,
    repair_lines,
    trace_file,
)

_T = TypeVar("_T")


class Request(NamedTuple):
    """How a job is read.

    Attributes
    ----------
    needs : what the args of events are decoded for
    points : whether the events that are not slices are wanted
    hosts : whether a host whose slices several ranks share is listed, too, after the ranks; in the traces of
        these its slices are in any case (`Trace.is_shared`)
    only : names of the only communications to keep (`--filter`); see `selected_of`
    comm : parts of names of operations that are communication, too (`--comm`)
    step_by : what marks a step, as for `System.find_steps`
    rank_by : the field that tells the rank of a slice, as of `split_by_field`; None: as its system tells
    most_steps : of how many steps graphs are made, about; None: of all
    jobs : files at a time; None means the cores this process may use
    progress : show a bar on standard error; None means only on a terminal
    """

    needs: Collection[Need] = ()
    points: bool = False
    hosts: bool = False
    only: Collection[str] = ()
    comm: Sequence[str] = ()
    step_by: str | None = None
    rank_by: str | None = None
    most_steps: int | None = None
    jobs: int | None = None
    progress: bool | None = None


class MappedRank(Struct, Generic[_T], frozen=True):
    """The result for one rank, and the files that hold its trace, in time order."""

    source: Source
    files: Sequence[RankFile]
    made: _T
    known: Sequence[str] = ()  # names that `Request.only` may have; () without it
    named: Sequence[str] = ()  # those of `Request.comm` that operations have in their names

    @property
    def n_slices(self) -> int:
        """Slices of all files."""
        return sum(file.n_slices for file in self.files)


class Ranks(Struct, Generic[_T], frozen=True):
    """A job with a result for each rank, in the order of `job.sources`, and the files that were read."""

    job: JobFiles
    ranks: Sequence[MappedRank[_T]]
    files: Sequence[TraceFile]
    found: JobFiles  # the job as it was found, with a source for each file
    unread: Sequence[str] = ()  # lines of the job's notes, one for each trace that could not be read

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
        return repair_lines(self.job.notes, self.files)

    def check_any(self) -> None:
        """Raise TraceError where no rank holds a slice."""
        if not any(rank.n_slices for rank in self.ranks):
            path = self.found.sources[0].path if self.found.kind == "file" else self.found.root
            dialect = self.files[0].dialect if self.files else ""
            found = "".join(f"; {phrase}" for phrase in self.files[0].repairs[:1]) if self.files else ""
            raise TraceError(f"{path}: {dialects.named(dialect).without_slices}{found}")


Make = Callable[[Source, Trace], _T]  # a function of a module, or a partial one, so that it can be sent


#: All events that are slices, without their args.
PLAIN = Request()


def load_paths(paths: Sequence[Path], request: Request = PLAIN) -> Ranks[Trace]:
    """Return the trace of each rank of the job at `paths`; see `map_ranks`."""
    return map_ranks(paths, _itself, request)


def map_ranks(
    paths: Sequence[Path],
    make: Make[_T],
    request: Request = PLAIN,
) -> Ranks[_T]:
    """Return the result of `make` for each rank of the job at `paths`, computed where its file is read.

    Several files of a rank (the cycles of a profiler) are joined, a combined file is split again, and the
    final trace of a GPU that has none yet is put together from its profiler's files. Files of a directory
    that turn out not to be traces are left out, with a note, as long as one is left.

    Parameters
    ----------
    make : the function of a rank's source and trace. One file is one task, so no process holds the events
        of all. Files that say that they are one rank's are read together; where others turn out to be, they
        are read once more

    Raises
    ------
    TraceError
        A path does not exist, or holds no trace that can be read.
    AnalyzeError
        A name of `request.only` is not a communication of the job.
    """
    found = find_paths(paths)
    with files_to_read(found, request.jobs) as (to_read, lines):
        reader = _Reader(found, to_read, request)
        files, results, errors = reader.read(make)
        if errors and (found.kind == "file" or not files):
            raise errors[0]
        notes = [*found.notes, *lines, *map(str, errors)]
        ranks: list[MappedRank[_T]] = []
        again = []
        for group in ranked(found, files, notes):
            own = [files[i] for i in group]
            rank = results.get(_key(own))
            if rank is None:
                again.append(len(ranks))
                rank = MappedRank(own[0].source, own, None)
            ranks.append(rank)
        for i, rank in zip(again, reader.read_ranks([ranks[i] for i in again], make), strict=True):
            ranks[i] = rank
    check_known(request.only, dict.fromkeys(name for rank in ranks for name in rank.known))
    named = {name for rank in ranks for name in rank.named}
    notes += [
        f"{paths[0]}: no operation that may communicate has {name!r} in its name (--comm)"
        for name in request.comm
        if name not in named
    ]
    n_hosts = itertools.count()
    sources = [r.source if r.source.host is None else replace(r.source, host=next(n_hosts)) for r in ranks]
    ranks = [replace(rank, source=source) for rank, source in zip(ranks, sources, strict=True)]
    of_file = [list(own) for _, own in itertools.groupby(files, key=attrgetter("file"))]
    job = replace(found, sources=sources, notes=notes)
    return Ranks(job, ranks, [*map(trace_file, of_file)], found, [*map(str, errors)])


@contextmanager
def files_to_read(job: JobFiles, jobs: int | None = None) -> Iterator[tuple[list[Path], list[str]]]:
    """Yield the file to read for each source of `job`, and a line for each flaw of the raw files.

    A GPU that has no final trace yet gets one for as long as the block lasts, collected from its profiler's
    files; where that fails, its communications alone (``comm.json``) have to do.
    """
    gpus = {s.path: GpuDir(s.raw, s.worker, s.rank) for s in job.sources if s.raw is not None}
    if not gpus:
        yield [source.path for source in job.sources], []
        return
    from collector.gpu.final_trace import collect_gpus

    with temporary_directory() as directory:
        reports = collect_gpus(list(gpus.values()), into=directory, jobs=jobs, progress=False)
        made = {
            path: next(iter(report.new.values()), path) for path, report in zip(gpus, reports, strict=True)
        }
        files = [made.get(source.path, source.path) for source in job.sources]
        yield files, [line for report in reports for line in report.warnings]


def _itself(_: Source, trace: Trace) -> Trace:
    return trace


_Key = tuple[tuple[int, int], ...]


def _key(files: Sequence[RankFile]) -> _Key:
    return tuple((file.file, file.place) for file in files)


class _Reader(NamedTuple):
    """Reads the files of a job."""

    found: JobFiles
    to_read: Sequence[Path]
    request: Request

    def read(self, make: Make[Any]) -> tuple[list[RankFile], dict[_Key, MappedRank[Any]], list[TraceError]]:
        """Return the ranks of each file, the results, and why files cannot be read.

        There is a result for each rank of a file, or for the one rank of files that are read together.
        """
        files: list[RankFile] = []
        results: dict[_Key, MappedRank[Any]] = {}
        errors: dict[int, TraceError] = {}
        groups = _together(self.found)
        while groups:
            failed = []
            tasks = [self._task(own, [self.found.sources[i] for i in own], make) for own in groups]
            for own, result in zip(groups, self._mapped(_of_files, tasks), strict=True):
                if not isinstance(result, TraceError):
                    files += result[0]
                    results |= {_key(rank.files): rank for rank in result[1]}
                elif len(own) == 1:
                    errors[own[0]] = result
                else:  # one of them cannot be read: each is tried alone
                    failed += [[i] for i in own]
            groups = failed
        files.sort(key=attrgetter("file", "place"))
        return files, results, [errors[i] for i in sorted(errors)]

    def read_ranks(self, ranks: Sequence[MappedRank[Any]], make: Make[Any]) -> Iterator[MappedRank[Any]]:
        """Yield ranks whose files are known with their results."""
        tasks = [
            self._task([file.file for file in rank.files], [rank.source], make)._replace(
                places=[file.place for file in rank.files]
            )
            for rank in ranks
        ]
        for rank, result in zip(ranks, self._mapped(_of_rank, tasks) if tasks else (), strict=True):
            if isinstance(result, TraceError):
                raise result
            yield replace(rank, made=result[0], known=result[1], named=result[2])

    def _mapped(
        self, work: Callable[[Sequence[Trace], _Task], _T], tasks: Sequence[_Task]
    ) -> Iterator[_T | TraceError]:
        paths = [[self.to_read[i] for i in task.files] for task in tasks]
        asked = self.request
        fields = filter(None, (asked.step_by, asked.rank_by))
        keys = [*dialects.keys_for(asked.needs), *(argument(field) or field for field in fields)]
        points = asked.points or not (asked.step_by is None or argument(asked.step_by))
        return map_traces(
            work, paths, tasks, args=keys, points=points, jobs=asked.jobs, progress=asked.progress
        )

    def _task(self, files: Sequence[int], sources: Sequence[Source], make: Make[Any]) -> _Task:
        # another process may be in another directory
        sent = [replace(source, path=source.path.absolute(), raw=None) for source in sources]
        names = [self.found.sources[i].path for i in files]
        return _Task(files, sent, names, make, self.request)


def _together(found: JobFiles) -> list[list[int]]:
    """Return which files are read together: those that say, in name or head, that they are one rank's."""
    if found.kind not in ("ranks", "file") or len(found.sources) < 2:
        return [[i] for i in range(len(found.sources))]
    groups: dict[Hashable, list[int]] = {}
    for i, source in enumerate(found.sources):
        rank = rank_in_head(source.path) if source.rank is None else source.rank
        groups.setdefault(i if rank is None else (source.worker, rank), []).append(i)
    return list(groups.values())


# ---- tasks


class _Task(NamedTuple):
    """The files that are read together, and the function of the ranks in them."""

    files: Sequence[int]  # indices in the sources of the job as it was found
    sources: Sequence[Source]  # of each file, or of the one rank that is in all; their paths are absolute
    names: Sequence[Path]  # of the files, as the user gave them
    make: Any  # a `Make`
    request: Request
    places: Sequence[int] = ()  # the rank's place in each file, where it is known


def _of_files(
    traces: Sequence[Trace], task: _Task
) -> tuple[list[RankFile], list[MappedRank[Any]]] | TraceError:
    """Return the ranks of files, and the result for each rank of a file or for the one rank of several.

    The error where a file has no argument that the request names.
    """
    for source, name, trace in zip(task.sources, task.names, traces, strict=True):
        if error := _lacking(source.path, name, trace, task.request):
            return error
    named = zip(task.sources, _named(traces, task), strict=True)
    owned = [owned_by(source, trace, task.request.rank_by) for source, trace in named]
    parts = [
        (source, trace, rank_file(replace(source, path=name), trace, file, place))
        for own, name, file in zip(owned, task.names, task.files, strict=True)
        for place, (source, trace) in enumerate(own)
        if task.request.hosts or source.host is None
    ]
    files = [file for _, _, file in parts]
    owners = {(file.source.worker, file.source.rank, file.dialect) for file in files}
    order = in_time(range(len(files)), files)[0] if files else []
    if len(owned) > 1 and len(owners) == 1 and len(order) > 1 and len(parts) == len(owned):
        parts = [(parts[order[0]][0], concatenate([parts[i][1] for i in order]), files[order[0]])]
        of_ranks = [[files[i] for i in order]]
    else:
        of_ranks = [[file] for file in files]
    ranks = [
        MappedRank(own[0].source, own, *_made(source, trace, task))
        for own, (source, trace, _) in zip(of_ranks, parts, strict=True)
    ]
    return files, ranks


def _of_rank(traces: Sequence[Trace], task: _Task) -> tuple[Any, Sequence[str], Sequence[str]]:
    (source,) = task.sources
    named = zip(_named(traces, task), task.places, strict=True)
    parts = [owned_by(source, trace, task.request.rank_by)[place][1] for trace, place in named]
    return _made(source, concatenate(parts), task)


def _lacking(path: Path, name: Path, trace: Trace, request: Request) -> TraceError | None:
    """Return the error that no event has an argument that the request names, with those that they have."""
    for flag, field in (("--rank_by", request.rank_by), ("--step_by", request.step_by)):
        if (key := argument(field)) is not None and len(trace) and key not in trace.args:
            known = sorted(read_trace(path, args=dialects.keys_for({Need.ALL})).args)
            there = f"there are {', '.join(known)}" if known else "they have none"
            return TraceError(f"{name}: {flag} {field}: no event has this argument; {there}")
    return None


def _named(traces: Sequence[Trace], task: _Task) -> list[Trace]:
    return [
        replace(trace, path=str(name), comm=task.request.comm)
        for trace, name in zip(traces, task.names, strict=True)
    ]


def _made(source: Source, trace: Trace, task: _Task) -> tuple[Any, Sequence[str], Sequence[str]]:
    """Return the result for a rank, the names that `only` may have, and those of `comm` that occur."""
    known: dict[str, None] = {}
    named: Sequence[str] = ()
    if trace.comm:
        found = [trace.names[i] for i in ids_in(trace.name_id[dialects.of(trace).named_comm(trace)])]
        named = [part for part in trace.comm if any(part in name for name in found)]
    if task.request.only:
        trace = selected_of(trace, source.prefix, task.request.only, known)
    return task.make(source, trace), tuple(known), named
