"""The mark by which this program knows the files that it wrote, so that it replaces no others.

Each format carries it where its readers do not mind: a first member of JSON, a comment, a picture's or a
workbook's property.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

from inputs import opened

PROGRAM = "analyze.py"
#: A comment, or the value of a property that names the program.
MARK = f"written by {PROGRAM}"
#: The first member of a JSON object.
MEMBER = "writtenBy"
JSON_START = f'{{"{MEMBER}":"{PROGRAM}",'.encode()
#: The beginning of a job's digest; its version follows.
DIGEST_START = JSON_START + b'"digest":'

#: Beginnings of the formats that carry the mark near their beginning or, the last one, near their end.
_COMMENTED = (b"<!doctype html>", b"<?xml", b"\x89PNG", b"digraph {")
_PDF = b"%PDF"
_NEAR = 4096  # bytes of a file's beginning, and of its end


def is_marked(path: Path) -> bool:
    """Whether this program wrote the regular file `path`; False for what cannot be read."""
    try:
        with opened(path) as file:
            head = _head(file)
            if head.startswith(b"PK\x03\x04"):
                return _is_our_workbook(file)
            if head.startswith(_PDF):
                file.seek(max(0, path.stat().st_size - _NEAR))
                return MARK.encode() in file.read()
            return _is_marked_head(head)
    except OSError:
        return False


def is_digest(path: Path) -> bool:
    """Whether the file `path`, packed or not, is a job's digest; False for anything that is not a file."""
    try:
        with opened(path) as file:
            return _head(file).startswith(DIGEST_START)
    except OSError:
        return False


def _head(file: IO[bytes]) -> bytes:
    head = file.read(_NEAR)
    if not head.startswith(b"\x1f\x8b"):
        return head
    import zlib

    try:
        return zlib.decompressobj(wbits=31).decompress(head, _NEAR)
    except zlib.error:
        return b""


def _is_marked_head(head: bytes) -> bool:
    return head.startswith(JSON_START) or (head.startswith(_COMMENTED) and MARK.encode() in head)


def _is_our_workbook(file: IO[bytes]) -> bool:
    """Whether this program was the last to save a workbook: one that people have edited is theirs."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(file) as packed:
            core = packed.open("docProps/core.xml").read(_NEAR)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        return False
    return f"<cp:lastModifiedBy>{MARK}<".encode() in core
