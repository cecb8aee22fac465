"""Reads trace files of any format as columns, many at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

import dialects
import parallel
from errors import TraceError, counted, missing
from formats import native
from formats.columns import Trace
from formats.event import args_object, decode_objects
from formats.reader import EventReader
from outputs.atomic import is_temporary
from parallel import FilePart, OnRead
from parallel import progress as bars
from traces.paths import head_of
from traces.readers import CHROME, Decoding, reader_of

_SLICES = frozenset({"X", "B", "E", "M"})
_T = TypeVar("_T")


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
    """Load trace files in the order of `paths`, wherever `parallel.map_files` does that.

    Parameters
    ----------
    args : keys of the events' `args` to decode into `Trace.args` ("input*" means input0, input1, …)
    points : also keep the events that are not slices (`Trace.points`)
    jobs : files, or parts of one, at a time; None means the cores this process may use
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
    reader = EventReader(path, decode_objects)
    events = [event for piece in reader for event in piece.events]
    return {**reader.header, "traceEvents": events, "repairs": reader.damage.phrases()}


def read_args(path: Path, names: Collection[str], *, slices: bool = False) -> list[dict[str, Any]]:
    """Return the args of the X events (`slices`), or of those that are not slices, so called; in file order.

    It is a reading of its own: few analyses want what few events have. Files of other formats than chrome's
    have none: their readers decode all that they know.
    """
    if (reader_of(head_of(path)) or CHROME) is not CHROME:
        return []
    reader = EventReader(path)
    return [
        args_object(event.args)
        for piece in reader
        for event in piece.events
        if event.name in names and (event.ph == "X" if slices else event.ph not in _SLICES)
    ]


def read_all(
    paths: Sequence[Path], args: Collection[str], points: bool, jobs: int | None, progress: bool | None
) -> list[Trace | TraceError]:
    """Load each file, or return the error that says why it cannot be loaded; see `read_traces`."""
    parts = [_part([path]) for path in paths]
    work = partial(_read, decoding=_decoding(args, points, parts))
    with _reading(len(paths), parts, progress) as bar:
        read = list(parallel.map_files(work, parts, jobs=jobs, on_read=bar.update))
    return [_named(result, path) for result, path in zip(read, paths, strict=True)]


def map_traces(
    work: Callable[[Sequence[Trace], Any], _T],
    groups: Sequence[Sequence[Path]],
    about: Sequence[Any],
    *,
    args: Collection[str] = (),
    points: bool = False,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Iterator[_T | TraceError]:
    """Yield the result of `work` for the traces of each group of files, which is given `about` it.

    It is done where the files of a group are read (`parallel.map_files`), so that no process holds the
    events of all. `work` is a function of a module, or a partial one. The error is the result where a file
    cannot be read; the other parameters are as of `read_traces`.
    """
    parts = [_part(group, facts) for group, facts in zip(groups, about, strict=True)]
    decoding = _decoding(args, points, parts)
    task = partial(_read_group, work=work, decoding=decoding)
    with _reading(sum(map(len, groups)), parts, progress) as bar:
        results = parallel.map_files(task, parts, jobs=jobs, on_read=bar.update)
        for result, group in zip(results, groups, strict=True):
            yield _as_given(result, group) if isinstance(result, TraceError) else result


def _decoding(args: Collection[str], points: bool, parts: Sequence[FilePart]) -> Decoding:
    """Return how files are decoded; the keys for `Need.ALWAYS` are decoded whatever is asked for."""
    scan = native.is_worth(parallel.unpacked_size(parts)) and native.library() is not None
    return Decoding(tuple(dict.fromkeys((*dialects.keys_for(()), *args))), points, scan)


def _reading(n_files: int, parts: Sequence[FilePart], progress: bool | None) -> bars.Bar:
    """Return the bar of the bytes of some files."""
    size = sum(part.size for part in parts)
    return bars.bar(size, "B", what=f"reading {counted(n_files, 'file')}", enabled=progress)


def _part(paths: Sequence[Path], about: Any = None) -> FilePart:
    """Return files that are read together, by absolute paths: other processes may be in another directory."""
    absolute = [path.absolute() for path in paths]
    is_shared = all(os.path.isfile(path) and not is_temporary(path) for path in paths)
    return FilePart(absolute[0], sum(map(parallel.size_of, paths)), is_shared, (absolute, about))


def _read_group(
    part: FilePart,
    on_read: OnRead,
    work: Callable[[Sequence[Trace], Any], _T],
    decoding: Decoding,
) -> _T | TraceError:
    paths, about = part.about
    try:
        traces = [_read_one(path, decoding._replace(on_read=on_read)) for path in paths]
    except TraceError as error:
        return error
    return work(traces, about)


def _named(result: Trace | TraceError, path: Path) -> Trace | TraceError:
    """Return what was read of a file under the path that the user gave."""
    return _as_given(result, [path]) if isinstance(result, TraceError) else replace(result, path=str(path))


def _as_given(error: TraceError, paths: Sequence[Path]) -> TraceError:
    """Return an error of reading absolute paths with those that the user gave."""
    text = str(error)
    for path in paths:
        text = text.replace(str(path.absolute()), str(path), 1)
    return TraceError(text)


def _read(part: FilePart, on_read: OnRead, decoding: Decoding) -> Trace | TraceError:
    try:
        return _read_one(part.path, decoding._replace(on_read=on_read))
    except TraceError as error:
        return error


def _read_one(path: Path, decoding: Decoding) -> Trace:
    if not path.exists():
        raise missing(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a directory; expected a trace file")
    if path.suffix == ".gml":
        raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
    return (reader_of(head_of(path)) or CHROME).read(path, decoding)
