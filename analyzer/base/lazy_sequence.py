"""Sequences that compute their items when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

_T = TypeVar("_T")


class LazySequence(Sequence[_T]):
    """Computes each item on access, so that a million rows cost little until they are shown."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], _T]) -> None:
        self._items, self._make = items, make

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> _T: ...
    @overload
    def __getitem__(self, at: slice) -> LazySequence[_T]: ...
    def __getitem__(self, at: int | slice) -> _T | LazySequence[_T]:
        if isinstance(at, slice):
            return LazySequence(self._items[at], self._make)
        return self._make(self._items[at])

    def __iter__(self) -> Iterator[_T]:
        return map(self._make, self._items)

    def tolist(self) -> list[_T]:
        """Return all of them."""
        return list(self)
