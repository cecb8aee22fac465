"""Events with all their members, for rewriting a trace without losing anything of it."""

from __future__ import annotations

from typing import Any

import msgspec

from analyzer.reading.formats.event import NO_ARGS, UNDECODABLE, Scalar, tolerant
from analyzer.reading.formats.values import clean_text, cleaned_scalar


class WholeEvent(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An event of the members that nearly every tracer writes; times stay JSON text, so they stay exact."""

    ph: str
    name: Scalar = None
    cat: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: msgspec.Raw = NO_ARGS
    dur: msgspec.Raw = NO_ARGS
    bp: Scalar = None
    s: Scalar = None
    id: Scalar = None
    args: msgspec.Raw = NO_ARGS


class OddEvent(WholeEvent, omit_defaults=True):
    """A whole event with further members, which stay JSON text."""

    others: dict[str, Any] = {}  # msgspec copies it for each event


ID_LIMIT = 1 << 40
LONGEST_NUMBER = 640  # digits; of 309 and more there is no float64, and of 4,300 no Python integer
_ZEROS = bytes.maketrans(b"123456789", b"000000000")

_TEXTS = ("ts", "dur", "args")
_ENCODE = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(list[WholeEvent])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def encode(event: WholeEvent) -> bytes:
    """Write an event as a JSON object."""
    if not isinstance(event, OddEvent):
        return _ENCODE(event)
    members = {key: getattr(event, key) for key in WholeEvent.__struct_fields__}
    known = {key: value for key, value in members.items() if value not in (None, NO_ARGS)}
    return _ENCODE(known | event.others)


def decode(text: bytes) -> list[WholeEvent]:
    """Decode a JSON list of events, which are UTF-8 throughout; those with unknown members as `OddEvent`."""
    str(text, "utf-8")  # members that are copied unread may be anything
    if b"0" * LONGEST_NUMBER in text.translate(_ZEROS):
        raise msgspec.DecodeError("a number without end")
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        return list(map(_odd, _OBJECTS.decode(text)))


def _odd(members: dict[str, msgspec.Raw]) -> OddEvent:
    values = {key: _decoded(raw) for key, raw in members.items() if key != "args"}
    known: dict[str, Any] = {
        key: values.get(key) for key in WholeEvent.__struct_fields__ if key not in _TEXTS
    }
    if not isinstance(known["ph"], str):
        raise msgspec.ValidationError("no event: it has no phase")
    texts: dict[str, Any] = {
        key: members[key] for key in _TEXTS if key in members and values.get(key, "") is not None
    }
    others = {
        clean_text(key): raw
        for key, raw in members.items()
        if key not in (*known, *_TEXTS) and (bytes(raw) == b"null" or values[key] is not None)
    }
    return OddEvent(**known, **texts, others=others)


def _decoded(raw: msgspec.Raw) -> Any:
    """Decode a member, a list or an object as its JSON text; None if it is damaged."""
    try:
        return cleaned_scalar(msgspec.json.decode(raw))
    except UNDECODABLE:
        return cleaned_scalar(tolerant(bytes(raw)))
