"""Events with all their members, for rewriting a trace without losing anything of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from analyzer.reading.formats.event import NO_ARGS, UNDECODABLE, Scalar, tolerant
from analyzer.reading.formats.values import clean_text, cleaned_scalar


class WholeEvent(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An event of the members that nearly every tracer writes; with any other it is an `OddEvent`."""

    ph: str
    name: Scalar = None
    cat: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    bp: Scalar = None
    s: Scalar = None
    id: Scalar = None
    args: msgspec.Raw = NO_ARGS


class ExactWholeEvent(WholeEvent, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A whole event whose times stay text, for numbers that a float64 cannot hold to the nanosecond."""

    ts: msgspec.Raw = NO_ARGS  # type: ignore[assignment]
    dur: msgspec.Raw = NO_ARGS  # type: ignore[assignment]


class OddEvent(WholeEvent, omit_defaults=True):
    """A whole event with further members, which stay JSON text; `ts` is text."""

    others: dict[str, Any] = {}  # msgspec copies it for each event


ID_LIMIT = 1 << 40
LONGEST_NUMBER = 640  # digits; of 309 and more there is no float64, and of 4,300 no Python integer
_DIGITS = re.compile(rb"[0-9]{%d}" % LONGEST_NUMBER)
_STRIDE = 64

_PLAIN = tuple(name for name in WholeEvent.__struct_fields__ if name != "args")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[WholeEvent])
_EXACT_DECODER = msgspec.json.Decoder(list[ExactWholeEvent])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def encode(event: WholeEvent) -> bytes:
    """Return the JSON object of `event`."""
    if not isinstance(event, OddEvent):
        return _ENCODER.encode(event)
    plain = {key: value for key in _PLAIN if (value := getattr(event, key)) is not None}
    text = _ENCODER.encode(plain)
    others: dict[str, Any] = {**event.others, **({"args": event.args} if bytes(event.args) else {})}
    if not others:
        return text
    return text[:-1] + (b"," if len(text) > 2 else b"") + _ENCODER.encode(others)[1:]


def decode(text: bytes) -> list[WholeEvent]:
    """Decode a JSON list of events with all their members, which are UTF-8 throughout."""
    return _decoded_as(text, _DECODER)


def decode_exact(text: bytes) -> list[WholeEvent]:
    """As `decode`, with times as text."""
    return _decoded_as(text, _EXACT_DECODER)


def _decoded_as(text: bytes, decoder: Any) -> list[WholeEvent]:
    """Decode events, those with unknown members as `OddEvent`."""
    str(text, "utf-8")  # what is copied without a look may be anything
    if _has_long_number(text):
        raise msgspec.DecodeError("a number without end")
    try:
        events: list[WholeEvent] = decoder.decode(text)
    except msgspec.ValidationError:
        return list(map(_odd, _OBJECTS.decode(text)))
    return events


def _has_long_number(text: bytes | memoryview) -> bool:
    """Whether `text` has a run of at least `LONGEST_NUMBER` digits."""
    sample = np.frombuffer(text, np.uint8)[::_STRIDE]
    in_row = LONGEST_NUMBER // _STRIDE  # samples that fall into such a run
    is_digit = (sample >= 0x30) & (sample <= 0x39)
    if len(sample) < in_row or np.bincount(is_digit, minlength=2)[1] < in_row:
        return False
    ends = np.cumsum(is_digit)
    full = ends[in_row - 1 :] - np.concatenate([[0], ends[:-in_row]]) == in_row
    return bool(full.any()) and _DIGITS.search(text) is not None


def _odd(members: dict[str, msgspec.Raw]) -> OddEvent:
    fields: dict[str, Any] = {}
    for key in _PLAIN:
        raw = members.pop(key, None)
        if raw is not None:
            value = _decoded(raw)
            # a number's text is exact where the number is not
            fields[key] = bytes(raw).decode() if key == "ts" and isinstance(value, (int, float)) else value
    if not isinstance(fields.get("ph"), str):
        raise msgspec.ValidationError("no event: it has no phase")
    args = members.pop("args", NO_ARGS)
    others = {
        clean_text(key): raw
        for key, raw in members.items()
        if bytes(raw) == b"null" or _decoded(raw) is not None
    }
    return OddEvent(**fields, args=args, others=others)


def _decoded(raw: msgspec.Raw) -> Any:
    """Return a member's value, a list or an object as its JSON text; None where it is damaged."""
    try:
        return cleaned_scalar(msgspec.json.decode(raw))
    except UNDECODABLE:
        return cleaned_scalar(tolerant(bytes(raw)))
