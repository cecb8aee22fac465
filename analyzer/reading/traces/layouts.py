"""The table of layouts of directories, and several paths as one job."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.base.inputs import absent, is_digest, unreadable
from analyzer.reading.traces.gpu_folders import find_gpu_folders, gpu_sources, is_gpu_file, local_rank
from analyzer.reading.traces.paths import (
    JobFiles,
    Source,
    head_of,
    skipped_notes,
    unread_notes,
)
from analyzer.reading.traces.rank_files import (
    find_ascend_folders,
    find_dumps,
    find_profiles,
    find_rank_files,
    rank_of_file,
    ranks_of_names,
)
from analyzer.reading.traces.readers import CHROME, Holds, holding, reader_of

#: Finds the job in a directory of this layout; None for any other. The second argument: all paths given.
Layout = Callable[[Path, Sequence[Path]], JobFiles | None]
#: In the order of their use; the last takes every directory.
LAYOUTS: Sequence[Layout] = (
    find_gpu_folders, find_profiles, find_ascend_folders, find_dumps, find_rank_files,
)  # fmt: skip
#: Folders that are searched for traces beside the job's: 0.1 s of every run, if they are full. With 25 or
#: 100 the result is the same for recorded jobs.
_MOST_SEARCHED = 50
_JOB_SUFFIX = r"\.(gml|pcap|pcapng|cap|txt|log|out|err|msgpack)\d*$"  # tcpdump numbers its files


def find_job(path: Path, given: Sequence[Path] = ()) -> JobFiles:
    """Find the traces of `path`, one of the paths `given`.

    TraceError if there is no such path, or no trace under it.
    """
    if not path.exists():
        raise absent(path)
    if path.is_file():
        if path.suffix == ".gml":
            raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
        if is_digest(path):
            raise TraceError(f"{path}: a digest, which holds no single events; give the traces it is of")
        return JobFiles(path, "file", [Source(path, rank=rank_of_file(path))])
    if not path.is_dir():
        raise TraceError(f"{path}: neither a file nor a directory")
    try:
        os.scandir(path).close()
    except OSError as error:
        raise unreadable(path, error) from error
    job = next(job for find in LAYOUTS if (job := find(path, given)) is not None)
    homes = dict.fromkeys(source.path.parent for source in job.sources)
    notes = [*job.notes, *(note for home in dict.fromkeys([path, *homes]) for note in skipped_notes(home))]
    notes += unread_notes(path, _MOST_SEARCHED, {source.path for source in job.sources})
    others = {other for other in given if other != path}
    if left := holding(path, _MOST_SEARCHED, {*homes, *others, *job.reported}):
        notes.append(f"{path}: traces in {left} are not read; pass them as well if they belong to the job")
    return replace(job, notes=notes)


def held_by(paths: Sequence[Path]) -> Holds:
    """Find the kind of the first recording at `paths`; TraceError as of `find_job`."""
    reader = reader_of(head_of(find_job(paths[0], paths).sources[0].path))
    return "events" if reader is None else reader.holds


def check_chrome(path: Path) -> None:
    """Raise TraceError for a trace of another format than chrome's."""
    if not path.exists():
        raise absent(path)
    reader = reader_of(head_of(path))
    if reader is not None and reader is not CHROME:
        raise TraceError(f"{path}: {reader.what}; combine takes chrome-trace files only")


def find_paths(paths: Sequence[Path]) -> JobFiles:
    """Find several paths as one job, without reading it.

    Files are ranks, GPU directories side by side the GPUs of one worker, other directories workers, in the
    order given. Traces of several GPU directories count as the directories. TraceError as of `find_job`.
    """
    jobs = [find_job(path, paths) for path in paths]
    if len(jobs) == 1:
        return jobs[0]
    kinds, root = {job.kind for job in jobs}, jobs[0].root
    if kinds == {"file"} and (sources := gpu_sources([job.root for job in jobs])):
        return JobFiles(root, "job" if sources[0].worker is not None else "worker", sources)
    notes = [note for job in jobs for note in job.notes]
    sources = [source for job in jobs for source in job.sources]
    if not any(source.is_known for source in sources) and len({s.path.parent for s in sources}) == 1:
        ranks = ranks_of_names([source.path for source in sources])
        sources = [replace(source, rank=ranks.get(source.path)) for source in sources]
    if kinds <= {"file", "ranks"}:
        return JobFiles(root, "file" if jobs[0].kind == "file" else "ranks", sources, notes)
    sources = [replace(s, rank=local_rank(s.path.parent.name) if s.rank is None else s.rank) for s in sources]
    if kinds == {"gpu"} and len({job.root.resolve().parent for job in jobs}) == 1:
        return JobFiles(root.parent, "worker", sources, notes)
    offset = 0
    of_workers: list[Source] = []
    for job in jobs:
        workers = [source.worker or 0 for source in job.sources]
        for worker in workers:
            of_workers.append(replace(sources[len(of_workers)], worker=offset + worker))
        offset += max(workers) + 1
    return JobFiles(root, "job", of_workers, notes)


def is_input(file: Path, given: Sequence[Path]) -> bool:
    """Check whether an option with the paths `given` may read the existing `file`.

    It may read the files given, the traces of directories given, and graphs, captures, logs and files of
    BytePS in or below these or beside a file given.
    """
    return any(path.exists() and _is_input_of(file, path) for path in given)


def _is_input_of(file: Path, path: Path) -> bool:
    if path.is_file():
        return file.samefile(path) or (path.resolve().parent == file.resolve().parent and _is_job_file(file))
    if path.resolve() in file.resolve().parents and _is_job_file(file):
        return True
    try:
        return any(file.samefile(source.path) for source in find_job(path).sources)
    except (TraceError, OSError):
        return False


def _is_job_file(path: Path) -> bool:
    name = path.resolve().name.lower()
    return is_gpu_file(name) or re.search(_JOB_SUFFIX, name.removesuffix(".gz")) is not None
