"""Times of whole events as nanoseconds, within what sums of them can hold."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from combine.external_sort import Int64
from formats.event import IntEvent
from formats.times import floats_to_ns, text_to_ns, times_ns, to_ns
from formats.whole import LearnedWhole, WholeEvent

LONGEST_NS = 10**18
_TS = attrgetter("ts")
_DUR = attrgetter("dur")


def times(events: Sequence[WholeEvent], *, exact: bool) -> tuple[Int64, Int64]:
    """Return starts and durations in nanoseconds; `NO_TIME` and -1 where there are none."""
    ts: list[Any] = [event.ts for event in events]
    dur: list[Any] = [event.dur for event in events]
    if exact:
        starts, durations = text_to_ns(list(map(_text, ts))), text_to_ns(list(map(_text, dur)))
    else:
        plain = set(map(type, dur)) <= {int, float}
        starts = to_ns(ts)
        durations = to_ns(dur if plain else [d if isinstance(d, (int, float)) else -1 for d in dur])
    is_slice = np.array([event.ph == "X" for event in events], np.bool_)
    return starts, np.where(is_slice & (durations >= 0), np.minimum(durations, LONGEST_NS), -1)


def learned_times(events: list[Any], learned: LearnedWhole) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Return starts and durations (n,) in nanoseconds, and where a duration is a number of nanoseconds.

    Both are `NO_TIME` where there are none.
    """
    n = len(events)
    if learned.is_int:
        starts, durations = (times_ns(map(getter, events), n, IntEvent) for getter in (_TS, _DUR))
        return starts, durations, (durations >= 0) & (durations <= LONGEST_NS)
    starts_us, us = (np.fromiter(map(getter, events), np.float64, n) for getter in (_TS, _DUR))
    starts, durations = floats_to_ns(starts_us), floats_to_ns(us)
    is_exact = (durations >= 0) & (durations <= LONGEST_NS) & (durations / 1000 == us)
    return starts, durations, is_exact


def _text(value: Any) -> Any:
    """Return the text of a time: as it is, or of the number that it was decoded to."""
    return value if isinstance(value, msgspec.Raw) else b"" if value is None else str(value).encode()
