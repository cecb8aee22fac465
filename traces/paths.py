"""What a path holds: the trace files of a job, whose they are, and the directories of its GPUs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from errors import TraceError
from formats import dasf_records as dasf
from formats.stream import ByteStream, find_file, unreadable
from outputs.marks import is_digest, is_marked

JobKind = Literal["file", "gpu", "worker", "job", "ranks"]

#: Files that this program writes beside its inputs; a directory's traces are the others.
PRODUCTS = ("combined", "synthetic", "comm_timeline", "server_timeline")
#: What Composer calls the file in which it puts those of all ranks once more, beside them.
_MERGED = "merged_trace"
#: What stands for a final trace that is not there, the best first.
GPU_TRACES = ("comm.json", "temp.json", "io.json")
GPU_FILES = ("comm.json", "dag.gml", "temp.json", "io.json", "step.json")

_TRACE_SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".msgpack", ".gz", ".trace")
_JOB_SUFFIX = re.compile(r"\.(gml|pcap|pcapng|cap|txt|log|out|err|msgpack)\d*$")  # tcpdump numbers its files
#: A worker's directory that says which one it is.
_WORKER_NAME = re.compile(r"(?:worker|wk|w)[-_.]?(\d{1,6})", re.IGNORECASE)
_GPU_NAME = re.compile(r"(?:(\d+)_)?(\d+)")
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_RANK_IN_HEAD = re.compile(
    rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b|'
    rb'"name"\s*:\s*"global_rank"[^{}]*"args"\s*:\s*\{\s*"value"\s*:\s*(\d{1,9})\b'
)
_DIGITS = re.compile(r"(\d{1,18})")
_MOST_FOLDERS, _MOST_FILES = 1000, 10  # that are searched for a hint; files of each
_MOST_SEARCHED = 50  # folders below a job's files
_SHOWN = 4  # workers that are named in a note
_MOST_RANKS = 1 << 20  # a larger world is taken for damage, not for ranks that are missing


class Source(Struct, frozen=True):
    """One trace file of a job and whose it is.

    `worker` is the worker's index in the job (None: the job has no workers, or only one was given);
    `rank` the local rank of the GPU (BytePS) or the global rank (all others), None where unknown.
    """

    path: Path
    worker: int | None = None
    rank: int | None = None
    raw: GpuDir | None = None  # set where there is no final trace yet, but what one is collected from

    @property
    def prefix(self) -> str:
        """``wk<i>.rank<r>.``, or what of it is known."""
        worker = "" if self.worker is None else f"wk{self.worker}."
        return worker + ("" if self.rank is None else f"rank{self.rank}.")


class GpuDir(Struct, frozen=True):
    """A directory in which BytePS or its profiler left the files of one GPU."""

    path: Path
    worker: int | None = None
    rank: int | None = None

    def file(self, name: str) -> Path | None:
        """Return the file called `name`, or its packed form ``name.gz``, if it is in this directory."""
        return find_file(self.path, name)

    def final_trace(self) -> Path | None:
        """Return the profiler's final trace, the newest by its step where there are several."""
        found = [p for p in _listing(self.path) if _is_final_trace(p)]
        return max(found, key=_final_order, default=None)

    def trace(self) -> Path | None:
        """Return the final trace, else the file that tells the most of those that it is collected from."""
        return self.final_trace() or next(filter(None, map(self.file, GPU_TRACES)), None)

    @property
    def is_raw(self) -> bool:
        """Whether a final trace is still to be collected, from operators or loads of data."""
        return self.final_trace() is None and bool(self.file("temp.json") or self.file("io.json"))


class Job(Struct, frozen=True):
    """What a path holds: its trace files, workers in order and ranks as numbers within each."""

    root: Path
    kind: JobKind
    sources: Sequence[Source]
    notes: Sequence[str] = ()  # a line each: missing ranks, empty directories, doubled ranks

    @property
    def has_gpus(self) -> bool:
        """Whether each source lies in a GPU's directory."""
        return self.kind in ("gpu", "worker", "job")


def find_job(path: Path, given: Sequence[Path] = ()) -> Job:
    """Return the traces that `path`, one of those `given`, holds.

    TraceError where there is no such path, or no trace under it.
    """
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    if path.is_file():
        if path.suffix == ".gml":
            raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
        if is_digest(path):
            raise TraceError(f"{path}: a digest, which holds no single events; give the traces it is of")
        return Job(path, "file", [Source(path, rank=_rank_of_file(path))])
    if not path.is_dir():
        raise TraceError(f"{path}: neither a file nor a directory")
    if gpus := find_gpus(path):
        return _gpu_job(path, gpus)
    return _rank_job(path, given)


