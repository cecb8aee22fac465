"""The functions in C, `scan.c` and `simulate.c`: built by the machine's compiler on first use, and kept.

Nothing depends on them. Without a compiler files are decoded and steps simulated in Python, with the same
result.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any
from weakref import finalize
from zlib import crc32

import numpy as np

from analyzer.base import parallel
from analyzer.base.arrays import NDArray
from analyzer.base.errors import one_line
from analyzer.base.outputs.atomic import temporary_directory
from analyzer.reading.formats.builder import Scanned

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / "scan.c", _FOLDER / "simulate.c"]
_FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC")
_BUILD_SECONDS = 60.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE, _KEPT = 2 << 20, 6 << 20  # bytes: larger than any piece of a file; a few pieces
_WORTH_BUILDING, _WORTH_LOADING = 32 << 20, 256 << 10  # bytes of input from which that pays


def is_worth(n_bytes: int) -> bool:
    """Whether inputs of `n_bytes` in all (unpacked) are for the library; ``ANALYZE_NATIVE=0|1`` overrules."""
    wish = os.environ.get("ANALYZE_NATIVE", "")
    if wish in ("0", "1"):
        return wish == "1"
    if library.cache_info().currsize:
        return library() is not None
    kept = _kept_library() if n_bytes >= _WORTH_LOADING else None
    return n_bytes >= _WORTH_BUILDING or (kept is not None and kept.exists())


@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the library, which is built if need be; None where that fails."""
    kept = _kept_library()
    try:
        with contextlib.suppress(OSError):  # missing, or damaged: built anew
            return _declared(ctypes.CDLL(str(kept)))
        return _built(kept)
    except (OSError, ValueError, AttributeError, RuntimeError) as error:
        logging.info("the functions in C are not used, so large inputs take longer: %s", one_line(str(error)))
        return None


def _built(keep_as: Path | None) -> ctypes.CDLL:
    with temporary_directory(keep_as) as directory:
        made = directory / "library.so"
        command = [*_compiler(), *_FLAGS, "-o", str(made), *map(str, _SOURCES)]
        parallel.run_program(command, _BUILD_SECONDS)
        loaded = _declared(ctypes.CDLL(str(made)))
        if keep_as is not None:
            made.chmod(0o700)
            os.replace(made, keep_as)
        return loaded


def _compiler() -> list[str]:
    """Command of the C compiler."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _kept_library() -> Path | None:
    """Path of the library for these sources, compiler and machine, in a directory of the user alone."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "analyze"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        sources = b"".join(path.read_bytes() for path in _SOURCES)
    except OSError:
        return None
    if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not os.access(directory, os.W_OK):
        return None
    what = repr((_FLAGS, _compiler(), platform.platform())).encode()
    return directory / f"scan-{crc32(sources):08x}{crc32(what):08x}.so"


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Set the types of the library's functions, and let glibc keep some free memory.

    Handing it back and fetching it for each piece of a file would be a quarter of the time.
    """
    pointer, size, flag, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_bool, ctypes.c_int64
    loaded.new_scanner.argtypes, loaded.new_scanner.restype = (ctypes.c_char_p, size, flag), pointer
    loaded.free_scanner.argtypes, loaded.free_scanner.restype = (pointer,), None
    loaded.scan_events.argtypes = (pointer, pointer, size, pointer, pointer, flag)
    loaded.scan_events.restype = ctypes.c_int
    loaded.run.argtypes, loaded.run.restype = (pointer,), number
    with contextlib.suppress(OSError, AttributeError):  # not on this system
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)  # larger blocks go back at once, as before
        set_option(_M_TRIM_THRESHOLD, _KEPT)
    return loaded


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
