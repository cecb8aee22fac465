"""Splits trace files into ranks, and joins the files of one rank."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.errors import in_words, listed
from analyzer.base.inputs import short_names
from analyzer.reading import dialects
from analyzer.reading.dialects.owners import Owned, split_by_field, split_by_sources
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.paths import JobFiles, Source, rank_notes

if TYPE_CHECKING:
    from analyzer.reading.traces.ranks import Rank

#: Files that a line on their ranks names.
_SHOWN = 4


class TraceFile(Struct, frozen=True):
    """One file that was read; `ranks` are those whose events it holds."""

    path: Path
    dialect: str
    phases: Mapping[str, int]
    ranks: Sequence[int]
    repairs: Sequence[str]

    @classmethod
    def of(cls, trace: Trace, owners: Sequence[Source]) -> TraceFile:
        """Note the facts of a file that outlive its events."""
        ranks = sorted(owner.rank for owner in owners if owner.rank is not None)
        return cls(
            owners[0].path if owners else Path(trace.path), trace.dialect, trace.phases, ranks, trace.repairs
        )

    @property
    def n_events(self) -> int:
        """Events of every phase."""
        return sum(self.phases.values())

    @property
    def repair_lines(self) -> list[str]:
        """What was repaired in the file, as a line; none if it is sound."""
        return [f"{self.path}: {'; '.join(self.repairs)}"] if self.repairs else []


def rank_names(sources: Sequence[Source], hold_any: Sequence[bool]) -> list[str]:
    """Name each rank: ``rank<r>``, ``wk<i>.rank<r>``; with its file where two claim one.

    A rank that is not known is its place among the traces that hold any slice.
    """
    names = []
    n_recorded = 0
    for source, holds_any in zip(sources, hold_any, strict=True):
        n_recorded += holds_any and source.host is None
        known = source if source.is_known else replace(source, rank=n_recorded - 1)
        names.append(known.prefix.rstrip("."))
    count = Counter(names)
    files = short_names([source.path for source in sources])
    return [name if count[name] == 1 else f"{name}: {file}" for name, file in zip(names, files, strict=True)]


def owned_by(source: Source, trace: Trace, rank_by: str | None = None) -> list[tuple[Source, Trace]]:
    """Split a file into the ranks whose events it holds, and the host that they share.

    By `System.split`, and for a source with one rank by `System.rank`; or by a field (`split_by_field`).
    """
    system = dialects.of(trace)
    rank_by = rank_by if system.has_events else None  # the reader of a step log has told its ranks apart
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


def in_time(parts: Sequence[tuple[Source, Trace]]) -> list[list[tuple[Source, Trace]]]:
    """Put the parts of one rank together if they follow each other in time, as a profiler's cycles do."""
    recorded = sorted((part for part in parts if len(part[1])), key=lambda part: int(part[1].ts_ns.min()))
    follow = (a.end_ns.max() <= b.ts_ns.min() for (_, a), (_, b) in itertools.pairwise(recorded))
    return [recorded] if len(recorded) > 1 and all(follow) else [[part] for part in parts]


def remarks_on_ranks(job: JobFiles, ranks: Sequence[Rank[Any]]) -> list[str]:
    """Note ranks that several directories, several files or no file hold, and those that nothing tells."""
    if job.kind not in ("ranks", "file"):
        return []
    notes = []
    apart = [rank.source.rank for rank in ranks if len({path.parent for path in rank.paths}) > 1]
    if again := sorted(rank for rank in apart if rank is not None):
        notes.append(
            f"{job.root}: {in_words(again)} in several directories given, one after the other in time: "
            "taken for one job; two jobs are for compare"
        )
    if sum(len(rank.paths) for rank in ranks) > 1:
        sources = [rank.source for rank in ranks]
        known = [source.rank for source in sources if source.rank is not None and not source.worker]
        notes += rank_notes(job.root, known, max(rank.world_size or 0 for rank in ranks))
        recorded = [rank.source for rank in ranks if rank.n_slices and rank.source.host is None]
        notes += _taken_for_ranks(job, recorded) + _maybe_two_runs(job, ranks)
    return notes


def _maybe_two_runs(job: JobFiles, ranks: Sequence[Rank[Any]]) -> list[str]:
    """Ask whether files are two runs, where nothing synchronises them and their steps do not match."""
    steps = {rank.n_steps for rank in ranks}
    files = [path for rank in ranks for path in rank.paths]
    if None in steps or (len(steps) < 2 and steps != {0}):
        return []
    return [f"{job.root}: {len(files)} files; if they are two runs: compare {files[0]} {files[1]}"]


def _taken_for_ranks(job: JobFiles, recorded: Sequence[Source]) -> list[str]:
    """Say which file became which rank, where nothing tells that of several."""
    unknown = [(i, source.path.name) for i, source in enumerate(recorded) if not source.is_known]
    names = {name for _, name in unknown}
    if len(names) < 2:
        return []
    words = zip(*(name.split(".")[::-1] for name in names), strict=False)
    end = sum(1 for _ in itertools.takewhile(lambda of_all: len(set(of_all)) == 1, words))
    taken = listed([f"rank{i} is {name.rsplit('.', end)[0]}" for i, name in unknown], _SHOWN)
    return [f"{job.root}: ranks by the order of files, as nothing else tells them: {taken}"]
