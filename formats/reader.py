"""The events of one chrome-trace file, piece by piece, whatever state the file is in.

A file is read in pieces of about 1 MiB. Each is cut after the last ``}`` that is followed by a comma
and a ``{``, bracketed and decoded at once. A piece that does not decode was cut inside an event, ends
the list or is damaged: it is walked event by event, and what is whole is kept. A piece that decodes was
cut rightly, because its brackets balance from a known beginning; so no event is ever lost to the cutting.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from errors import TraceError, counted
from formats.event import (
    UNDECODABLE,
    Event,
    ExactEvent,
    clean_members,
    from_object,
    has_clean_members,
    is_event,
    loosely,
    tolerant,
)
from formats.scan import (
    BETWEEN,
    BOUNDARY,
    EMPTY_LAST,
    EVENT_END,
    EVENT_LIMIT,
    LAST_END,
    LIST_KEY,
    NEXT_EVENT,
    NEXT_LINE,
    STRAY,
    last_boundary,
    members_of,
    object_end,
)
from formats.stream import PIECE, ByteStream

_HEAD_LIMIT = 64 << 20  # members before the events; chrome's stack frames can be many
_TAIL_LIMIT = 64 << 20
#: What may be spent on damaged events: bytes looked at in vain, at first and for each byte of the file, which
#: may be packed.
_PATIENCE = 16 << 20
_PATIENCE_PER_BYTE = 2
#: Damaged events and things that are not events that 1 MiB of a file may hold, and each further byte of it:
#: as many as it has events where each of them is damaged, packed or not.
_MOST_DAMAGED = 150_000
_DAMAGED_PER_BYTE = 1 / 4
_TO_MEND = 8 << 20  # of it, what is kept for events whose end is known without looking further
_LEAST_EVENT = len('{"ph":"X"},')
_BEGIN = 1 << 10  # no event's first member begins later than so many bytes after its bracket
_HEAD = 1 << 10  # bytes by which it is judged what a file is
_WAIT = 64 << 10  # an event this close to the end of what was read may go on there, however damaged the file
_MOST_LISTS = 64  # places that may be the beginning of the list of events
_BOM = b"\xef\xbb\xbf"


class Damage(Struct):
    """The damage of a file, and how much was saved."""

    notes: list[str] = field(default_factory=list)  # phrases about the file as a whole
    lost: int = 0  # events that could not be saved
    mended: int = 0  # events that only the tolerant decoder could read, for more than ids and times
    strays: int = 0  # items of the list that are not events

    def phrases(self) -> list[str]:
        """Return a phrase for each kind of event that was repaired or lost."""
        counts = (
            (self.lost, "damaged event", "lost"),
            (self.mended, "event", "repaired (NaN, bad characters or quotes)"),
            (self.strays, "list item", "ignored: not an event"),
        )
        return [*self.notes, *(f"{counted(n, noun)} {fate}" for n, noun, fate in counts if n)]


_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
_LONG_ROW = f"its first row is longer than {PIECE >> 20} MiB, which no row of a step log is"


#: A line of a log, as of Megatron, DeepSpeed or `torchrun`: ``[2026-11-27 10:00:01] …``, ``[rank0]: …``.
_LOG_LINE = re.compile(rb"\[(?:\d{4}-\d\d-\d\d[ T]|[a-z]*\d+\]:)")
_WRITE_ROWS = (
    "write a row for each rank and step, as JSON lines or CSV, with the step's number, the rank and "
    "durations (step, rank, data_ms, step_ms)"
)


def _what_it_is(head: bytes) -> str:
    """Return in words what a file is that is not a trace, from its beginning."""
    if _LOG_LINE.match(head):
        return f"a log of text; {_WRITE_ROWS}"
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        return "an archive; unpack it and give what was in it"
    if head.startswith(_PACKED):
        return "packed, twice or not by gzip; unpack it"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "text in UTF-16; write it in UTF-8"
    first = head[:_HEAD].split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    if (
        first.replace("\t", "").isprintable()
        and not first.startswith(("[", "{"))
        and max(map(first.count, ",;\t"))
    ):
        if len(head) >= PIECE > len(first) and head.count(b"\n") == 1:
            return _LONG_ROW
        return (
            "a table without rows of a step log: its number (step, iteration) and a duration "
            "(_ms, _s), numbers without a unit and with a decimal point"
        )
    return "neither JSON nor a DASF profile"


MORE, ODD, FULL, CLOSED = range(4)  # why a scan stopped, as in scan.c
_NEAR_END = 64 << 10  # an event that has begun this close to the end of a scanned piece goes on in the next
#: Odd events that are taken by themselves in Python, at first and for so many scanned events; after more,
#: decoding whole pieces in Python is faster.
_TRUST = 1000
_SCANNED_PER_ODD = 16
_MOST_ODD = 64  # in a row that are taken at once: what follows odd events is often odd

_Scan = Callable[[bytearray, int], tuple[int, int, Any]]  # why it stopped, where, and what it found
_Add = Callable[[list[Any], memoryview], object]


class EventReader:
    """Iterates over lists of events; what surrounds them is in `header` when the iteration is over.

    Parameters
    ----------
    path : the file
    types : what to decode events as. Each piece is decoded as the first of the types that fits it;
        the last one is general (`Event`, `ExactEvent`, or dict for whole events as objects) and is what
        pieces that must be walked are decoded as. `uniform` is the type of the last piece

    Attributes
    ----------
    pieces : after how many of the file to stop, as if it were cut there; None for all
    """

    def __init__(self, path: Path, *, types: Sequence[type[Any]] = (Event,)) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.damage = Damage()
        self.pieces: int | None = None
        self.stream = ByteStream(path)
        self._ended = False
        self._lines = False
        self._next = NEXT_EVENT
        self._walked: tuple[bytes | bytearray, int, int, dict[str, Any]] | None = None  # how, the last time
        self._is_adrift = False  # between a damaged event, whose end is not in sight, and the next one
        self._patience = _PATIENCE + _PATIENCE_PER_BYTE * self.stream.size
        self._by_scan: tuple[_Scan, Callable[[Any], object], _Add] | None = None
        self._trust = 0  # odd events that the scanner may still meet
        self.use(*types)

    def scan_by(
        self,
        scan: _Scan,
        take: Callable[[Any], object],
        add: _Add,
    ) -> None:
        """Read pieces by `scan` (`formats.native.scanner.Scanner.scan`), as long as its finds are many.

        What it finds goes to `take`, the other events of these pieces to `add`, in the order of the file.
        """
        self._by_scan, self._trust = (scan, take, add), _TRUST

    def use(self, *types: Any) -> None:
        """Decode what follows as the first of `types` that fits."""
        self._event_type: type[Any] = types[-1]
        self.uniform: Any = types[-1]
        self._one: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self._event_type)
        self._ladder: list[tuple[Any, msgspec.json.Decoder[Any]]] = [
            (event_type, msgspec.json.Decoder(GenericAlias(list, (event_type,)))) for event_type in types
        ]

    def decode_again(self, piece: memoryview, *, as_text: bool = False) -> list[Any]:
        """Decode the piece that was yielded last as the general type.

        `as_text`: with what is not UTF-8 replaced, so that raw members may be copied.
        """
        damage, patience = replace(self.damage), self._patience
        data, at, self._patience, how = self._walked or (bytes(piece), 0, patience, {"at_end": True})
        if as_text:
            data, at = str(memoryview(data)[at:], "utf-8", "replace").encode(), 0
        events, _, _ = self._walk(data, at, **how)  # what follows the piece tells where damaged events end
        self.damage, self._patience = damage, patience
        return events

    def __iter__(self) -> Iterator[tuple[list[Any], memoryview]]:
        """Yield (events, their bytes). The bytes are the list's items with the commas between them."""
        chunks: Iterator[bytes] = itertools.islice(self.stream, self.pieces)
        carry = self._read_head(chunks)
        for chunk in itertools.chain((b"",), chunks):  # what came with the head is a piece of its own
            data = bytearray().join((b"[", carry, chunk))
            if self._is_adrift and not self._land(data):
                carry = bytes(data[-_BEGIN:])
                continue
            scans = self._trust > 0 and self._may_be_scanned(data)
            events, end = ([], self._scan_piece(data)) if scans else self._decode_piece(data)
            carry = bytes(memoryview(data)[end:])
            if events:
                yield events, memoryview(data)[1:end]
            self._check_damage()
            if self._ended:
                break
        if not self._ended and not self._is_adrift:
            self.uniform = self._event_type
            events, end, self._ended = self._walk(carry, at_end=True, is_last=True)
            self._check_damage()
            if events:
                yield events, memoryview(carry)[:end]
            carry = carry[end:]
        if self._ended:
            self._read_tail(carry, chunks)
        else:
            self._note_open_end(carry)
        if self.stream.damage:
            self.damage.notes.append(self.stream.damage)
        self._by_scan = None  # its functions refer to this reader, and have large buffers

    def _check_damage(self) -> None:
        damaged = self.damage.lost + self.damage.mended + self.damage.strays
        if damaged > _MOST_DAMAGED + _DAMAGED_PER_BYTE * max(0, self.stream.size - (1 << 20)):
            raise TraceError(
                f"{self.path}: not a trace: {damaged:,} things in it are damaged or are not events"
            )

    def _land(self, data: bytearray) -> bool:
        """Cut what precedes the next event out of `data`, after its first byte, if there is one."""
        following = self._next.search(data, 1)
        if following is None:
            return False
        del data[1 : following.start(1)]
        self.damage.lost += 1
        self._is_adrift = False
        return True

    @property
    def _sight(self) -> int:
        """How far to look for the end of a damaged event: less in a file that is full of them."""
        return min(EVENT_LIMIT, self._patience)

    # -- the list of events ------------------------------------------------------------------

    def _may_be_scanned(self, data: bytearray) -> bool:
        """Whether a piece is one that the scanner reads as Python does."""
        return True

    def _scan_piece(self, data: bytearray) -> int:
        """Give away the events of `data` (after its first byte, a bracket); return where they end."""
        assert self._by_scan is not None
        scan, take, add = self._by_scan
        at, most = 1, 1
        while self._trust > 0:
            why, at, found = scan(data, at)
            if len(found.key):
                take(found)
                self._trust += len(found.key) // _SCANNED_PER_ODD
                most = 1
            if why == FULL:
                continue
            if why == CLOSED and not self._lines:
                self._ended = True
                return at + 1
            if why == MORE and len(data) - at < _NEAR_END:
                return at
            self.uniform = self._event_type
            events, end, self._ended = self._walk(data, at, at_end=False, most=most)
            add(events, memoryview(data)[at:end])
            if self._ended or self._is_adrift or end == at:
                return end
            at = end
            self._trust -= most
            most = min(2 * most, _MOST_ODD)
        rest = bytearray(b"[")
        rest += memoryview(data)[at:]
        events, end = self._decode_piece(rest)
        add(events, memoryview(rest)[1:end])
        return at + end - 1

    def _decode_piece(self, data: bytearray) -> tuple[list[Any], int]:
        """Return the events of `data` (after its first byte, a bracket) up to a cut, and where the cut is."""
        self._walked = None
        cut = data.rfind(b"\n") + 1 if self._lines else last_boundary(data)
        events = self._decode_at_once(data, cut) if cut > 1 else None
        if events is not None:
            return events, BETWEEN.match(data, cut).end()  # type: ignore[union-attr]
        self.uniform = self._event_type
        events, used, self._ended = self._walk(bytes(memoryview(data)[1:]), at_end=False)
        return events, 1 + used

    def _decode_at_once(self, data: bytearray, cut: int) -> list[Any] | None:
        """Return the events before `cut` as the first type that fits; None if none does."""
        if self._lines:
            with contextlib.suppress(*UNDECODABLE):
                self.uniform = self._event_type
                return self._events_of(self._one.decode_lines(memoryview(data)[1:cut]))
            return None
        after, data[cut] = data[cut], 0x5D  # the list ends here for a moment: cheaper than a copy
        try:
            text = memoryview(data)[: cut + 1]
            for rung, (event_type, decoder) in enumerate(self._ladder):
                with contextlib.suppress(*UNDECODABLE):
                    events = decoder.decode(text)
                    if len(events) * _LEAST_EVENT > cut:  # most have no phase, which is for `_walk` to count
                        return None
                    del self._ladder[:rung]  # what did not fit once is not tried again
                    self.uniform = event_type
                    return self._events_of(events) if event_type is dict else events
        finally:
            data[cut] = after
        return None

    def _events_of(self, items: list[Any]) -> list[Any]:
        events: list[Any] = []
        for item in items:
            self._keep(item, events)
        return events

    def _keep(self, item: Any, events: list[Any]) -> None:
        """Append a decoded item to `events`; count it instead if it has no phase, which every event has."""
        if self._event_type is not dict:
            is_one = isinstance(item.ph, str)
        elif is_one := is_event(item):
            item = item if has_clean_members(item) else clean_members(item)
        if is_one:
            events.append(item)
        else:
            self.damage.strays += 1

    def _walk(
        self,
        data: bytes | bytearray,
        at: int = 0,
        *,
        at_end: bool,
        is_last: bool = False,
        most: float = math.inf,
    ) -> tuple[list[Any], int, bool]:
        """Take events from byte `at` on one by one; return (events, where they end, whether the list ended).

        Unless `at_end` (of the file), an event that may go on is left for the next piece, or, where this
        `is_last`, for who reads the next part. After `most` items of the list it is enough.
        """
        self._walked = data, at, self._patience, {"at_end": at_end, "is_last": is_last, "most": most}
        events: list[Any] = []
        items = 0
        ends = LAST_END if at_end or is_last else EVENT_END
        ending = ends.search(data, at)
        while True:
            at = BETWEEN.match(data, at).end()  # type: ignore[union-attr]
            if at == len(data) or items >= most:
                return events, at, False
            items += 1
            if data[at] == 0x5D and not self._lines:  # ]
                return events, at + 1, True
            is_empty = data[at + 1 : at + 2] == b"}" and not self._lines
            if is_empty and (empty := EMPTY_LAST.match(data, at)):
                if data[empty.end() - 1] == 0x5D:
                    return events, empty.end(), True
                if not at_end:
                    return events, at, False
            if data[at] != 0x7B:  # {
                end = self._skip_stray(data, at, at_end=at_end)
                if end is None:
                    return events, at, False
                at = end
                continue
            while ending is not None and ending.end() <= at:
                ending = ends.search(data, at)
            is_short = not at_end and len(data) - at < max(self._sight, _WAIT)
            if ending is None and is_short:
                return events, at, False
            end = self._take(data, at, None if ending is None else ending.end(), events, at_end=at_end)
            if end is None:
                if is_short:
                    return events, at, False
                following = self._next.search(data, at)
                if following is None:
                    self._is_adrift = True
                    return events, max(at, len(data) - _BEGIN), False
                self.damage.lost += 1
                end = following.start(1)
            at = end

    def _take(
        self, data: bytes | bytearray, at: int, ending: int | None, events: list[Any], *, at_end: bool
    ) -> int | None:
        """Append the event that begins at `at` to `events`, or count it as lost; return where it ends.

        The end is None, and nothing is counted, where none is found, or it depends on data that follow, as
        there are unless `at_end`. `ending` is where the first event ends that seems to end after `at`.
        """
        if ending is not None and ending - at <= EVENT_LIMIT and self._decode(data, at, ending, events):
            return ending
        far = max(0, min(EVENT_LIMIT, self._patience - _TO_MEND))
        for sight in dict.fromkeys((min(_WAIT, far), far)):
            end = object_end(data, at, sight)  # exact, unless a quote is missing or too many
            if end is None and not at_end and len(data) - at < sight:
                return None
            if end is not None and self._decode(data, at, end, events):
                return end
            looked = min(sight, len(data) - at) if end is None else end - at
            is_near = end is not None or sight < far
            # what looks like the next event
            inside = self._next.search(data, at, at + looked) if is_near else None
            if end is None and inside is None and is_near:
                continue
            for stop in dict.fromkeys((end, ending) if inside is None else (ending, end)):
                if stop is not None and stop - at <= self._sight:
                    if self._mend(data[at:stop], events):
                        self._patience -= max(0, looked - (stop - at))
                        return stop
                    looked = max(looked, stop - at)
            if end is not None:
                break
        self._patience -= looked
        if end is None:
            return None
        self.damage.lost += 1
        # one that lacks a bracket seems to go on until another has one too many; whole ones lie between
        within = None if inside is None else inside.start(1)
        return end if within is None or not self._is_whole_event(data, within, end) else within

    def _decode(self, data: bytes | bytearray, at: int, end: int, events: list[Any]) -> bool:
        """Append the event from `at` to before `end` to `events`; False if it is not whole."""
        with contextlib.suppress(*UNDECODABLE):
            self._keep(self._one.decode(memoryview(data)[at:end]), events)
            return True
        return False

    def _is_whole_event(self, data: bytes | bytearray, at: int, stop: int) -> bool:
        """Whether a whole event begins at `at` and ends before `stop`, not far from there."""
        sight = min(stop - at, _WAIT, max(0, self._patience))
        if (end := object_end(data, at, sight)) is not None:
            with contextlib.suppress(*UNDECODABLE):
                if msgspec.json.decode(memoryview(data)[at:end], type=Event).ph is not None:
                    return True
        self._patience -= sight if end is None else end - at
        return False

    def _mend(self, text: bytes | bytearray, events: list[Any]) -> bool:
        """Decode one object by all means and keep it; False if `text` is not a whole JSON object."""
        try:
            self._keep(self._one.decode(text), events)
        except UNDECODABLE:
            if self._event_type in (Event, ExactEvent):
                event = loosely(text, self._event_type)
                if event is not None:
                    self._keep(event, events)
                    return True
            value = tolerant(text)
            if not isinstance(value, dict):
                return False
            if is_event(value):
                self.damage.mended += 1
                events.append(self._mended(value))
            else:
                self.damage.strays += 1
        return True

    def _mended(self, members: dict[str, Any]) -> Any:
        return members if self._event_type is dict else from_object(members, self._event_type)

    def _skip_stray(self, data: bytes | bytearray, at: int, *, at_end: bool) -> int | None:
        """Return the end of a list item that is not an object; None if it may go on."""
        stray = STRAY.match(data, at)
        if stray is not None and (stray.end() < len(data) or at_end):
            self.damage.strays += 1
            return stray.end()
        if stray is None and data[at] == 0x5B:  # [
            if (end := object_end(data, at, self._sight)) is not None:
                self.damage.strays += 1
                return end
            self._patience -= min(self._sight, len(data) - at)
        if not at_end and len(data) - at < EVENT_LIMIT:
            return None
        self.damage.lost += 1
        rest = BOUNDARY.search(data, at)
        return len(data) if rest is None else rest.end() - 1

    # -- what surrounds it -------------------------------------------------------------------

    def _read_head(self, chunks: Iterator[bytes]) -> bytes:
        text = next(chunks, b"").removeprefix(_BOM)
        while len(text := text.lstrip()) < _HEAD and (more := next(chunks, b"")):
            text += more
        if not text:
            reason = f"is damaged: {self.stream.damage}" if self.stream.damage else "is empty"
            raise TraceError(f"{self.path}: the file {reason}")
        if text[:1] == b"[" and not _LOG_LINE.match(text):
            return text[1:]
        if text[:1] != b"{":
            raise TraceError(f"{self.path}: not a trace: {_what_it_is(text)}")
        return self._read_object_head(text, chunks)

    def _read_object_head(self, data: bytes, chunks: Iterator[bytes]) -> bytes:
        searched = tried = 0
        while True:
            for match in itertools.islice(LIST_KEY.finditer(data, searched), _MOST_LISTS - tried):
                tried += 1
                members = members_of(data[1 : match.start()])
                if members is not None:
                    self.header.update(members)
                    return data[match.end() :]
            searched = max(0, len(data) - 64)
            if len(data) <= 2 * PIECE and self._looks_like_lines(data):
                self._lines, self._next = True, NEXT_LINE
                return data
            more = next(chunks, b"")
            if not more or len(data) > _HEAD_LIMIT:
                return self._headless(data)
            data += more

    def _looks_like_lines(self, data: bytes) -> bool:
        line = data.split(b"\n", 1)[0].strip()
        return line.endswith(b"}") and is_event(tolerant(line))

    def _headless(self, data: bytes) -> bytes:
        """Accept a damaged header if a list of events follows it; else say that this is not a trace."""
        if match := LIST_KEY.search(data):
            self.damage.notes.append("the members before the events are unreadable")
            return data[match.end() :]
        value = tolerant(data.strip())
        if is_event(value):  # a single event, over several lines
            return data
        if value is None:
            is_row = tolerant(first := data.split(b"\n", 1)[0]) is not None and len(first) > PIECE
            reason = _LONG_ROW if is_row else "the JSON is cut or broken before any event"
            raise TraceError(f"{self.path}: not a trace: {reason}")
        if isinstance(value, dict) and "log_history" in value:  # `trainer_state.json` of transformers
            what = "the state of a trainer, which has no durations of steps"
            raise TraceError(f"{self.path}: not a trace: {what}; {_WRITE_ROWS}")
        raise TraceError(f'{self.path}: JSON, but no trace: there is no list "traceEvents"')

    def _note_open_end(self, rest: bytes) -> None:
        """Say how the file ends where the list of events does not."""
        if rest.strip() or self._is_adrift:
            self.damage.lost += 1
            self.damage.notes.append("the file is cut off inside its last event")
        elif not self._lines and not self.stream.damage:
            self.damage.notes.append("the list of events is not closed")

    def _read_tail(self, data: bytes, chunks: Iterator[bytes]) -> None:
        for chunk in chunks:
            if len(data) > _TAIL_LIMIT:
                self.damage.notes.append("the members after the events are too large and were not read")
                return
            data += chunk
        text = data.strip()
        if not text or text == b"}":
            return
        if LIST_KEY.search(text) or text[:1] == b"[":
            self.damage.notes.append("a further list of events after the first was not read")
        closed = text.endswith(b"}")
        members = members_of(text[:-1] if closed else text)
        if members is None:
            self.damage.notes.append("the members after the events are unreadable")
        else:
            self.header.update(members)
            if not closed:
                self.damage.notes.append("the object is not closed")
