"""The border for values: what has been read from a file is one of these, or it is damage.

- A number is finite; an integer fits into 64 bits, signed or unsigned.
- A text can be encoded: of a lone surrogate U+FFFD is left.
- An id (`pid`, `tid`, `id`) is a text or a number; a list or an object becomes its JSON text.
- Lists and objects lie at most `MOST_DEPTH` deep in one another.
- A time lies within `FARTHEST_NS` (100 years) of the epoch, or of where its clock began.

Any other value becomes None: the member counts as missing.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from analyzer.base.arrays import Int64, NDArray

NO_TIME = -(1 << 63)  # marks what is not a time, in microseconds and in nanoseconds
FARTHEST_NS = 36_525 * 86_400 * 10**9  # 100 years; the difference of two times fits into int64
#: Beyond this many microseconds a float64 is further than half a nanosecond from what was written.
FLOAT_LIMIT_US = float(1 << 43)
_LIMIT_US = FARTHEST_NS // 1000
_PLAIN_SIZE = 24  # digits of a time that is not nonsense


class InexactError(Exception):
    """A time was decoded as a float that is too large to be exact: decode its text instead."""


def to_ns(values: Sequence[Any]) -> Int64:
    """Return microseconds as nanoseconds; `NO_TIME` where a value is no number, text of one, or JSON of one.

    Raises InexactError where a float is so large that the digits written in the file are lost.
    """
    kinds = set(map(type, values))
    if kinds == {msgspec.Raw}:
        return text_to_ns(values)
    with contextlib.suppress(OverflowError):
        if kinds <= {int}:
            return _ints(np.array(values, np.int64))
        if kinds <= {int, float}:
            if any(type(value) is float and FLOAT_LIMIT_US <= abs(value) < math.inf for value in values):
                raise InexactError  # the text may have said more
            return _floats(np.array(values, np.float64))
    if len(numbers := [i for i, value in enumerate(values) if type(value) in (int, float)]) < len(values):
        out = np.array([exact_ns(value) if isinstance(value, str) else NO_TIME for value in values], np.int64)
        out[numbers] = to_ns([values[i] for i in numbers])
        return out
    return np.array([exact_ns(str(value)) for value in values], np.int64)  # one is beyond all float64s


def text_to_ns(texts: Sequence[Any]) -> Int64:
    """Return JSON numbers kept as text (bytes-like; empty if missing) as nanoseconds, exactly."""
    return np.array([exact_ns(bytes(text).decode("ascii", "replace").strip('"')) for text in texts], np.int64)


def exact_ns(text: str) -> int:
    """Return decimal microseconds as nanoseconds, rounded to the nearest; `NO_TIME` if it is not a time."""
    whole, _, part = text.partition(".")
    if (
        whole
        and len(text) <= _PLAIN_SIZE
        and len(part) <= 3
        and (whole + part).isdecimal()
        and text.isascii()
    ):
        plain = int(whole) * 1000 + int(part.ljust(3, "0"))  # as most are: this is faster
        return plain if plain <= FARTHEST_NS else NO_TIME
    try:
        ns = Decimal(text) * 1000
        if not ns.is_finite() or abs(ns) > FARTHEST_NS:
            return NO_TIME
        return int(ns.to_integral_value())
    except (ArithmeticError, ValueError):  # no number, or one beyond all bounds
        return NO_TIME


def microseconds(ns: int) -> msgspec.Raw:
    """Return a time as the format wants it, in microseconds, exact.

    A float64 resolves today's epoch to only 0.25 us: boxes that touch would overlap, and viewers leave
    those out.
    """
    whole, rest = divmod(abs(ns), 1000)
    sign = "-" if ns < 0 else ""
    return msgspec.Raw(
        f"{sign}{whole}.{rest:03d}".rstrip("0").encode() if rest else f"{sign}{whole}".encode()
    )


def _ints(us: Int64) -> Int64:
    beyond = (us > _LIMIT_US) | (us < -_LIMIT_US)  # not by abs(): that of the least int64 is negative
    return np.where(beyond, NO_TIME, us * 1000) if beyond.any() else us * 1000


def _floats(us: NDArray[np.float64]) -> Int64:
    finite = np.isfinite(us)
    whole = np.floor(np.where(finite, us, 0.0))
    if len(us) and np.abs(whole).max() > _LIMIT_US:
        finite &= np.abs(whole) <= _LIMIT_US
        whole = np.where(finite, whole, 0.0)
    # whole and fraction apart: their product with 1000 would be rounded to more than a nanosecond
    part = np.where(finite, us - whole, 0.0)
    ns = whole.astype(np.int64) * 1000 + np.rint(part * 1000).astype(np.int64)
    return np.where(finite, ns, NO_TIME)


MOST_DEPTH = 64
LEAST_INT, GREATEST_INT = -(1 << 63), (1 << 64) - 1

#: Fields with the ids that an operating system gives to processes and threads.
_IDS = re.compile(r"(?i)(?:os_?)?(?:p|t|process_?|thread_?)id")
_SURROGATE = "[\ud800-\udfff]"
_NONE = type(None)


def clean_text(text: str) -> str:
    """Return `text` with U+FFFD for each lone surrogate."""
    return text if text.isascii() else re.sub(_SURROGATE, "\ufffd", text)


def cleaned(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Return a decoded JSON value within the border; what does not fit is None."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if LEAST_INT <= value <= GREATEST_INT else None
    if depth == 0:
        return None
    if isinstance(value, dict):
        return {
            clean_text(key) if isinstance(key, str) else str(key): cleaned(item, depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [cleaned(item, depth - 1) for item in value]
    return None


def cleaned_scalar(value: Any) -> str | int | float | bool | None:
    """Return a decoded JSON value as an id or a name may be: a list or an object as its text."""
    value = cleaned(value)
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def all_fit(values: Sequence[Any]) -> bool:
    """Whether `cleaned` would change none of `values`, which a strict decoder made; False for lists."""
    kinds = set(map(type, values))
    if not kinds <= {str, int, float, bool, _NONE}:
        return False
    if int not in kinds:
        return True
    numbers = values if kinds == {int} else [value for value in values if type(value) is int]
    return min(numbers) >= LEAST_INT and max(numbers) <= GREATEST_INT


def as_ranks(numbers: Sequence[int], field: str) -> list[int]:
    """Ranks that distinct numbers of a field stand for: themselves, or the places of process ids in order.

    Ids are in a field that is called so, leave more numbers below them out than they are, and are never 0.

    >>> as_ranks([4002, 4000], "pid"), as_ranks([64, 0], "pid"), as_ranks([12, 8], "rank")
    ([1, 0], [64, 0], [12, 8])
    """
    if not _IDS.fullmatch(field) or len(numbers) < 2 or 0 in numbers or max(numbers) + 1 <= 2 * len(numbers):
        return list(numbers)
    places = {number: place for place, number in enumerate(sorted(numbers))}
    return [places[number] for number in numbers]
