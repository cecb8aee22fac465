"""Numbers as people read them, and rows of tables that are computed on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

#: From here on durations are shown in seconds.
_SECONDS_NS = 10**10


def ms_of(ns: float | None) -> float | None:
    """Convert to milliseconds; None stays."""
    return None if ns is None else ns / 1e6


def in_digits(value: float, decimals: int = 6, *, sign: str = "") -> str:
    """Format a number with three significant digits and at most `decimals`.

    Digits before the decimal point are always shown, and a number that rounds to zero is 0; `sign` is that
    of a format specification. `page.js` has the same rules.

    >>> in_digits(1234.5), in_digits(-16), in_digits(0.0391, 3), in_digits(2.5, 1, sign="+")
    ('1,234', '−16.0', '0.039', '+2.5')
    """
    size = int(f"{value:.2e}".partition("e")[2]) if value else 2
    text = f"{value:{sign},.{max(0, min(decimals, 2 - size))}f}"
    return text.replace("-", "−") if text.strip("+-0.,") else "0"


def in_ms(ns: float, *, sign: str = "") -> str:
    """Format a duration in ms, from 10 s on in s: ``144 ms``, ``0.000120 ms``, ``12.5 s``."""
    return in_range(ns, sign=sign)


def bounds_ms(bounds: Any) -> dict[str, float | None]:
    """Write `low_ns`, `mid_ns` and `high_ns` of an estimate in milliseconds; None stays."""
    ends = ("low", "mid", "high")
    return {end: ms_of(getattr(bounds, f"{end}_ns")) if bounds else None for end in ends}


def in_range(*ends_ns: float, to: str = " to ", sign: str = "") -> str:
    """Format durations in one unit, that of the longest.

    >>> in_range(3_900_000, 144_000_000), in_range(9_000_000_000, 12_500_000_000, to=" → ")
    ('3.90 to 144 ms', '9.00 → 12.5 s')
    """
    in_seconds = max(map(abs, ends_ns)) >= _SECONDS_NS
    size, unit = (1e9, "s") if in_seconds else (1e6, "ms")
    return f"{to.join(in_digits(ns / size, sign=sign) for ns in ends_ns)} {unit}"


def in_percent(share: float, decimals: int = 0, *, sign: str = "") -> str:
    """Format a share: ``50 %``; a change has a `sign`."""
    return f"{in_digits(100 * share, decimals, sign=sign)} %"


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
