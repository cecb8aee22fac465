"""The one door to traces: finds what paths hold and loads it as columns, one trace per rank."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import dialects
from dialects.owners import split
from errors import AnalyzeError, TraceError
from formats.columns import Trace, concatenate
from jobfiles import GpuDir, Job, Source, find_gpus, find_job, local_rank, rank_notes
from temporary_files import temporary_directory
from trace_files import read_all, read_document, read_trace, read_traces

__all__ = [
    "GpuDir", "Job", "LoadedJob", "Source", "TraceFile", "files_to_read", "find_gpus", "find_job",
    "find_paths", "load_job", "load_paths", "rank_notes", "read_document", "read_trace", "read_traces",
    "select_communication",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceFile:
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


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and its traces, one per rank, in the order of `job.sources`, and the files read.

    `unread` are lines of the job's notes, one for each trace that could not be read.
    """

    job: Job
    traces: Sequence[Trace]
    files: Sequence[TraceFile] = field(default_factory=list)
    unread: Sequence[str] = ()

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line per file."""
        lines = [f"{file.path}: {'; '.join(file.repairs)}" for file in self.files if file.repairs]
        return [*self.job.notes, *lines]

    @property
    def names(self) -> list[str]:
        """What each rank is called: ``rank<r>``, ``wk<i>.rank<r>``; with its file where two claim one rank.

        A rank that is not known is its place among the traces that hold anything.
        """
        places = np.cumsum([len(trace) > 0 for trace in self.traces]) - 1
        names = [
            (source if source.rank is not None else replace(source, rank=place)).prefix.rstrip(".")
            for source, place in zip(self.job.sources, places.tolist(), strict=True)
        ]
        return [
            name if names.count(name) == 1 else f"{name}: {source.path.name}"
            for name, source in zip(names, self.job.sources, strict=True)
        ]


def load_job(path: Path, **how: Any) -> LoadedJob:
    """Find and load all traces of one path; the keywords are those of `load_paths`."""
    return load_paths([path], **how)


def load_paths(
    paths: Sequence[Path],
    *,
    args: Collection[str] = (),
    points: bool = False,
    only: Collection[str] = (),
    jobs: int | None = None,
    progress: bool | None = None,
) -> LoadedJob:
    """Find and load all traces of one or more paths as one job, one trace per rank.

    Several files of a rank (the cycles of a profiler) are joined, a combined file is split again, and the
    final trace of a GPU that has none yet is put together from its profiler's files. Files of a directory
    that turn out to be no traces are left out, with a note, as long as one is left.

    Parameters
    ----------
    args, points, jobs, progress : as for `trace_files.read_traces`
    only : names of the only communications to keep; see `select_communication`

    Raises TraceError where a path does not exist or holds no trace that can be read.
    """
    job = find_paths(paths)
    notes = list(job.notes)
    with files_to_read(job, jobs) as (paths_to_read, lines):
        notes += lines
        results = read_all(paths_to_read, args, points, jobs, progress)
    errors = [result for result in results if isinstance(result, TraceError)]
    pairs = [
        (source, replace(trace, path=str(source.path)))
        for source, trace in zip(job.sources, results, strict=True)
        if isinstance(trace, Trace)
    ]
    if errors and (job.kind == "file" or not pairs):
        raise errors[0]
    notes += map(str, errors)
    owned = [_owned(source, trace) for source, trace in pairs]
    files = [_file(parts) for parts in owned]
    ranks = [part for parts in owned for part in parts]
    if job.kind in ("ranks", "file"):
        ranks = _ranked(job.root, ranks, notes)
    sources, traces = [source for source, _ in ranks], [trace for _, trace in ranks]
    loaded = LoadedJob(replace(job, sources=sources, notes=notes), traces, files, list(map(str, errors)))
    return select_communication([loaded], only)[0]


def find_paths(paths: Sequence[Path]) -> Job:
    """Return what several paths hold as one job; nothing is read.

    Files are ranks, GPU directories side by side the GPUs of one worker, other directories workers, in
    the order given. The traces of several GPU directories stand for these. TraceError as of `find_job`.
    """
    found = [find_job(path) for path in paths]
    if len(found) == 1:
        return found[0]
    if all(job.kind == "file" for job in found) and (sources := _gpu_sources([job.root for job in found])):
        return Job(found[0].root, "job" if sources[0].worker is not None else "worker", sources)
    notes = [note for job in found for note in job.notes]
    sources = [source for job in found for source in job.sources]
    if all(job.kind in ("file", "ranks") for job in found):
        return Job(found[0].root, "file" if found[0].kind == "file" else "ranks", sources, notes)
    sources = [replace(s, rank=local_rank(s.path.parent.name) if s.rank is None else s.rank) for s in sources]
    if all(job.kind == "gpu" for job in found) and len({job.root.resolve().parent for job in found}) == 1:
        return Job(found[0].root.parent, "worker", sources, notes)
    offset = 0
    numbered: list[Source] = []
    for job in found:
        workers = [source.worker or 0 for source in job.sources]
        own = sources[len(numbered) : len(numbered) + len(workers)]
        numbered += [replace(s, worker=offset + w) for s, w in zip(own, workers, strict=True)]
        offset += max(workers) + 1
    return Job(found[0].root, "job", numbered, notes)


def _gpu_sources(files: Sequence[Path]) -> list[Source]:
    """Return whose each file is if each is the trace of another GPU directory; else []."""
    homes = [file.resolve().parent for file in files]
    gpus = [gpu for home in dict.fromkeys(homes) for gpu in find_gpus(home) if gpu.path == home]
    if len(gpus) < len(files) or any(gpu.rank is None for gpu in gpus):
        return []
    workers = list(dict.fromkeys(home.parent for home in homes))
    return [
        Source(file, workers.index(home.parent) if len(workers) > 1 else None, gpu.rank)
        for file, home, gpu in zip(files, homes, gpus, strict=True)
    ]


@contextmanager
def files_to_read(job: Job, jobs: int | None = None) -> Iterator[tuple[list[Path], list[str]]]:
    """Give the file to read for each source of `job`, and a line for each flaw found on the way.

    A GPU that has no final trace yet gets one for as long as the block lasts, collected from its profiler's
    files; where that fails, its communications alone (``comm.json``) have to do.
    """
    gpus = {source.path: source.raw for source in job.sources if source.raw is not None}
    if not gpus:
        yield [source.path for source in job.sources], []
        return
    from collector.gpu.collect_job import collect_gpus

    with temporary_directory() as directory:
        reports = collect_gpus(list(gpus.values()), into=directory, jobs=jobs, progress=False)
        made = {path: report.trace for path, report in zip(gpus, reports, strict=True)}
        files = [made.get(source.path) or source.path for source in job.sources]
        yield files, [line for report in reports for line in report.warnings]


def _owned(source: Source, trace: Trace) -> list[tuple[Source, Trace]]:
    """Return the ranks whose events are in one file: several in a combined one."""
    parts = split(trace, by_names=dialects.of(trace).names_by_rank)
    if len(parts) > 1:
        return [(replace(source, worker=part.worker, rank=part.rank), part.trace) for part in parts]
    known = trace.rank if source.rank is None or trace.rank is not None else source.rank
    return [(replace(source, rank=parts[0].rank if known is None else known), trace)]


def _file(parts: Sequence[tuple[Source, Trace]]) -> TraceFile:
    source, trace = parts[0]
    ranks = sorted(source.rank for source, _ in parts if source.rank is not None)
    return TraceFile(source.path, trace.dialect, trace.phases, ranks, trace.repairs)


def _ranked(
    path: Path, ranks: Sequence[tuple[Source, Trace]], notes: list[str]
) -> list[tuple[Source, Trace]]:
    """Return the ranks in order, the files of each joined; note ranks that are doubled or missing."""
    ordered = sorted(ranks, key=lambda pair: (pair[0].rank is None, pair[0].worker or 0, pair[0].rank or 0))
    groups: dict[object, list[tuple[Source, Trace]]] = {}
    for i, (source, trace) in enumerate(ordered):
        owner = i if source.rank is None else (source.worker, source.rank, trace.dialect)
        groups.setdefault(owner, []).append((source, trace))
    joined = [pair for own in groups.values() for pair in _in_time(own)]
    if len(ranks) > 1:
        known = [source.rank for source, _ in joined if source.rank is not None and not source.worker]
        notes += rank_notes(path, known, max(trace.world_size or 0 for _, trace in joined))
    return joined


def _in_time(own: Sequence[tuple[Source, Trace]]) -> Sequence[tuple[Source, Trace]]:
    """Return the traces of one rank as one if they follow each other in time, as a profiler's cycles do."""
    recorded = sorted((pair for pair in own if len(pair[1])), key=lambda pair: int(pair[1].ts_ns.min()))
    traces = [trace for _, trace in recorded]
    follow = (a.end_ns.max() <= b.ts_ns.min() for a, b in itertools.pairwise(traces))
    return [(recorded[0][0], concatenate(traces))] if len(traces) > 1 and all(follow) else own


