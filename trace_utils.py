"""The one loading helper: finds what a path holds and loads its traces as columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dialects
import progress as bars
from errors import TraceError
from formats import chrome
from formats import dasf_records as dasf
from formats.columns import Trace
from formats.reader import EventReader, repairs
from formats.scan import find_boundary
from jobfiles import GpuDir, Job, Source, find_gpus, find_job, head_of, local_rank, numbers
from parallel import process_pool

__all__ = [
    "GpuDir",
    "Job",
    "LoadedJob",
    "Source",
    "find_gpus",
    "find_job",
    "load_job",
    "load_paths",
    "rank_notes",
    "read_document",
    "read_trace",
    "read_traces",
]

_SPLIT = 64 << 20  # a plain file above this is read in ranges, where there are cores to spare
_FORK_WORTH = 8 << 20  # bytes (unpacked) below which a second process costs more than it saves
_UNPACKED = 12  # what a gzip file's size is taken to grow by
_MOST_RANKS = 1 << 20  # a larger world is taken for damage, not for ranks that are missing


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and the traces of its sources, in the same order; ranks as the files' contents say."""

    job: Job
    traces: Sequence[Trace]

    @property
    def repairs(self) -> list[str]:
        """What was repaired, left out or is missing: a line each file."""
        lines = [f"{t.path}: {'; '.join(t.repairs)}" for t in self.traces if t.repairs]
        return [*self.job.notes, *lines]


