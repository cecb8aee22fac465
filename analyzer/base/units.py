"""Numbers as people read them: digits, milliseconds, per cent."""

from __future__ import annotations


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


def in_ms(ns: float, *, unit: str = " ms", sign: str = "") -> str:
    """Format a duration: ``144 ms``, ``3.90 ms``, ``0.000120 ms``."""
    return in_digits(ns / 1e6, sign=sign) + unit


def in_percent(share: float, decimals: int = 0, *, sign: str = "") -> str:
    """Format a share: ``50 %``; a change has a `sign`."""
    return f"{in_digits(100 * share, decimals, sign=sign)} %"
