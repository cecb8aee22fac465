"""MXNet's own profiler (`temp.json`): processes named after devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from arrays import NDArray
from dialects.owners import names_in
from dialects.roles import Role
from dialects.system import Metadata, System, framed
from formats.columns import Trace
from formats.rows import Rule

_PROCESS = r"(?:cpu|gpu)/\d+|(?:cpu|gpu) (?:pinned|shared)/"


class MXNet(System):
    """All that it records is computation."""

    name = "mxnet"
    counted_by = "MXNet's profile records no communication: all operations compute."
    pairing = Rule.NEIGHBOURS
    has_workers = True

    def recognises_metadata(self, metadata: Metadata) -> bool:
        """Whether a process is called after a device."""
        return any(re.fullmatch(_PROCESS, name) for name in names_in(metadata, "process_name").values())

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,): computation."""
        found = framed(trace)
        found[found != Role.IGNORED] = Role.COMPUTE
        return found

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Return (): nothing is communication."""
        return ()
