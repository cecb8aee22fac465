"""MXNet's own profiler (`temp.json`): processes named after devices."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.reading.dialects.name_rules import is_server_transfer
from analyzer.reading.dialects.roles import Role, by_name
from analyzer.reading.dialects.steps import Steps, steps_by_updates
from analyzer.reading.dialects.system import System, framed
from analyzer.reading.formats.columns import Trace
from analyzer.reading.formats.event import EndRule


class MXNet(System):
    """Operators compute; a KVStore's pushes and pulls are communication with parameter servers."""

    name = "mxnet"
    process_names = re.compile(r"(?:cpu|gpu)/\d+|(?:cpu|gpu) (?:pinned|shared)/")
    counted_by = "Communication: pushes and pulls of a KVStore; all other operations compute."
    pairing = EndRule.NEIGHBOURS
    has_workers = True

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Find the `Role` of each slice (n,): computation but for a KVStore's."""
        roles = framed(trace)
        roles[roles != Role.IGNORED] = Role.COMPUTE
        roles[by_name(trace, is_server_transfer)] = Role.COMM
        return roles

    def marked_steps(self, trace: Trace) -> Steps:
        """Take the steps from one update of the parameters to the next; nothing else marks them."""
        return steps_by_updates(trace, self.recorded_roles(trace) == Role.COMPUTE)

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        """Name a KVStore's push or pull; operators called ``broadcast_add`` only compute."""
        return (name,) if is_server_transfer(name) else ()
