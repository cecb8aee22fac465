"""Something made of each rank of a job where its file is read: one file is one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from errors import TraceError
from formats.columns import Trace, concatenate
from jobfiles import Job, Source
from rank_outlines import (
    Outline,
    TraceFile,
    outline_of,
    owned_by,
    rank_names,
    ranked,
    repair_lines,
    trace_file,
)
from trace_files import map_traces
from trace_utils import check_known, files_to_read, find_paths, selected_of

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
    and its trace; of what it makes, that is `kept` which this function returns. A rank of several files is a
    task of its own once all are known. Raises as `load_paths`.
    """
    found = find_paths(paths)
    claims = Counter((source.worker, source.rank) for source in found.sources)
    alone = [source.rank is None or claims[source.worker, source.rank] == 1 for source in found.sources]
    about = [
        _Told(_sent(source), only, [str(source.path)], work if first else None)
        for source, first in zip(found.sources, alone, strict=True)
    ]
    reading: dict[str, Any] = {"args": args, "points": points, "jobs": jobs, "progress": progress}
    with files_to_read(found, jobs) as (to_read, lines):
        notes = [*found.notes, *lines]
        results = [
            result if isinstance(result, TraceError) else [_kept(part, kept) for part in result]
            for result in map_traces(_of_file, [[path] for path in to_read], about, **reading)
        ]
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
        ranks = [
            MappedRank(*parts[group[0]][:2], parts[group[0]].made, [places[i] for i in group])
            for group in groups
        ]
        known = [parts[group[0]].known for group in groups]
        again = [i for i, (group, rank) in enumerate(zip(groups, ranks, strict=True))
                 if len(group) > 1 or not alone[rank.origin[0][0]]]  # fmt: skip
        once_more = _again(found, to_read, ranks, again, work, only, reading, kept)
        for i, part in zip(again, once_more, strict=True):
            ranks[i], known[i] = replace(ranks[i], outline=part.outline, made=part.made), part.known
    check_known(only, dict.fromkeys(name for names in known for name in names))
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
    **reading: Any,
) -> MappedJob[_T]:
    """Return a job of which something else was made of some `ranks`, of each by its own work.

    Their files are read again; the other parameters are those of `map_ranks`.
    """
    if not ranks:
        return mapped
    new = list(mapped.ranks)
    with files_to_read(mapped.found, jobs) as (to_read, _):
        parts = _again(mapped.found, to_read, new, ranks, works, only, {"jobs": jobs, **reading}, kept)
    for i, part in zip(ranks, parts, strict=True):
        new[i] = replace(new[i], made=part.made)
    return replace(mapped, ranks=new)


class _Told(NamedTuple):
    """What a task is told of the files it reads: of one file whose ranks are to be found, or of one rank."""

    source: Source  # its path absolute
    only: Collection[str]
    names: Sequence[str]  # of the files, as the user gave them
    work: Any  # a `Work`; None where nothing is to be made yet
    places: Sequence[int] = ()  # the rank's place in each file


class _Part(NamedTuple):
    """What a task tells of one rank."""

    source: Source
    outline: Outline
    made: Any
    known: Sequence[str]  # names that `only` may have; () without it


def _of_file(traces: Sequence[Trace], told: _Told) -> list[_Part]:
    """Return what is made of each rank of a file; the task of `map_ranks`."""
    (trace,) = traces
    owned = owned_by(told.source, replace(trace, path=told.names[0]))
    return [_part(source, part, told) for source, part in owned]


def _of_rank(traces: Sequence[Trace], told: _Told) -> _Part:
    """Return what is made of one rank whose files are known."""
    named = [replace(trace, path=name) for trace, name in zip(traces, told.names, strict=True)]
    own = [owned_by(told.source, trace)[place][1] for trace, place in zip(named, told.places, strict=True)]
    return _part(told.source, concatenate(own), told)


def _part(source: Source, trace: Trace, told: _Told) -> _Part:
    outline = outline_of(trace)
    if told.work is None:
        return _Part(source, outline, None, ())
    known: dict[str, None] = {}
    if told.only:
        trace = selected_of(trace, source.prefix, told.only, known)
    return _Part(source, outline, told.work(source, trace), tuple(known))


def _kept(part: _Part, kept: Callable[[Any], Any] | None) -> _Part:
    return part if kept is None or part.made is None else part._replace(made=kept(part.made))


def _again(
    found: Job,
    to_read: Sequence[Path],
    ranks: Sequence[MappedRank[Any]],
    chosen: Sequence[int],
    works: Any,
    only: Collection[str],
    reading: Mapping[str, Any],
    kept: Callable[[Any], Any] | None,
) -> list[_Part]:
    """Return what is made of the `chosen` ranks, whose files are known; `works` is one for all, or each's."""
    if not chosen:
        return []
    own = works if isinstance(works, Sequence) else [works] * len(chosen)
    groups = [[to_read[file] for file, _ in ranks[i].origin] for i in chosen]
    about = [
        _Told(
            _sent(ranks[i].source),
            only,
            [str(found.sources[file].path) for file, _ in ranks[i].origin],
            work,
            [place for _, place in ranks[i].origin],
        )
        for i, work in zip(chosen, own, strict=True)
    ]
    parts: list[_Part] = []
    for result in map_traces(_of_rank, groups, about, **reading):
        if isinstance(result, TraceError):
            raise result
        parts.append(_kept(result, kept))
    return parts


def _sent(source: Source) -> Source:
    """Return a source for another process, which may not be in this one's directory."""
    return replace(source, path=source.path.absolute(), raw=None)
