"""A layout of directories: one for each GPU, as BytePS and its profiler leave them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from msgspec import Struct

from analyzer.base.errors import TraceError, in_words, listed
from analyzer.base.inputs import natural
from analyzer.reading.formats.stream import find_file
from analyzer.reading.traces.paths import (
    JobFiles,
    JobKind,
    Source,
    empty_notes,
    listing,
    missing_note,
    rank_notes,
    subdirectories,
)

#: Substitutes for a missing final trace, the best first.
GPU_TRACES = ("comm.json", "temp.json", "io.json")
GPU_FILES = ("comm.json", "dag.gml", "temp.json", "io.json", "step.json")

#: The name of a worker's directory.
_WORKER_NAME = r"(?i)((?:worker|wk|w)[-_.]?)(\d{1,6})"
_GPU_NAME = r"(?:(\d+)_)?(\d+)"
_SHOWN = 4  # workers that are named in a note
_MOST_WORKERS = 4096  # a larger number in a folder's name is taken for an id


class GpuDir(Struct, frozen=True):
    """A directory in which BytePS or its profiler left the files of one GPU."""

    path: Path
    worker: int | None = None
    rank: int | None = None

    def file(self, name: str) -> Path | None:
        """Find the file `name`, or its packed form ``name.gz``; dPRO's ``trace.json`` is ``temp.json``."""
        named = find_file(self.path, name)
        return find_file(self.path, "trace.json") if named is None and name == "temp.json" else named

    def final_trace(self) -> Path | None:
        """Find the profiler's final trace: `bps_trace_final.json`, else the last step's."""
        traces = filter(_is_final_trace, listing(self.path))
        return max(
            traces,
            key=lambda file: (file.name.startswith("bps_trace_final"), natural(file.name)),
            default=None,
        )

    def trace(self) -> Path | None:
        """Find the final trace, else the best of the files that it is collected from."""
        return self.final_trace() or next(filter(None, map(self.file, GPU_TRACES)), None)

    @property
    def is_raw(self) -> bool:
        """Check for raw files of operators or data loads without a final trace."""
        return self.final_trace() is None and bool(self.file("temp.json") or self.file("io.json"))


def find_gpu_folders(path: Path, given: Sequence[Path]) -> JobFiles | None:
    """Find the GPU directories at or below `path`; None if there are none."""
    gpus = find_gpus(path)
    if not gpus:
        return None
    notes = (
        _local_rank_notes(path, gpus)
        + _worker_notes(path, gpus, given)
        + empty_notes(path, [gpu.path for gpu in gpus])
        + _joined_notes(path, gpus)
    )
    sources = []
    for gpu in gpus:
        trace = gpu.trace()
        if trace is None:
            text = f"{gpu.path}: no trace in this GPU's directory (bps_trace*.json or comm.json)"
            notes.append(missing_note(text))
        else:
            sources.append(Source(trace, gpu.worker, gpu.rank, gpu.path if gpu.is_raw else None))
    if not sources:
        raise TraceError(f"{path}: no trace in any GPU directory (bps_trace*.json or comm.json)")
    several = any(gpu.worker is not None for gpu in gpus)
    kind: JobKind = "gpu" if _is_gpu_dir(path) else ("job" if several else "worker")
    reported = [
        folder for folder in (path, *subdirectories(path)) if any(map(_is_final_trace, listing(folder)))
    ]
    return JobFiles(path, kind, sources, notes, reported)


def find_gpus(path: Path) -> list[GpuDir]:
    """List the GPU directories at or below `path`, workers and ranks in order.

    A worker's index is None if `path` holds one worker only. Directories named ``<rank>_<local_rank>`` of
    several workers may lie side by side: a repeated local rank belongs to the next worker.
    """
    if not path.is_dir():
        return []
    if _is_gpu_dir(path):
        return [GpuDir(path, rank=local_rank(path.name))]
    workers = [gpus for gpus in _workers(path, depth=2) if gpus]
    return [
        GpuDir(gpu, worker=i if len(workers) > 1 else None, rank=rank)
        for i, gpus in enumerate(workers)
        for rank, gpu in gpus
    ]


def _workers(path: Path, depth: int) -> list[list[tuple[int, Path]]]:
    """List the (local rank, GPU directory) pairs of each worker at or below `path`."""
    children = subdirectories(path)
    if gpus := list(filter(_is_gpu_dir, children)):
        return _split_by_rank(gpus)
    workers = [list(filter(_is_gpu_dir, subdirectories(child))) for child in children]
    if any(workers):
        return [group for gpus in workers if gpus for group in _split_by_rank(gpus)]
    if depth == 0:
        return []
    jobs = {child: found for child in children if (found := _workers(child, depth - 1))}
    if len(jobs) > 1:
        names = listed([child.name for child in jobs])
        if others := [child.name for child in children if child not in jobs]:
            names += f" (beside {listed(others)})"
        raise TraceError(f"{path}: holds several jobs: {names}; give one, e.g. {next(iter(jobs))}")
    return next(iter(jobs.values()), [])


