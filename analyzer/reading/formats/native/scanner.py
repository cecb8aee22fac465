"""The scanner in C of events of a chrome trace."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any
from weakref import finalize

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.reading.formats.builder import Scanned

_MOST = 1 << 14  # events of one call
WITHOUT_AVX2 = False  # do without AVX2, as on processors that have none
_SLACK = 64  # bytes that the scanner may write beyond a text's end


class _Columns(ctypes.Structure):
    """`columns` of scan.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("most", "n")),
        *((name, ctypes.c_void_p) for name in ("key", "ts_ns", "dur_ns")),
        *((name, ctypes.c_int64) for name in ("n_args", "args_size", "ids_size", "new_size")),
        *((name, ctypes.c_void_p) for name in ("args_row", "args", "ids", "new_keys")),
    )


class Scanner:
    """The state of the scan of one file: the keys seen so far, and room for what one call finds.

    Parameters
    ----------
    library : from `formats.native.library`
    wanted : keys of the events' `args`; ``input*`` means all that begin so
    points : find the ids of events that are not slices

    MemoryError where there is none for it.
    """

    def __init__(self, library: ctypes.CDLL, wanted: Collection[str] = (), points: bool = False) -> None:
        self._scan = library.scan_events
        names = b"".join(name.encode("utf-8", "replace") + b"\0" for name in wanted)
        self._state = new_state(self, library, names, points)
        self._out, self._at = _Columns(), ctypes.c_uint64()
        self._key, self._ts, self._dur, self._args_row = room(
            self._out, key=np.int32, ts_ns=np.int64, dur_ns=np.int64, args_row=np.int32
        )
        self._has_texts = bool(wanted) or points
        self._args = self._ids = np.empty(_SLACK, np.uint8)
        self._out.args = self._out.ids = self._args.ctypes.data

    def scan(self, data: bytes, at: int) -> tuple[int, int, Scanned]:
        """Scan events from byte `at` on; return why it stopped, where, and what was found before."""
        if self._has_texts and len(self._args) < len(data) + _SLACK:
            self._args, self._ids = (np.empty(len(data) * 5 // 4 + _SLACK, np.uint8) for _ in range(2))
            self._out.args, self._out.ids = self._args.ctypes.data, self._ids.ctypes.data
        self._at.value = at
        text = np.frombuffer(data, np.uint8)
        why = self._scan(
            self._state,
            text.ctypes.data,
            len(data),
            ctypes.byref(self._at),
            ctypes.byref(self._out),
            WITHOUT_AVX2,
        )
        out = self._out
        n = out.n
        found = Scanned(
            new_keys=ctypes.string_at(out.new_keys, out.new_size) if out.new_size else b"",
            key=self._key[:n],
            ts_ns=self._ts[:n],
            dur_ns=self._dur[:n],
            args_row=self._args_row[: out.n_args],
            args=self._args[: out.args_size].tobytes(),
            ids=self._ids[: out.ids_size].tobytes(),
        )
        return why, self._at.value, found


def room(out: Any, **kinds: type[np.generic]) -> list[NDArray[Any]]:
    """Return new arrays of some kinds for what one call finds; `out`, for C, gets their addresses."""
    arrays = [np.empty(_MOST, kind) for kind in kinds.values()]
    out.most = _MOST
    for name, array in zip(kinds, arrays, strict=True):
        setattr(out, name, array.ctypes.data)
    return arrays


def new_state(owner: object, library: ctypes.CDLL, names: bytes = b"", points: bool = False) -> int:
    """Return a new state in C, freed together with its `owner`. MemoryError as of `Scanner`."""
    state: int | None = library.new_scanner(names, len(names), points)
    if not state:
        raise MemoryError
    finalize(owner, library.free_scanner, state)
    return state
