"""Events with all their members, for rewriting a trace without losing anything of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from formats.event import NO_ARGS, Scalar, from_object, tolerant
from formats.reader import EventReader


class WholeEvent(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An event of the members that nearly every tracer writes; `args` stays JSON text.

    An object with any other member does not decode as this type; it becomes an `OddEvent`.
    """

    ph: str | None = None
    name: Scalar = None
    cat: Scalar = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    id: Scalar = None
    bp: Scalar = None
    s: Scalar = None
    args: msgspec.Raw = NO_ARGS


class ExactWholeEvent(WholeEvent, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A whole event whose times stay text, for numbers that a float64 cannot hold to the nanosecond."""

    ts: msgspec.Raw = NO_ARGS  # type: ignore[assignment]
    dur: msgspec.Raw = NO_ARGS  # type: ignore[assignment]


class OddEvent(WholeEvent, omit_defaults=True):
    """A whole event with further members, which stay JSON text; `ts` is text."""

    others: dict[str, Any] = {}  # msgspec copies it for each event


_PLAIN = tuple(name for name in WholeEvent.__struct_fields__ if name != "args")
_ENCODER = msgspec.json.Encoder()


def encode(event: WholeEvent) -> bytes:
    """Return the JSON object of `event`."""
    if not isinstance(event, OddEvent):
        return _ENCODER.encode(event)
    plain = {key: getattr(event, key) for key in _PLAIN}
    text = _ENCODER.encode({key: value for key, value in plain.items() if value is not None})
    others: dict[str, Any] = {**event.others, **({"args": event.args} if bytes(event.args) else {})}
    if not others:
        return text
    return text[:-1] + (b"," if len(text) > 2 else b"") + _ENCODER.encode(others)[1:]


class WholeReader(EventReader):
    """Reads a file as `EventReader` does, but whole events: lists of `WholeEvent` and `OddEvent`."""

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__(path, types=(WholeEvent,), start=start, stop=stop)

    def use(self, *types: Any) -> None:
        """Decode what follows as the last of `types`, and what has unknown members as `OddEvent`."""
        super().use(*types)
        fast = types[-1]
        many: Any = _Fallback(list[fast], list[dict[str, msgspec.Raw]])  # type: ignore[valid-type]
        one: Any = _Fallback(fast, dict[str, msgspec.Raw])
        self._ladder = [(fast, many)]
        self._one = one

    def _mend(self, text: bytes) -> tuple[Any] | None:
        """Decode one event by all means; None if `text` is no whole JSON object."""
        try:
            return (self._one.decode(text),)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = tolerant(text)
        if not isinstance(value, dict):
            return None
        if from_object(value) is None:
            return (None,)
        self.mended += 1
        return (_odd({key: _raw(member) for key, member in value.items()}),)


class _Fallback:
    """A decoder that decodes whole objects where the fast one meets a member it does not know."""

    def __init__(self, fast: Any, general: Any) -> None:
        self._fast: msgspec.json.Decoder[Any] = msgspec.json.Decoder(fast)
        self._general: msgspec.json.Decoder[Any] = msgspec.json.Decoder(general)

    def decode(self, text: bytes) -> Any:
        try:
            return self._fast.decode(text)
        except msgspec.ValidationError:
            found = self._general.decode(text)
        return _odd(found) if isinstance(found, dict) else list(map(_odd, found))

    def decode_lines(self, text: bytes) -> list[Any]:
        try:
            return self._fast.decode_lines(text)
        except msgspec.ValidationError:
            return list(map(_odd, self._general.decode_lines(text)))


def _odd(members: dict[str, msgspec.Raw]) -> OddEvent:
    fields: dict[str, Any] = {}
    for key in _PLAIN:
        raw = members.pop(key, None)
        if raw is not None:
            value = msgspec.json.decode(raw)
            # a number's text is exact where the number is not
            is_time = key == "ts" and isinstance(value, (int, float))
            fields[key] = bytes(raw).decode() if is_time or isinstance(value, (list, dict)) else value
    if not isinstance(fields.get("ph"), str):
        fields["ph"] = None
    args = members.pop("args", NO_ARGS)
    return OddEvent(**fields, args=args, others=members)


def _raw(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (ValueError, UnicodeEncodeError):
        import ujson

        text = ujson.dumps(value, reject_bytes=False, ensure_ascii=True, allow_nan=True)
        return msgspec.Raw(str(text).encode("ascii", "replace"))
