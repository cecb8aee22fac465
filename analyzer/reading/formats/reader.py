"""The events of one chrome-trace file, sound or damaged, piece by piece.

A file is read in pieces of about 1 MiB. Each is cut after the last ``}`` before a comma and a ``{``, and
decoded at once: its brackets balance from a known beginning, so a piece that decodes was cut rightly. Any
other piece is damaged, was cut inside an event or ends the list: `formats.repair` takes its events one by one
and rewrites them as sound JSON, which is decoded instead.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from analyzer.base.errors import Note, NoteKind, TraceError
from analyzer.reading.formats.builder import Builder, Scanned
from analyzer.reading.formats.event import (
    UNDECODABLE,
    decode_events,
    fragment_start,
    is_event,
    members_of,
    tolerant,
)
from analyzer.reading.formats.file_kinds import LONG_ROW, foreign, is_log, kind_of, named
from analyzer.reading.formats.repair import ENDS_EARLY, EVENT_LIMIT, Damage, Repair
from analyzer.reading.formats.stream import PIECE, ByteStream

_HEAD_LIMIT = 64 << 20  # members before the events; chrome's stack frames can be many
_TAIL_LIMIT = 64 << 20
#: Damaged events and other items that 1 MiB of a file may hold, and each further byte: as many as a file has
#: events if each is damaged, packed or not.
_MOST_DAMAGED = 150_000
_DAMAGED_PER_BYTE = 1 / 4
_HEAD = 1 << 10  # bytes by which the kind of a file is recognised
HEADLESS = "the file has no beginning: it is a part of a recording"
FURTHER_LIST = Note("several lists of events follow one another", NoteKind.WHOLE)
_MOST_LISTS = 64  # lists of events, and places that may be the beginning of the first one
_BOM = b"\xef\xbb\xbf"
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_OBJECT = re.compile(rb"\}\s*\{")
_LINE_END = re.compile(rb"\}[ \t\r]*\n\s*\{")
#: Bytes that are decoded with a damaged event, or with one that the scanner leaves to Python.
_WINDOW = 32 << 10

MORE, ODD, FULL, CLOSED = range(4)  # why a scan stopped, as in scan.c


Piece = tuple[list[Any], bytes]  # decoded events of a file, and the JSON list of them
#: `formats.native.scanner`: from data and an offset to why it stopped, where, and the events.
Scan = Callable[[bytes, int], tuple[int, int, Scanned]]


class EventReader:
    """Iterates over the pieces of a file's list of events; the members around it are in `header` afterwards.

    Parameters
    ----------
    decode : decodes a JSON list of events, or raises `UNDECODABLE`
    scan : scans plain events, which are yielded as `Scanned`; `decode` gets the others
    pieces : stop after so many pieces of the file, as if it were cut there
    """

    def __init__(
        self,
        path: Path,
        decode: Callable[[bytes], list[Any]] = decode_events,
        scan: Scan | None = None,
        pieces: int | None = None,
        rows: Builder | None = None,
    ) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.stream = ByteStream(path, rows=rows)
        self._pieces = pieces
        self._scan = scan
        self._repair = Repair(decode)
        self._is_closed = False  # the end of the list was read
        self._n_lists = 0  # that were closed
        self._end = 0  # of the events that were taken off the current piece

    @property
    def damage(self) -> Damage:
        """The damage so far."""
        return self._repair.damage

    def use(self, decode: Callable[[bytes], list[Any]]) -> None:
        """Decode the following pieces by `decode`."""
        self._repair.decode = decode

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the events of a file, piece by piece, without a scanner."""
        return (part[0] for part in self.parts() if isinstance(part, tuple))

    def parts(self) -> Iterator[Scanned | Piece]:
        """Yield the events in the order of the file; scanned ones are valid until the next."""
        chunks: Iterator[bytes] = itertools.islice(self.stream, self._pieces)
        further: bytes | None = self._read_head(chunks)
        while further is not None:
            rest, self._is_closed = further, False
            for chunk in itertools.chain((b"",), chunks):  # what came with the head is a piece of its own
                data = rest + chunk
                if self._repair.is_lines:
                    data = _LINE_END.sub(b"},{", data)
                yield from self._parts(data)
                rest = data[self._end :]
                if self._is_closed:
                    break
            else:
                yield from self._parts(rest, at_end=True)
                rest = rest[self._end :]
            further = self._read_rest(rest, chunks)

    def _parts(self, data: bytes, *, at_end: bool = False) -> Iterator[Scanned | Piece]:
        """Yield the whole events of `data`, up to `_end`."""
        self._end = 0
        size, least = (len(data) if self._scan is None else _WINDOW), _WINDOW
        while self._end < len(data) and not self._is_closed:
            if self._scan is not None and not self._repair.is_adrift:
                why, self._end, scanned = self._scan(data, self._end)
                if len(scanned.key):
                    yield scanned
                    size = _WINDOW
                if why == FULL:
                    continue
                if why == MORE and not at_end and len(data) - self._end < EVENT_LIMIT:
                    return
            part = data[self._end : self._end + size]
            piece, used = self._sound(part)
            if piece is None:
                part = part[:least]
                piece, used = self._mended(part, at_end=at_end and self._end + len(part) == len(data))
            self._end += used
            if piece[0]:
                yield piece
            if used:
                size, least = 2 * len(part), _WINDOW
            elif self._end + len(part) < len(data):  # one event is longer than this
                size = least = 2 * len(part)
            else:
                return

    def _sound(self, data: bytes) -> tuple[Piece | None, int]:
        """Decode the events up to the last boundary, if they are sound; also their end."""
        cut = 0 if self._repair.is_adrift else _last_boundary(data)
        with contextlib.suppress(*UNDECODABLE):
            if cut:
                text = b"[%b]" % data[:cut].lstrip(b", \n\r\t")
                return (self._repair.decode(text), text), cut
        return None, 0

    def _mended(self, data: bytes, *, at_end: bool) -> tuple[Piece, int]:
        """Take events one by one; also their end."""
        texts, used, self._is_closed = self._repair.take(data, at_end=at_end)
        damaged = self.damage.lost + self.damage.mended + self.damage.strays
        if damaged > _MOST_DAMAGED + _DAMAGED_PER_BYTE * max(0, self.stream.size - (1 << 20)):
            raise TraceError(
                f"{self.path}: not a trace: {damaged:,} things in it are damaged or are not events"
            )
        text = b"[%b]" % b",".join(texts)
        return (self._repair.decode(text), text), used

    def _read_head(self, chunks: Iterator[bytes]) -> bytes:
        text = beginning = next(chunks, b"").removeprefix(_BOM)
        while len(text := text.lstrip()) < _HEAD and (more := next(chunks, b"")):
            text += more
        if not text:
            reason = f"is damaged: {self.stream.damage}" if self.stream.damage else "is empty"
            raise TraceError(f"{self.path}: the file {reason}")
        if kind := named(self.path.name) or foreign(beginning):
            raise TraceError(f"{self.path}: not a trace: {kind}")
        if text[:1] == b"[" and not is_log(text):
            return text[1:]
        if (start := fragment_start(text)) is not None:
            self.damage.notes.append(HEADLESS)
            return text[start:]
        if text[:1] != b"{":
            raise TraceError(f"{self.path}: not a trace: {kind_of(beginning if beginning.strip() else text)}")
        return self._read_object_head(text, chunks)

    def _read_object_head(self, data: bytes, chunks: Iterator[bytes]) -> bytes:
        searched = tried = 0
        while True:
            for match in itertools.islice(_LIST_KEY.finditer(data, searched), _MOST_LISTS - tried):
                tried += 1
                members = members_of(data[1 : match.start()])
                if members is not None:
                    self.header.update(members)
                    return data[match.end() :]
            searched = max(0, len(data) - 64)
            if len(data) <= 2 * PIECE and self._looks_like_lines(data):
                self._repair.is_lines = True
                return data
            more = next(chunks, b"")
            if not more or len(data) > _HEAD_LIMIT:
                return self._headless(data)
            data += more

    def _looks_like_lines(self, data: bytes) -> bool:
        line = data.split(b"\n", 1)[0].strip().rstrip(b",")
        return line.endswith(b"}") and is_event(tolerant(line))

    def _headless(self, data: bytes) -> bytes:
        """Accept a damaged header if a list of events follows it; else raise TraceError."""
        if match := _LIST_KEY.search(data):
            self.damage.notes.append("the members before the events are unreadable")
            return data[match.end() :]
        value = tolerant(data.strip())
        if is_event(value):  # a single event, over several lines
            return data
        if value is None:
            is_row = tolerant(first := data.split(b"\n", 1)[0]) is not None and len(first) > PIECE
            reason = LONG_ROW if is_row else "the JSON is cut or broken before any event"
            raise TraceError(f"{self.path}: not a trace: {reason}")
        raise TraceError(f'{self.path}: JSON, but no trace: there is no list "traceEvents"')

    def _read_rest(self, rest: bytes, chunks: Iterator[bytes]) -> bytes | None:
        """Read what follows a list of events up to the next one, or say how the file ends without an end."""
        notes = self.damage.notes
        further = None
        if self._is_closed:
            further = self._read_tail(rest, chunks)
        elif self._repair.is_adrift:
            notes.append(ENDS_EARLY)
        elif not self._repair.is_lines and not self.stream.damage and ENDS_EARLY not in notes:
            notes.append("the list of events is not closed")
        if self.stream.damage and further is None:
            notes.append(self.stream.damage)
        return further

    def _read_tail(self, data: bytes, chunks: Iterator[bytes]) -> bytes | None:
        """Read the members after a list of events; return what follows the beginning of the next list.

        Where another process wrote into the file, its events may go on without a beginning.
        """
        notes, searched = self.damage.notes, 0
        while not (match := _LIST_KEY.search(data, searched)) and (chunk := next(chunks, b"")):
            searched = max(0, len(data) - 64)
            if len(data) > _TAIL_LIMIT:
                notes.append("the members after the events are too large and were not read")
                return None
            data += chunk
        text, further = data.strip(), None
        if match:
            text = _NEXT_OBJECT.split(data[: match.start()], 1)[0].strip() + b"}"
            further = data[match.end() :]
        elif text[:1] == b"[":
            text, further = b"", text[1:]
        members = members_of(text.removesuffix(b"}"))
        if members is not None:
            self.header = {**members, **self.header}
            if text and not text.endswith(b"}"):
                notes.append("the object is not closed")
        elif further is None and b'"ph"' in text and (start := fragment_start(text)) is not None:
            further = text[start:]
        else:
            notes.append("the members after the events are unreadable")
        if further is not None and self._n_lists == 0:
            notes.append(FURTHER_LIST)
        self._n_lists += 1
        if further is not None and self._n_lists == _MOST_LISTS:
            notes.append(f"only the first {_MOST_LISTS} lists of events were read")
            return None
        return further


def join_dumps(paths: Sequence[Path], into: Path) -> None:
    """Join the dumps of one list of events in one file; the first dump has its beginning."""
    separators = b", \r\n\t"
    with open(into, "wb") as file:
        for number, path in enumerate(paths):
            if number:
                file.write(b",\n")
            pieces = iter(ByteStream(path))
            rest = next(pieces, b"").lstrip(separators if number else b"")
            for piece in pieces:
                file.write(rest)
                rest = piece
            file.write(rest.rstrip(separators))


def _last_boundary(data: bytes) -> int:
    """Find the offset after the last ``}`` before a comma and a ``{``; 0 if there is none."""
    window = 4096
    while True:
        start = max(0, len(data) - window)
        last = None
        for last in _BOUNDARY.finditer(data, start):  # noqa: B007
            pass
        if last is not None:
            return last.start() + 1
        if start == 0:
            return 0
        window *= 8
