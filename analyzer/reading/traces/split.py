"""Ranks of a trace file: split a file, join the files of one rank, filter communications, name ranks."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.errors import AnalyzeError, in_words, listed, meant
from analyzer.base.inputs import short_names
from analyzer.reading import dialects
from analyzer.reading.dialects.owners import Owned, names_in, split_by_field, split_by_sources
from analyzer.reading.dialects.roles import by_cat, by_name, is_communication
from analyzer.reading.dialects.system import System
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.paths import JobFiles, Source, rank_notes

if TYPE_CHECKING:
    from analyzer.reading.traces.ranks import Rank


class CommFilter:
    """Filter that keeps the requested communications of one rank, and everything else.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only. `known` has the valid names.
    """

    def __init__(self, system: System, only: Collection[str], prefix: str = "") -> None:
        self._system, self._only, self._prefix = system, frozenset(only), prefix
        self.known: dict[str, None] = {}

    def keeps(self, name: str, cat: str, tid: object, process: str | None) -> bool | None:
        """Check whether events of a kind stay; None if they do not communicate."""
        names = self._system.filter_names(name, cat, tid, process)
        if not names and self._system.is_named_comm(name):
            names = (name,)
        if not names:
            return None
        if self._prefix:
            names = (*names, *(self._prefix + name for name in names))
        self.known.update(dict.fromkeys(names))
        return not self._only.isdisjoint(names)

    def select(self, trace: Trace) -> Trace:
        """Remove the other communications of a rank, with the calls inside collectives."""
        if not len(trace):
            return trace
        processes = names_in(trace.metadata, "process_name")
        kind = trace.name_id.astype(np.int64) * len(trace.cats) + trace.cat_id
        distinct, index = np.unique(kind * len(trace.tracks) + trace.track_id, return_inverse=True)
        fates = np.empty(len(distinct), np.int8)
        for i, pair in enumerate(distinct.tolist()):
            rest, track = divmod(pair, len(trace.tracks))
            name, cat = divmod(rest, len(trace.cats))
            pid, tid = trace.tracks[track]
            keeps = self.keeps(trace.names[name], trace.cats[cat], tid, processes.get((pid, None)))
            fates[i] = -1 if keeps is None else keeps
        fate = fates[index]
        left_out = fate == 0
        if left_out.any() and (called := is_communication(self._system.roles(trace)) & (fate < 0)).any():
            left_out |= called & lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, left_out)
        return trace.select(~left_out)

    @staticmethod
    def check(only: Collection[str], known: Collection[str]) -> None:
        """Raise AnalyzeError if a name of `only` is not `known`."""
        for name in only:
            if name not in known:
                near = meant(name, known, most=3)
                raise AnalyzeError(f"--filter {name}: no communication in this job has that name{near}")


_STEP = r"ProfilerStep#\d{1,9}"
_ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


def mixed_ranks(trace: Trace) -> str:
    """Note that several processes wrote one recording of PyTorch's profiler; "" for any other file.

    The profiler writes a file for each process. If two processes have steps in one file, or work in a damaged
    file, both wrote to one path and may have overwritten each other.
    """
    is_damaged = any("damaged event" in repair for repair in trace.repairs)
    owners = _processes(trace, _ON_HOST, ".*" if is_damaged else _STEP)
    if len(owners) < 2:
        return ""
    devices = _processes(trace, _ON_DEVICE)
    who = in_words(owners, "pid") + (f", {in_words(devices, 'device')}" if devices else "")
    remedy = "" if is_damaged or devices else ", or tell them apart by --rank_by pid"
    return (
        f"{len(owners)} processes wrote this file ({who}): it mixes ranks and its numbers are no rank's; "
        f"record each rank into its own file{remedy}"
    )


def _processes(trace: Trace, cats: Collection[str], name: str = ".*") -> list[int]:
    """List the numbers of the processes, or devices, that have slices of `cats` called `name`."""
    rows = by_cat(trace, cats.__contains__) & by_name(trace, re.compile(name, re.DOTALL).fullmatch)
    pids = {trace.tracks[track].pid for track in set(trace.track_id[rows].tolist())}
    return sorted(pid for pid in pids if isinstance(pid, int))  # others are labels


_SHOWN = 4  # files named in a note on their ranks


class TraceFile(Struct, frozen=True):
    """One file that was read, the ranks in it, and the repairs that say which device work it lost."""

    path: Path
    dialect: str
    phases: Mapping[str, int]
    ranks: Sequence[int]
    repairs: Sequence[str]
    lost_work: Sequence[str] = ()

    @classmethod
    def of(cls, trace: Trace, owners: Sequence[Source], lost: Mapping[Path, Sequence[str]]) -> TraceFile:
        """Keep the facts of a file without its events; `lost` has what ranks lost, by their first file."""
        ranks = sorted(owner.rank for owner in owners if owner.rank is not None)
        path = owners[0].path if owners else Path(trace.path)
        lost_work = lost.get(path, ())
        return cls(path, trace.dialect, trace.phases, ranks, [*trace.repairs, *lost_work], lost_work)

    @property
    def n_events(self) -> int:
        """Events of every phase."""
        return sum(self.phases.values())

    @property
    def repair_lines(self) -> list[str]:
        """The repairs of the file, as one line or none."""
        return [f"{self.path}: {'; '.join(self.repairs)}"] if self.repairs else []


def rank_names(sources: Sequence[Source], hold_any: Sequence[bool]) -> list[str]:
    """Name each rank: ``rank<r>``, ``wk<i>.rank<r>``; with its file where two claim one.

    An unknown rank is counted among the traces with slices.
    """
    names = []
    n_recorded = 0
    for source, holds_any in zip(sources, hold_any, strict=True):
        n_recorded += holds_any and source.host is None
        known = source if source.is_known else replace(source, rank=max(n_recorded - 1, 0))
        names.append(known.prefix.rstrip("."))
    count = Counter(names)
    files = short_names([source.path for source in sources])
    return [name if count[name] == 1 else f"{name}: {file}" for name, file in zip(names, files, strict=True)]


def owned_by(source: Source, trace: Trace, rank_by: str | None = None) -> list[tuple[Source, Trace]]:
    """Split a file into its ranks and the host that they share.

    By `System.split`, and for a source with one rank by `System.rank`; or by a field (`split_by_field`).
    """
    system = dialects.of(trace)
    rank_by = rank_by if system.has_events else None  # the reader of a step log has split its ranks
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
    """Group the parts of one rank if they begin one after the other, as a profiler's cycles do."""
    recorded = sorted((part for part in parts if len(part[1])), key=lambda part: int(part[1].ts_ns.min()))
    follow = (a.ts_ns.max() <= b.ts_ns.min() for (_, a), (_, b) in itertools.pairwise(recorded))
    return [recorded] if len(recorded) > 1 and all(follow) else [[part] for part in parts]


