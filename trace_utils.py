"""The one door to traces: finds what paths hold and loads it as columns, one trace per rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

import dialects
from errors import AnalyzeError, TraceError
from formats.columns import Trace, concatenate
from jobfiles import GpuDir, Job, Source, find_gpus, find_job, local_rank, rank_notes
from rank_outlines import TraceFile, outline_of, owned_by, rank_names, ranked, repair_lines, trace_file
from temporary_files import temporary_directory
from trace_files import read_all, read_document, read_trace, read_traces

__all__ = [
    "GpuDir", "Job", "LoadedJob", "Source", "TraceFile", "check_known", "files_to_read", "find_gpus",
    "find_job", "find_paths", "load_job", "load_paths", "rank_notes", "read_document", "read_trace",
    "read_traces", "selected_of",
]  # fmt: skip


class LoadedJob(Struct, frozen=True):
    """A job and its traces, one per rank, in the order of `job.sources`, and the files read."""

    job: Job
    traces: Sequence[Trace]
    files: Sequence[TraceFile] = field(default_factory=list)

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line per file."""
        return repair_lines(self.job.notes, self.files)

    @property
    def names(self) -> list[str]:
        """What each rank is called; see `rank_names`."""
        return rank_names(self.job.sources, [len(trace) > 0 for trace in self.traces])


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
    only : names of the only communications to keep; see `selected_of`

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
    owned = [owned_by(source, trace) for source, trace in pairs]
    files = [trace_file([(source, outline_of(trace)) for source, trace in parts]) for parts in owned]
    ranks = [part for parts in owned for part in parts]
    groups = ranked(job, [(source, outline_of(trace)) for source, trace in ranks], notes)
    sources = [ranks[group[0]][0] for group in groups]
    traces = [concatenate([ranks[i][1] for i in group]) for group in groups]
    if only:
        known: dict[str, None] = {}
        traces = [selected_of(t, s.prefix, only, known) for t, s in zip(traces, sources, strict=True)]
        check_known(only, known)
    return LoadedJob(replace(job, sources=sources, notes=notes), traces, files)


def find_paths(paths: Sequence[Path]) -> Job:
    """Return what several paths hold as one job; nothing is read.

    Files are ranks, GPU directories side by side the GPUs of one worker, other directories workers, in
    the order given. The traces of several GPU directories stand for these. TraceError as of `find_job`.
    """
    found = [find_job(path, paths) for path in paths]
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
        made = {
            path: next(iter(report.new.values()), path) for path, report in zip(gpus, reports, strict=True)
        }
        files = [made.get(source.path, source.path) for source in job.sources]
        yield files, [line for report in reports for line in report.warnings]


def check_known(only: Collection[str], known: Mapping[str, None]) -> None:
    """Raise AnalyzeError where a name of `only` is no communication that is `known`."""
    for name in only:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AnalyzeError(f"--filter {name}: no communication in this job has that name{hint}")


def selected_of(trace: Trace, prefix: str, only: Collection[str], known: dict[str, None]) -> Trace:
    """Return the trace without communications that are not in `only`; `known` gets the names of all.

    A name means a communication with all its parts (``Comm.x``, Horovod's tensor, a collective), a stage of
    it (``Comm.x.PUSH``) or a partition (``Comm.x.PUSH.26148864``); with its rank (``rank0.Comm.x``), on that
    rank only.
    """
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
