"""One event of a chrome trace as it is decoded, and the decoders, strict (fast) and tolerant."""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any

import msgspec
import ujson

from formats.values import all_fit, cleaned, cleaned_scalar

Scalar = str | int | float | bool | None
NO_ARGS = msgspec.Raw(b"")
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: nested too deeply
NO_TIME = -(1 << 63)  # marks what is not a time, in microseconds and in nanoseconds


class Event(msgspec.Struct, gc=False):
    """The members of an event that analyses look at; `args` stays JSON text until it is asked for."""

    ph: str | None = None
    name: Scalar = None
    cat: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    id: Scalar = None
    id2: msgspec.Raw = NO_ARGS
    args: msgspec.Raw = NO_ARGS


class ExactEvent(Event, gc=False):
    """An event whose times stay text: for numbers that a float64 cannot hold to the nanosecond."""

    ts: msgspec.Raw = NO_ARGS  # type: ignore[assignment]
    dur: msgspec.Raw = NO_ARGS  # type: ignore[assignment]


class _LooseEvent(ExactEvent, gc=False):
    """An event whose id may be anything, too."""

    id: msgspec.Raw = NO_ARGS  # type: ignore[assignment]


def _timed(name: str, time: type, missing: float) -> type[Any]:
    before = [(key, str | None if key == "ph" else Scalar, None) for key in KEY]
    times = [("ts", time, missing), ("dur", time, missing)]
    after = [("id", Scalar, None), ("id2", msgspec.Raw, NO_ARGS), ("args", msgspec.Raw, NO_ARGS)]
    return msgspec.defstruct(name, [*before, *times, *after], gc=False)


KEY = ("ph", "name", "cat", "pid", "tid")  # what most events share with many others
IntEvent = _timed("IntEvent", int, NO_TIME)  # all times are integers
FloatEvent = _timed("FloatEvent", float, math.nan)  # all times are numbers
#: Types to try in this order on each piece of a file: the narrower, the faster to decode and convert.
TYPES = (IntEvent, FloatEvent, Event)

FIELDS = Event.__struct_fields__
_RAW = ("args", "id2")
_MOST_DIGITS = 20  # of an integer of 64 bits
_BAD_ESCAPE = re.compile(r'\\(?![\\/"bfnrtu])|\\u(?![0-9a-fA-F]{4})')
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
# what follows the end of a string: a colon, a bracket, or a comma with a key, a value or an item after it
_STRING_ENDED = re.compile(r'\s*(?:[:}\]]|,\s*(?:[\[{0-9tfn-]|"[^"\\]*"\s*[:,\]])|$)')


def tolerant(text: bytes | bytearray, *, mend_quotes: bool = True) -> Any:
    """Decode one JSON value that a strict decoder refuses; None if nothing helps.

    Accepts NaN, infinities, control characters, bad UTF-8 and lone surrogates; where `mend_quotes`,
    escapes quotes that stand unescaped inside a string (older Kineto writes kernel names so). What it
    returns is within the border of `formats.values`.
    """
    words = text.decode("utf-8", "replace")
    for attempt in (ujson.loads, _loose, _requoted) if mend_quotes else (ujson.loads, _loose):
        with contextlib.suppress(ValueError, RecursionError):
            return cleaned(attempt(words))
    return None


def _loose(words: str) -> Any:
    import json

    def integer(digits: str) -> int | None:
        return int(digits) if len(digits) <= _MOST_DIGITS else None

    return json.loads(words, strict=False, parse_int=integer)


def _requoted(words: str) -> Any:
    """Decode a text with each quote inside a string escaped that JSON's grammar cannot have ended there."""
    words = _BAD_ESCAPE.sub(r"\\\\", words)
    out: list[str] = []
    inside, last = False, 0
    for match in _QUOTE.finditer(words):
        if match.group() != '"':  # an escaped character
            continue
        is_inner = inside and not _STRING_ENDED.match(words, match.end())
        if is_inner:
            out += words[last : match.start()], '\\"'
            last = match.end()
        else:
            inside = not inside
    return _loose("".join(out) + words[last:])


def loosely(text: bytes | bytearray, event_type: type[Any]) -> Any:
    """Return an event of strict JSON whose id or times are of types that none has; None for any other text.

    That is not a repair: ids are not always looked at, and events without a time are counted by themselves.
    """
    try:
        event = msgspec.json.decode(text, type=_LooseEvent)
    except UNDECODABLE:
        return None
    fields = {key: getattr(event, key) for key in FIELDS}
    for key in ("id",) if event_type is ExactEvent else ("id", "ts", "dur"):
        value = _decoded(fields[key])
        fields[key] = cleaned_scalar(value) if key == "id" or isinstance(value, Scalar) else None
    return event_type(**fields)


def _decoded(raw: msgspec.Raw) -> Any:
    with contextlib.suppress(*UNDECODABLE):
        return msgspec.json.decode(raw) if bytes(raw) else None
    return None


def is_event(value: Any) -> bool:
    """Whether a decoded JSON value is an event: an object with a phase."""
    return isinstance(value, dict) and isinstance(value.get("ph"), str)


def from_object(members: dict[str, Any], event_type: type[Any]) -> Any:
    """Return the event with these decoded members as an `Event` or `ExactEvent`."""
    raw = (*_RAW, "ts", "dur") if event_type is ExactEvent else _RAW
    fields: dict[str, Any] = {key: members[key] for key in FIELDS if members.get(key) is not None}
    for key, value in fields.items():
        fields[key] = msgspec.Raw(msgspec.json.encode(value)) if key in raw else cleaned_scalar(value)
    return event_type(**fields)


def has_clean_members(event: dict[str, Any]) -> bool:
    """Whether a strictly decoded event is known to be within the border of `formats.values`."""
    args = event.get("args", {})
    rest = [value for value in event.values() if value is not args]
    return all_fit(rest) and type(args) is dict and all_fit(list(args.values()))


def clean_members(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event's members within the border of `formats.values`, ids and names as scalars."""
    return {
        key: cleaned_scalar(value) if key in FIELDS and key not in _RAW else cleaned(value)
        for key, value in event.items()
    }


def args_object(raw: msgspec.Raw | bytes) -> dict[str, Any]:
    """Decode an event's `args`; {} if it has none or they are not an object."""
    text = bytes(raw) or b"{}"
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        value = tolerant(text)
    return value if isinstance(value, dict) else {}
