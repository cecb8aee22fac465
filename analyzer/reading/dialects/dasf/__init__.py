"""DASF: profiles of tasks, one file per worker."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from analyzer.base.arrays import NDArray
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.system import Need, System
from analyzer.reading.formats.columns import Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace


class Dasf(System):
    """Tasks and handlers; the analyses of `statistic.dasf_analyses` read them by their fields."""

    name = "dasf"
    counted_by = "A DASF profile records tasks only: all of them compute."
    has_tasks = True
    args = MappingProxyType({Need.EDGES: ("key", "dependencies", "dependents"), Need.SIZES: ("size",)})

    def recognises(self, trace: Trace) -> bool:
        """Accept the traces of its reader: they are no chrome files."""
        return trace.dialect == self.name

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        return np.full(len(trace), Role.COMPUTE, np.int8)

    def filter_names(self, name: str, cat: str, tid: object, process: str | None) -> Sequence[str]:
        return ()

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        from analyzer.reading.dialects.dasf.dasf_graph import record

        return record(rank.name, rank.trace)