def is_input(file: Path, given: Sequence[Path]) -> bool:
    """Whether an option may read the existing `file` when the paths `given` are those of its command.

    It may read the files given, the traces of directories given, and, in or below these or beside a file
    given, what has the name of a graph, a capture, a log or one of BytePS's files.
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
    return _is_gpu_file(name) or _JOB_SUFFIX.search(name.removesuffix(".gz")) is not None


def find_gpus(path: Path) -> list[GpuDir]:
    """Return all GPU directories at or below `path`, workers and ranks in order; [] if none.

    A worker's index is None where `path` holds one worker only. Directories named
    ``<rank>_<local_rank>`` of several workers may lie side by side: a local rank that comes again
    belongs to the next worker.
    """
    if not path.is_dir():
        return []
    if _is_gpu_dir(path):
        return [GpuDir(path, rank=local_rank(path.name))]
    groups = [group for group in _workers(path, depth=2) if group]
    several = len(groups) > 1
    return [
        GpuDir(gpu, worker=i if several else None, rank=rank)
        for i, group in enumerate(groups)
        for rank, gpu in group
    ]


def _workers(path: Path, depth: int) -> list[list[tuple[int, Path]]]:
    """Return for each worker under `path`, or what wraps it, its (local rank, GPU directory) pairs."""
    children = _subdirectories(path)
    if gpus := list(filter(_is_gpu_dir, children)):
        return _split_by_rank(gpus)
    workers = [list(filter(_is_gpu_dir, _subdirectories(child))) for child in children]
    if any(workers):
        return [group for gpus in workers if gpus for group in _split_by_rank(gpus)]
    if depth == 0:
        return []
    jobs = {child: found for child in children if (found := _workers(child, depth - 1))}
    if len(jobs) > 1:
        names = ", ".join(child.name for child in jobs)
        raise TraceError(f"{path}: holds several jobs; give one: {names}")
    return next(iter(jobs.values()), [])


def _split_by_rank(gpus: list[Path]) -> list[list[tuple[int, Path]]]:
    """Give each GPU directory its local rank and put those that come again into the next worker."""
    workers: defaultdict[int, list[tuple[int, Path]]] = defaultdict(list)
    seen: dict[int, int] = {}
    for order, gpu in enumerate(gpus):
        match = _GPU_NAME.fullmatch(gpu.name)
        rank = int(match[2]) if match else order
        worker = seen.get(rank, 0) if match and match[1] else 0
        seen[rank] = worker + 1
        workers[worker].append((rank, gpu))
    return [sorted(workers[worker], key=itemgetter(0)) for worker in sorted(workers)]


def _gpu_job(path: Path, gpus: list[GpuDir]) -> Job:
    notes = (
        _local_rank_notes(path, gpus)
        + _worker_notes(path, gpus)
        + _empty_notes(path, [gpu.path for gpu in gpus])
    )
    sources = []
    for gpu in gpus:
        trace = gpu.trace()
        if trace is None:
            notes.append(f"{gpu.path}: no trace in this GPU's directory (bps_trace*.json or comm.json)")
        else:
            sources.append(Source(trace, gpu.worker, gpu.rank, gpu if gpu.is_raw else None))
    if not sources:
        raise TraceError(f"{path}: no trace in any GPU directory (bps_trace*.json or comm.json)")
    several = any(gpu.worker is not None for gpu in gpus)
    kind: JobKind = "gpu" if _is_gpu_dir(path) else ("job" if several else "worker")
    return Job(path, kind, sources, notes)


def _local_rank_notes(path: Path, gpus: Sequence[GpuDir]) -> list[str]:
    by_worker: defaultdict[int | None, list[int]] = defaultdict(list)
    for gpu in gpus:
        by_worker[gpu.worker].append(gpu.rank or 0)
    widest = max(gpu.rank or 0 for gpu in gpus) + 1 if len(gpus) > 1 else 0
    notes = []
    for worker, ranks in by_worker.items():
        whose = f"{path}" if worker is None else f"{path}, worker {worker}"
        notes += rank_notes(whose, ranks, widest, "local rank", "directories")
    return notes


def _worker_notes(path: Path, gpus: Sequence[GpuDir]) -> list[str]:
    """Say which worker is which where their places differ from the numbers in their directories' names."""
    names = {gpu.worker: gpu.path.parent.name for gpu in gpus if gpu.worker is not None}
    found = {worker: _WORKER_NAME.fullmatch(name) for worker, name in names.items()}
    others = [
        f"wk{worker} is {names[worker]}" for worker, one in found.items() if one and int(one[1]) != worker
    ]
    if not others or len(set(names.values())) < len(names):
        return []
    rest = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
    return [f"{path}: workers are numbered by their place: {', '.join(others[:_SHOWN])}{rest}"]


