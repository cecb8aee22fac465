"""Databases that Nsight Systems exports; SQLite is loaded only where one is read."""

from __future__ import annotations

_HEAD = b"SQLite format 3\0"


def recognises(head: bytes) -> bool:
    """Whether a file that begins with `head` is a database of SQLite."""
    return head.startswith(_HEAD)
