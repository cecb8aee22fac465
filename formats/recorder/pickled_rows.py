"""Rows of a plain pickle: dictionaries of the same keys one after the other, read column by column.

A row is a program as well. Each is matched as a whole by a pattern that is made of the first one: the keys
are as there, the values are numbers, names of what the pickle remembers, pairs and lists of these. As the
pickle remembers nothing of a row, rows can be taken out of it and loaded later, with the memory of the rest.
`formats/native/pickle.c` finds the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from arrays import Int64, NDArray

_FEWEST_KEYS, _MOST_KEYS = 8, 40  # of a row; frames and groups have three
_MOST_BYTES = 4096  # of a row
_KINDS = ("number", "pair", "list")  # of values, as in pickle.c
_MOST_ROWS = 2_048  # that are found in one call
#: Of a pickle in which rows are looked for, and how often: to make a pattern takes as long as to read so many
#: bytes without it.
_FEWEST_BYTES, _MOST_RUNS = 16_384, 128
_EMPTY = rb"\]"
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


class _Places(NamedTuple):
    """Where n rows end in a file, and where the values of their k keys begin and end."""

    row_end: NDArray[np.int32]  # (n,)
    begin: NDArray[np.int32]  # (n, k)
    end: NDArray[np.int32]


class PickledRows(Sequence[Mapping[str, Any]]):
    """Consecutive rows of a pickle, as they are in the file; `load` returns the value of a piece of it."""

    load: Callable[[bytes], Any]

    def __init__(self, data: bytes, at: int, keys: Sequence[bytes], places: _Places) -> None:
        self._data, self._keys, self._places = data, keys, places
        self._bounds = [at, *places.row_end.tolist()]
        self.end = self._bounds[-1]  # in the file

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, at: Any) -> Any:
        return self.some([range(len(self))[at]])[0]

    def some(self, places: Sequence[int]) -> list[Any]:
        """Return several rows."""
        return self._loaded(b"".join(self._data[self._bounds[at] : self._bounds[at + 1]] for at in places))

    def column(self, key: str) -> Sequence[Any]:
        """Return the value of each row (n,); None where there is none."""
        place = self._place.get(key)
        if place is None:
            return [None] * len(self)
        begin, end = self._places.begin[:, place], self._places.end[:, place]
        return self._loaded(np.frombuffer(self._data, np.uint8)[_bytes_of(begin, end)].tobytes())

    @cached_property
    def _place(self) -> Mapping[str, int]:
        """The place of a key among those of a row."""
        keys = enumerate(self._loaded(b"".join(self._keys)))
        return {key: place for place, key in keys if type(key) is str}

    def _loaded(self, programs: bytes) -> list[Any]:
        """Return the values of several programs."""
        values: list[Any] = self.load(b"](%be." % programs)
        return values


def _bytes_of(begin: NDArray[np.int32], end: NDArray[np.int32]) -> Int64:
    """Return the places of all bytes of several pieces, from where each begins to where it ends."""
    size = end - begin
    before = np.cumsum(size, dtype=np.int64) - size
    return np.repeat(begin - before, size) + np.arange(int(size.sum()))


def rows_at(data: bytes, at: int, n_before: int, library: CDLL | None) -> PickledRows | None:
    """Return the rows that begin there, at an opcode; None where there are none, or as many runs before.

    `library` is that of `formats.native`, or None.
    """
    fields: list[re.Match[bytes]] = []
    begin, is_worth = at + 2, n_before < _MOST_RUNS and len(data) - at > _FEWEST_BYTES
    while is_worth and len(fields) <= _MOST_KEYS and (field := _FIELD.match(data, begin, at + _MOST_BYTES)):
        fields.append(field)
        begin = field.end()
    if not _FEWEST_KEYS <= len(fields) <= _MOST_KEYS or data[begin : begin + 2] not in _IN_LIST:
        return None
    keys = [field["key"] for field in fields]
    found = _matched(data, at, fields) if library is None else _found(library, data, at, fields)
    last = int(found.row_end[-1])
    if data[last - 1 : last + 1] not in _IN_LIST:  # the first row's end is
        found = _Places(*(each[:-1] for each in found))
    return PickledRows(data, at, keys, found)


def _matched(data: bytes, at: int, fields: Sequence[re.Match[bytes]]) -> _Places:
    """Return the rows that are alike the first one, which has these fields."""
    row = _row(tuple(field["key"] for field in fields), tuple(map(_value, fields)))
    spans: list[tuple[int, int]] = []  # of each row, and of each value in it
    while match := row.match(data, at):
        spans += match.regs
        at = match.end()
    bounds = np.fromiter(chain.from_iterable(spans), np.int32, 2 * len(spans))
    places = bounds.reshape(-1, 1 + len(fields), 2)
    return _Places(places[:, 0, 1], places[:, 1:, 0], places[:, 1:, 1])


def _found(library: CDLL, data: bytes, at: int, fields: Sequence[re.Match[bytes]]) -> _Places:
    """Return the same, found in C."""
    keys = b"".join(field["key"] for field in fields)
    kinds = bytes(_KINDS.index(str(field.lastgroup)) for field in fields)
    parts, n = [], _MOST_ROWS
    while n == _MOST_ROWS:
        one = _Places(np.empty(n, np.int32), *(np.empty((n, len(fields)), np.int32) for _ in range(2)))
        places = (each.ctypes.data for each in one)
        n = library.find_rows(data, len(data), at, keys, kinds, len(fields), n, *places)
        parts.append(_Places(*(each[:n] for each in one)))
        at = int(one.row_end[n - 1]) if n else at
    return _Places(*map(np.concatenate, zip(*parts, strict=True)))


def _value(field: re.Match[bytes]) -> tuple[str, bytes]:
    """Return the kind of a field's value, and the pattern of values that are made by the same opcodes."""
    kind = str(field.lastgroup)
    opcodes = ((match[match.lastindex or 0], len(match[0])) for match in _OPCODE.finditer(field[kind]))
    return kind, b"".join(re.escape(opcode) + b"." * (n - len(opcode)) for opcode, n in opcodes)


@lru_cache(256)
def _row(keys: Sequence[bytes], values: Sequence[tuple[str, bytes]]) -> re.Pattern[bytes]:
    """Return the pattern of a row with these keys, and values of these kinds, most made by these opcodes.

    There is one way to match a value, so that a row that does not match costs no more than one that does.
    An empty list is how any other begins.
    """
    fields = (
        b"%b(%b)" % (re.escape(key), _VALUES[kind])
        if like == _EMPTY
        else b"%b(%b|(?!%b)%b)" % (re.escape(key), like, like, _VALUES[kind])
        for key, (kind, like) in zip(keys, values, strict=True)
    )
    return re.compile(rb"\}\(%bu" % b"".join(fields), re.DOTALL)
