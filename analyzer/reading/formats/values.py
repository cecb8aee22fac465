"""The border for values: a value read from a file obeys these rules, or is damaged.

- A number is finite; an integer fits into 64 bits, signed or unsigned.
- A text can be encoded: a lone surrogate becomes U+FFFD.
- An id (`pid`, `tid`, `id`) is a text or a number; a list or an object becomes its JSON text.
- Lists and objects lie at most `MOST_DEPTH` deep in one another.
- A time lies within `FARTHEST_NS` (100 years) of the epoch, or of the zero of its clock.

Any other value becomes None: the member is missing.
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

NO_TIME = -(1 << 63)  # in place of a time, in microseconds and in nanoseconds
FARTHEST_NS = 36_525 * 86_400 * 10**9  # 100 years; the difference of two times fits into int64
#: Beyond this many microseconds a float64 is further than half a nanosecond from the recorded number.
FLOAT_LIMIT_US = float(1 << 43)
_LIMIT_US = FARTHEST_NS // 1000
_PLAIN_SIZE = 24  # digits of a usual time


class InexactError(Exception):
    """A time is too large to be exact as a float: decode its text instead."""


def to_ns(values: Sequence[Any]) -> Int64:
    """Convert microseconds (numbers, texts or JSON of them) to nanoseconds; `NO_TIME` for any other value.

    InexactError if a float is so large that recorded digits are lost.
    """
    kinds = set(map(type, values))
    if kinds == {msgspec.Raw}:
        return text_to_ns(values)
    with contextlib.suppress(OverflowError):
        if kinds <= {int}:
            return _ints(np.array(values, np.int64))
        if kinds <= {int, float}:
            if any(type(value) is float and FLOAT_LIMIT_US <= abs(value) < math.inf for value in values):
                raise InexactError
            return _floats(np.array(values, np.float64))
    if len(numbers := [i for i, value in enumerate(values) if type(value) in (int, float)]) < len(values):
        out = np.array([exact_ns(value) if isinstance(value, str) else NO_TIME for value in values], np.int64)
        out[numbers] = to_ns([values[i] for i in numbers])
        return out
    return np.array([exact_ns(str(value)) for value in values], np.int64)  # one is beyond all float64s


def text_to_ns(texts: Sequence[Any]) -> Int64:
    """Convert JSON texts of microseconds (bytes-like; empty if missing) to nanoseconds, exactly."""
    return np.array([exact_ns(bytes(text).decode("ascii", "replace").strip('"')) for text in texts], np.int64)


def exact_ns(text: str) -> int:
    """Convert decimal microseconds to nanoseconds, rounded to the nearest; `NO_TIME` if it is not a time."""
    whole, _, part = text.partition(".")
    is_plain = whole.isdecimal() and (not part or part.isdecimal()) and text.isascii()
    if is_plain and len(text) <= _PLAIN_SIZE and len(part) <= 3:  # faster
        plain = int(whole) * 1000 + int(part.ljust(3, "0"))
        return plain if plain <= FARTHEST_NS else NO_TIME
    try:
        ns = Decimal(text) * 1000
        if not ns.is_finite() or abs(ns) > FARTHEST_NS:
            return NO_TIME
        return int(ns.to_integral_value())
    except (ArithmeticError, ValueError):  # not a number, or too large
        return NO_TIME


def microseconds(ns: int) -> msgspec.Raw:
    """Write a time in exact microseconds.

    A float64 resolves today's epoch to only 0.25 us: adjacent boxes would overlap, and viewers omit those.
    """
    whole, rest = divmod(abs(ns), 1000)
    text = f"{'-' if ns < 0 else ''}{whole}"
    return msgspec.Raw((f"{text}.{rest:03d}".rstrip("0") if rest else text).encode())


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
    """Replace each lone surrogate by U+FFFD."""
    return text if text.isascii() else re.sub(_SURROGATE, "\ufffd", text)


def cleaned(value: Any, depth: int = MOST_DEPTH) -> Any:
    """Bring a decoded JSON value within the border; a value that does not fit is None."""
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
    """Bring an id or a name within the border: a list or an object as its JSON text."""
    value = cleaned(value)
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def all_fit(values: Sequence[Any]) -> bool:
    """Check that `cleaned` changes none of `values`, from a strict decoder; False for lists."""
    kinds = set(map(type, values))
    if not kinds <= {str, int, float, bool, _NONE}:
        return False
    if int not in kinds:
        return True
    numbers = values if kinds == {int} else [value for value in values if type(value) is int]
    return min(numbers) >= LEAST_INT and max(numbers) <= GREATEST_INT


def as_ranks(numbers: Sequence[int], field: str) -> list[int]:
    """Ranks for distinct numbers of a field: the numbers themselves, or the order of process ids.

    Ids are in a field named so, leave out more numbers below them than there are ids, and are never 0.

    >>> as_ranks([4002, 4000], "pid"), as_ranks([64, 0], "pid"), as_ranks([12, 8], "rank")
    ([1, 0], [64, 0], [12, 8])
    """
    if not _IDS.fullmatch(field) or len(numbers) < 2 or 0 in numbers or max(numbers) + 1 <= 2 * len(numbers):
        return list(numbers)
    places = {number: index for index, number in enumerate(sorted(numbers))}
    return [places[number] for number in numbers]
