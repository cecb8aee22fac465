"""The mark of JSON files that this program wrote: their first member. Such files may be replaced."""

from __future__ import annotations

import zlib
from pathlib import Path

from analyzer.base.inputs import opened

PROGRAM = "analyze.py"
#: The first member of a JSON object.
MEMBER = "writtenBy"
JSON_START = f'{{"{MEMBER}":"{PROGRAM}",'.encode()
#: The beginning of a job's digest; its version follows.
DIGEST_START = JSON_START + b'"digest":'

_NEAR = 4096  # bytes of a file's beginning


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
