"""Chrome-trace files (JSON in its object, array and line forms) as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ctypes import CDLL
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from formats import native
from formats.builder import ALL as ALL
from formats.builder import Builder
from formats.columns import Trace
from formats.event import TYPES, ExactEvent
from formats.native.scanner import Scanner
from formats.reader import Damage, EventReader
from formats.rows import Rows, Rule, columns
from formats.times import InexactError
from parallel import OnRead


class Part(Struct, frozen=True):
    """The rows of a file and what its reader saw."""

    rows: Rows
    header: dict[str, Any]
    damage: Damage


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` is a chrome trace, in its object, array or line form."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return b'"traceEvents"' in text or (b'"ph"' in text.split(b"\n", 1)[0])
    return text[:1] == b"[" and (b'"ph"' in text or text[1:].lstrip()[:1] in (b"]", b""))


def read_part(
    path: Path,
    args: Collection[str] = (),
    points: bool = False,
    pieces: int | None = None,
    on_read: OnRead | None = None,
    scan: bool | CDLL = False,
) -> Part:
    """Load the events of a file; see `EventReader`.

    Where `scan`, they are scanned in C if that can be done; it may be a library from `native.library`.
    """
    builder = Builder(args, points)
    consumed = 0

    def add(events: Sequence[Any], piece: memoryview) -> None:
        nonlocal consumed
        if events:
            try:
                builder.add(events, reader.uniform)
            except InexactError:
                reader.use(ExactEvent)
                reader.damage.strays += sum(event.ph is None for event in events)
                builder.add(reader.decode_again(piece), ExactEvent)
        if on_read is not None:
            on_read(reader.stream.consumed - consumed)
            consumed = reader.stream.consumed

    scan = scan and not (points and ALL in args)  # those of events that are not slices are Python's
    library = scan if isinstance(scan, CDLL) else native.library() if scan else None
    reader = EventReader(path, types=TYPES)
    if library is not None:
        reader.scan_by(Scanner(library, args, points).scan, builder.add_scanned, add)
    reader.pieces = pieces
    for events, piece in reader:
        add(events, piece)
    return Part(builder.rows(), reader.header, reader.damage)


def assemble(path: Path, part: Part, pairing: Rule = Rule.NESTED) -> Trace:
    """Return the trace of a whole file, its times as written; `dialects.finish` says what they mean."""
    trace = columns(part.rows, pairing)
    rows = part.rows
    no_phase = sum(n for key, n in zip(rows.keys, rows.counts.tolist(), strict=True) if key[0] is None)
    damage = replace(part.damage, strays=part.damage.strays + no_phase)
    return replace(trace, path=str(path), header=part.header, repairs=(*damage.phrases(), *trace.repairs))
