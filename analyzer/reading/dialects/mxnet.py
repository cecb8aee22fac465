"""MXNet's own profiler (`temp.json`): processes named after devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.system import System, framed
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.rows import EndRule


class MXNet(System):
    """All that it records is computation."""

    name = "mxnet"
    process_names = re.compile(r"(?:cpu|gpu)/\d+|(?:cpu|gpu) (?:pinned|shared)/")
    counted_by = "MXNet's profile records no communication: all operations compute."
    pairing = EndRule.NEIGHBOURS
    has_workers = True

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,): computation."""
        found = framed(trace)
        found[found != Role.IGNORED] = Role.COMPUTE
        return found

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Return (): nothing is communication."""
        return ()
