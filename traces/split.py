"""Splits trace files into ranks, and joins the files of one rank."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import dialects
from dialects.owners import Owned, split_by_field, split_by_sources
from errors import in_words, listed
from formats.columns import Trace
from traces.paths import JobFiles, Source, rank_notes

#: Files that a line on their ranks names.
_SHOWN = 4


class TraceFile(Struct, frozen=True):
    """One file that was read; `ranks` are those whose events it holds."""

    path: Path
    dialect: str
    phases: Mapping[str, int]
    ranks: Sequence[int]
    repairs: Sequence[str]

    @property
    def n_events(self) -> int:
        """Events of every phase."""
        return sum(self.phases.values())


class RankFile(Struct, frozen=True):
    """One rank in one file; the times are 0 where it holds no slice of it.

    `phases` and `repairs` are those of the whole file, `file` is its index in the sources of the job as it
    was found, and `place` the rank's among those in the file.
    """

    source: Source
    dialect: str
    n_slices: int
    begin_ns: int  # of the first slice
    end_ns: int  # of the slice that ends last
    world_size: int | None
    phases: Mapping[str, int]
    repairs: Sequence[str]
    file: int
    place: int


def repair_lines(notes: Sequence[str], files: Sequence[TraceFile]) -> list[str]:
    """Return the notes on a job, and a line for each file in which something was repaired."""
    return [*notes, *(f"{file.path}: {'; '.join(file.repairs)}" for file in files if file.repairs)]


def rank_names(sources: Sequence[Source], hold_any: Sequence[bool]) -> list[str]:
    """Return the name of each rank: ``rank<r>``, ``wk<i>.rank<r>``; with its file where two claim one.

    A rank that is not known is its place among the traces that hold any slice.
    """
    places = (
        np.cumsum([one and source.host is None for one, source in zip(hold_any, sources, strict=True)]) - 1
    )
    names = [
        (source if source.is_known else replace(source, rank=place)).prefix.rstrip(".")
        for source, place in zip(sources, places.tolist(), strict=True)
    ]
    count = Counter(names)
    return [
        name if count[name] == 1 else f"{name}: {source.path.name}"
        for name, source in zip(names, sources, strict=True)
    ]


def owned_by(source: Source, trace: Trace, rank_by: str | None = None) -> list[tuple[Source, Trace]]:
    """Return the ranks whose events are in one file, and the host that they share.

    By `System.split`, and for a source with one rank by `System.rank`; or by a field (`split_by_field`).
    """
    system = dialects.of(trace)
    whole = system.names_by_rank or rank_by is not None
    parts: list[Owned] = []
    for file in [Owned(None, None, trace)] if whole else split_by_sources(trace):
        inner = system.split(file.trace) if rank_by is None else split_by_field(file.trace, rank_by)
        rank = file.rank
        if rank is None and not whole and inner[0].rank is None:
            rank = system.rank(file.trace)[0]
        parts += [
            replace(
                part,
                worker=file.worker if part.worker is None else part.worker,
                rank=part.rank if rank is None or len(inner) > 1 else rank,
            )
            for part in inner
        ]
    if len(parts) > 1:
        owners = [
            replace(source, worker=source.worker if part.worker is None else part.worker, rank=part.rank,
                    host=0 if part.is_host else None)
            for part in parts
        ]  # fmt: skip
        return [(owner, part.trace) for owner, part in zip(owners, parts, strict=True)]
    known = trace.rank if source.rank is None or trace.rank is not None else source.rank
    return [(replace(source, rank=parts[0].rank if known is None else known), trace)]


def rank_file(source: Source, trace: Trace, file: int = 0, place: int = 0) -> RankFile:
    """Return the facts of a rank's trace that outlive its events."""
    begin, end = (int(trace.ts_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    known = (trace.world_size, trace.phases, trace.repairs)
    return RankFile(source, trace.dialect, len(trace), begin, end, *known, file, place)


def span_of(files: Sequence[RankFile]) -> tuple[int, int]:
    """Return when the slices of a rank's files begin and end."""
    return min(file.begin_ns for file in files), max(file.end_ns for file in files)


def trace_file(parts: Sequence[RankFile]) -> TraceFile:
    """Return the file that holds these parts of ranks."""
    first = parts[0]
    ranks = sorted(part.source.rank for part in parts if part.source.rank is not None)
    return TraceFile(first.source.path, first.dialect, first.phases, ranks, first.repairs)


def ranked(job: JobFiles, parts: Sequence[RankFile], notes: list[str]) -> list[list[int]]:
    """Return which `parts` make each rank, in the order of ranks; note ranks that are doubled or missing."""
    if job.kind not in ("ranks", "file"):
        return [[i] for i in range(len(parts))]
    sources = [part.source for part in parts]
    order = sorted(
        range(len(parts)),
        key=lambda i: (sources[i].rank is None, sources[i].worker or 0, sources[i].rank or 0),
    )
    groups: dict[object, list[int]] = {}
    for i in order:
        owner = i if sources[i].rank is None else (sources[i].worker, sources[i].rank, parts[i].dialect)
        groups.setdefault(owner, []).append(i)
    joined = [group for own in groups.values() for group in in_time(own, parts)]
    apart = [own for own in joined if len({sources[i].path.parent for i in own}) > 1]
    if again := sorted(rank for own in apart if (rank := sources[own[0]].rank) is not None):
        notes.append(
            f"{job.root}: {in_words(again)} in several directories given, one after the other in time: "
            "taken for one job; two jobs are for compare"
        )
    if len(parts) > 1:
        firsts = [sources[group[0]] for group in joined]
        known = [source.rank for source in firsts if source.rank is not None and not source.worker]
        widest = max(parts[i].world_size or 0 for group in joined for i in group[:1])
        notes += rank_notes(job.root, known, widest)
        notes += _taken_for_ranks(job, [parts[group[0]] for group in joined])
    return joined


def _taken_for_ranks(job: JobFiles, ranks: Sequence[RankFile]) -> list[str]:
    """Return a line that tells which file became which rank, where nothing tells that of several."""
    recorded = [one.source for one in ranks if one.n_slices and one.source.host is None]
    unknown = [(i, one.path.name) for i, one in enumerate(recorded) if not one.is_known]
    names = {name for _, name in unknown}
    if len(names) < 2:
        return []
    words = zip(*(name.split(".")[::-1] for name in names), strict=False)
    end = sum(1 for _ in itertools.takewhile(lambda of_all: len(set(of_all)) == 1, words))
    taken = listed([f"rank{i} is {name.rsplit('.', end)[0]}" for i, name in unknown], _SHOWN)
    return [f"{job.root}: ranks by the order of files, as nothing else tells them: {taken}"]


def in_time(own: Sequence[int], parts: Sequence[RankFile]) -> list[list[int]]:
    """Return the parts of one rank as one if they follow each other in time, as a profiler's cycles do."""
    recorded = sorted((i for i in own if parts[i].n_slices), key=lambda i: parts[i].begin_ns)
    follow = (parts[a].end_ns <= parts[b].begin_ns for a, b in itertools.pairwise(recorded))
    return [recorded] if len(recorded) > 1 and all(follow) else [[i] for i in own]
