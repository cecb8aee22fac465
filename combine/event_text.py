"""Times of events as numbers and as texts, and what recurs of their texts, rewritten once: heads.

The text of an event is its head (kind, name, category, process, thread, and arguments where these recur,
too), its times, and its tail (other arguments, an id). Heads are numbered by source; head 0 belongs to
events whose tail is their whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from combine.external_sort import Events, Int64
from combine.unique_ids import OWN_SCOPE
from formats.event import IntEvent
from formats.times import FLOAT_LIMIT_US, floats_to_ns, text_to_ns, times_ns, to_ns
from formats.whole import KEY, LearnedWhole, WholeEvent

_ANY = b'},\n{"ts":'
_BETWEEN = (b"", b',"dur":')
_ENCODE = msgspec.json.Encoder().encode
LONGEST_NS = 10**18
_TIMES = attrgetter("ts"), attrgetter("dur")


@dataclass(frozen=True, slots=True)
class Heads:
    """Texts (n) of heads, each after the end of the event before, and whether a duration follows (n,)."""

    texts: Sequence[bytes]
    is_slice: NDArray[np.bool_]


class HeadTable(dict[tuple[Any, ...], int]):
    """Kinds of events -> their numbers; kind `k` has the heads 2 k and, with its arguments, 2 k + 1.

    The key of a kind is what its events have in `KEY`; `place` returns the new name, pid and tid of a key,
    and its role as an anchor. Kind 0 is for all that have no head: metadata, and what comes when the heads
    have `limit` bytes.
    """

    def __init__(self, place: Callable[[tuple[Any, ...]], tuple[Any, int, int, int]], limit: int) -> None:
        self._place = place
        self._left = limit
        self._plain: list[bytes] = [b""]
        self._heads = [_ANY, _ANY]
        self.args: list[msgspec.Raw] = [msgspec.Raw(b"")]
        self._flags: list[tuple[bool, bool, int]] = [(False, False, 0)]
        self._columns = (np.zeros(1, np.bool_), np.zeros(1, np.bool_), np.zeros(1, np.int64))

    def __missing__(self, key: tuple[Any, ...]) -> int:
        phase = key[0]
        if phase is None or phase == "M":
            self[key] = 0
            return 0
        if self.is_full:
            return 0
        name, pid, tid, role = self._place(key)
        new = dict(zip(KEY, key, strict=True)) | {"name": name, "pid": pid, "tid": tid}
        text = _ENCODE({member: value for member, value in new.items() if value is not None})[:-1]
        number = self[key] = len(self.args)
        self._plain.append(text)
        self._heads += (b"},\n" + text + b',"ts":', b"")
        self.args.append(msgspec.Raw(b""))
        self._flags.append((phase == "X", phase in OWN_SCOPE, role))
        self._left -= 2 * len(text) + 200
        return number

    @property
    def is_full(self) -> bool:
        """Whether kinds that are not known get no number any more."""
        return self._left <= 0

    def set_args(self, number: int, args: bytes) -> None:
        """Give kind `number` the arguments that its second head is to hold."""
        self.args[number] = msgspec.Raw(args)
        member = b',"args":' + packed(args) if args else b""
        self._heads[2 * number + 1] = b"},\n" + self._plain[number] + member + b',"ts":'
        self._left -= 2 * len(args)

    def columns(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_], Int64]:
        """Return for each kind (n,) whether it is a slice, has ids of its process alone, and its role."""
        if len(self._columns[0]) < len(self._flags):
            slices, own, roles = zip(*self._flags, strict=True)
            self._columns = np.array(slices), np.array(own), np.array(roles, np.int64)
        return self._columns

    def heads(self) -> Heads:
        """Return all heads."""
        return Heads(self._heads, np.repeat(self.columns()[0], 2))


def packed(text: bytes) -> bytes:
    """Return JSON without the white space between its members."""
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:
        return text


def text_of(events: Events, heads: Heads) -> bytes:
    """Return events as JSON, each after the brace, comma and line end that separate it from the one before.

    The closing brace of the last one is left to what follows.
    """
    n = len(events)
    width = 4 if events.tails is None else 5
    parts: list[bytes] = [b""] * (width * n)
    parts[::width] = list(map(heads.texts.__getitem__, events.heads.tolist()))
    parts[1::width] = microseconds(events.ts)
    is_slice = heads.is_slice[events.heads]
    if is_slice.all():
        parts[2::width] = [b',"dur":'] * n
        parts[3::width] = microseconds(events.dur)
    elif is_slice.any():
        parts[2::width] = list(map(_BETWEEN.__getitem__, is_slice.tolist()))
        parts[3::width] = microseconds(events.dur)
        for i in np.flatnonzero(~is_slice).tolist():
            parts[width * i + 3] = b""
    if events.tails is not None:
        parts[4::width] = events.tails
    return b"".join(parts)


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
    return list(map(_exact, ns.tolist()))


def _exact(ns: int) -> bytes:
    sign = b"-" if ns < 0 else b""
    whole, rest = divmod(abs(ns), 1000)
    return sign + (b"%d.%03d" % (whole, rest) if rest else b"%d" % whole)


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
        starts, durations = (times_ns(map(getter, events), n, IntEvent) for getter in _TIMES)
        return starts, durations, (durations >= 0) & (durations <= LONGEST_NS)
    starts_us, us = (np.fromiter(map(getter, events), np.float64, n) for getter in _TIMES)
    starts, durations = floats_to_ns(starts_us), floats_to_ns(us)
    is_exact = (durations >= 0) & (durations <= LONGEST_NS) & (durations / 1000 == us)
    return starts, durations, is_exact


def _text(value: Any) -> Any:
    """Return the text of a time: as it is, or of the number that it was decoded to."""
    return value if isinstance(value, msgspec.Raw) else b"" if value is None else str(value).encode()
