"""Which slices of a trace have names or categories of a kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from analyzer.base.arrays import Mask, NDArray
from analyzer.reading.formats.columns import Trace


def by_cat(trace: Trace, accept: Callable[[str], object]) -> Mask:
    """Mask the slices (n,) whose category `accept` takes."""
    return _by_table(trace.cats, trace.cat_id, accept)


def by_name(trace: Trace, accept: Callable[[str], object], among: Mask | None = None) -> Mask:
    """Mask the slices (n,), of those `among`, whose name `accept` takes; other names are not tried."""
    if among is None:
        return _by_table(trace.names, trace.name_id, accept)
    accepted = np.zeros(len(trace.names), np.bool_)
    accepted[trace.name_id[among]] = True
    for i in np.flatnonzero(accepted).tolist():
        accepted[i] = bool(accept(trace.names[i]))
    return among & accepted[trace.name_id] if len(accepted) else among


def _by_table(table: Sequence[str], ids: NDArray[np.int32], accept: Callable[[str], object]) -> Mask:
    accepted: Mask = np.fromiter(map(bool, map(accept, table)), np.bool_, len(table))
    return accepted[ids] if len(table) else np.zeros(len(ids), np.bool_)
