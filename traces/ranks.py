"""Something made of each rank of a job where its file is read: one file is one task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from errors import TraceError
from formats.columns import Trace, concatenate
from traces.files import map_traces
from traces.filter import check_known, selected_of
from traces.layouts import find_paths
from traces.outlines import (
    Outline,
    TraceFile,
    in_time,
    outline_of,
    owned_by,
    rank_names,
    ranked,
    repair_lines,
    trace_file,
)
from traces.paths import Job, Source, rank_in_head
from traces.raw import files_to_read

_T = TypeVar("_T")


class MappedRank(Struct, Generic[_T], frozen=True):
    """What was made of one rank's trace; `origin` has the files of it, and its place in each."""

    source: Source
    outline: Outline
    made: _T
    origin: Sequence[tuple[int, int]] = ()


class MappedJob(Struct, Generic[_T], frozen=True):
    """A job of which something was made rank by rank, in the order of `job.sources`, and the files read."""

    job: Job
    ranks: Sequence[MappedRank[_T]]
    files: Sequence[TraceFile]
    found: Job  # the job as it was found, with a source for each file
    unread: Sequence[str] = ()  # lines of the job's notes, one for each trace that could not be read

    @property
    def names(self) -> list[str]:
        """What each rank is called; see `rank_names`."""
        return rank_names(self.job.sources, [rank.outline.n_slices > 0 for rank in self.ranks])

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line per file."""
        return repair_lines(self.job.notes, self.files)

    def check_any(self) -> None:
        """Raise TraceError where no rank holds a slice."""
        if not any(rank.outline.n_slices for rank in self.ranks):
            path = self.found.sources[0].path if self.found.kind == "file" else self.found.root
            raise TraceError(f"{path}: the trace holds no operation (no X event, no B with its E)")


Work = Callable[[Source, Trace], _T]  # a function of a module, or a partial one, so that it can be sent


def map_ranks(
    paths: Sequence[Path],
    work: Work[_T],
    *,
    args: Collection[str] = (),
    points: bool = False,
    only: Collection[str] = (),
    jobs: int | None = None,
    progress: bool | None = None,
    kept: Callable[[_T], _T] | None = None,
) -> MappedJob[_T]:
    """Return what `work` makes of each rank's trace, made where its file is read: one file is one task.

    The ranks are those of `load_paths`, but no process holds the events of all. `work` gets a rank's source
    and its trace; of what it makes, that is `kept` which this function returns. Files that say that they are
    one rank's are read together; where they are not, or others are, those are read once more. Raises as
    `load_paths`.
    """
    found = find_paths(paths)
    how = {"args": args, "points": points, "jobs": jobs, "progress": progress}
    with files_to_read(found, jobs) as (to_read, lines):
        notes = [*found.notes, *lines]
        reader = _Reader(found, to_read, only, how, kept)
        results, wholes = reader.files(work)
        errors = [result for result in results if isinstance(result, TraceError)]
        if errors and (found.kind == "file" or len(errors) == len(results)):
            raise errors[0]
        notes += map(str, errors)
        own = [
            (i, [part._replace(source=replace(part.source, path=found.sources[i].path)) for part in result])
            for i, result in enumerate(results)
            if not isinstance(result, TraceError)
        ]
        files = [trace_file([part[:2] for part in parts]) for _, parts in own]
        places = [(i, place) for i, parts in own for place in range(len(parts))]
        parts = [part for _, parts in own for part in parts]
        groups = ranked(found, [part[:2] for part in parts], notes)
        ranks: list[MappedRank[_T]] = []
        again = []
        known: dict[str, None] = {}
        for group in groups:
            origin = [places[i] for i in group]
            first, whole = parts[group[0]], wholes.get(tuple(origin)) if len(group) > 1 else parts[group[0]]
            if whole is None or whole.is_unmade:
                again.append(len(ranks))
                whole = first
            known.update(dict.fromkeys(whole.known))
            ranks.append(MappedRank(first.source, whole.outline, whole.made, origin))
        for i, part in zip(again, reader.ranks([ranks[i] for i in again], repeat(work)), strict=True):
            known.update(dict.fromkeys(part.known))
            ranks[i] = replace(ranks[i], outline=part.outline, made=part.made)
    check_known(only, known)
    job = replace(found, sources=[rank.source for rank in ranks], notes=notes)
    return MappedJob(job, ranks, files, found, list(map(str, errors)))


def map_again(
    mapped: MappedJob[_T],
    ranks: Sequence[int],
    works: Sequence[Work[_T]],
    *,
    only: Collection[str] = (),
    jobs: int | None = None,
    kept: Callable[[_T], _T] | None = None,
    **how: Any,
) -> MappedJob[_T]:
    """Return a job of which something else was made of some `ranks`, of each by its own work.

    Their files are read again; the other parameters are those of `map_ranks`.
    """
    if not ranks:
        return mapped
    new = list(mapped.ranks)
    with files_to_read(mapped.found, jobs) as (to_read, _):
        reader = _Reader(mapped.found, to_read, only, {"jobs": jobs, **how}, kept)
        parts = reader.ranks([new[i] for i in ranks], works)
    for i, part in zip(ranks, parts, strict=True):
        new[i] = replace(new[i], made=part.made)
    return replace(mapped, ranks=new)


class _Part(NamedTuple):
    """What a task tells of one rank."""

    source: Source
    outline: Outline
    made: Any = None
    known: Sequence[str] = ()  # names that `only` may have; () without it
    is_unmade: bool = False  # whether `made` is still to be made


_Wholes = dict[tuple[tuple[int, int], ...], _Part]  # what files make together, by its places in them


class _Reader(NamedTuple):
    """How the files of a job are read; what is made of their ranks is `kept`."""

    found: Job
    to_read: Sequence[Path]
    only: Collection[str]
    how: Mapping[str, Any]
    kept: Callable[[Any], Any] | None

    def files(self, work: Work[Any]) -> tuple[list[list[_Part] | TraceError], _Wholes]:
        """Return of each file its ranks, or why it cannot be read; and what several files make together."""
        results: dict[int, list[_Part] | TraceError] = {}
        wholes: _Wholes = {}
        tasks = _together(self.found)
        while tasks:
            failed = []
            about = [self._told(own, [self.found.sources[i] for i in own], work) for own in tasks]
            read = map_traces(_of_files, [[self.to_read[i] for i in own] for own in tasks], about, **self.how)
            for own, result in zip(tasks, read, strict=True):
                if not isinstance(result, TraceError):
                    results |= {
                        i: list(map(self._kept, parts)) for i, parts in zip(own, result.files, strict=True)
                    }
                    if result.whole is not None:
                        wholes[tuple((own[i], 0) for i in result.order)] = self._kept(result.whole)
                elif len(own) == 1:
                    results[own[0]] = result
                else:  # one of them cannot be read: which one is found out by itself
                    failed += [[i] for i in own]
            tasks = failed
        return [results[i] for i in range(len(self.to_read))], wholes

    def ranks(self, ranks: Sequence[MappedRank[Any]], works: Iterable[Work[Any]]) -> list[_Part]:
        """Return what is made of ranks whose files are known, of each by its own work."""
        if not ranks:
            return []
        files = [[file for file, _ in rank.origin] for rank in ranks]
        about = [
            self._told(own, [rank.source], work)._replace(places=[place for _, place in rank.origin])
            for rank, own, work in zip(ranks, files, works, strict=False)
        ]
        parts: list[_Part] = []
        for result in map_traces(
            _of_rank, [[self.to_read[i] for i in own] for own in files], about, **self.how
        ):
            if isinstance(result, TraceError):
                raise result
            parts.append(self._kept(result))
        return parts

    def _told(self, files: Sequence[int], sources: Sequence[Source], work: Work[Any]) -> _Told:
        # another process may be in another directory
        sent = [replace(source, path=source.path.absolute(), raw=None) for source in sources]
        return _Told(sent, self.only, [str(self.found.sources[i].path) for i in files], work)

    def _kept(self, part: _Part) -> _Part:
        if self.kept is None or part.is_unmade:
            return part
        return part._replace(made=self.kept(part.made))


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


class _Told(NamedTuple):
    """What a task is told of the files it reads."""

    sources: Sequence[Source]  # of each file, or of the one rank that is in all; their paths are absolute
    only: Collection[str]
    names: Sequence[str]  # of the files, as the user gave them
    work: Any  # a `Work`
    places: Sequence[int] = ()  # the rank's place in each file, where it is known


class _Read(NamedTuple):
    """What a task tells of files: of each its ranks, and of several, in `order`, the rank that they make.

    `whole` is None where there is one file, and where several make none.
    """

    files: Sequence[Sequence[_Part]]
    whole: _Part | None = None
    order: Sequence[int] = ()


def _of_files(traces: Sequence[Trace], told: _Told) -> _Read:
    """Return what is made of each rank of a file, or of the one rank of several."""
    owned = [
        owned_by(source, trace) for source, trace in zip(told.sources, _named(traces, told), strict=True)
    ]
    if len(owned) == 1:
        return _Read([[_part(source, trace, told) for source, trace in owned[0]]])
    files = [[_Part(source, outline_of(trace), is_unmade=True) for source, trace in own] for own in owned]
    firsts = [own[0] for own in files]
    owners = {(one.source.worker, one.source.rank, one.outline.dialect) for one in firsts}
    order = in_time(range(len(files)), [one[:2] for one in firsts])[0]
    if len(owners) > 1 or len(order) == 1 or any(len(own) > 1 for own in owned):
        return _Read(files)
    whole = concatenate([owned[i][0][1] for i in order])
    return _Read(files, _part(firsts[order[0]].source, whole, told), order)


def _of_rank(traces: Sequence[Trace], told: _Told) -> _Part:
    """Return what is made of one rank whose files are known."""
    (source,) = told.sources
    named = zip(_named(traces, told), told.places, strict=True)
    return _part(source, concatenate([owned_by(source, trace)[place][1] for trace, place in named]), told)


def _named(traces: Sequence[Trace], told: _Told) -> list[Trace]:
    return [replace(trace, path=name) for trace, name in zip(traces, told.names, strict=True)]


def _part(source: Source, trace: Trace, told: _Told) -> _Part:
    outline = outline_of(trace)
    known: dict[str, None] = {}
    if told.only:
        trace = selected_of(trace, source.prefix, told.only, known)
    return _Part(source, outline, told.work(source, trace), tuple(known))
