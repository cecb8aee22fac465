"""Ids of flows, asynchronous spans and stack frames that no two sources share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from formats.whole import ID_LIMIT, OddEvent, WholeEvent

_ID_BITS = ID_LIMIT.bit_length() - 1  # those of the first 8,192 sources stay exact in JavaScript
EXACT_SOURCES = 1 << (53 - _ID_BITS)
OWN_SCOPE = frozenset("NODC")  # phases whose ids belong to a process: already apart


def first_id(source: int) -> int:
    """Return the offset that is added to small ids of a source, so that no other source has them."""
    return source << _ID_BITS


def make_unique(events: Sequence[WholeEvent], source: int) -> None:
    """Change the ids of flows, asynchronous events and stack frames so that no other source has them."""
    for event in events:
        if event.id is not None and event.ph not in OWN_SCOPE:
            event.id = unique_id(event.id, source)
    if OddEvent in set(map(type, events)):
        for event in events:
            if isinstance(event, OddEvent):
                event.others = _unique_others(event, source)


def unique_id(value: Any, source: int) -> int | str:
    """Return an id that no other source has: a number, or hexadecimal text as Perfetto reads it.

    Small numbers stay exact in viewers (below 2^53); other texts are replaced by a 64-bit digest.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < ID_LIMIT:
        if source < EXACT_SOURCES:
            return value + first_id(source)
    elif isinstance(value, str):
        try:
            number = -1 if "_" in value else int(value, 16)
        except ValueError:
            number = -1
        if 0 <= number < ID_LIMIT and source < 1 << 23:
            return hex(number + first_id(source))
    digest = hashlib.blake2b(f"{source}:{value!r}".encode(errors="replace"), digest_size=8)
    return "0x" + digest.hexdigest()


def _unique_others(event: OddEvent, source: int) -> dict[str, Any]:
    """Return the rarer members with their ids changed: `bind_id`, `id2.global`, stack frames."""
    others = dict(event.others)
    if "bind_id" in others:
        others["bind_id"] = unique_id(msgspec.json.decode(others["bind_id"]), source)
    if "id2" in others:
        ids = msgspec.json.decode(others["id2"])
        if isinstance(ids, dict) and "global" in ids and event.ph not in OWN_SCOPE:
            others["id2"] = {**ids, "global": unique_id(ids["global"], source)}
    for key in ("sf", "esf"):
        if key in others:
            others[key] = frame_id(msgspec.json.decode(others[key]), source)
    return others


def frame_id(frame: Any, source: int) -> str:
    """Return the key of a stack frame in the combined file."""
    return f"{source}.{frame}"
