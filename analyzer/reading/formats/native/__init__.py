"""The functions in C, `scan.c` and `simulate.c`, built by the machine's compiler on first use and kept.

They are optional: without a compiler, Python decodes files and simulates steps with the same result.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from weakref import finalize
from zlib import crc32

import numpy as np

from analyzer.base import parallel
from analyzer.base.errors import one_line
from analyzer.base.outputs.atomic import temporary_directory
from analyzer.reading.formats.builder import Scanned

_FOLDER = Path(__file__).parent
_SOURCES = [_FOLDER / "scan.c", _FOLDER / "simulate.c"]
_FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC")
_BUILD_SECONDS = 60.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE, _KEPT = 2 << 20, 6 << 20  # bytes: more than any piece of a file; a few pieces
_WORTH_BUILDING, _WORTH_LOADING = 32 << 20, 256 << 10  # bytes of input


def is_worth(n_bytes: int) -> bool:
    """Check whether the library pays for inputs of `n_bytes` (unpacked); ``ANALYZE_NATIVE=0|1`` overrides."""
    wish = os.environ.get("ANALYZE_NATIVE", "")
    if wish in ("0", "1"):
        return wish == "1"
    if library.cache_info().currsize:
        return library() is not None
    kept = _kept_library() if n_bytes >= _WORTH_LOADING else None
    return n_bytes >= _WORTH_BUILDING or (kept is not None and kept.exists())


@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the library, or build it; None if that fails."""
    kept = _kept_library()
    try:
        with contextlib.suppress(OSError):  # missing or damaged
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
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _kept_library() -> Path | None:
    """Path of the library for these sources, compiler and machine, in a private directory of the user."""
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

    Returning and fetching memory for each piece of a file would take a quarter of the time.
    """
    pointer, size, flag, number = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_bool, ctypes.c_int64
    loaded.new_scanner.argtypes, loaded.new_scanner.restype = (ctypes.c_char_p, size, flag), pointer
    loaded.free_scanner.argtypes, loaded.free_scanner.restype = (pointer,), None
    loaded.scan_events.argtypes = (pointer, pointer, size, pointer, pointer)
    loaded.scan_events.restype = ctypes.c_int
    loaded.run.argtypes, loaded.run.restype = (pointer,), number
    with contextlib.suppress(OSError, AttributeError):  # not on this system
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)  # larger blocks are returned at once
        set_option(_M_TRIM_THRESHOLD, _KEPT)
    return loaded


_MOST = 1 << 14  # events of one call
_SLACK = 64  # bytes that the scanner may write beyond a text's end


class _Columns(ctypes.Structure):
    """`columns` of scan.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("most", "n")),
        *((name, ctypes.c_void_p) for name in ("key", "ts_ns", "dur_ns")),
        *((name, ctypes.c_int64) for name in ("n_args", "args_size", "ids_size", "new_size")),
        *((name, ctypes.c_void_p) for name in ("args_row", "args", "ids", "new_keys")),
    )


def scanner(
    library: ctypes.CDLL, wanted: Collection[str] = (), points: bool = False
) -> Callable[[bytes, int], tuple[int, int, Scanned]]:
    """Make the function that scans the events of one file, with the keys so far and buffers for one call.

    It scans from a byte on, and returns the reason to stop, the offset, and the events before. `wanted` are
    keys of the events' `args` (``input*``: all that begin so); `points`: find the ids of other events.
    """
    names = b"".join(name.encode("utf-8", "replace") + b"\0" for name in wanted)
    state: int | None = library.new_scanner(names, len(names), points)
    if not state:
        raise MemoryError
    out, stop = _Columns(most=_MOST), ctypes.c_uint64()
    key, args_row = np.empty(_MOST, np.int32), np.empty(_MOST, np.int32)
    ts_ns, dur_ns = np.empty(_MOST, np.int64), np.empty(_MOST, np.int64)
    out.key, out.args_row = key.ctypes.data, args_row.ctypes.data
    out.ts_ns, out.dur_ns = ts_ns.ctypes.data, dur_ns.ctypes.data
    has_texts = bool(wanted) or points
    args = ids = np.empty(_SLACK, np.uint8)
    out.args = out.ids = args.ctypes.data

    def scan(data: bytes, position: int) -> tuple[int, int, Scanned]:
        nonlocal args, ids
        if has_texts and len(args) < len(data) + _SLACK:
            args, ids = (np.empty(len(data) * 5 // 4 + _SLACK, np.uint8) for _ in range(2))
            out.args, out.ids = args.ctypes.data, ids.ctypes.data
        stop.value = position
        text = np.frombuffer(data, np.uint8)
        why = library.scan_events(state, text.ctypes.data, len(data), ctypes.byref(stop), ctypes.byref(out))
        n = out.n
        scanned = Scanned(
            new_keys=ctypes.string_at(out.new_keys, out.new_size) if out.new_size else b"",
            key=key[:n],
            ts_ns=ts_ns[:n],
            dur_ns=dur_ns[:n],
            args_row=args_row[: out.n_args],
            args=args[: out.args_size].tobytes(),
            ids=ids[: out.ids_size].tobytes(),
        )
        return why, stop.value, scanned

    finalize(scan, library.free_scanner, state)
    return scan