def remarks_on_ranks(job: JobFiles, ranks: Sequence[Rank[Any]]) -> list[str]:
    """Note ranks in several directories or files, missing ranks, and ranks assigned by the order of files."""
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
        notes += (taken := _taken_for_ranks(job, recorded))
        steps = {rank.n_steps for rank in ranks}
        files = [path for rank in ranks for path in rank.paths]
        is_one_job = not taken and (None in steps or (len(steps) == 1 and steps != {0}))
        if len(files) == 2 and not is_one_job:
            notes.append(f"{job.root}: 2 files; if they are two runs: compare {files[0]} {files[1]}")
    return notes


def _taken_for_ranks(job: JobFiles, recorded: Sequence[Source]) -> list[str]:
    """Note the ranks of files that are assigned by the order of the files."""
    unknown = [(i, source.path.name) for i, source in enumerate(recorded) if not source.is_known]
    names = {name for _, name in unknown}
    if len(names) < 2:
        return []
    words = zip(*(name.split(".")[::-1] for name in names), strict=False)
    end = sum(1 for _ in itertools.takewhile(lambda of_all: len(set(of_all)) == 1, words))
    taken = listed([f"rank{i} is {name.rsplit('.', end)[0]}" for i, name in unknown], _SHOWN)
    return [f"{job.root}: ranks by the order of files, as nothing else tells them: {taken}"]