def _split_by_rank(gpus: list[Path]) -> list[list[tuple[int, Path]]]:
    """Sort GPU directories by local rank; a repeated rank belongs to the next worker."""
    workers: defaultdict[int, list[tuple[int, Path]]] = defaultdict(list)
    n_seen = Counter[int]()
    for order, gpu in enumerate(gpus):
        match = re.fullmatch(_GPU_NAME, gpu.name)
        rank = int(match[2]) if match else order
        workers[n_seen[rank] if match and match[1] else 0].append((rank, gpu))
        n_seen[rank] += 1
    return [sorted(workers[worker], key=itemgetter(0)) for worker in sorted(workers)]


def _local_rank_notes(path: Path, gpus: Sequence[GpuDir]) -> list[str]:
    by_worker: defaultdict[int | None, list[int]] = defaultdict(list)
    for gpu in gpus:
        by_worker[gpu.worker].append(gpu.rank or 0)
    widest = max(gpu.rank or 0 for gpu in gpus) + 1 if len(gpus) > 1 else 0
    notes = []
    for worker, ranks in by_worker.items():
        whose = path if worker is None else f"{path}, worker {worker}"
        notes += rank_notes(whose, ranks, widest, "local rank", "directories")
    return notes


def _worker_notes(path: Path, gpus: Sequence[GpuDir], given: Sequence[Path]) -> list[str]:
    """Note workers that are not numbered by their names, and workers missing before a lone one."""
    names = {gpu.worker: gpu.path.parent.name for gpu in gpus if gpu.worker is not None}
    if gpus[0].path == path:
        return []
    if not names:
        return _missing_workers(gpus[0].path.resolve().parent, given)
    numbers = {worker: re.fullmatch(_WORKER_NAME, name) for worker, name in names.items()}
    moved = [
        f"wk{worker} is {names[worker]}"
        for worker, number in numbers.items()
        if number and int(number[2]) != worker
    ]
    if not moved or len(set(names.values())) < len(names):
        return []
    return [f"{path}: workers are numbered by their place: {listed(moved, _SHOWN)}"]


def _missing_workers(worker: Path, given: Sequence[Path]) -> list[str]:
    """Note that workers before a lone one may be missing, unless they lie beside it or are given, too."""
    match = re.fullmatch(_WORKER_NAME, worker.name)
    if match is None or len(given) > 1:
        return []
    before = range(min(int(match[2]), _MOST_WORKERS))
    if not before or any((worker.parent / f"{match[1]}{number}").is_dir() for number in before):
        return []
    return [
        missing_note(f"{worker}: {in_words(before, 'worker')} may be missing: no folder beside it is theirs")
    ]


def _is_gpu_dir(path: Path) -> bool:
    """Check whether a directory has files of one GPU; a final trace above GPU directories is of all."""
    if any(file.name.removesuffix(".gz") in GPU_FILES for file in listing(path)):
        return True
    below = (folder for child in subdirectories(path) for folder in (child, *subdirectories(child)))
    return any(map(_is_final_trace, listing(path))) and not any(map(_is_gpu_dir, below))


def _joined_notes(path: Path, gpus: Sequence[GpuDir]) -> list[str]:
    """Note the final traces of all ranks that dPRO writes above the GPU directories."""
    above = {
        folder for gpu in gpus for folder in gpu.path.parents if folder == path or path in folder.parents
    }
    joined = sorted(str(file) for folder in above for file in listing(folder) if _is_final_trace(file))
    return [f"{listed(joined, _SHOWN)}: not read; the ranks' own folders are"] if joined else []


def _is_final_trace(path: Path) -> bool:
    return path.name.startswith("bps_trace") and path.name.endswith((".json", ".json.gz")) and path.is_file()


def local_rank(name: str) -> int | None:
    """Read the local rank in a GPU directory's name (``<rank>_<local_rank>`` or one number)."""
    match = re.fullmatch(_GPU_NAME, name)
    return int(match[2]) if match else None


def is_gpu_file(name: str) -> bool:
    """Check whether a file of that name lies in a GPU's directory."""
    return name.removesuffix(".gz") in GPU_FILES or name.startswith("bps_trace")


def gpu_sources(files: Sequence[Path]) -> list[Source]:
    """Find the GPU of each file if each is the trace of another GPU directory; else []."""
    homes = [file.resolve().parent for file in files]
    gpus = [gpu for home in dict.fromkeys(homes) if _is_gpu_dir(home) for gpu in find_gpus(home)]
    if len(gpus) < len(files) or any(gpu.rank is None for gpu in gpus):
        return []
    workers = list(dict.fromkeys(home.parent for home in homes))
    return [
        Source(file, workers.index(home.parent) if len(workers) > 1 else None, gpu.rank)
        for file, home, gpu in zip(files, homes, gpus, strict=True)
    ]
