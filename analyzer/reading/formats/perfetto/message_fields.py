"""The fields of many messages of protobuf at once, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from analyzer.base.arrays import Int64, Mask, NDArray

PADDING = bytes(32)  # after the last message: more than is read beyond an end
_NUMBER, _CONTENT = 0, 2  # types of a field, which its tag has in its low bits
_SIZES = np.array([0, 8, 0, -1, -1, 4, -1, -1])  # bytes of a field by its type; -1: no type of these messages
_MOST_FIELDS = 1 << 12  # of a message: each costs a turn
_LAST, _DIGITS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
#: Three turns bring the seven bits of each byte together: the half that stays, and how far the other moves.
_TURNS = ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))
_BYTE_NUMBERS = np.uint64(0x0102030405060708)  # the product with 256 ** k begins with the byte k + 1


class _Fields(NamedTuple):
    """Fields (n,) of messages; those of one tag in one message are in their order."""

    message: Int64  # the number of the message
    tag: Int64  # the field's number times 8, and its type
    value: Int64  # the number, or the size of the content
    begin: Int64  # of the content

    def select(self, rows: NDArray[Any]) -> _Fields:
        """Select fields by a mask, or by their rows."""
        return _Fields(*(column[rows] for column in self))

    def tagged(self, *tags: int) -> _Fields:
        """Select the fields with one of `tags`, by message, then in the order of `tags`."""
        rows = np.concatenate([np.flatnonzero(self.tag == tag) for tag in tags])
        return self.select(rows[np.argsort(self.message[rows], kind="stable")])

    def column(self, tag: int, n: int) -> Int64:
        """List the value of the field `tag` of n messages; 0 where it is missing."""
        values, rows = np.zeros(n, np.int64), np.flatnonzero(self.tag == tag)
        values[self.message[rows]] = self.value[rows]
        return values

    def has(self, tag: int, n: int) -> Mask:
        """Check which of n messages have the field `tag`."""
        return np.bincount(self.message[self.tag == tag], minlength=n) > 0


def fields_of(data: bytes, begin: Int64, end: Int64) -> tuple[_Fields, Mask]:
    """Read the fields of messages (n,) in `data`, which ends with `PADDING`; also which messages are damaged.

    Each turn reads one field of every message that has another one.
    """
    octets = np.frombuffer(data, np.uint8)
    words: Any = np.ndarray((len(data) - 8,), "<u8", data, strides=(1,))  # eight bytes from each byte on
    is_damaged = np.zeros(len(begin), np.bool_)
    parts: list[tuple[Int64, ...]] = [(np.empty(0, np.int64),) * 4]
    message = np.flatnonzero(begin < end)
    position, stop = begin[message], end[message]
    while len(message) and len(parts) <= _MOST_FIELDS:
        tag, start = octets[position].astype(np.int64), position + 1
        if len(longer := np.flatnonzero(tag > 0x7F)):
            tag[longer], start[longer] = _numbers(octets, words, position[longer])
        value, content = _numbers(octets, words, start)
        kind = tag & 7
        size = np.where(kind == _CONTENT, value, 0)
        if len(fixed := np.flatnonzero((kind != _NUMBER) & (kind != _CONTENT))):
            size[fixed], content[fixed] = _SIZES[kind[fixed]], start[fixed]
            value[fixed] = words[start[fixed]].view(np.int64)
        is_sound = (size >= 0) & (size <= stop - content) & (tag > 7)
        is_damaged[message[~is_sound]] = True
        position = content + size
        parts.append((message, tag, value, content))
        if not is_sound.all():
            parts[-1] = tuple(column[is_sound] for column in parts[-1])
        rest = np.flatnonzero(is_sound & (position < stop))
        message, position, stop = message[rest], position[rest], stop[rest]
    is_damaged[message] = True  # they have too many fields
    return _Fields(*map(np.concatenate, zip(*parts, strict=True))), is_damaged


def _numbers(octets: NDArray[np.uint8], words: NDArray[np.uint64], begin: Int64) -> tuple[Int64, Int64]:
    """Decode the numbers of up to ten bytes at `begin`, seven bits in a byte; also their ends."""
    one = np.uint64(1)
    word = words[begin]
    last = ~word & _LAST
    last &= ~last + one  # the highest bit of the first byte below 0x80; 0 if none of the eight is
    word &= ((last << one) - one) & _DIGITS
    for low, bits in _TURNS:
        word = word & np.uint64(low) | word >> np.uint64(bits) & np.uint64(low << 7 * bits)
    size = (last >> np.uint64(7)) * _BYTE_NUMBERS >> np.uint64(56)
    if len(longer := np.flatnonzero(last == 0)):
        ninth, tenth = (octets[begin[longer] + i].astype(np.uint64) for i in (8, 9))
        is_ten = ninth > 0x7F
        word[longer] |= (ninth << np.uint64(57)) >> one | np.where(is_ten, tenth, 0) << np.uint64(63)
        size[longer] = 9 + is_ten
    return word.view(np.int64), begin + size.view(np.int64)