def load_job(
    path: Path,
    *,
    args: Collection[str] = (),
    points: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> LoadedJob:
    """Find and load all traces of one path; see `load_paths`."""
    return load_paths([path], args=args, points=points, jobs=jobs, progress=progress)


def load_paths(
    paths: Sequence[Path],
    *,
    args: Collection[str] = (),
    points: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> LoadedJob:
    """Find and load all traces of one or more paths as one job; parameters and errors as for `read_traces`.

    Several directories are the workers of a job, in the order given; several files its ranks. Files of
    a directory that turn out to be no traces are left out, with a note, as long as one is left.
    """
    job = _one_job([find_job(path) for path in paths])
    results = _read_all([source.path for source in job.sources], args, points, jobs, progress)
    errors = [result for result in results if isinstance(result, TraceError)]
    pairs = [(s, t) for s, t in zip(job.sources, results, strict=True) if isinstance(t, Trace)]
    if errors and (job.kind == "file" or not pairs):
        raise errors[0]
    notes = [*job.notes, *map(str, errors)]
    if job.kind in ("ranks", "file"):
        pairs = _rank_by_content(job.root, pairs, notes)
    return LoadedJob(replace(job, sources=[s for s, _ in pairs], notes=notes), [t for _, t in pairs])


def _one_job(found: Sequence[Job]) -> Job:
    """Return several paths' jobs as one.

    Files are ranks, GPU directories side by side the GPUs of one worker, other directories workers, in
    the order given. The traces of several GPU directories stand for these.
    """
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
    """Return whose each file is where each is the trace of a GPU directory of its own; else []."""
    homes = [file.resolve().parent for file in files]
    gpus = [gpu for home in dict.fromkeys(homes) for gpu in find_gpus(home) if gpu.path == home]
    if len(gpus) < len(files) or any(gpu.rank is None for gpu in gpus):
        return []
    workers = list(dict.fromkeys(home.parent for home in homes))
    return [
        Source(file, workers.index(home.parent) if len(workers) > 1 else None, gpu.rank)
        for file, home, gpu in zip(files, homes, gpus, strict=True)
    ]


def read_trace(path: Path, *, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one trace file, whatever its dialect; see `read_traces`."""
    return _read_one(path, args, points, None)


def read_traces(
    paths: Sequence[Path],
    *,
    args: Collection[str] = (),
    points: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> list[Trace]:
    """Load trace files in parallel processes, in the order of `paths`.

    Parameters
    ----------
    args : keys of the events' `args` to decode into `Trace.args` ("input*" means input0, input1, …)
    points : also keep the events that are no slices (`Trace.points`)
    jobs : processes; None means the cores this process may use
    progress : show a bar on standard error; None means only on a terminal

    Raises
    ------
    TraceError
        A file is missing, unreadable, or no trace.
    """
    results = _read_all(paths, args, points, jobs, progress)
    for result in results:
        if isinstance(result, TraceError):
            raise result
    return [result for result in results if isinstance(result, Trace)]


def read_document(path: Path) -> dict[str, Any]:
    """Return a small trace file whole: {"traceEvents": [event objects], **other members}.

    For files whose events are needed as objects (`temp.json`, `comm.json`, `io.json`); damage is
    repaired as in `read_trace`, and the phrases are under the key "repairs".
    """
    events: list[dict[str, Any]] = []
    reader = EventReader(path, types=(dict,))
    for piece, _ in reader:
        events.extend(piece)
    return {**reader.header, "traceEvents": events, "repairs": repairs([reader])}


def _rank_by_content(
    path: Path, pairs: list[tuple[Source, Trace]], notes: list[str]
) -> list[tuple[Source, Trace]]:
    """Return the ranks as the contents, else the names, of the files say; note doubled and missing ones."""
    ranked = [
        (replace(source, rank=source.rank if trace.rank is None else trace.rank), trace)
        for source, trace in pairs
    ]
    if len(ranked) == 1:
        return [(replace(source, rank=None), trace) for source, trace in ranked]
    ranked.sort(key=lambda pair: (pair[0].rank is None, pair[0].rank or 0))
    ranks = [source.rank for source, _ in ranked if source.rank is not None]
    notes += rank_notes(path, ranks, max(trace.world_size or 0 for _, trace in ranked))
    return ranked


def rank_notes(path: Path, ranks: Sequence[int], world: int = 0) -> list[str]:
    """Return a line for the ranks that several files at `path` claim, and one for those that are missing."""
    notes = []
    if doubled := sorted({rank for rank in ranks if ranks.count(rank) > 1}):
        notes.append(f"{path}: rank {numbers(doubled)} claimed by several files")
    world = max(world, max(ranks, default=-1) + 1)
    if ranks and world <= _MOST_RANKS and (missing := sorted(set(range(world)) - set(ranks))):
        notes.append(f"{path}: rank {numbers(missing)} of {world} missing")
    return notes


def _read_all(
    paths: Sequence[Path], args: Collection[str], points: bool, jobs: int | None, progress: bool | None
) -> list[Trace | TraceError]:
    """Load each file, or return the error that says why it cannot be."""
    jobs = jobs or _cores()
    sizes = [_size(path) for path in paths]
    ranges = _ranges(paths, sizes, jobs)
    unpacked = sum(
        size * (_UNPACKED if path.suffix == ".gz" else 1) for path, size in zip(paths, sizes, strict=True)
    )
    with bars.bar(total=sum(sizes), unit="B", enabled=progress) as bar:
        if jobs == 1 or unpacked < _FORK_WORTH or len(ranges) < 2:
            return [_caught(path, args, points, bar.update) for path in paths]
        parts = _in_processes([(paths[r.index], args, points, r) for r in ranges], jobs, bar.update)
    found: list[list[Any]] = [[] for _ in paths]
    for part, in_range in zip(parts, ranges, strict=True):
        found[in_range.index].append(part)
    return [_joined(path, own, args, points) for path, own in zip(paths, found, strict=True)]


def _in_processes(
    tasks: Sequence[tuple[Path, Collection[str], bool, _Range]], jobs: int, on_read: Callable[[int], object]
) -> list[Trace | chrome.Part | TraceError]:
    """Read ranges of files in `jobs` processes, of which this one is one if there are few ranges."""
    own = 1 if len(tasks) <= jobs else 0
    with process_pool(min(jobs, len(tasks)) - own) as pool:
        futures = [pool.submit(_read_range, *task) for task in tasks[own:]]
        parts = [_read_range(*task, on_read) for task in tasks[:own]]
        for task, future in zip(tasks[own:], futures, strict=True):
            parts.append(future.result())
            on_read(task[3].size)
    return parts


def _joined(path: Path, parts: Sequence[Any], args: Collection[str], points: bool) -> Trace | TraceError:
    """Return the trace that the parts of one file make; read it whole where a cut was inside an event."""
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    if any(isinstance(part, TraceError) or not part.aligned for part in parts):
        return _caught(path, args, points)
    return dialects.finish(path, parts)


@dataclass(frozen=True, slots=True)
class _Range:
    """The bytes [start, stop) of the file `index`; `stop` is None where they reach its end."""

    index: int
    start: int
    stop: int | None
    size: int


def _ranges(paths: Sequence[Path], sizes: Sequence[int], jobs: int) -> list[_Range]:
    """Return what each task reads; big files in several ranges."""
    ranges: list[_Range] = []
    for index, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        starts = [0]
        if size > _SPLIT and jobs > 1 and _splittable(path):
            pieces = min(jobs, -(-size // _SPLIT))
            found = (find_boundary(path, size * i // pieces) for i in range(1, pieces))
            starts += [start for start in found if start is not None]
        stops = [*starts[1:], None]
        ranges += [
            _Range(index, a, b, (size if b is None else b) - a) for a, b in zip(starts, stops, strict=True)
        ]
    return ranges


def _splittable(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    return head[:2] != b"\x1f\x8b" and not dasf.is_dasf(head)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # reading it will say what is wrong


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _caught(
    path: Path, args: Collection[str], points: bool, on_read: Callable[[int], object] | None = None
) -> Trace | TraceError:
    try:
        return _read_one(path, args, points, on_read)
    except TraceError as error:
        return error


def _read_range(
    path: Path,
    args: Collection[str],
    points: bool,
    part: _Range,
    on_read: Callable[[int], object] | None = None,
) -> Trace | chrome.Part | TraceError:
    if part.start == 0 and part.stop is None:
        return _caught(path, args, points, on_read)
    try:
        return chrome.read_part(path, args, points, part.start, part.stop, on_read=on_read)
    except TraceError as error:
        return error


def _read_one(
    path: Path, args: Collection[str], points: bool, on_read: Callable[[int], object] | None
) -> Trace:
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    if path.is_dir():
        raise TraceError(f"{path}: a directory where a trace file is wanted")
    if path.suffix == ".gml":
        raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
    if dasf.is_dasf(head_of(path)[:64]):
        return dasf.read(path, args, points)
    return dialects.finish(path, [chrome.read_part(path, args, points, on_read=on_read)])
