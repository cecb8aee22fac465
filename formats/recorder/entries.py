"""The entries of a dump, by field or one by one; most may still be as the pickle has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import contains, itemgetter
from typing import Any

from formats.recorder.pickled_rows import PickledRows, RowsAt

_Entry = Mapping[str, Any]


class Entries:
    """Entries in order (n,): dictionaries with the text of a state; any other value would seem to be open."""

    def __init__(self, found: Iterable[Any], rows: Sequence[PickledRows]) -> None:
        """Take the entries of a list in which numbers stand for `rows`."""
        parts: list[Sequence[Any]] = []
        for is_place, some in groupby(found, lambda one: type(one) is RowsAt):
            values = [*some]
            parts += [rows[at] for at in values] if is_place else [values]
        self._parts = [*map(_undamaged, parts)]
        self._ends = [*accumulate(map(len, self._parts))]
        self.n_damaged = sum(map(len, parts)) - len(self)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int) -> _Entry:
        part = bisect_right(self._ends, at)
        return self._parts[part][at - self._ends[part]]

    def some(self, places: Sequence[int]) -> list[_Entry]:
        """Return the entries at several places."""
        found: list[_Entry] = []
        parts = groupby(places, lambda at: bisect_right(self._ends, at))
        for part, at in parts:
            own = self._parts[part]
            begin = self._ends[part] - len(own)
            rows = [one - begin for one in at]
            found += own.some(rows) if isinstance(own, PickledRows) else map(own.__getitem__, rows)
        return found

    def column(self, key: str) -> Sequence[Any]:
        """Return a field of all entries (n,); None where there is none."""
        return [*chain.from_iterable(_column(part, key) for part in self._parts)]


def _column(part: Sequence[_Entry], key: str) -> Sequence[Any]:
    if isinstance(part, PickledRows):
        return part.column(key)
    try:
        return list(map(itemgetter(key), part))
    except KeyError:
        lacks = not any(map(contains, part, repeat(key)))
        return [None] * len(part) if lacks else [one.get(key) for one in part]


def _undamaged(part: Sequence[Any]) -> Sequence[_Entry]:
    are_rows = isinstance(part, PickledRows) or {*map(type, part)} <= {dict}
    if are_rows and {*map(type, _column(part, "state"))} <= {str}:
        return part
    return [one for one in part if isinstance(one, dict) and isinstance(one.get("state"), str)]
