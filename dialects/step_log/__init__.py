"""Step logs: what a training loop writes of each step, without events; columns are roles by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from arrays import Float64, NDArray
from dialects.owners import Owned, Owner, split_by_tracks
from dialects.roles import Role
from dialects.steps import NO_STEPS, Step, Steps
from dialects.system import System
from errors import TraceError
from formats.columns import Trace

if TYPE_CHECKING:
    from dialects.step_parts import RankSteps, RankTrace

#: The first that matches the name of a column is its role; what matches none computes.
_ROLES = (
    (r"(?i)data|load|input|fetch|batch", Role.INPUT),
    (r"(?i)wait|idle|barrier|stall", Role.WAIT),
    (r"(?i)comm|reduce|gather|scatter|nccl|hccl|all_?to_?all|sync|p2p|send|recv", Role.COMM),
    (r"(?i)copy|h2d|d2h", Role.COPY),
    (r"(?i)optim|update", Role.UPDATE),
)


class StepLog(System):
    """Rows of durations: each rank's steps follow each other, and the parts of a step."""

    name = "step log"
    counted_by = (
        "By the names of the columns: data and loading are input, comm, reduce and sync communication, "
        "wait and stall waiting; all others compute."
    )
    has_events = False

    def recognises(self, trace: Trace) -> bool:
        """Whether its reader made the trace: it is not a chrome file."""
        return trace.dialect == self.name

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Return the ranks that a column tells of each row."""
        ranks = [track.pid for track in trace.tracks]
        owners = [Owner(None, rank if isinstance(rank, int) else None) for rank in ranks]
        return split_by_tracks(trace, owners, np.arange(len(owners))) or [Owned(None, trace.rank, trace)]

    def recorded_roles(self, trace: Trace) -> NDArray[np.int8]:
        """Return the `Role` of each slice (n,): the step itself is a frame around its parts."""
        from formats.step_log import STEP

        role = [Role.FRAME if name == STEP else role_of(name) for name in trace.names]
        return np.array(role, np.int8)[trace.name_id]

    def marked_steps(self, trace: Trace) -> Steps:
        """Return the rows."""
        from formats.step_log import NUMBER

        if NUMBER not in trace.args:
            return NO_STEPS
        rows, numbers = trace.args[NUMBER].rows, trace.args[NUMBER].values
        bounds = zip(numbers, trace.ts_ns[rows].tolist(), trace.end_ns[rows].tolist(), strict=True)
        return Steps(tuple(Step(*one) for one in bounds), (), "rows of the log")

    def step_values(self, trace: Trace) -> Mapping[str, Float64]:
        """Return the columns that are not durations, a number for each step; NaN in files without them."""
        from formats.step_log import NUMBER, VALUE

        found = {}
        for key in [key for key in trace.args if key.startswith(VALUE)]:
            of_row = np.full(len(trace), np.nan)
            of_row[trace.args[key].rows] = trace.args[key].values
            found[key.removeprefix(VALUE)] = of_row[trace.args[NUMBER].rows]
        return found

    def category(self, name: str, cat: str) -> str:
        """Return the column."""
        return name

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        """Raise `TraceError`: nothing tells what waits for what."""
        raise TraceError(
            f"{rank.trace.path}: a step log, which has no single events; diagnose, statistic, compare and "
            "3dcompare read it"
        )


def role_of(name: str) -> Role:
    """Return the role of a column of durations."""
    return next((role for rule, role in _ROLES if re.search(rule, name)), Role.COMPUTE)
