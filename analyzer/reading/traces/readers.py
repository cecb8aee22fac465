"""The table of readers: how a format is recognised by a file's beginning, and read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from analyzer.base.parallel import OnRead
from analyzer.reading import dialects
from analyzer.reading.formats import chrome, nsight, other_files, recorder
from analyzer.reading.formats import dasf_records as dasf
from analyzer.reading.formats.columns import Trace

_FIRST = 64  # bytes of a file, in which its first character is


class Decoding(NamedTuple):
    """The parts of a file to decode.

    `args` are the keys of the events' `args` to decode ("input*" means input0, input1, …); `points`:
    also the events that are not slices. `scan`: by the scanner in C, where it can; `on_read` is told
    how many bytes of the file were read since it was told last. Of a step log, `rank_by` is
    the column that tells its ranks apart, and `step_by` the one that numbers its steps.
    """

    args: Collection[str] = ()
    points: bool = False
    scan: bool = False
    on_read: OnRead | None = None
    rank_by: str | None = None
    step_by: str | None = None


#: The kinds of recordings; `diagnose` answers each in its own way.
Holds = Literal["events", "steps", "calls"]


class Reader(NamedTuple):
    """How files of one format are recognised and read.

    In a directory they are looked for among the files whose names end with one of `suffixes`, and those that
    hold steps only where no others are. `what` a file is, in words.
    """

    recognises: Callable[[bytes], bool]  # by the beginning of its content, unpacked, up to 1 MiB
    read: Callable[[Path, Decoding], Trace]
    suffixes: Sequence[str]
    holds: Holds = "events"
    what: str = "not a chrome trace"


def _read_chrome(path: Path, decoding: Decoding) -> Trace:
    part = chrome.read_part(
        path, decoding.args, decoding.points, on_read=decoding.on_read, scan=decoding.scan
    )
    return dialects.finish(path, part)


def _read_dasf(path: Path, decoding: Decoding) -> Trace:
    return dasf.read(path, decoding.args, decoding.points)


def _read_dump(path: Path, decoding: Decoding) -> Trace:
    from analyzer.reading.formats.recorder import recorder_dump

    return dialects.recognised(recorder_dump.read(path, decoding.args))


def _is_step_log(head: bytes) -> bool:
    """Whether a file that begins with `head` is a step log; for most traces its reader is not loaded."""
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
    chrome.recognises,
    _read_chrome,
    (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".gz", ".trace", ".pftrace", ".perfetto-trace"),
)
READERS: Sequence[Reader] = (
    Reader(
        recorder.recognises,
        _read_dump,
        (".pickle", ".pkl"),
        holds="calls",
        what="a dump of a flight recorder",
    ),
    Reader(
        nsight.recognises,
        _read_nsight,
        (".sqlite", ".sqlite3", ".db"),
        what="a database, as of Nsight Systems",
    ),
    Reader(dasf.recognises, _read_dasf, (".msgpack",), what="a DASF profile"),
    Reader(
        _is_step_log,
        _read_step_log,
        (".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.gz", ".tsv.gz"),
        holds="steps",
        what="a step log",
    ),
    CHROME,
)


def may_be_read(name: str, *, steps: bool = True) -> bool:
    """Whether a file of that name in a directory may be a trace, or, where `steps`, a log of steps."""
    readers = [reader for reader in READERS if steps or reader.holds != "steps"]
    return name.endswith(tuple(suffix for reader in readers for suffix in reader.suffixes))


def reader_of(head: bytes) -> Reader | None:
    """Find the reader of a file that begins with `head`; None where it is not a trace."""
    if other_files.foreign(head):
        return None
    return next((reader for reader in READERS if reader.recognises(head)), None)
