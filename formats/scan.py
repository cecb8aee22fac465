"""Places in JSON text, found without decoding it: where events, objects and lists end."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from formats.event import UNDECODABLE, tolerant
from formats.values import cleaned

LONGEST_NUMBER = 640  # digits; of 309 and more there is no float64, and of 4,300 no Python integer
BOUNDARY = re.compile(rb"\}\s*,\s*\{")
LIST_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
BETWEEN = re.compile(rb"[\s,]*")
_DIGITS = re.compile(rb"[0-9]{%d}" % LONGEST_NUMBER)
_STRIDE = 64


def last_boundary(data: bytes) -> int:
    """Return the offset after the last ``}`` that a comma and a ``{`` follow; 0 if there is none."""
    window = 4096
    while True:
        start = max(0, len(data) - window)
        last = None
        for last in BOUNDARY.finditer(data, start):  # noqa: B007
            pass
        if last is not None:
            return last.start() + 1
        if start == 0:
            return 0
        window *= 8


def has_long_number(text: bytes | memoryview) -> bool:
    """Whether `text` has a run of at least `LONGEST_NUMBER` digits."""
    sample = np.frombuffer(text, np.uint8)[::_STRIDE]
    in_row = LONGEST_NUMBER // _STRIDE  # samples that fall into such a run
    is_digit = (sample >= 0x30) & (sample <= 0x39)
    if len(sample) < in_row or np.bincount(is_digit, minlength=2)[1] < in_row:
        return False
    ends = np.cumsum(is_digit)
    full = ends[in_row - 1 :] - np.concatenate([[0], ends[:-in_row]]) == in_row
    return bool(full.any()) and _DIGITS.search(text) is not None


def members_of(text: bytes) -> dict[str, Any] | None:
    """Decode ``"key": value, …`` as an object, commas at either end allowed; None if it is not that.

    The values are within the border of `formats.values`.
    """
    body = b"{" + text.strip().strip(b",") + b"}"
    try:
        value = cleaned(msgspec.json.decode(body))
    except UNDECODABLE:
        value = tolerant(body, mend_quotes=False)
    return value if isinstance(value, dict) else None
