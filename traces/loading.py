"""All traces of a job in memory, one per rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from errors import TraceError
from formats.columns import Trace, concatenate
from traces.files import read_all
from traces.filter import check_known, selected_of
from traces.layouts import find_paths
from traces.outlines import TraceFile, outline_of, owned_by, rank_names, ranked, repair_lines, trace_file
from traces.paths import Job
from traces.raw import files_to_read


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
    args, points, jobs, progress : as for `traces.files.read_traces`
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
