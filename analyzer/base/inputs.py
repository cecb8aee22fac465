"""The one way in which files that this program did not make are opened, and why that fails, in words."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from analyzer.base.errors import TraceError, missing

_DIGITS = re.compile(r"(\d{1,18})")


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes.

    OSError for all else: a pipe may keep its reader waiting for ever, and a device need not have an end.
    """
    file = open(path, "rb", opener=_open)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def unreadable(path: Path, error: OSError) -> TraceError:
    """Translate an error of the operating system into a line for the user."""
    if isinstance(error, FileNotFoundError):
        return missing(path)
    if isinstance(error, PermissionError):
        return TraceError(f"{path}: may not be read (permission denied)")
    return TraceError(f"{path}: cannot be read: {error.strerror or error}")


def natural(name: str) -> list[tuple[int, str]]:
    """Make a sort key by which ``worker_10`` comes after ``worker_9``."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]
