"""From paths to ranks: finds, reads and splits the files of a job, and maps a function over its ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

import dialects
from dialects import Need
from errors import TraceError
from formats.columns import Trace, concatenate
from traces.files import map_traces
from traces.filter import check_known, selected_of
from traces.layouts import find_paths
from traces.paths import Job, Source, rank_in_head
from traces.raw import files_to_read
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
    step_by : the annotation that marks a step, as for `System.find_steps`
    jobs : files at a time; None means the cores this process may use
    progress : show a bar on standard error; None means only on a terminal
    """

    needs: Collection[Need] = ()
    points: bool = False
    hosts: bool = False
    only: Collection[str] = ()
    step_by: str | None = None
    jobs: int | None = None
    progress: bool | None = None


class MappedRank(Struct, Generic[_T], frozen=True):
    """The result for one rank, and the files that hold its trace, in time order."""

    source: Source
    files: Sequence[RankFile]
    made: _T

    @property
    def n_slices(self) -> int:
        """Slices of all files."""
        return sum(file.n_slices for file in self.files)


class Ranks(Struct, Generic[_T], frozen=True):
    """A job with a result for each rank, in the order of `job.sources`, and the files that were read."""

    job: Job
    ranks: Sequence[MappedRank[_T]]
    files: Sequence[TraceFile]
    found: Job  # the job as it was found, with a source for each file
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
            raise TraceError(f"{path}: the trace holds no operation (no X event, no B with its E)")


Make = Callable[[Source, Trace], _T]  # a function of a module, or a partial one, so that it can be sent


#: All events that are slices, without their args.
PLAIN = Request()


def load_paths(paths: Sequence[Path], request: Request = PLAIN) -> Ranks[Trace]:
    """Return the trace of each rank of the job at `paths`; see `map_ranks`."""
    return map_ranks(paths, _itself, request, join=concatenate)


