"""The text of an event as times, head and tail; heads, which recur, are rewritten once.

The text of an event is its time, its duration, its head (kind, name, category, process, thread, and arguments
where these recur, too), and its tail (an id, other arguments). Heads are numbered by source; head 0 is empty,
for events whose tail holds all. The text depends on the event alone, not on how it was decoded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import CDLL
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np

from arrays import Int32, Int64, NDArray
from combine.external_sort import Events, text_starts
from formats.event import UNDECODABLE
from formats.native.rewriter import written
from formats.times import FLOAT_LIMIT_US, to_ns
from formats.times import microseconds as exact_us
from formats.values import cleaned_scalar
from formats.whole import ARGUMENTS, ExactWholeEvent, WholeEvent

BEFORE = b'},\n{"ts":'
DURATION = b',"dur":'
_BETWEEN = (b"", DURATION)
_ENCODE = msgspec.json.Encoder().encode
LONGEST_WRITTEN_NS = 10**18
_UNTIMED = tuple(name for name in WholeEvent.__struct_fields__ if name not in ("ts", "dur"))

KEPT, LEFT_OUT, DROPPED = range(3)  # what becomes of events of a kind; of the last, a count
NO_ROLE = 0  # of events by which no clocks are compared


class Heads:
    """Texts (n) of heads, and whether their events have a duration (n,)."""

    def __init__(self, texts: Sequence[bytes], is_slice: NDArray[np.bool_]) -> None:
        self.texts = texts
        self.is_slice = is_slice
        self._laid_out: tuple[bytes, Int64, Int32] | None = None

    def laid_out(self) -> tuple[bytes, Int64, Int32]:
        """Return the texts one after another, and where each begins and how long it is."""
        if self._laid_out is None:
            lengths = np.fromiter(map(len, self.texts), np.int32, len(self.texts))
            self._laid_out = b"".join(self.texts), text_starts(lengths), lengths
        return self._laid_out


class Placed(NamedTuple):
    """How the events of one name, category, process and thread are rewritten."""

    name: Any
    pid: int
    tid: int
    role: int  # as anchors
    fate: int
    is_front: bool  # whether they show the thread that is shown first


_NOWHERE = Placed(None, 0, 0, NO_ROLE, LEFT_OUT, False)


class HeadTable:
    """The heads of the kinds of events that the scanner in C numbers: kind k has head k + 1.

    `place` returns how events of a name, category, pid and tid are rewritten; `write` the text of arguments.
    """

    def __init__(self, place: Callable[..., Placed], write: Callable[[bytes], bytes]) -> None:
        self._place, self._write = place, write
        self.kinds = [WholeEvent()]  # an event of each head as it was read
        self._args = [b""]
        self._texts = [b""]
        self.placed = [_NOWHERE._replace(fate=KEPT)]  # by head
        self._columns: tuple[NDArray[Any], ...] = ()

    def extend(self, keys: Iterable[Sequence[Any]]) -> None:
        """Add the heads of further kinds; their keys are as of `ScannedWhole`."""
        for ph, name, cat, pid, tid, bp, s, *args in keys:  # as `KEY` has them
            self.kinds.append(WholeEvent(ph, name, cat, pid, tid, bp=bp, s=s))
            self._args.append(b"".join(ARGUMENTS + self._write(text) for text in args if text))
            self._texts.append(b"")
            self.placed.append(_NOWHERE)
            self._place_head(len(self._texts) - 1)

    def place_again(self, pid: Any) -> None:
        """Place the kinds of a process anew: what becomes of their events may have changed."""
        for number, kind in enumerate(self.kinds[1:], 1):
            if kind.pid == pid:
                self._place_head(number)

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return for each head (n,) whether its events are slices, and their role, fate and `is_front`."""
        if not self._columns:
            *_, role, fate, is_front = zip(*self.placed, strict=True)
            is_slice = np.array([kind.ph == "X" for kind in self.kinds])
            self._columns = is_slice, np.array(role), np.array(fate, np.int8), np.array(is_front)
        return self._columns

    def heads(self) -> Heads:
        """Return all heads."""
        return Heads(self._texts, self.columns()[0])

    def _place_head(self, number: int) -> None:
        kind = self.kinds[number]
        placed = self._place(kind.name, kind.cat, kind.pid, kind.tid)
        if placed.fate == KEPT:  # else no event has it, or only events before this one
            event = WholeEvent(kind.ph, placed.name, kind.cat, placed.pid, placed.tid, bp=kind.bp, s=kind.s)
            self._texts[number] = member(_ENCODE(event)) + self._args[number]
        self.placed[number] = placed
        self._columns = ()


def member(text: bytes) -> bytes:
    """Return the members of a JSON object, after a comma if there are any."""
    return b"," + text[1:-1] if len(text) > 2 else b""


def packed(text: bytes) -> bytes:
    """Return JSON without the white space between its members."""
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError:
        return text


def text_of(events: Events, heads: Heads, library: CDLL | None = None) -> Iterator[bytes | memoryview]:
    """Yield events as JSON, each after the brace, comma and line end that separate it from the one before.

    The closing brace of the last one is left to what follows. A view is valid until the next one is yielded.
    """
    if library is not None:
        tails = events.text, events.at, events.lengths
        yield from written(
            library, (events.ts, events.dur), events.heads, tails, heads.laid_out(), heads.is_slice
        )
        return
    has_tails = bool(events.lengths.any())
    width = 5 + has_tails
    parts: list[bytes] = [BEFORE] * (width * len(events))
    parts[1::width] = microseconds(events.ts)
    is_slice = heads.is_slice[events.heads]
    parts[3::width] = microseconds(events.dur)
    if is_slice.all():
        parts[2::width] = [DURATION] * len(events)
    else:
        parts[2::width] = list(map(_BETWEEN.__getitem__, is_slice.tolist()))
        for i in np.flatnonzero(~is_slice).tolist():
            parts[width * i + 3] = b""
    parts[4::width] = list(map(heads.texts.__getitem__, events.heads.tolist()))
    if has_tails:
        parts[5::width] = events.tails()
    yield b"".join(parts)


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
