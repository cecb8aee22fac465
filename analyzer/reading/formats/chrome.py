"""Chrome-trace files (JSON in its object, array and line forms) as columns."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.parallel import OnRead
from analyzer.reading.formats import native
from analyzer.reading.formats.builder import ALL as ALL
from analyzer.reading.formats.builder import Builder, Scanned
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import decode_exact_events, fragment_start
from analyzer.reading.formats.native import Scanner
from analyzer.reading.formats.reader import EventReader
from analyzer.reading.formats.repair import Damage
from analyzer.reading.formats.rows import EndRule, Rows, columns
from analyzer.reading.formats.values import InexactError


class Part(Struct, frozen=True):
    """The rows of a file, with its header and damage."""

    rows: Rows
    header: dict[str, Any]
    damage: Damage


def recognises(head: bytes) -> bool:
    """Check whether a file begins like a chrome trace (object, array or lines), or a part of one."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{" and (b'"traceEvents"' in text or b'"ph"' in text.split(b"\n", 1)[0]):
        return True
    if text[:1] == b"[":
        return b'"ph"' in text or text[1:].lstrip()[:1] in (b"]", b"")
    return b'"ph"' in text and fragment_start(text) is not None


def read_part(
    path: Path,
    args: Collection[str] = (),
    points: bool = False,
    pieces: int | None = None,
    on_read: OnRead | None = None,
    scan: bool = False,
) -> Part:
    """Load the events of a file; see `EventReader`. `scan`: in C if possible."""
    builder = Builder(args, points)
    in_c = scan and not (points and ALL in args)  # args of events that are not slices are decoded in Python
    library = native.library() if in_c else None
    scanner = None if library is None else Scanner(library, args, points).scan
    reader = EventReader(path, scan=scanner, pieces=pieces)
    consumed = 0
    for part in reader.parts():
        if isinstance(part, Scanned):
            builder.add_scanned(part)
        else:
            try:
                builder.add(part.events)
            except InexactError:
                reader.use(decode_exact_events)
                builder.add(decode_exact_events(part.text))
        if on_read is not None:
            on_read(reader.stream.consumed - consumed)
            consumed = reader.stream.consumed
    return Part(builder.rows(), reader.header, reader.damage)


def assemble(path: Path, part: Part, pairing: EndRule = EndRule.NESTED) -> Trace:
    """Make the trace of a whole file, its times as recorded; `dialects.finish` interprets them."""
    trace = columns(part.rows, pairing)
    repairs = (*part.damage.phrases(), *trace.repairs)
    return replace(trace, path=str(path), header=part.header, repairs=repairs)