def map_ranks(
    paths: Sequence[Path],
    make: Make[_T],
    request: Request = PLAIN,
    *,
    kept: Callable[[_T], _T] | None = None,
    join: Callable[[Sequence[_T]], _T] | None = None,
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
    kept : maps a result to the part of it that this process keeps
    join : joins the results for several files of a rank, which then are not read together

    Raises
    ------
    TraceError
        A path does not exist, or holds no trace that can be read.
    AnalyzeError
        A name of `request.only` is not a communication of the job.
    """
    found = find_paths(paths)
    with files_to_read(found, request.jobs) as (to_read, lines):
        notes = [*found.notes, *lines]
        reader = _Reader(found, to_read, request, kept)
        results, wholes = reader.files(make, together=join is None)
        errors = [result for result in results if isinstance(result, TraceError)]
        if errors and (found.kind == "file" or len(errors) == len(results)):
            raise errors[0]
        notes += map(str, errors)
        of_files = [result for result in results if not isinstance(result, TraceError)]
        files = [trace_file([part.file for part in parts]) for parts in of_files]
        parts = [part for parts in of_files for part in parts]
        ranks: list[MappedRank[_T]] = []
        again, n_hosts = [], 0
        known: dict[str, None] = {}
        for group in ranked(found, [part.file for part in parts], notes):
            own = [parts[i] for i in group]
            source = own[0].file.source
            if source.host is not None:
                source, n_hosts = replace(source, host=n_hosts), n_hosts + 1
            whole = own[0] if len(own) == 1 else wholes.get(tuple(part.file.file for part in own))
            if join is not None and len(own) > 1:
                names = dict.fromkeys(name for part in own for name in part.known)
                whole = _Part(own[0].file, join([part.made for part in own]), tuple(names))
            if whole is None or not whole.is_made:
                again.append(len(ranks))
                whole = own[0]
            known.update(dict.fromkeys(whole.known))
            ranks.append(MappedRank(source, [part.file for part in own], whole.made))
        for i, part in zip(again, reader.ranks([ranks[i] for i in again], [make] * len(again)), strict=True):
            known.update(dict.fromkeys(part.known))
            ranks[i] = replace(ranks[i], made=part.made)
    check_known(request.only, known)
    job = replace(found, sources=[rank.source for rank in ranks], notes=notes)
    return Ranks(job, ranks, files, found, list(map(str, errors)))


def map_again(
    mapped: Ranks[_T],
    ranks: Sequence[int],
    makes: Sequence[Make[_T]],
    request: Request,
    *,
    kept: Callable[[_T], _T] | None = None,
) -> Ranks[_T]:
    """Return the job with new results for some `ranks`, each by its own function of `makes`.

    Their files are read again; the other parameters are those of `map_ranks`.
    """
    if not ranks:
        return mapped
    new = list(mapped.ranks)
    with files_to_read(mapped.found, request.jobs) as (to_read, _):
        parts = _Reader(mapped.found, to_read, request, kept).ranks([new[i] for i in ranks], makes)
    for i, part in zip(ranks, parts, strict=True):
        new[i] = replace(new[i], made=part.made)
    return replace(mapped, ranks=new)


def _itself(_: Source, trace: Trace) -> Trace:
    return trace


class _Part(NamedTuple):
    """A task's result for one rank of a file; `known` are the names that `only` may have, () without it."""

    file: RankFile
    made: Any = None
    known: Sequence[str] = ()
    is_made: bool = True


class _Reader(NamedTuple):
    """Reads the files of a job, and keeps the part of each result that `kept` returns."""

    found: Job
    to_read: Sequence[Path]
    request: Request
    kept: Callable[[Any], Any] | None

    def files(
        self, make: Make[Any], *, together: bool
    ) -> tuple[list[list[_Part] | TraceError], dict[tuple[int, ...], _Part]]:
        """Return the ranks of each file, or its error; and the results for files read together."""
        results: dict[int, list[_Part] | TraceError] = {}
        wholes: dict[tuple[int, ...], _Part] = {}
        groups = _together(self.found) if together else [[i] for i in range(len(self.found.sources))]
        while groups:
            failed = []
            tasks = [self._task(own, [self.found.sources[i] for i in own], make) for own in groups]
            for own, result in zip(groups, self._mapped(_of_files, tasks), strict=True):
                if not isinstance(result, TraceError):
                    parts, order = result
                    parts = list(map(self._kept, parts))
                    if order:
                        wholes[order] = parts.pop()
                    results |= {i: [part for part in parts if part.file.file == i] for i in own}
                elif len(own) == 1:
                    results[own[0]] = result
                else:  # one of them cannot be read: each is tried alone
                    failed += [[i] for i in own]
            groups = failed
        return [results[i] for i in range(len(self.to_read))], wholes

    def ranks(self, ranks: Sequence[MappedRank[Any]], makes: Sequence[Make[Any]]) -> list[_Part]:
        """Return the results for ranks whose files are known, of each by its own function."""
        tasks = [
            self._task([part.file for part in rank.files], [rank.source], make)._replace(
                places=[part.place for part in rank.files]
            )
            for rank, make in zip(ranks, makes, strict=True)
        ]
        parts: list[_Part] = []
        for result in self._mapped(_of_rank, tasks) if tasks else ():
            if isinstance(result, TraceError):
                raise result
            parts.append(self._kept(result))
        return parts

    def _mapped(
        self, work: Callable[[Sequence[Trace], _Task], _T], tasks: Sequence[_Task]
    ) -> Iterator[_T | TraceError]:
        paths = [[self.to_read[i] for i in task.files] for task in tasks]
        needs, points, *_, jobs, progress = self.request
        keys = dialects.keys_for(needs)
        return map_traces(work, paths, tasks, args=keys, points=points, jobs=jobs, progress=progress)

    def _task(self, files: Sequence[int], sources: Sequence[Source], make: Make[Any]) -> _Task:
        # another process may be in another directory
        sent = [replace(source, path=source.path.absolute(), raw=None) for source in sources]
        names = [self.found.sources[i].path for i in files]
        return _Task(files, sent, names, make, self.request.only, self.request.hosts)

    def _kept(self, part: _Part) -> _Part:
        return part if self.kept is None or not part.is_made else part._replace(made=self.kept(part.made))


def _together(found: Job) -> list[list[int]]:
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
    only: Collection[str] = ()
    hosts: bool = False
    places: Sequence[int] = ()  # the rank's place in each file, where it is known


def _of_files(traces: Sequence[Trace], task: _Task) -> tuple[list[_Part], tuple[int, ...]]:
    """Return the result for each rank of a file, or for the one rank of several.

    For several files that are one rank's, the last part is of them all, in the order that is returned; else
    the order is ().
    """
    owned = [owned_by(*pair) for pair in zip(task.sources, _named(traces, task), strict=True)]
    parts = [
        (source, trace, rank_file(replace(source, path=name), trace, file, place))
        for own, name, file in zip(owned, task.names, task.files, strict=True)
        for place, (source, trace) in enumerate(own)
        if task.hosts or source.host is None
    ]
    files = [file for _, _, file in parts]
    owners = {(file.source.worker, file.source.rank, file.dialect) for file in files}
    order = in_time(range(len(files)), files)[0] if files else []
    if len(owned) == 1 or len(owners) > 1 or len(order) == 1 or len(parts) > len(owned):
        return [_made(source, trace, file, task) for source, trace, file in parts], ()
    whole = concatenate([parts[i][1] for i in order])
    joined = _made(parts[order[0]][0], whole, files[order[0]], task)
    unmade = [_Part(file, is_made=False) for file in files]
    return [*unmade, joined], tuple(files[i].file for i in order)


def _of_rank(traces: Sequence[Trace], task: _Task) -> _Part:
    """Return the result for one rank whose files are known."""
    (source,) = task.sources
    named = zip(_named(traces, task), task.places, strict=True)
    trace = concatenate([owned_by(source, trace)[place][1] for trace, place in named])
    return _made(source, trace, rank_file(source, trace), task)


def _named(traces: Sequence[Trace], task: _Task) -> list[Trace]:
    return [replace(trace, path=str(name)) for trace, name in zip(traces, task.names, strict=True)]


def _made(source: Source, trace: Trace, file: RankFile, task: _Task) -> _Part:
    known: dict[str, None] = {}
    if task.only:
        trace = selected_of(trace, source.prefix, task.only, known)
    return _Part(file, task.make(source, trace), tuple(known))
