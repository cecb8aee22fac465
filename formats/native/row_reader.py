"""The reader in C of rows of a step log."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from arrays import Float64

_MOST_NAMES = 256  # of members of objects, which are looked for one after the other
_BESIDE = 2  # bytes that a text may take beside its own


class _Layout(ctypes.Structure):
    """`layout` of rows.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "n_texts", "n_cells")),
        ("column", ctypes.c_void_p),
        ("names", ctypes.c_char_p),
        ("delimiter", ctypes.c_uint8),
    )


class RowReader:
    """Reads rows into columns called `names`, of which the last are of texts.

    Parameters
    ----------
    library : from `formats.native.library`
    header : the names of all cells of a line; none where lines are objects
    delimiter : between the cells
    """

    def __init__(
        self, library: ctypes.CDLL, names: Sequence[str], n_texts: int, header: Sequence[str], delimiter: str
    ) -> None:
        self._read, self._width, self._n_texts = library.read_rows, len(names), n_texts
        column_of = {name: column for column, name in enumerate(names)}
        self._column = np.array([column_of.get(name, -1) for name in header], np.int32)
        self._layout = _Layout(
            width=len(names),
            n_texts=n_texts,
            n_cells=len(header),
            column=self._column.ctypes.data,
            names=b"".join(name.encode() + b"\0" for name in names),
            delimiter=ord(delimiter or "\0"),
        )
        self._is_sure = bool(header) or (len(names) <= _MOST_NAMES and not {*'"\0'} & {*"".join(names)})

    def read(self, lines: bytes) -> tuple[Float64, list[str | None]] | None:
        """Return the numbers (rows, columns) and the texts, row by row; None where that is not plain enough.

        The columns of texts are not filled.
        """
        if not self._is_sure:
            return None
        most = 1 + int(np.count_nonzero(np.frombuffer(lines, np.uint8) == ord("\n")))
        table = np.empty((most, self._width))
        texts = np.empty((len(lines) + _BESIDE * most) * self._n_texts, np.uint8)
        size = ctypes.c_uint64()
        n = self._read(
            ctypes.byref(self._layout),
            lines,
            len(lines),
            most,
            table.ctypes.data,
            texts.ctypes.data,
            ctypes.byref(size),
        )
        if n < 0:
            return None
        if not self._n_texts:
            return table[:n], []
        cells = texts[: size.value].tobytes().decode("ascii").split("\n")[:-1]
        return table[:n], [None if cell == "\0" else cell for cell in cells]