def select_communication(jobs: Sequence[LoadedJob], only: Collection[str]) -> list[LoadedJob]:
    """Return the jobs with only the communications that `only` names; all else stays. () keeps all.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only. AnalyzeError where none of the jobs has a communication of a name.
    """
    if not only:
        return list(jobs)
    known: dict[str, None] = {}
    selected = []
    for job in jobs:
        prefixes = [source.prefix for source in job.job.sources]
        traces = [_selected(t, p, only, known) for t, p in zip(job.traces, prefixes, strict=True)]
        selected.append(replace(job, traces=traces))
    for name in only:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AnalyzeError(f"--filter {name}: no communication in this job has that name{hint}")
    return selected


def _selected(trace: Trace, prefix: str, only: Collection[str], known: dict[str, None]) -> Trace:
    """Return the trace without communications that are not in `only`; `known` gets the names of all."""
    if not len(trace):
        return trace
    system = dialects.of(trace)
    is_comm = system.filterable(trace)
    code = trace.name_id[is_comm].astype(np.int64) * len(trace.tracks) + trace.track_id[is_comm]
    distinct, place = np.unique(code, return_inverse=True)
    keep = np.zeros(len(distinct), np.bool_)
    for i, pair in enumerate(distinct.tolist()):
        name, track = divmod(pair, len(trace.tracks))
        aliases = system.aliases(trace, name, track)
        aliases = (*aliases, *(f"{prefix}{alias}" for alias in aliases)) if prefix else aliases
        known.update(dict.fromkeys(aliases))
        keep[i] = any(alias in only for alias in aliases)
    kept = np.ones(len(trace), np.bool_)
    kept[is_comm] = keep[place]
    return trace.select(kept)