def rank_notes(
    whose: object, ranks: Sequence[int], world: int = 0, kind: str = "rank", sources: str = "files"
) -> list[str]:
    """Return a line for the ranks that several sources claim, and one for the missing ones of `world`."""
    notes = []
    if doubled := sorted(rank for rank, n in Counter(ranks).items() if n > 1):
        notes.append(f"{whose}: {kind} {numbers(doubled)} claimed by several {sources}")
    world = max(world, max(ranks, default=-1) + 1)
    if ranks and world <= _MOST_RANKS and (missing := sorted(set(range(world)) - set(ranks))):
        notes.append(f"{whose}: {kind} {numbers(missing)} of {world} missing")
    return notes


def _empty_notes(path: Path, found: Sequence[Path]) -> list[str]:
    """Name the directories without any file that lie beside those `found` below `path`, or their parents."""
    inside = [folder for each in found for folder in each.parents if path in (folder, *folder.parents)]
    known = {*found, *inside}
    return [
        f"{child}: an empty directory, left out"
        for folder in dict.fromkeys(inside)
        for child in _subdirectories(folder)
        if child not in known and not any(names for _, _, names in os.walk(child))
    ]


def _rank_job(path: Path, given: Sequence[Path]) -> Job:
    """Return the job of the rank files in `path` or its directories; our own products only in need."""
    notes: list[str] = []
    products: list[Path] = []
    below: list[Path] = []
    files = _rank_files(path, notes, products)
    if not files:
        children = {
            child: found for child in _subdirectories(path) if (found := _rank_files(child, notes, below))
        }
        files = [file for found in children.values() for file in found]
        notes += _empty_notes(path, list(children))
    rank_of = {file: _rank_in_name(file) if file.parent == path else _rank_of(file) for file in files}
    if len({file.parent for file in files}) > 1 and not _all_differ(rank_of):
        rank_of = {file: rank_in_head(file) for file in files}
        if not _all_differ(rank_of):
            names = ", ".join(dict.fromkeys(file.parent.name for file in files))
            raise TraceError(
                f"{path}: several directories in it hold traces of the same ranks, or of ranks that nothing "
                f"tells; give one, or all if they are one job: {names}"
            )
    if files:
        if left := _holding(path, _MOST_SEARCHED, {*(file.parent for file in files), *given}):
            notes.append(
                f"{path}: traces further below are not read: {left}; if of this job, give those, too"
            )
        again = [file for file in (*products, *below) if file.name.startswith(_MERGED)]
        notes += [f"{file}: the files of all ranks once more, left out" for file in again]
    # a replay is of the other one
    files = files or [file for file in products if not file.name.startswith("synthetic.")] or products
    if not files:
        raise TraceError(f"{path}: no trace in this directory{_deeper(path)}")
    if len(files) == 1:
        return Job(path, "ranks", [Source(files[0], rank=_rank_of_file(files[0]))], notes)
    ranked = sorted(files, key=lambda file: (rank_of[file] is None, rank_of[file] or 0))
    return Job(path, "ranks", [Source(file, rank=rank_of[file]) for file in ranked], notes)


def _deeper(path: Path) -> str:
    """Return words that name directories further below in which traces lie; or ""."""
    found = _holding(path, _MOST_FOLDERS)
    return f"; give the directories below it that hold some: {found}" if found else ""


def _holding(path: Path, most: int, known: Container[Path] = ()) -> str:
    """Return which of the first directories from `path` on hold traces, but for those `known`, in words."""
    holding = (
        str(Path(folder).relative_to(path))
        for folder, _, names in itertools.islice(os.walk(path), most)
        if Path(folder) not in known
        and any(map(_holds_trace, (Path(folder, name) for name in sorted(names)[:_MOST_FILES])))
    )
    found = sorted(holding, key=natural)
    return ", ".join(found[:3]) + (f" and {len(found) - 3:,} more" if len(found) > 3 else "")


