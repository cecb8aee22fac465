"""Events with all their members, for rewriting a trace without losing anything of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from formats.event import NO_ARGS, UNDECODABLE, Scalar, tolerant
from formats.learned import literal_type
from formats.reader import EventReader
from formats.scan import has_long_number
from formats.values import clean_text, cleaned_scalar


class WholeEvent(msgspec.Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An event of the members that nearly every tracer writes; with any other it is an `OddEvent`."""

    ph: str | None = None
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


#: The members that tell kinds of events apart: what else an event has differs from one to the next.
KEY = ("ph", "name", "cat", "pid", "tid", "bp", "s")
MISSING = -(1 << 62)  # an integer time that an event of a learned type lacks
ID_LIMIT = 1 << 40
ARGUMENTS = b',"args":'  # before the arguments in the tail of an event
_LITERALS = 4096  # distinct strings that a learned type lists at most

_PLAIN = tuple(name for name in WholeEvent.__struct_fields__ if name != "args")
_ENCODER = msgspec.json.Encoder()


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


class WholeReader(EventReader):
    """Reads a file as `EventReader` does, but whole events: lists of `WholeEvent` and `OddEvent`."""

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        super().__init__(path, types=(WholeEvent,), start=start, stop=stop)

    def use(self, *types: Any) -> None:
        """Decode what follows as the last of `types`, and what has unknown members as `OddEvent`."""
        super().use(*types)
        fast = types[-1]
        many: Any = _Fallback(list[fast], list[dict[str, msgspec.Raw]])  # type: ignore[valid-type]
        self._one: Any = _Fallback(fast, dict[str, msgspec.Raw])
        self._ladder = [(fast, many)]

    def _mended(self, members: dict[str, Any]) -> OddEvent:
        return _odd({key: msgspec.Raw(msgspec.json.encode(member)) for key, member in members.items()})

    def _decode_at_once(self, data: bytearray, cut: int) -> list[Any] | None:
        """Return the events before `cut`; None where one does not decode, or holds a number without end."""
        return None if has_long_number(memoryview(data)[:cut]) else super()._decode_at_once(data, cut)

    def learn(self, learned: LearnedWhole) -> None:
        """Decode what follows as `learned` as long as it fits; then as before."""
        many: Any = msgspec.json.Decoder(list[learned.type])  # type: ignore[name-defined]
        self._ladder = [(learned.type, many), self._ladder[-1]]

    def decode_as_learned(self, piece: memoryview) -> list[Any] | None:
        """Decode the piece that was yielded last as the learned type; None if it does not fit."""
        if has_long_number(piece):
            return None
        text = b"[%b]" % bytes(piece).rstrip(b", \t\r\n")
        try:
            events: list[Any] = self._ladder[0][1].decode(text)
        except UNDECODABLE:
            return None
        return events


class LearnedWhole(Struct, frozen=True):
    """A type of whole events for one file, with the members, strings and kinds of numbers that it has shown.

    Of `KEY` it has the members `key`; it always has `name`, `cat`, `ts`, `dur` and `args`. Times are all
    int (`MISSING` where there is none) or all float (NaN). `with_ids`: ids are integers from 0 to
    `ID_LIMIT`, -1 where there is none; otherwise no event has one.
    """

    type: type[Any]
    key: tuple[str, ...]
    is_int: bool
    with_ids: bool

    def whole(self, event: Any) -> WholeEvent:
        """Return `event` as a general one."""
        members = {name: getattr(event, name) for name in self.type.__struct_fields__}
        for name in ("ts", "dur"):
            value = members[name]
            members[name] = None if value == MISSING or value != value else value
        if members.get("id") == -1:
            members["id"] = None
        return WholeEvent(**members)


class Lessons:
    """Gathers what the events of a file are like."""

    def __init__(self) -> None:
        self._n = 0
        self._seen: dict[str, set[Any]] = {name: set() for name in KEY}
        self._kinds: dict[str, set[type]] = {name: set() for name in ("ts", "dur", "id")}

    def add(self, events: Sequence[WholeEvent]) -> None:
        """Take note of a piece of general events."""
        self._n += len(events)
        for name, values in self._seen.items():
            values.update(map(attrgetter(name), events))
        for name, kinds in self._kinds.items():
            kinds.update(map(type, map(attrgetter(name), events)))

    def learned(self, *, with_names: bool) -> LearnedWhole | None:
        """Return the type that fits all events seen; None where they are too diverse for one.

        `with_names` False leaves names free, for files in which ever new ones appear.
        """
        seen = {name: literal_type(values, _LITERALS) for name, values in self._seen.items()}
        if Scalar in seen.values() or None in self._seen["ph"]:
            return None
        times = (self._kinds["ts"] | self._kinds["dur"]) - {type(None)}
        ids = self._kinds["id"] - {type(None)}
        if not times or not times <= {int, float} or not ids <= {int}:
            return None
        if not with_names or len(self._seen["name"]) > min(_LITERALS, self._n / 8):
            seen["name"] = str | None
        is_int = times == {int}
        key = tuple(name for name in KEY if self._seen[name] != {None} or name in ("name", "cat"))
        fields: list[Any] = [(name, seen[name], None) for name in key]
        kind = (int, MISSING) if is_int else (float, math.nan)
        fields += [("ts", *kind), ("dur", *kind)]
        if ids:
            fields.append(("id", Annotated[int, msgspec.Meta(ge=0, lt=ID_LIMIT)], -1))
        fields.append(("args", msgspec.Raw, NO_ARGS))
        made = msgspec.defstruct("LearnedWholeEvent", fields, gc=False, forbid_unknown_fields=True)
        return LearnedWhole(made, key, is_int, bool(ids))


class _Fallback:
    """A decoder that decodes whole objects where the fast one meets a member it does not know."""

    def __init__(self, fast: Any, general: Any) -> None:
        self._fast: msgspec.json.Decoder[Any] = msgspec.json.Decoder(fast)
        self._general: msgspec.json.Decoder[Any] = msgspec.json.Decoder(general)

    def decode(self, text: bytes | memoryview) -> Any:
        if has_long_number(text):
            raise msgspec.DecodeError("a number without end")
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
            value = _decoded(raw)
            # a number's text is exact where the number is not
            fields[key] = bytes(raw).decode() if key == "ts" and isinstance(value, (int, float)) else value
    if not isinstance(fields.get("ph"), str):
        fields["ph"] = None
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
