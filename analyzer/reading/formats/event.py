"""One event of a chrome trace, and its decoders: strict (fast) and tolerant."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec
import ujson

from analyzer.reading.formats.values import cleaned, cleaned_scalar

Scalar = str | int | float | bool | None
NO_ARGS = msgspec.Raw(b"")
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: nested too deeply


class EndRule(Enum):
    """The begin that an end closes."""

    NESTED = "the innermost open begin of its track"
    #: For files that begin inside a nest (Composer): their first ends have no begins. Elsewhere an end's name
    #: is not reliable.
    NESTED_BY_NAME = "the innermost open begin of its name, or none"
    #: For MXNet's profiler, whose operations on one thread may overlap: an asynchronous operation ends long
    #: after the next has begun.
    NEIGHBOURS = "the begin right before it in the file, of its track and name; else the innermost open begin"


class Event(msgspec.Struct, gc=False):
    """The members of an event that analyses use; `args` stays JSON text until needed."""

    ph: str
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
    """An event whose times stay text: for numbers beyond the precision of float64."""

    ts: msgspec.Raw = NO_ARGS  # type: ignore[assignment]
    dur: msgspec.Raw = NO_ARGS  # type: ignore[assignment]


Key = tuple[Any, Any, Any, Any, Any]
KEY = ("ph", "name", "cat", "pid", "tid")  # shared by many events
SLICE, BEGIN, END, META, OTHER_PHASE = range(5)
ROLE = {"X": SLICE, "B": BEGIN, "E": END, "M": META}
SPANS = {"b": BEGIN, "S": BEGIN, "e": END, "F": END}  # of asynchronous spans, now and in older files
LONGEST_NS = 1 << 61  # 73 years: no slice is longer; the duration of an X event without a sound one
decode_events: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode
decode_exact_events: Callable[[bytes], list[ExactEvent]] = msgspec.json.Decoder(list[ExactEvent]).decode

_BEFORE_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?[\s,]*")
_LATER_EVENT = re.compile(rb'\}\s*,\s*\{(?=\s*"(?:ph|name|cat|pid|tid|ts|id)"\s*:)')
_CUT = 64 << 10  # bytes in which a file without its beginning has its first whole event
_NO_FRAGMENT = (b"[", b"<", b"")
_RAW_DECODE = json.JSONDecoder(strict=False).raw_decode
_SCALARS = ("name", "cat", "pid", "tid", "id", "ts", "dur")
_MOST_DIGITS = 20  # of an integer of 64 bits
_BAD_ESCAPE = re.compile(r'\\(?![\\/"bfnrtu])|\\u(?![0-9a-fA-F]{4})')
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
# after the end of a string: a colon, a bracket, or a comma with a key, a value or an item
_STRING_ENDED = re.compile(r'\s*(?:[:}\]]|,\s*(?:[\[{0-9tfn-]|"[^"\\]*"\s*[:,\]])|$)')


def tolerant(text: bytes | bytearray, *, mend_quotes: bool = True) -> Any:
    """Decode one JSON value that a strict decoder refuses, within the border of `formats.values`; else None.

    Accepts NaN, infinities, control characters, bad UTF-8 and lone surrogates; with `mend_quotes` also
    unescaped quotes inside a string, as in kernel names of older Kineto.
    """
    words = text.decode("utf-8", "replace")
    for attempt in (ujson.loads, _loose, _requoted) if mend_quotes else (ujson.loads, _loose):
        with contextlib.suppress(ValueError, RecursionError):
            return cleaned(attempt(words))
    return None


def integer(digits: str) -> int | None:
    """Read an integer; None if it is longer than any of 64 bits."""
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def _loose(words: str) -> Any:
    return json.loads(words, strict=False, parse_int=integer)


def _requoted(words: str) -> Any:
    """Decode a text after escaping quotes that cannot end a string in JSON's grammar."""
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


def is_event(value: Any) -> bool:
    """Check whether a decoded JSON value is an event: an object with a phase."""
    return isinstance(value, dict) and isinstance(value.get("ph"), str)


def fragment_start(head: bytes) -> int | None:
    r"""Offset of the first whole event in a file without its beginning; None for any other file.

    Users cut long recordings, and some profilers dump a run in parts of which only the first has the head.

    >>> fragment_start(b',{"ph": "B"},{"ph": "E"}'), fragment_start(b'1, "pid": 0},\n{"ph": "B"},')
    (1, 14)
    >>> fragment_start(b'{"traceEvents": [{"ph": "B"},'), fragment_start(b'{"ph": "B"}\n{"ph": "E"}')
    (None, None)
    """
    first = _BEFORE_EVENT.match(head).end()  # type: ignore[union-attr]
    begin: int | None = first
    if head[first : first + 1] != b"{":
        next_event = (
            None if head[first : first + 1] in _NO_FRAGMENT else _LATER_EVENT.search(head, first, _CUT)
        )
        begin = next_event.end() - 1 if next_event else None
    if begin is None:
        return None
    try:
        value, end = _RAW_DECODE(head[begin : begin + _CUT].decode("latin-1"))
    except (ValueError, RecursionError):
        return None
    after = head[begin + end :].lstrip()[:1]
    if is_event(value):
        return begin if after == b"," or (begin > 0 and after in (b"", b"]")) else None
    if after not in (b"}", b","):  # the arguments of an event that was cut before them
        return None
    later = _LATER_EVENT.search(head, begin + end - 1, begin + end + _CUT)
    return later.end() - 1 if later else None


def with_scalars(members: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Replace a list or an object as an id or a time by its JSON text, and too large a number by None."""
    scalars: dict[str, Any] = dict(members)
    for key in {"id", "ts", "dur"} & members.keys():
        value = None
        with contextlib.suppress(*UNDECODABLE):
            value = msgspec.json.decode(members[key])
        if value is None or isinstance(value, list | dict):
            scalars[key] = cleaned_scalar(value)
    return scalars


def clean_members(event: dict[str, Any]) -> dict[str, Any]:
    """Bring an event's members within the border of `formats.values`, ids and names as scalars."""
    return {key: cleaned_scalar(value) if key in _SCALARS else cleaned(value) for key, value in event.items()}


def decode_objects(text: bytes) -> list[dict[str, Any]]:
    """Decode a JSON list of events with all their members."""
    decode_events(text)  # raises for items that are not events
    return list(map(clean_members, msgspec.json.decode(text)))


def members_of(text: bytes) -> dict[str, Any] | None:
    """Decode ``"key": value, …``, with commas at either end allowed; None if it is damaged.

    The values are within the border of `formats.values`.
    """
    body = b"{" + text.strip().strip(b",") + b"}"
    try:
        value = cleaned(msgspec.json.decode(body))
    except UNDECODABLE:
        value = tolerant(body, mend_quotes=False)
    return value if isinstance(value, dict) else None


def args_object(raw: msgspec.Raw | bytes) -> dict[str, Any]:
    """Decode an event's `args`; {} if they are missing or not an object."""
    text = bytes(raw) or b"{}"
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        value = tolerant(text)
    return value if isinstance(value, dict) else {}
