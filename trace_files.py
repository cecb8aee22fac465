"""Trace files as columns, whatever their format, in parallel processes."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dialects
import parallel
import progress as bars
from errors import TraceError
from formats import chrome, native
from formats import dasf_records as dasf
from formats.columns import Trace
from formats.event import args_object
from formats.reader import EventReader
from formats.scan import find_boundary
from jobfiles import head_of

_SPLIT = 64 << 20  # a plain file above this is read in ranges, where there are cores to spare
_FORK_WORTH = 8 << 20  # bytes (unpacked) below which a second process costs more than it saves
_SLICES = frozenset({"X", "B", "E", "M"})
_UNPACKED = 12  # what a gzip file's size is taken to grow by


def read_trace(path: Path, *, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one trace file, whatever its dialect; see `read_traces`."""
    (trace,) = read_traces([path], args=args, points=points, jobs=1, progress=False)
    return trace


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

    Raises TraceError where a file is missing, unreadable, or no trace.
    """
    traces = []
    for result in read_all(paths, args, points, jobs, progress):
        if isinstance(result, TraceError):
            raise result
        traces.append(result)
    return traces


def read_document(path: Path) -> dict[str, Any]:
    """Return a small trace file whole: {"traceEvents": [event objects], **other members}.

    For files whose events are needed as objects (`temp.json`, `comm.json`, `io.json`); damage is
    repaired as in `read_trace`, and the phrases are under the key "repairs".
    """
    reader = EventReader(path, types=(dict,))
    events = [event for piece, _ in reader for event in piece]
    return {**reader.header, "traceEvents": events, "repairs": reader.damage.phrases()}


def read_point_args(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the args of the events called `name` that are no slices, in the order of the file.

    It is a reading of its own: few analyses want what few files have.
    """
    reader = EventReader(path)
    found: list[dict[str, Any]] = []
    for piece, _ in reader:
        found.extend(args_object(one.args) for one in piece if one.name == name and one.ph not in _SLICES)
    return found


def read_all(
    paths: Sequence[Path], args: Collection[str], points: bool, jobs: int | None, progress: bool | None
) -> list[Trace | TraceError]:
    """Load each file, or return the error that says why it cannot be loaded; see `read_traces`."""
    jobs = jobs or parallel.cores()
    sizes = [_size(path) for path in paths]
    ranges = _ranges(paths, sizes, jobs)
    unpacked = sum(
        size * (_UNPACKED if path.suffix == ".gz" else 1) for path, size in zip(paths, sizes, strict=True)
    )
    wish = _Wish(args, points, scan=native.is_worth(unpacked) and native.library() is not None)
    with bars.bar(total=sum(sizes), unit="B", enabled=progress) as bar:
        if jobs == 1 or unpacked < _FORK_WORTH or len(ranges) < 2:
            return [_joined(p, [_read(p, wish, on_read=bar.update)], wish) for p in paths]
        tasks = [(paths[r.number], wish, r) for r in ranges]
        run = _in_threads if wish.scan and len(paths) == 1 else _in_processes
        parts = run(tasks, jobs, bar.update)
    found: list[list[Any]] = [[] for _ in paths]
    for part, in_range in zip(parts, ranges, strict=True):
        found[in_range.number].append(part)
    return [_joined(path, own, wish) for path, own in zip(paths, found, strict=True)]


class _Wish(NamedTuple):
    """What is wanted of each file, as for `read_traces`, and whether the scanner in C reads it."""

    args: Collection[str]
    points: bool
    scan: bool


def _in_threads(
    tasks: Sequence[tuple[Path, _Wish, _Range]], jobs: int, on_read: chrome.OnRead
) -> list[Trace | chrome.Part | TraceError]:
    """Read ranges of a file in `jobs` threads: the scanner leaves the interpreter to the others."""
    from concurrent.futures import ThreadPoolExecutor

    parts = []
    with ThreadPoolExecutor(jobs) as pool:
        for task, part in zip(tasks, pool.map(lambda task: _read(*task), tasks), strict=True):
            parts.append(part)
            on_read(task[2].size)
    return parts


def _in_processes(
    tasks: Sequence[tuple[Path, _Wish, _Range]], jobs: int, on_read: chrome.OnRead
) -> list[Trace | chrome.Part | TraceError]:
    """Read ranges of files in `jobs` processes, of which this one is one if there are few ranges."""
    own = 1 if len(tasks) <= jobs else 0
    with parallel.process_pool(min(jobs, len(tasks)) - own) as pool:
        futures = [pool.submit(_read, *task) for task in tasks[own:]]
        parts = [_read(*task, on_read) for task in tasks[:own]]
        for task, future in zip(tasks[own:], futures, strict=True):
            parts.append(future.result())
            on_read(task[2].size)
    return parts


def _joined(path: Path, parts: Sequence[Any], wish: _Wish) -> Trace | TraceError:
    """Return the trace that the parts of one file make; read it whole where a cut was inside an event."""
    if len(parts) > 1 and any(isinstance(part, TraceError) or not part.aligned for part in parts):
        parts = [_read(path, wish)]
    return dialects.finish(path, parts) if len(parts) > 1 else parts[0]


class _Range(NamedTuple):
    """The bytes [start, stop) of the file `number`; `stop` is None where they reach its end."""

    number: int
    start: int
    stop: int | None
    size: int


def _ranges(paths: Sequence[Path], sizes: Sequence[int], jobs: int) -> list[_Range]:
    """Return what each task reads; big files in several ranges."""
    ranges: list[_Range] = []
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        starts = [0]
        if size > _SPLIT and jobs > 1 and _splittable(path):
            pieces = min(jobs, -(-size // _SPLIT))
            found = (find_boundary(path, size * i // pieces) for i in range(1, pieces))
            starts += [start for start in found if start is not None]
        stops = [*starts[1:], None]
        ranges += [
            _Range(number, a, b, (size if b is None else b) - a) for a, b in zip(starts, stops, strict=True)
        ]
    return ranges


def _splittable(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    return head[:2] != b"\x1f\x8b" and not dasf.is_dasf(head)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):  # reading it will say what is wrong
        return path.stat().st_size
    return 0


def _read(
    path: Path,
    wish: _Wish,
    part: _Range | None = None,
    on_read: chrome.OnRead | None = None,
) -> Trace | chrome.Part | TraceError:
    """Return a file's trace, or a part of it; the error where that fails."""
    try:
        if part is None or (part.start == 0 and part.stop is None):
            return _read_one(path, wish, on_read)
        return chrome.read_part(
            path, wish.args, wish.points, part.start, part.stop, on_read=on_read, scan=wish.scan
        )
    except TraceError as error:
        return error


def _read_one(path: Path, wish: _Wish, on_read: chrome.OnRead | None) -> Trace:
    if not path.exists():
        raise TraceError(f"{path}: no such file or directory")
    if path.is_dir():
        raise TraceError(f"{path}: is a directory; expected a trace file")
    if path.suffix == ".gml":
        raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
    if dasf.is_dasf(head_of(path)[:64]):
        return dasf.read(path, wish.args, wish.points)
    return dialects.finish(
        path, [chrome.read_part(path, wish.args, wish.points, on_read=on_read, scan=wish.scan)]
    )
