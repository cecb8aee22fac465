"""Times of whole events, exactly: as nanoseconds, and as texts of decimal microseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np

from analyzer.base.arrays import Int64, NDArray
from analyzer.reading.formats.event import UNDECODABLE
from analyzer.reading.formats.values import FLOAT_LIMIT_US, cleaned_scalar, to_ns
from analyzer.reading.formats.values import microseconds as exact_us
from analyzer.reading.formats.whole import ExactWholeEvent, WholeEvent

_ENCODE = msgspec.json.Encoder().encode
LONGEST_WRITTEN_NS = 10**18
_UNTIMED = tuple(name for name in WholeEvent.__struct_fields__ if name not in ("ts", "dur"))


def microseconds(ns: Int64) -> list[bytes]:
    """Return nanoseconds (n,) as texts of decimal microseconds, exactly."""
    if not len(ns):
        return []
    whole = ns // 1000
    if (whole * 1000 == ns).all():
        return _ENCODE(whole.tolist())[1:-1].split(b",")
    if max(abs(int(whole.min())), abs(int(whole.max()))) < FLOAT_LIMIT_US - 1:
        # the shortest text of the nearest float64 is the decimal number itself
        text = _ENCODE((ns / 1000).tolist())[1:-1] + b","
        return text.replace(b".0,", b",")[:-1].split(b",")
    return [bytes(exact_us(time)) for time in ns.tolist()]


class Times(NamedTuple):
    """Starts and durations of events (n,) in nanoseconds, `NO_TIME` where there are none.

    `is_exact` (n,): a duration is a whole number of nanoseconds from 0 to `LONGEST_WRITTEN_NS`.
    """

    ts: Int64
    dur: Int64
    is_exact: NDArray[np.bool_]


def times(events: Sequence[WholeEvent]) -> Times:
    """Return the times of events of the general type."""
    us: list[Any] = [event.dur if type(event.dur) in (int, float) else None for event in events]
    starts, durations = to_ns([event.ts for event in events]), to_ns(us)
    bounded = [math.nan if value is None or abs(value) > LONGEST_WRITTEN_NS else value for value in us]
    numbers = np.array(bounded, np.float64)  # which an integer may be too large for
    is_exact = (durations >= 0) & (durations <= LONGEST_WRITTEN_NS) & (durations / 1000 == numbers)
    return Times(starts, durations, np.asarray(is_exact))


def exact_times(events: Sequence[WholeEvent]) -> tuple[list[WholeEvent], Times]:
    """Return events, some of them `ExactWholeEvent`, as such of the general type, with their times."""
    starts = [_number(event.ts)[1] for event in events]
    durations = [_number(event.dur) for event in events]
    texts = [None if isinstance(value, (str, bool)) else text for value, text in durations]
    ns = to_ns(texts)
    exact = [
        text is not None and (Decimal(text) * 1000 == n if isinstance(text, str) else n / 1000 == text)
        for text, n in zip(texts, ns.tolist(), strict=True)
    ]
    general = [
        WholeEvent(**{name: getattr(event, name) for name in _UNTIMED}, dur=value)
        if isinstance(event, ExactWholeEvent)
        else event
        for event, (value, _) in zip(events, durations, strict=True)
    ]
    return general, Times(
        to_ns(starts), ns, np.array(exact, np.bool_) & (ns >= 0) & (ns <= LONGEST_WRITTEN_NS)
    )


def _number(time: Any) -> tuple[Any, Any]:
    """Return the value of a time, and what tells it exactly: the same, or the text of a large float."""
    text = bytes(time).decode("ascii", "replace") if isinstance(time, msgspec.Raw) else repr(time)
    if isinstance(time, msgspec.Raw):
        try:
            time = msgspec.json.decode(time) if text else None
        except UNDECODABLE:
            time = None
        if isinstance(time, (list, dict)):
            time = cleaned_scalar(time)  # as of an event that holds no such number
    return time, text if isinstance(time, float) and abs(time) >= FLOAT_LIMIT_US else time
