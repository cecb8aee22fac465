"""Reads one trace file of any format as columns, or some of its events as objects."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from analyzer.base import parallel
from analyzer.base.errors import TraceError
from analyzer.base.inputs import absent
from analyzer.base.parallel import FilePart
from analyzer.reading import dialects
from analyzer.reading.formats import native
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import args_object, decode_objects
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.traces.paths import head_of
from analyzer.reading.traces.readers import CHROME, Decoding, reader_of

_SLICES = frozenset({"X", "B", "E", "M"})


def read_trace(path: Path, *, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one trace file, whatever its dialect.

    Parameters
    ----------
    args : keys of the events' `args` to decode into `Trace.args` ("input*" means input0, input1, …)
    points : also keep the events that are not slices (`Trace.points`)

    Raises TraceError where the file is missing, unreadable, or no trace.
    """
    return decoded(path, decoding([FilePart(path, parallel.size_of(path))], args, points))


def decoding(files: list[FilePart], args: Collection[str] = (), points: bool = False) -> Decoding:
    """Choose how files are decoded; the keys for `Need.ALWAYS` always are."""
    scan = native.is_worth(parallel.unpacked_size(files)) and native.library() is not None
    return Decoding(tuple(dict.fromkeys((*dialects.keys_for(()), *args))), points, scan)


def decoded(path: Path, decoding: Decoding) -> Trace:
    """Load one trace file; see `read_trace`."""
    if not path.exists():
        raise absent(path)
    if path.is_dir():
        raise TraceError(f"{path}: is a directory; expected a trace file")
    if path.suffix == ".gml":
        raise TraceError(f"{path}: a DAG, not a trace; give the trace or the GPU's directory")
    return (reader_of(head_of(path)) or CHROME).read(path, decoding)


def read_document(path: Path) -> dict[str, Any]:
    """Read a small trace file whole: {"traceEvents": [event objects], **other members}.

    For files whose events are needed as objects (`temp.json`, `comm.json`, `io.json`); damage is
    repaired as in `read_trace`, and the phrases are under the key "repairs".
    """
    reader = EventReader(path, decode_objects)
    events = [event for piece in reader for event in piece.events]
    return {**reader.header, "traceEvents": events, "repairs": reader.damage.phrases()}


def read_args(path: Path, names: Collection[str], *, slices: bool = False) -> list[dict[str, Any]]:
    """Read the args of the events called one of `names`, in file order: of X events (`slices`), or of points.

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
