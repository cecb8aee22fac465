"""Arrays that are put aside in a temporary file, so that memory holds only those that are looked at."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from typing import IO, Any, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

_T = TypeVar("_T", bound=Struct)
_IN_MEMORY = 64 << 20  # bytes that stay in memory: most jobs have no more
_LEAST = 1 << 12  # bytes that are worth their place in the file
_PIECE = 64 << 20  # bytes of the file that are mapped together, and that may be looked at until let go


class Spill:
    """A file without a name that takes what many arrays need beyond the first `_IN_MEMORY` bytes.

    What is put there can be read as before, but not changed. The system reads it from the file's pages in
    its cache, which it can take back. Where the file finds no room, arrays stay in memory.
    """

    def __init__(self) -> None:
        self._left: float = _IN_MEMORY
        self._file: IO[bytes] | None = None
        self._pieces: list[mmap.mmap] = []
        self._begin = self._end = self._used = 0  # of the last piece, in the file
        self._looked_at = 0

    def put(self, record: _T) -> _T:
        """Return a record whose arrays are put aside; those that already are, or repeat one number, stay."""
        names, arrays = [], []
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, np.ndarray) and 0 not in value.strides:
                names.append(name)
                arrays.append(value)
        aside = self.put_arrays(arrays)
        return record if aside is arrays else replace(record, **dict(zip(names, aside, strict=True)))

    def put_arrays(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return arrays that are put aside together; the same ones where they stay in memory."""
        n_bytes = sum(map(self._own_bytes, arrays))
        self._left -= n_bytes
        if self._left >= 0 or n_bytes <= _LEAST:
            return arrays
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
            aside = [self._put(one, self._file) if self._own_bytes(one) else one for one in arrays]
            self._file.flush()
        except OSError:  # no room, or no temporary files
            self._left = float("inf")
            return arrays
        return aside

    @staticmethod
    def _own_bytes(array: Any) -> int:
        """Return how many bytes of an array are not put aside yet."""
        return 0 if isinstance(array.base, mmap.mmap) else int(array.nbytes)

    def look_at(self, n_bytes: int) -> None:
        """Know that so many bytes are about to be looked at; let go of what was, where that is much."""
        self._looked_at += n_bytes
        if self._looked_at >= _PIECE and hasattr(mmap, "MADV_DONTNEED"):
            self._looked_at = n_bytes
            for piece in self._pieces:
                piece.madvise(mmap.MADV_DONTNEED)

    def _put(self, array: Any, file: IO[bytes]) -> Any:
        self._used += -self._used % array.itemsize
        if self._used + array.nbytes > self._end:
            unit = mmap.ALLOCATIONGRANULARITY
            size = max(_PIECE, array.nbytes + -array.nbytes % unit)
            file.truncate(self._end + size)
            piece = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=self._end)
            self._pieces.append(piece)
            self._begin = self._used = self._end
            self._end += size
        file.seek(self._used)
        file.write(np.ascontiguousarray(array).data)
        at = self._used - self._begin
        self._used += array.nbytes
        return np.ndarray(array.shape, array.dtype, self._pieces[-1], at)
