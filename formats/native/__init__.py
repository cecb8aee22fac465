"""The functions in C, `scan.c` and others: built by the machine's compiler, and kept.

Nothing depends on it. Without a compiler, or where anything else is in the way, files are decoded and steps
simulated in Python with the same result; why is told at debug level only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import parallel
from errors import one_line
from outputs.atomic import temporary_directory

_FOLDER = Path(__file__).parent
_SOURCES = ("scan.c", "simulate.c")
_FLAGS = ("-std=c11", "-O3", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_BUILD_SECONDS = 60.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGE, _KEPT = 2 << 20, 6 << 20  # bytes: of no piece of a file; of a few
_WORTH_BUILDING, _WORTH_LOADING = 32 << 20, 256 << 10  # bytes of input from which that pays


def is_worth(n_bytes: int) -> bool:
    """Whether inputs of `n_bytes` in all (unpacked) are for the library; ``ANALYZE_NATIVE=0|1`` overrules.

    One that was built before pays for much less than one that is still to be built; one that is loaded for
    any.
    """
    wish = os.environ.get("ANALYZE_NATIVE", "")
    if wish in ("0", "1"):
        return wish == "1"
    if library.cache_info().currsize:
        return library() is not None
    return n_bytes >= _WORTH_BUILDING or (n_bytes >= _WORTH_LOADING and _is_kept())


def _is_kept() -> bool:
    directory = _own_directory()
    return directory is not None and any(
        (directory / _file_name(compiler)).exists() for compiler in _compilers()[:1]
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library in C, built if need be; None where that fails."""
    try:
        loaded = _load()
        _keep_memory()
        return loaded
    except Exception as error:  # whatever it is: all of it is there in Python
        logging.info(
            "the scanner in C is not used, so large inputs take several times longer: %s",
            one_line(str(error)),
        )
        return None


def _load() -> ctypes.CDLL:
    """Return the kept library of the first compiler that there is, or build one."""
    directory = _own_directory()
    failures = []
    for compiler in _compilers():
        kept = None if directory is None else directory / _file_name(compiler)
        if kept is not None and _is_own(kept, stat.S_ISREG):
            with contextlib.suppress(OSError):  # damaged: built anew
                return _declared(ctypes.CDLL(str(kept)))
        try:
            return _built(compiler, kept)
        except (OSError, ValueError, RuntimeError) as error:
            import shlex

            failures.append(f"{shlex.join(compiler)}: {error}")
    raise RuntimeError("; ".join(failures) or "no C compiler")


def _built(compiler: list[str], keep_as: Path | None) -> ctypes.CDLL:
    with temporary_directory(keep_as) as directory:
        made = directory / "scan.so"
        sources = [str(_FOLDER / name) for name in _SOURCES]
        parallel.run_program([*compiler, *_FLAGS, "-o", str(made), *sources], _BUILD_SECONDS)
        loaded = _declared(ctypes.CDLL(str(made)))
        if keep_as is not None:
            made.chmod(0o700)
            os.replace(made, keep_as)  # only what can be loaded is kept
        return loaded


def _compilers() -> list[list[str]]:
    """Return the commands of the compilers that are there, the user's own first."""
    import shlex
    import shutil

    commands = [shlex.split(os.environ.get("CC", "")), *([name] for name in _COMPILERS)]
    found = ((shutil.which(command[0]), command[1:]) for command in commands if command)
    return [[program, *options] for program, options in found if program is not None]


def _file_name(compiler: list[str]) -> str:
    """Return the library's file name: another one for other sources, flags, compilers and machines."""
    program = Path(compiler[0]).resolve()
    status = program.stat()
    machine = (platform.system(), platform.machine(), ctypes.sizeof(ctypes.c_void_p))
    what = (_SOURCES, _FLAGS, compiler, str(program), status.st_size, status.st_mtime_ns, machine)
    sources = b"".join(path.read_bytes() for path in sorted(_FOLDER.glob("*.c")))
    # not hashlib: loading OpenSSL takes 4 ms
    return f"scan-{crc32(sources):08x}{crc32(repr(what).encode()):08x}.so"


def _own_directory() -> Path | None:
    """Return where libraries are kept; None if that is not a directory of which the user alone is master."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = home / "analyze"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if _is_own(directory, stat.S_ISDIR) and os.access(directory, os.W_OK) else None


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _keep_memory() -> None:
    """Let glibc keep some MB that are free instead of handing them back and fetching them for each piece.

    That would be a quarter of the time. Where the C library has no such setting, nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, _LARGE)  # larger blocks go back at once, as before
        set_option(_M_TRIM_THRESHOLD, _KEPT)


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """Return the library with the types of its functions set."""
    pointer, size, flag = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_bool
    number = ctypes.c_int64
    loaded.new_scanner.argtypes = (ctypes.c_char_p, size, flag)
    loaded.new_scanner.restype = pointer
    loaded.free_scanner.argtypes = (pointer,)
    loaded.free_scanner.restype = None
    loaded.scan_events.argtypes = (pointer, pointer, size, pointer, pointer, flag)
    loaded.scan_events.restype = ctypes.c_int
    loaded.place_successors.argtypes = (number, *[pointer] * 4)
    loaded.place_successors.restype = None
    for run in (loaded.run_with_queues, loaded.run_without_queues):
        run.argtypes, run.restype = (pointer,), ctypes.c_int64
    return loaded
