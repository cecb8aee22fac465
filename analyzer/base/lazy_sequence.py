"""Sequences that compute their items on access."""

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
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | LazySequence[_T]:
        if isinstance(index, slice):
            return LazySequence(self._items[index], self._make)
        return self._make(self._items[index])

    def __iter__(self) -> Iterator[_T]:
        return map(self._make, self._items)

    def tolist(self) -> list[_T]:
        """Compute all items."""
        return list(self)
