"""The slow path for a damaged list of events: keep whole events, one by one, and count the others."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, field

from analyzer.base.errors import counted
from analyzer.reading.formats.event import (
    UNDECODABLE,
    clean_members,
    integer,
    is_event,
    members_of,
    tolerant,
    with_scalars,
)

EVENT_LIMIT = 4 << 20  # bytes; an event that has not ended by then is damaged
ENDS_EARLY = "the file ends early (cut in an event): what the job wrote after that is missing"
_EVENT = rb'(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)'
_NEXT_EVENT, _ANY_EVENT = re.compile(rb"[,\n][ \t\r]*" + _EVENT), re.compile(_EVENT)
_BEGIN = 1 << 10  # an event's first member begins within so many bytes after its bracket
_BETWEEN = re.compile(rb"[\s,]*")
_EMPTY_LAST = re.compile(rb"\{\}\s*(?:\]|\Z)")  # the end of XLA's list
_LIST_END = re.compile(rb"\}\s*\]")
_MOST_LIST_ENDS = 64  # possible ends of the list of events
_MOST_AT_END = 16  # bytes: an error so close to the end may be only the cut
#: Nearly as tolerant as `tolerant`, and faster; also finds the end of a value.
_RAW_DECODE = json.JSONDecoder(strict=False, parse_int=integer).raw_decode
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Damage(Struct):
    """The damage of a file."""

    notes: list[str] = field(default_factory=list)  # phrases about the file as a whole
    lost: int = 0  # events
    mended: int = 0  # events that only the tolerant decoder could read
    strays: int = 0  # items of the list that are not events

    def phrases(self) -> list[str]:
        """Describe the damage, a phrase for each kind."""
        counts = (
            (self.lost, "damaged event", "lost"),
            (self.mended, "event", "repaired (NaN, bad characters or quotes)"),
            (self.strays, "list item", "ignored: not an event"),
        )
        return [*self.notes, *(f"{counted(n, noun)} {fate}" for n, noun, fate in counts if n)]


class Repair:
    """Rewrites the damaged pieces of one file as sound ones, and counts the damage.

    `decode` decodes a JSON list of events; an event that it refuses is rewritten.
    """

    def __init__(self, decode: Callable[[bytes], list[Any]]) -> None:
        self.decode = decode
        self.damage = Damage()
        self.is_lines = False  # an event on each line, without a list around them
        self.is_adrift = False  # the last piece ended in a damaged event of unknown end

    def take(self, data: bytes, *, at_end: bool) -> tuple[list[bytes], int, bool]:
        """Take events off `data` one by one; return their texts, their end, and whether the list ended.

        An event that may continue after `data` is left there, unless this is `at_end` of the file.
        """
        words = data.decode("latin-1")  # a letter for each byte
        events: list[bytes] = []
        position = 0
        if self.is_adrift and (next_event := _NEXT_EVENT.search(data)) is not None:
            position, self.is_adrift = next_event.end(), False
            self.damage.lost += 1
        while not self.is_adrift and (position := _BETWEEN.match(data, position).end()) < len(data):  # type: ignore[union-attr]
            if data[position] == 0x5D and not self.is_lines:  # ]
                return events, position + 1, True
            try:
                value, end = _RAW_DECODE(words, position)
            except (ValueError, RecursionError) as error:
                if not at_end and self._may_go_on(data, position, error):
                    break
                end = _damage_end(data, position)
                self._add_damaged(events, data[position:end].rstrip(b", \n\r\t"), is_last=end == len(data))
            else:
                self._add(
                    events, data[position:end], value, is_last=_EMPTY_LAST.match(data, position) is not None
                )
            position = end
        return events, max(position, len(data) - _BEGIN) if self.is_adrift else position, False

    def _may_go_on(self, data: bytes, position: int, error: Exception) -> bool:
        """Check whether the undecodable event at `at` may end after `data`."""
        is_last = _next_event(data, position) is None
        if len(data) - position >= EVENT_LIMIT:
            self.is_adrift = is_last
            return is_last
        return is_last or (
            isinstance(error, json.JSONDecodeError)
            and (error.pos >= len(data) - _MOST_AT_END or error.msg.startswith("Unterminated string"))
        )

    def _add(self, events: list[bytes], text: bytes, value: Any, *, is_last: bool) -> None:
        """Add a list item, tolerantly decoded as `value`, if it is an event."""
        if not is_event(value):
            self.damage.strays += value != {} or not is_last
        elif self._is_sound(text):
            events.append(text)
        else:
            self._add_damaged(events, text, is_last=False)

    def _add_damaged(self, events: list[bytes], text: bytes, *, is_last: bool) -> None:
        """Add a damaged event as sound JSON if possible."""
        with contextlib.suppress(*UNDECODABLE):
            odd = msgspec.json.encode(with_scalars(_RAW_MEMBERS.decode(text)))
            if self._is_sound(odd):  # strict JSON with ids or times of odd types needs no repair
                events.append(odd)
                return
        clean = b""
        if text.endswith(b"}") and is_event(value := tolerant(text)):
            clean = msgspec.json.encode(clean_members(value))
        if clean and self._is_sound(clean):
            events.append(clean)
            self.damage.mended += 1
        elif is_last:
            self.damage.notes.append(ENDS_EARLY)
        else:
            self.damage.lost += 1

    def _is_sound(self, text: bytes) -> bool:
        with contextlib.suppress(*UNDECODABLE):
            return len(self.decode(b"[%b]" % text)) == 1
        return False


def _next_event(data: bytes, position: int) -> int | None:
    """Find the next event after an event, or garbage, at `at`."""
    is_object = data[position] == 0x7B  # {
    match = (_NEXT_EVENT if is_object else _ANY_EVENT).search(data, position + 1)
    return None if match is None else match.start()


def _damage_end(data: bytes, position: int) -> int:
    """Find the end of the damaged event at `at`; the end of `data` if it is cut."""
    if (next_event := _next_event(data, position)) is not None:
        return next_event
    for match in itertools.islice(_LIST_END.finditer(data, position), _MOST_LIST_ENDS):
        rest = data[match.end() :].strip()
        if members_of(rest.removesuffix(b"}")) is not None:
            return match.end() - 1
    return len(data)
