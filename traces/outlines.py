"""Whose the events of trace files are, and which files make one rank."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

import dialects
from formats.columns import Trace
from traces.paths import Job, Source, numbers, rank_notes


class TraceFile(Struct, frozen=True):
    """What was in one file; `ranks` are those whose events it holds."""

    path: Path
    dialect: str
    phases: Mapping[str, int]
    ranks: Sequence[int]
    repairs: Sequence[str]

    @property
    def n_events(self) -> int:
        """Events of every phase."""
        return sum(self.phases.values())


class Outline(NamedTuple):
    """What is known of a trace whose events are not at hand; the times are 0 where it holds no slice."""

    path: str
    dialect: str
    n_slices: int
    begin_ns: int  # of the first slice
    end_ns: int  # of the slice that ends last
    world_size: int | None
    phases: Mapping[str, int]
    repairs: Sequence[str]


def repair_lines(notes: Sequence[str], files: Sequence[TraceFile]) -> list[str]:
    """Return what was repaired, left out or is missing: a line per file."""
    return [*notes, *(f"{file.path}: {'; '.join(file.repairs)}" for file in files if file.repairs)]


def rank_names(sources: Sequence[Source], hold_any: Sequence[bool]) -> list[str]:
    """Return what each rank is called: ``rank<r>``, ``wk<i>.rank<r>``; with its file where two claim one.

    A rank that is not known is its place among the traces that hold any slice.
    """
    places = np.cumsum(hold_any) - 1
    names = [
        (source if source.rank is not None else replace(source, rank=place)).prefix.rstrip(".")
        for source, place in zip(sources, places.tolist(), strict=True)
    ]
    count = Counter(names)
    return [
        name if count[name] == 1 else f"{name}: {source.path.name}"
        for name, source in zip(names, sources, strict=True)
    ]


def owned_by(source: Source, trace: Trace) -> list[tuple[Source, Trace]]:
    """Return the ranks whose events are in one file: several in a combined one."""
    parts = dialects.of(trace).split(trace)
    if len(parts) > 1:
        return [(replace(source, worker=part.worker, rank=part.rank), part.trace) for part in parts]
    known = trace.rank if source.rank is None or trace.rank is not None else source.rank
    return [(replace(source, rank=parts[0].rank if known is None else known), trace)]


def outline_of(trace: Trace) -> Outline:
    """Return what stays known of a trace when its events are gone."""
    begin, end = (int(trace.ts_ns.min()), int(trace.end_ns.max())) if len(trace) else (0, 0)
    return Outline(
        trace.path, trace.dialect, len(trace), begin, end, trace.world_size, trace.phases, trace.repairs
    )


def trace_file(parts: Sequence[tuple[Source, Outline]]) -> TraceFile:
    """Return what was in one file, from the ranks in it."""
    source, trace = parts[0]
    ranks = sorted(source.rank for source, _ in parts if source.rank is not None)
    return TraceFile(source.path, trace.dialect, trace.phases, ranks, trace.repairs)


def ranked(job: Job, parts: Sequence[tuple[Source, Outline]], notes: list[str]) -> list[list[int]]:
    """Return which `parts` make each rank, in the order of ranks; note ranks that are doubled or missing."""
    if job.kind not in ("ranks", "file"):
        return [[i] for i in range(len(parts))]
    order = sorted(
        range(len(parts)),
        key=lambda i: (parts[i][0].rank is None, parts[i][0].worker or 0, parts[i][0].rank or 0),
    )
    groups: dict[object, list[int]] = {}
    for i in order:
        source, outline = parts[i]
        owner = i if source.rank is None else (source.worker, source.rank, outline.dialect)
        groups.setdefault(owner, []).append(i)
    joined = [group for own in groups.values() for group in in_time(own, parts)]
    apart = [own for own in joined if len({parts[i][0].path.parent for i in own}) > 1]
    if again := sorted(rank for own in apart if (rank := parts[own[0]][0].rank) is not None):
        notes.append(
            f"{job.root}: rank {numbers(again)} in several directories given, one after the other in time: "
            "taken for one job; two jobs are for compare"
        )
    if len(parts) > 1:
        sources = [parts[group[0]][0] for group in joined]
        known = [source.rank for source in sources if source.rank is not None and not source.worker]
        widest = max(parts[i][1].world_size or 0 for group in joined for i in group[:1])
        notes += rank_notes(job.root, known, widest)
    return joined


def in_time(own: Sequence[int], parts: Sequence[tuple[Source, Outline]]) -> list[list[int]]:
    """Return the parts of one rank as one if they follow each other in time, as a profiler's cycles do."""
    recorded = sorted((i for i in own if parts[i][1].n_slices), key=lambda i: parts[i][1].begin_ns)
    outlines = [parts[i][1] for i in recorded]
    follow = (a.end_ns <= b.begin_ns for a, b in itertools.pairwise(outlines))
    return [recorded] if len(recorded) > 1 and all(follow) else [[i] for i in own]
