"""Arrays of numbers: their types, and functions of them that know nothing of traces."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import numpy as np

_Scalar = TypeVar("_Scalar", bound=np.generic)
#: As `numpy.typing` has it, which loads much that only a type checker needs.
NDArray: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[_Scalar]]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
