"""Rows of a plain pickle: dictionaries of the same keys one after the other, read column by column.

A row is a program as well. Each is matched as a whole by a pattern that is made of the first one: the keys
are as there, the values are numbers, names of what the pickle remembers, pairs and lists of these. As the
pickle remembers nothing of a row, rows can be taken out of it and loaded later, with the memory of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

_FEWEST_KEYS, _MOST_KEYS = 8, 40  # of a row; frames and groups have three
_MOST_BYTES = 4096  # of a row
#: Of a pickle in which rows are looked for, and how often: to make a pattern takes as long as to read so many
#: bytes without it.
_FEWEST_BYTES, _MOST_RUNS = 16_384, 128
_IN_LIST = (b"u}", b"ue")  # the end of a row in a list, which goes on or ends
_NUMBER = rb"(?:[Kh].|M..|[Jj].{4})"  # or the name of a value that the pickle remembers
_SHAPE = rb"\](?:\(%b{0,64}e|%ba)?" % (_NUMBER, _NUMBER)
_VALUES = {
    "number": rb"(?:%b|[N\x88\x89]|\x8a\x08.{8}|\x8a\x07.{7}|G.{8})" % _NUMBER,
    "pair": rb"%b%b\x86" % (_NUMBER, _NUMBER),
    "list": rb"\](?:\((?:%b|%b){0,256}e|(?:%b|%b)a)?" % ((_NUMBER, _SHAPE) * 2),
}
_FIELD = re.compile(
    rb"(?P<key>h.|j.{4})(?:(?P<pair>%(pair)b)|(?P<number>%(number)b)|(?P<list>%(list)b))"
    % {kind.encode(): pattern for kind, pattern in _VALUES.items()},
    re.DOTALL,
)
_OPCODE = re.compile(rb"([Kh]).|(M)..|([Jj]).{4}|(\x8a\x08|G).{8}|(\x8a\x07).{7}|(.)", re.DOTALL)


class RowsAt(int):
    """Stands in the place of rows: their number among those of the pickle."""


class PickledRows(Sequence[Mapping[str, Any]]):
    """Consecutive rows of a pickle, as they are in the file; `load` returns the value of a piece of it."""

    load: Callable[[bytes], Any]

    def __init__(self, keys: Sequence[bytes], matches: Sequence[re.Match[bytes]]) -> None:
        self._keys, self._matches = keys, matches
        self.end = matches[-1].end()  # in the file

    def __len__(self) -> int:
        return len(self._matches)

    def __getitem__(self, at: Any) -> Any:
        return self.load(self._matches[at][0] + b".")

    def column(self, key: str) -> Sequence[Any]:
        """Return the value of each row (n,); None where there is none."""
        group = self._groups.get(key)
        return [None] * len(self) if group is None else self._loaded(map(itemgetter(group), self._matches))

    @cached_property
    def _groups(self) -> Mapping[str, int]:
        """The group of the pattern that is the value of a key."""
        keys = enumerate(self._loaded(self._keys), 1)
        return {key: group for group, key in keys if type(key) is str}

    def _loaded(self, programs: Iterable[bytes]) -> list[Any]:
        """Return the values of several programs."""
        values: list[Any] = self.load(b"](%be." % b"".join(programs))
        return values


def rows_at(data: bytes, at: int, n_before: int) -> PickledRows | None:
    """Return the rows that begin there, at an opcode; None where there are none, or as many runs before."""
    fields: list[re.Match[bytes]] = []
    begin, is_worth = at + 2, n_before < _MOST_RUNS and len(data) - at > _FEWEST_BYTES
    while is_worth and len(fields) <= _MOST_KEYS and (field := _FIELD.match(data, begin, at + _MOST_BYTES)):
        fields.append(field)
        begin = field.end()
    if not _FEWEST_KEYS <= len(fields) <= _MOST_KEYS or data[begin : begin + 2] not in _IN_LIST:
        return None
    keys = [field["key"] for field in fields]
    row, matches = _row(tuple(keys), tuple(map(_value, fields))), []
    while match := row.match(data, at):
        matches.append(match)
        at = match.end()
    if data[at - 1 : at + 1] not in _IN_LIST:
        matches.pop()
    return PickledRows(keys, matches)


def _value(field: re.Match[bytes]) -> tuple[str, bytes]:
    """Return the kind of a field's value, and the pattern of values that are made by the same opcodes."""
    kind = str(field.lastgroup)
    opcodes = ((match[match.lastindex or 0], len(match[0])) for match in _OPCODE.finditer(field[kind]))
    return kind, b"".join(re.escape(opcode) + b"." * (n - len(opcode)) for opcode, n in opcodes)


@lru_cache(256)
def _row(keys: Sequence[bytes], values: Sequence[tuple[str, bytes]]) -> re.Pattern[bytes]:
    """Return the pattern of a row with these keys, and values of these kinds, most made by these opcodes.

    There is one way to match a value, so that a row that does not match costs no more than one that does.
    """
    fields = (
        b"%b(%b|(?!%b)%b)" % (re.escape(key), like, like, _VALUES[kind])
        for key, (kind, like) in zip(keys, values, strict=True)
    )
    return re.compile(rb"\}\(%bu" % b"".join(fields), re.DOTALL)
