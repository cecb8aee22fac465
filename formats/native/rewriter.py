"""Whole events by the functions in C (`rewrite.c`): taken apart, and put together again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arrays import Int32, Int64, NDArray
from formats.native import scanner
from formats.whole import KEY

_SLACK = 64  # bytes that a rewriter may write beyond a text's end
_NO_IDS = -1
_BESIDE = 64  # bytes of an event beside its head and its tail, at most; as in rewrite.c
_WRITTEN = 1 << 19  # bytes of events that are written at a time
_EQUAL, _NO_ORDER = 1, 2  # as in rewrite.c


class ScannedWhole(Struct, frozen=True):
    """The events that one call found; the arrays are valid until the next call.

    Attributes
    ----------
    new_keys : what events have in `KEY`, and their arguments as JSON where these are part of the key, for
        each key that is new; the scanner numbers keys from 0
    key, ts_ns, dur_ns : (n,) the numbers of the events' keys, and their times; no duration is -1
    lengths : (n,) of the events' tails, `text`: ids and arguments as members, each after its comma
    """

    new_keys: list[tuple[Any, ...]]
    key: Int32
    ts_ns: Int64
    dur_ns: Int64
    lengths: Int32
    text: bytes


class _Rewritten(ctypes.Structure):
    """`rewritten` of rewrite.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("most", "n")),
        *((name, ctypes.c_void_p) for name in ("key", "ts_ns", "dur_ns", "lengths")),
        *((name, ctypes.c_int64) for name in ("tails_size", "new_size")),
        *((name, ctypes.c_void_p) for name in ("tails", "new_keys")),
    )


class _Place(ctypes.Structure):
    """`place` of rewrite.c."""

    _fields_ = (("ids_from", ctypes.c_int64), ("args_are_key", ctypes.c_bool))


class _Texts(ctypes.Structure):
    """`texts` of rewrite.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("text", "at", "lengths"))


class WholeScanner:
    """The state of the scan of one file, as `formats.native.scanner.Scanner`.

    Parameters
    ----------
    library : from `formats.native.library`
    ids_from : what is added to ids that are numbers; None where events with ids are left to Python
    most_keys : bytes of keys that are kept; afterwards events with new ones are left to Python
    args_are_key : whether arguments recur

    Raises
    ------
    MemoryError
        There is no memory for it.
    """

    def __init__(
        self, library: ctypes.CDLL, ids_from: int | None, most_keys: int, *, args_are_key: bool
    ) -> None:
        self._rewrite = library.rewrite_events
        self._state = scanner.new_state(self, library)
        self._place = _Place(_NO_IDS if ids_from is None else ids_from, args_are_key)
        self._most_keys = most_keys
        fields: Any = (*[Any] * len(KEY), *[msgspec.Raw] * args_are_key)
        self._decode_keys = msgspec.json.Decoder(list[tuple[fields]]).decode
        self._out, self._at = _Rewritten(), ctypes.c_uint64()
        self._key, self._ts, self._dur, self._lengths = scanner.room(
            self._out, key=np.int32, ts_ns=np.int64, dur_ns=np.int64, lengths=np.int32
        )
        self._tails = np.empty(_SLACK, np.uint8)

    def scan(self, data: bytearray, at: int) -> tuple[int, int, ScannedWhole]:
        """Scan events from byte `at` on; return why it stopped, where, and what was found before."""
        if len(self._tails) < len(data) + _SLACK:
            self._tails = np.empty(len(data) * 5 // 4 + _SLACK, np.uint8)
            self._out.tails = self._tails.ctypes.data
        self._at.value = at
        text = np.frombuffer(data, np.uint8)
        out = self._out
        why = self._rewrite(
            *(self._state, text.ctypes.data, len(data), ctypes.byref(self._at), ctypes.byref(out)),
            *(ctypes.byref(self._place), self._most_keys, scanner.WITHOUT_AVX2),
        )
        n = out.n
        found = ScannedWhole(
            new_keys=self._new_keys(out),
            key=self._key[:n],
            ts_ns=self._ts[:n].copy(),
            dur_ns=self._dur[:n].copy(),
            lengths=self._lengths[:n].copy(),
            text=self._tails[: out.tails_size].tobytes(),
        )
        return why, self._at.value, found

    def _new_keys(self, out: _Rewritten) -> list[tuple[Any, ...]]:
        if not out.new_size:
            return []
        keys = self._decode_keys(b"[%b]" % ctypes.string_at(out.new_keys, out.new_size)[:-1])
        if not self._place.args_are_key:
            return keys
        return [(*key[:-1], b"" if bytes(key[-1]) == b"null" else bytes(key[-1])) for key in keys]


def gathered(library: ctypes.CDLL, text: bytes, at: Int64, lengths: Int32) -> memoryview:
    """Return parts (n,) of a text, one after another."""
    out = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
    parts, kept = _texts(text, at, lengths)
    library.gather_texts(len(at), ctypes.byref(parts), out.ctypes.data)
    del kept
    return out.data


Laid = tuple[bytes, Int64, Int32]  # texts (n): their bytes, where each begins, how long it is


def written(
    library: ctypes.CDLL,
    times: tuple[Int64, Int64],
    head: Int32,
    tails: Laid,
    heads: Laid,
    is_slice: NDArray[np.bool_],
) -> Iterator[memoryview]:
    """Yield the text of events (n,), as `combine.event_text.text_of` does; `times`: starts and durations.

    What is yielded is valid until the next part is.
    """
    n = len(head)
    if n and not 0 <= head.min() <= head.max() < len(is_slice):
        raise ValueError("there is no such head")
    (tail_texts, kept), (head_texts, kept_too) = _texts(*tails), _texts(*heads)
    columns = [np.ascontiguousarray(column) for column in (*times, head)]
    longest = _BESIDE + int(tails[2].max(initial=0)) + int(heads[2].max(initial=0))
    out = np.empty(max(_WRITTEN, longest), np.uint8)  # small enough to stay in the processor's cache
    at = ctypes.c_uint64()
    while at.value < n:
        size = library.write_events(
            *(ctypes.byref(at), n, *(column.ctypes.data for column in columns)),
            *(ctypes.byref(tail_texts), ctypes.byref(head_texts), is_slice.ctypes.data),
            *(out.ctypes.data, len(out)),
        )
        yield out[:size].data
    del kept, kept_too


def time_order(ts: Int64, library: ctypes.CDLL | None) -> tuple[Int64, bool]:
    """Return the order of times (n,), equal ones as they stand, and whether some may be equal."""
    if library is not None:
        ts, order = np.ascontiguousarray(ts), np.empty(len(ts), np.int64)
        why = library.order_times(len(ts), ts.ctypes.data, order.ctypes.data)
        if why != _NO_ORDER:
            return order, why == _EQUAL
    return np.argsort(ts, kind="stable"), True


def _texts(text: bytes, at: Int64, lengths: Int32) -> tuple[_Texts, object]:
    """Return parts (n,) of a text as C has them, and what must live as long as they."""
    if len(at) and not (at.min() >= 0 and int((at + lengths).max()) <= len(text) and lengths.min() >= 0):
        raise ValueError("a part lies outside of its text")
    kept = np.frombuffer(text, np.uint8), np.ascontiguousarray(at), np.ascontiguousarray(lengths)
    return _Texts(*(array.ctypes.data for array in kept)), kept
