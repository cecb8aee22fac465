"""Splits trace files into ranks, and joins the files of one rank."""

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

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.intervals import lies_inside
from analyzer.base.errors import AnalyzeError, in_words, listed, meant
from analyzer.base.inputs import short_names
from analyzer.reading import dialects
from analyzer.reading.dialects.owners import Owned, names_in, split_by_field, split_by_sources
from analyzer.reading.dialects.roles import is_communication
from analyzer.reading.dialects.system import System
from analyzer.reading.formats.columns import Trace
from analyzer.reading.traces.paths import JobFiles, Source, rank_notes

if TYPE_CHECKING:
    from analyzer.reading.traces.ranks import Rank


class CommFilter:
    """Keeps the communications of one rank that were asked for, and everything that is not communication.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only.

    Attributes
    ----------
    known : the names by which the rank's communications can be asked for
    """

    def __init__(self, system: System, only: Collection[str], prefix: str = "") -> None:
        self._system, self._only, self._prefix = system, frozenset(only), prefix
        self.known: dict[str, None] = {}

    def keeps(self, name: str, cat: str, tid: object, process: str | None) -> bool | None:
        """Whether events of a name, category, thread and process stay; None where they do not communicate."""
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
        """Remove the communications of a rank that were not asked for, with what collectives call."""
        if not len(trace):
            return trace
        processes = names_in(trace.metadata, "process_name")
        kind = trace.name_id.astype(np.int64) * len(trace.cats) + trace.cat_id
        distinct, place = np.unique(kind * len(trace.tracks) + trace.track_id, return_inverse=True)
        fates = np.empty(len(distinct), np.int8)
        for i, pair in enumerate(distinct.tolist()):
            rest, track = divmod(pair, len(trace.tracks))
            name, cat = divmod(rest, len(trace.cats))
            pid, tid = trace.tracks[track]
            keeps = self.keeps(trace.names[name], trace.cats[cat], tid, processes.get((pid, None)))
            fates[i] = -1 if keeps is None else keeps
        fate = fates[place]
        left_out = fate == 0
        if left_out.any() and (called := is_communication(self._system.roles(trace)) & (fate < 0)).any():
            left_out |= called & lies_inside(trace.ts_ns, trace.end_ns, trace.track_id, left_out)
        return trace.select(~left_out)

    @staticmethod
    def check(only: Collection[str], known: Collection[str]) -> None:
        """Raise AnalyzeError where a name of `only` is not communication that is `known`."""
        for name in only:
            if name not in known:
                near = meant(name, known, most=3)
                raise AnalyzeError(f"--filter {name}: no communication in this job has that name{near}")


_STEP = re.compile(r"ProfilerStep#\d{1,9}")
_ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")


def mixed_ranks(trace: Trace) -> str:
    """Say that several processes wrote one recording of PyTorch's profiler; "" for any other file.

    The profiler writes a file for each process. Two that have the same step in one file, or two that work in
    a damaged file, were given one path: each overwrote parts of what the other had written.
    """
    is_step = np.array([_STEP.fullmatch(name) is not None for name in trace.names], np.bool_)
    if not is_step.any():
        return ""
    is_damaged = any("damaged event" in repair for repair in trace.repairs)
    on_host = _rows_of(trace, _ON_HOST)
    owners = _processes(trace, on_host if is_damaged else _rows_of_shared_steps(trace, on_host, is_step))
    if len(owners) < 2:
        return ""
    devices = _processes(trace, _rows_of(trace, _ON_DEVICE))
    who = in_words(owners, "pid") + (f", {in_words(devices, 'device')}" if devices else "")
    remedy = "" if is_damaged else ", or tell them apart by --rank_by pid"
    return (
        f"{len(owners)} processes wrote this file ({who}): it mixes ranks and its numbers are no rank's; "
        f"record each rank into its own file{remedy}"
    )


def _rows_of(trace: Trace, cats: Collection[str]) -> Int64:
    is_of = np.array([cat in cats for cat in trace.cats], np.bool_)
    return np.flatnonzero(is_of[trace.cat_id]) if len(trace) else np.empty(0, np.int64)


def _rows_of_shared_steps(trace: Trace, rows: Int64, is_step: Mask) -> Int64:
    """Return the slices of steps that several processes have."""
    rows = rows[is_step[trace.name_id[rows]]]
    owners: dict[int, set[object]] = {}
    names = trace.name_id[rows].tolist()
    for name, track in zip(names, trace.track_id[rows].tolist(), strict=True):
        owners.setdefault(name, set()).add(trace.tracks[track].pid)
    return rows[np.array([len(owners[name]) > 1 for name in names], np.bool_)] if names else rows


def _processes(trace: Trace, rows: Int64) -> list[int]:
    """Return the numbers of the processes, or of the devices, of slices; other pids are labels."""
    pids = {trace.tracks[track].pid for track in set(trace.track_id[rows].tolist())}
    return sorted(pid for pid in pids if isinstance(pid, int))


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
    """Put the parts of one rank together if they begin one after the other, as a profiler's cycles do."""
    recorded = sorted((part for part in parts if len(part[1])), key=lambda part: int(part[1].ts_ns.min()))
    follow = (a.ts_ns.max() <= b.ts_ns.min() for (_, a), (_, b) in itertools.pairwise(recorded))
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
