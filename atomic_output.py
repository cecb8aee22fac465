"""Whole or not at all: output files appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from errors import OutputError


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[IO[bytes]]:
    """Open `path` for writing bytes; it appears, complete, when the block ends without an error.

    The bytes go to a temporary file beside `path` that is renamed at the end and removed on any
    error; a name that ends in ``.gz`` is compressed. An existing file keeps its mode. What is no
    regular file (``/dev/stdout``, a pipe) is written as it is; of a link, the target is replaced.

    Raises
    ------
    OutputError
        The directory does not exist or is not writable, or the disk is full.
    """
    try:
        path = path.resolve() if path.is_symlink() else path
        if path.exists() and not path.is_file() and not path.is_dir():
            with open(path, "wb") as device:
                yield device
            return
        with _temporary(path) as temporary:
            with open(temporary, "wb") as raw:
                if path.suffix == ".gz":
                    with _gzip_writer(raw) as packed:
                        yield packed
                else:
                    yield raw
            os.chmod(temporary, _mode(path))
            os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[str]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _mode(path: Path) -> int:
    """Permission bits for a new `path`: those of the file it replaces, else what the umask leaves."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def _gzip_writer(raw: IO[bytes]) -> IO[bytes]:
    """Return a gzip stream over `raw`, by `isal` where it is installed (several times faster).

    It names no file and no time, so that the same content makes the same bytes.
    """
    try:
        from isal import igzip

        packed = igzip.GzipFile("", "wb", 2, raw, mtime=0)  # type: ignore[no-untyped-call]
        return cast("IO[bytes]", packed)
    except ImportError:
        import gzip

        return cast("IO[bytes]", gzip.GzipFile("", "wb", 6, raw, mtime=0))
