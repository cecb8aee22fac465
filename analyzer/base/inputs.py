"""Opens and names input files, and explains why a file cannot be read."""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from analyzer.base.errors import PROGRAM, TraceError, missing

#: The first member of a JSON object.
MEMBER = "writtenBy"
JSON_START = f'{{"{MEMBER}":"{PROGRAM}",'.encode()
#: The beginning of a job's digest; its version follows.
DIGEST_START = JSON_START + b'"digest":'

_NEAR = 4096  # bytes of a file's beginning

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(?=[^/])")
_DIGITS = re.compile(r"(\d{1,18})")


def opened(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes; OSError for pipes and devices, which may never end."""
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
        return absent(path)
    if isinstance(error, PermissionError):
        return TraceError(f"{path}: may not be read (permission denied)")
    return TraceError(f"{path}: cannot be read: {error.strerror or error}")


def absent(path: Path) -> TraceError:
    """Make the error of a path that does not exist, or is the address of a remote file."""
    address = _ADDRESS.match(str(path))
    if address is None:
        return missing(path)
    url = f"{address[1]}://{str(path)[address.end() :]}"
    return TraceError(
        f"{url}: not a trace: an address, not a file; copy it here first (aws s3 cp, gcloud storage cp, "
        "curl -O)"
    )


def short_names(paths: Sequence[Path]) -> list[str]:
    """Name paths by their last parts, by as many as make the names unique.

    >>> short_names([Path("a/x/trace.json"), Path("a/y/trace.json")])
    ['x/trace.json', 'y/trace.json']
    """
    most = max((len(path.parts) for path in paths), default=1)
    for n_parts in range(1, most + 1):
        names = [str(Path(*path.parts[-n_parts:])) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return list(map(str, paths))


def natural(name: str) -> list[tuple[int, str]]:
    """Make a sort key by which ``worker_10`` comes after ``worker_9``."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]


def is_marked(path: Path) -> bool:
    """Check whether this program wrote the JSON file `path`, packed or not; False if it cannot be read."""
    return _starts_with(path, JSON_START)


def is_digest(path: Path) -> bool:
    """Check whether the file `path`, packed or not, is a job's digest; False if it cannot be read."""
    return _starts_with(path, DIGEST_START)


def _starts_with(path: Path, start: bytes) -> bool:
    try:
        with opened(path) as file:
            head = file.read(_NEAR)
        if head.startswith(b"\x1f\x8b"):
            head = zlib.decompressobj(wbits=31).decompress(head, _NEAR)
    except (OSError, zlib.error):
        return False
    return head.startswith(start)
