"""The table of readers: each recognises a format by a file's beginning, and reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from analyzer.base import parallel
from analyzer.base.errors import TraceError
from analyzer.base.inputs import absent
from analyzer.base.parallel import FilePart, OnRead
from analyzer.reading import dialects
from analyzer.reading.formats import chrome, file_kinds, native
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import ROLE, args_object, decode_objects
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.traces.paths import head_of

_FIRST = 64  # bytes with the first character of a file


class Decoding(NamedTuple):
    """The parts of a file to decode."""

    args: Collection[str] = ()  # keys of the events' `args`; "input*" means input0, input1, …
    points: bool = False  # events that are not slices, too
    scan: bool = False  # in C
    on_read: OnRead | None = None  # gets the number of bytes read since its last call
    rank_by: str | None = None  # a step log's column of ranks
    step_by: str | None = None  # a step log's column of steps


#: The kinds of recordings; `diagnose` answers each in its own way.
Holds = Literal["events", "steps", "calls"]


class Reader(NamedTuple):
    """The functions of one format."""

    recognises: Callable[[bytes], bool]  # by the beginning of the content, unpacked, up to 1 MiB
    read: Callable[[Path, Decoding], Trace]
    suffixes: Sequence[str]  # of such files in a directory
    holds: Holds = "events"  # files of steps are read in a directory only if it has no others
    what: str = "not a chrome trace"


def _read_chrome(path: Path, decoding: Decoding) -> Trace:
    rows = chrome.read_rows(
        path, decoding.args, decoding.points, on_read=decoding.on_read, scan=decoding.scan
    )
    if chrome.has_only_spans(rows) and not decoding.points:
        rows = chrome.read_rows(path, decoding.args, points=True)
    return dialects.finish(path, rows)


def _read_dasf(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats import dasf_records

    return dasf_records.read(path, decoding.args, decoding.points)


def _read_dump(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats.recorder import recorder_dump

    return dialects.recognised(recorder_dump.read(path, decoding.args))


def _is_step_log(head: bytes) -> bool:
    """Check whether a file is a step log; for most traces this does not load the reader."""
    is_array = head[:_FIRST].lstrip().startswith(b"[")
    if b'"traceEvents"' in head or (is_array and b'"ph"' in head):
        return False
    from analyzer.reading.formats import step_log

    return step_log.recognises(head)


def _read_step_log(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats import step_log

    return step_log.read(path, decoding.rank_by, decoding.step_by)


def _read_nsight(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats.nsight import nsight_tables

    return dialects.recognised(nsight_tables.read(path, decoding.args, decoding.points))


#: It also reads, or refuses with a reason, what no reader recognises. A Perfetto trace comes as a chrome
#: trace (`formats.stream`).
CHROME = Reader(
    file_kinds.is_chrome,
    _read_chrome,
    (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".gz", ".trace", ".pftrace", ".perfetto-trace"),
)
READERS: Sequence[Reader] = (
    Reader(file_kinds.is_dump, _read_dump, (".pickle", ".pkl"), "calls", "a dump of a flight recorder"),
    Reader(
        file_kinds.is_database,
        _read_nsight,
        (".sqlite", ".sqlite3", ".db"),
        what="a database, as of Nsight Systems",
    ),
    Reader(file_kinds.is_dasf, _read_dasf, (".msgpack",), what="a DASF profile"),
    Reader(
        _is_step_log,
        _read_step_log,
        (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz"),
        "steps",
        "a step log",
    ),
    CHROME,
)


def may_be_read(name: str, *, steps: bool = True) -> bool:
    """Check whether a file of that name in a directory may be a trace, or with `steps` a step log."""
    readers = [reader for reader in READERS if steps or reader.holds != "steps"]
    return name.endswith(tuple(suffix for reader in readers for suffix in reader.suffixes))


def reader_of(head: bytes) -> Reader | None:
    """Find the reader of a file that begins with `head`; None if it is not a trace."""
    if file_kinds.foreign(head):
        return None
    return next((reader for reader in READERS if reader.recognises(head)), None)


def read_trace(path: Path, *, args: Collection[str] = (), points: bool = False) -> Trace:
    """Load one trace file of any dialect; for `args` and `points` see `Decoding`.

    TraceError if the file is missing, unreadable, or not a trace.
    """
    return decoded(path, decoding([FilePart(path, parallel.size_of(path))], args, points))


def decoding(files: list[FilePart], args: Collection[str] = (), points: bool = False) -> Decoding:
    """Choose the decoding of files; the keys for `Need.ALWAYS` are added."""
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
    """Read a small trace file whole: {"traceEvents": [event objects], "repairs": phrases, **other members}.

    For files whose events are needed as objects (`temp.json`, `comm.json`, `io.json`).
    """
    reader = EventReader(path, decode_objects)
    events = [event for piece in reader for event in piece]
    return {**reader.header, "traceEvents": events, "repairs": reader.damage.phrases()}


def read_args(path: Path, names: Collection[str], *, slices: bool = False) -> list[dict[str, Any]]:
    """Read the args of the events called one of `names`, in file order: of X events (`slices`), or of points.

    The file is read once more, because few analyses need args of few events. Other formats than chrome's have
    no further args.
    """
    if (reader_of(head_of(path)) or CHROME) is not CHROME:
        return []
    reader = EventReader(path)
    return [
        args_object(event.args)
        for piece in reader
        for event in piece
        if event.name in names and (event.ph == "X" if slices else event.ph not in ROLE)
    ]
