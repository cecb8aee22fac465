"""What recurs of events, rewritten once: the heads of their texts.

The text of an event is its head (kind, name, category, process, thread, and arguments where these recur,
too), its times, and its tail (other arguments, an id). Heads are numbered by source; head 0 belongs to
events whose tail is their whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from combine.external_sort import Events, Int64
from combine.unique_ids import OWN_SCOPE

_ANY = b'},\n{"ts":'
_BETWEEN = (b"", b',"dur":')
_ENCODE = msgspec.json.Encoder().encode
_EXACT_US = 1 << 43  # below this, float64 are closer to one another than a nanosecond


@dataclass(frozen=True, slots=True)
class Heads:
    """Texts (n) of heads, each after the end of the event before, and whether a duration follows (n,)."""

    texts: Sequence[bytes]
    is_slice: NDArray[np.bool_]


def joined_heads(parts: Sequence[Heads]) -> Heads:
    """Return the heads of all sources as one table."""
    texts = [text for part in parts for text in part.texts]
    return Heads(texts, np.concatenate([part.is_slice for part in parts]))


class HeadTable(dict[tuple[Any, ...], int]):
    """Kinds of events -> their numbers; kind `k` has the heads 2 k and, with its arguments, 2 k + 1.

    The key of a kind is its (ph, name, cat, pid, tid, bp, s). Kind 0 is for all that have no head:
    metadata, and what comes when the heads have `limit` bytes.

    Parameters
    ----------
    place : returns the new name, pid and tid of a key, and its role as an anchor
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
        members = {
            "ph": phase,
            "name": name,
            "cat": key[2],
            "pid": pid,
            "tid": tid,
            "bp": key[5],
            "s": key[6],
        }
        text = _ENCODE({name: value for name, value in members.items() if value is not None})[:-1]
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
    if max(abs(int(whole.min())), abs(int(whole.max()))) < _EXACT_US - 1:
        # the shortest text of the nearest float64 is the decimal number itself
        text = _ENCODE((ns / 1000).tolist())[1:-1] + b","
        return text.replace(b".0,", b",")[:-1].split(b",")
    return list(map(_exact, ns.tolist()))


def _exact(ns: int) -> bytes:
    sign = b"-" if ns < 0 else b""
    whole, rest = divmod(abs(ns), 1000)
    return sign + (b"%d.%03d" % (whole, rest) if rest else b"%d" % whole)