def _holds_trace(file: Path) -> bool:
    if not file.name.endswith(_TRACE_SUFFIXES) or file.name.split(".")[0] in (*PRODUCTS, _MERGED):
        return False
    with contextlib.suppress(TraceError):  # it is only a hint
        return file.is_file() and not is_marked(file) and _is_trace(file)
    return False


def _rank_files(path: Path, notes: list[str], products: list[Path]) -> list[Path]:
    """Return the trace files right in `path`, in natural order.

    `products` gets what was made of others: by this program, or by Composer's merger.
    """
    found: list[Path] = []
    for file in _listing(path):
        if not file.is_file() or not file.name.endswith(_TRACE_SUFFIXES):
            continue
        if file.stat().st_size == 0:
            notes.append(f"{file}: an empty file, left out")
        elif file.name.split(".")[0] in PRODUCTS or is_marked(file):
            if not is_digest(file):
                products.append(file)
        elif _is_trace(file):
            (products if file.name.startswith(_MERGED) else found).append(file)
        else:
            notes.append(f"{file}: not a trace, left out")
    return found


def _is_trace(path: Path) -> bool:
    """Whether the beginning of a file looks like one of the dialects."""
    head = head_of(path)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return b'"traceEvents"' in text or (b'"ph"' in text.split(b"\n", 1)[0])
    if text[:1] == b"[":
        return b'"ph"' in text or text[1:].lstrip()[:1] in (b"]", b"")
    return dasf.is_dasf(head)


def head_of(path: Path) -> bytes:
    """Return the beginning of a file's content, unpacked, up to 1 MiB."""
    return next(iter(ByteStream(path)), b"")


def _is_gpu_dir(path: Path) -> bool:
    return any(c.name.removesuffix(".gz") in GPU_FILES or _is_final_trace(c) for c in _listing(path))


def _is_final_trace(path: Path) -> bool:
    return path.name.startswith("bps_trace") and path.name.endswith((".json", ".json.gz")) and path.is_file()


def _final_order(path: Path) -> tuple[bool, list[int], str]:
    """Sort `bps_trace_final.json` above all others, else by step."""
    return path.name.startswith("bps_trace_final"), [int(n) for n in _DIGITS.findall(path.name)], path.name


def local_rank(name: str) -> int | None:
    """Return the local rank that a GPU directory's name states (``<rank>_<local_rank>`` or one number)."""
    match = _GPU_NAME.fullmatch(name)
    return int(match[2]) if match else None


def _rank_of(path: Path) -> int | None:
    """Return the rank that a file's name states, or else its directory's name."""
    rank = _rank_in_name(path)
    return _rank_in_name(path.parent) if rank is None else rank


def _rank_of_file(path: Path) -> int | None:
    """Return the rank of a file given by itself: by its name, else its directory's."""
    home = path.resolve().parent
    if _is_gpu_file(path.name) and _GPU_NAME.fullmatch(home.name):
        return local_rank(home.name)
    rank = _rank_in_name(path)
    return rank if rank is not None or path.name.split(".")[0] in PRODUCTS else _rank_in_name(home)


def _is_gpu_file(name: str) -> bool:
    return name.removesuffix(".gz") in GPU_FILES or name.startswith("bps_trace")


def _rank_in_name(path: Path) -> int | None:
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


def rank_in_head(path: Path) -> int | None:
    """Return the rank that PyTorch or Composer wrote at the beginning of a file."""
    match = _RANK_IN_HEAD.search(head_of(path))
    return int(match[1] or match[2]) if match else None


def _all_differ(rank_of: Mapping[Path, int | None]) -> bool:
    """Whether the ranks of all files are known, and each is that of one file."""
    return None not in rank_of.values() and len(set(rank_of.values())) == len(rank_of)


def _subdirectories(path: Path) -> list[Path]:
    return [child for child in _listing(path) if child.is_dir() and not child.name.startswith(".")]


def _listing(path: Path) -> list[Path]:
    """Return what is in a directory, numbers in names in the order of numbers."""
    try:
        return sorted(path.iterdir(), key=lambda entry: natural(entry.name))
    except OSError as error:
        raise unreadable(path, error) from error


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which ``worker_10`` comes after ``worker_9``."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]


def numbers(values: Sequence[int]) -> str:
    """Return `values` as text, the first eight of many."""
    shown = ", ".join(map(str, values[:8]))
    return shown + (f" and {len(values) - 8} more" if len(values) > 8 else "")


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
