"""The border for values: what has been read from a file is one of these, or it is damage.

- A number is finite; an integer fits into 64 bits, signed or unsigned.
- A text can be encoded: of a lone surrogate U+FFFD is left.
- An id (`pid`, `tid`, `id`) is a text or a number; a list or an object becomes its JSON text.
- Lists and objects lie at most `MOST_DEPTH` deep in one another.
- A time lies within `FARTHEST_NS` (100 years) of the epoch, or of where its clock began.

Any other value becomes None: the member counts as missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

MOST_DEPTH = 64
FARTHEST_NS = 36_525 * 86_400 * 10**9  # 100 years; the difference of two times fits into int64
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
