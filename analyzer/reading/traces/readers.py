"""The table of readers: each recognises a format by a file's beginning, and reads it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Container, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from analyzer.base import parallel
from analyzer.base.errors import TraceError, listed
from analyzer.base.inputs import absent, is_marked, natural, opened
from analyzer.base.parallel import FilePart, OnRead
from analyzer.reading import dialects
from analyzer.reading.formats import chrome, file_kinds, native
from analyzer.reading.formats.columns import ADDRESS, Trace
from analyzer.reading.formats.event import ROLE, args_object, decode_objects
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.traces.paths import MERGED, PRODUCTS, head_of

_FIRST = 64  # bytes with the first character of a file
_DUMP_HEAD = 1 << 12  # bytes by which a dump is recognised
_MOST_FILES = 10  # of each folder that is searched for a hint


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


class _Reader(NamedTuple):
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


def _read_snapshot(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats.recorder import allocator_snapshot

    if ADDRESS not in decoding.args:
        raise TraceError(
            f"{path}: a snapshot of PyTorch's allocator, which has no steps; see who holds the memory by "
            "analyze.py statistic --sub_option memory"
        )
    return dialects.recognised(allocator_snapshot.read(path))


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
CHROME = _Reader(
    file_kinds.is_chrome,
    _read_chrome,
    (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".gz", ".trace", ".pftrace", ".perfetto-trace"),
)
READERS: Sequence[_Reader] = (
    _Reader(file_kinds.is_snapshot, _read_snapshot, (".pickle", ".pkl"), what="a snapshot of an allocator"),
    _Reader(file_kinds.is_dump, _read_dump, (".pickle", ".pkl"), "calls", "a dump of a flight recorder"),
    _Reader(
        file_kinds.is_database,
        _read_nsight,
        (".sqlite", ".sqlite3", ".db"),
        what="a database, as of Nsight Systems",
    ),
    _Reader(file_kinds.is_dasf, _read_dasf, (".msgpack",), what="a DASF profile"),
    _Reader(
        _is_step_log,
        _read_step_log,
        tuple(f"{kind}{packed}" for kind in file_kinds.STEP_SUFFIXES for packed in ("", ".gz")),
        "steps",
        "a step log",
    ),
    CHROME,
)


def may_be_read(name: str, *, steps: bool = True) -> bool:
    """Check whether a file of that name in a directory may be a trace, or with `steps` a step log."""
    readers = [reader for reader in READERS if steps or reader.holds != "steps"]
    return name.endswith(tuple(suffix for reader in readers for suffix in reader.suffixes))


def reader_of(head: bytes) -> _Reader | None:
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


# ---- files of a directory


def known_reader(path: Path) -> _Reader | None:
    """Find the reader of a file; a directory is looked through several times, and each file read once."""
    state = path.stat()
    return _known_reader(path.absolute(), state.st_size, state.st_mtime_ns)


@lru_cache(1 << 14)
def _known_reader(path: Path, size: int, mtime_ns: int) -> _Reader | None:
    return reader_of(head_of(path))


def is_dump(path: Path) -> bool:
    """Check whether a file is the dump of a flight recorder, whatever its name."""
    try:
        with opened(path) as file:
            head = file.read(_DUMP_HEAD)
    except OSError:
        return False
    return file_kinds.is_dump(head_of(path) if head[:2] == b"\x1f\x8b" else head)


def holding(path: Path, most: int, known: Container[Path] = ()) -> str:
    """List the first directories at or below `path` with traces, except the `known` ones, in words."""
    holding = (
        "this directory" if Path(folder) == path else str(Path(folder).relative_to(path))
        for folder, _, names in itertools.islice(os.walk(path), most)
        if Path(folder) not in known
        and any(_holds_trace(Path(folder, name), bool(known)) for name in sorted(names)[:_MOST_FILES])
    )
    return listed(sorted(holding, key=natural))


def _holds_trace(file: Path, by_name: bool) -> bool:
    """Check whether a file is a trace; unless `by_name`, also a dump, which may have any name."""
    if file.name.split(".")[0] in (*PRODUCTS, MERGED):
        return False
    with contextlib.suppress(TraceError, OSError):  # it is only a hint
        if not may_be_read(file.name):
            return not by_name and file.is_file() and is_dump(file)
        return file.is_file() and not is_marked(file) and known_reader(file) is not None
    return False
