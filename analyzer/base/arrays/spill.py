"""Arrays moved to a temporary file, so that memory holds only those in use."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
from collections.abc import Sequence
from io import FileIO
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import NDArray

_T = TypeVar("_T", bound=Struct)
_IN_MEMORY = 32 << 20  # bytes that stay in memory: most jobs need no more
_LEAST = 1 << 12  # bytes; smaller arrays stay in memory
_ALIGNED = 8  # bytes, of arrays in the file
_PIECE = 64 << 20  # bytes of a mapped piece of the file, and bytes to read before memory is given back


def _own_bytes(array: Any) -> int:
    """Count the bytes of an array that are not in the file yet, as itself or as the base of a view."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    return 0 if isinstance(base, mmap.mmap) else int(array.nbytes)


def _write(file: FileIO, array: NDArray[Any]) -> None:
    """Write an array; a file without a buffer may write a part at a time."""
    rest = np.ascontiguousarray(array).data.cast("B")
    while rest:
        rest = rest[file.write(rest) :]


class Spill:
    """A temporary file for arrays beyond the first `_IN_MEMORY` bytes.

    Its arrays are read-only: they are pages of the file, whose memory the system can reclaim. If the disk is
    full, arrays stay in memory.
    """

    def __init__(self) -> None:
        self._left: float = _IN_MEMORY
        self._file: FileIO | None = None
        self._pieces: list[mmap.mmap] = []
        self._begin = self._used = 0  # of the last piece: its offset, and its used bytes
        self._looked_at = 0

    def put(self, record: _T, other: _T | None = None) -> _T:
        """Move a record's arrays to the file, except arrays of one repeated number and those of `other`."""
        names, arrays = [], []
        for name in record.__struct_fields__:
            value = getattr(record, name)
            is_new = other is None or getattr(other, name) is not value
            if is_new and isinstance(value, np.ndarray) and 0 not in value.strides:
                names.append(name)
                arrays.append(value)
        aside = self.put_arrays(arrays)
        return record if aside is arrays else replace(record, **dict(zip(names, aside, strict=True)))

    def put_arrays(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Move arrays to the file together; return `arrays` itself if they stay in memory."""
        n_bytes = sum(map(_own_bytes, arrays))
        self._left -= n_bytes
        if self._left >= 0 or n_bytes <= _LEAST:
            return arrays
        try:
            return self._put(arrays, n_bytes)
        except OSError:  # no room, or no temporary files
            self._left = float("inf")
            return arrays

    def look_at(self, n_bytes: int) -> None:
        """Count the bytes to be read next; give memory back after each `_PIECE`."""
        self._looked_at += n_bytes
        if self._looked_at >= _PIECE:
            self._looked_at = n_bytes
            for piece in self._pieces if hasattr(mmap, "MADV_DONTNEED") else ():
                piece.madvise(mmap.MADV_DONTNEED)
            with contextlib.suppress(OSError, TypeError, AttributeError):  # where the C library is another
                ctypes.CDLL(None).malloc_trim(0)

    def _put(self, arrays: Sequence[Any], n_bytes: int) -> list[Any]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        offset = self._offset_for(n_bytes + _ALIGNED * len(arrays))
        self._file.seek(self._begin + offset)
        aside = []
        for array in arrays:
            if _own_bytes(array):
                _write(self._file, array)
                self._file.seek(-array.nbytes % _ALIGNED, os.SEEK_CUR)
                array = np.ndarray(array.shape, array.dtype, self._pieces[-1], offset)
                offset += array.nbytes + -array.nbytes % _ALIGNED
            aside.append(array)
        self._used = offset
        return aside

    def _offset_for(self, n_bytes: int) -> int:
        """Make room for `n_bytes` in the last piece or a new piece; return their offset in it."""
        assert self._file is not None
        if not self._pieces or self._used + n_bytes > len(self._pieces[-1]):
            self._begin += len(self._pieces[-1]) if self._pieces else 0
            size = max(_PIECE, n_bytes + -n_bytes % mmap.ALLOCATIONGRANULARITY)
            self._file.truncate(self._begin + size)
            piece = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ, offset=self._begin)
            self._pieces.append(piece)
            self._used = 0
        return self._used
