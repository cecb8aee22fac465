"""Step logs: the rows that a training loop writes, without events; names of columns tell their roles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from analyzer.base.errors import TraceError
from analyzer.reading.dialects.owners import Owned
from analyzer.reading.dialects.roles import Role
from analyzer.reading.dialects.steps import argument
from analyzer.reading.dialects.system import StepRows, System
from analyzer.reading.formats.columns import ArgColumn, Trace

if TYPE_CHECKING:
    from analyzer.reading.dialects.step_parts import RankSteps, RankTrace

#: The first match of a column's name is its role; other columns compute.
_ROLES = (
    (r"(?i)data|load|input|fetch|batch", Role.INPUT),
    (r"(?i)wait|idle|barrier", Role.WAIT),
    (r"(?i)comm|reduce|gather|scatter|nccl|hccl|all_?to_?all|sync|p2p|send|recv", Role.COMM),
    (r"(?i)copy|h2d|d2h", Role.COPY),
    (r"(?i)optim|update", Role.UPDATE),
)


class StepLog(System):
    """Rows of durations: the steps of a rank follow each other, and so do the parts of a step."""

    name = "step log"
    counted_by = (
        "By the names of the columns: data and loading are input, comm, reduce and sync communication, "
        "wait, idle and barrier waiting; all others compute."
    )
    has_events = False

    def recognises(self, trace: Trace) -> bool:
        """Accept the traces of its reader: they are no chrome files."""
        return trace.dialect == self.name

    def split(self, trace: Trace) -> Sequence[Owned]:
        """Split by the column of ranks; the rows of each rank are together."""
        if len(trace.tracks) < 2:
            return [Owned(None, trace.rank, trace)]
        bounds = np.searchsorted(trace.track_id, np.arange(len(trace.tracks) + 1, dtype=np.int32)).tolist()
        return [
            Owned(None, track.pid if isinstance(track.pid, int) else None, _rows(trace, begin, end))
            for track, (begin, end) in zip(trace.tracks, pairwise(bounds), strict=True)
        ]

    def step_rows(self, trace: Trace, by: str | None = None) -> StepRows:
        """Read the rows, numbered by the column `by`, else by the column named after steps."""
        from analyzer.reading.formats.step_log import NUMBER, PARTS

        columns = {}
        for key, column in trace.args.items():
            columns[key] = np.array(column.values, np.float64)
            if len(column.rows) < len(trace):  # a file of the rank lacks it
                columns[key] = np.full(len(trace), np.nan)
                columns[key][column.rows] = column.values
        number, called = columns.pop(NUMBER, np.array([np.nan])), trace.header[PARTS]
        parts = {key for key in columns if np.asarray(trace.args[key].values).dtype.kind == "i"}
        values = {name: column for name, column in columns.items() if name not in parts}
        if by is not None:
            number = values.get(argument(by) or by, np.array([np.nan]))
        if not (np.abs(number) < 1 << 53).all():  # not NaN
            wrong = "no column is called after a step: --step_by COLUMN says which it is"
            if by is not None:
                wrong = f"--step_by {by}: no column of numbers has this name"
            raise TraceError(f"{trace.path}: {wrong}; there are {', '.join(values) or 'none'}")
        for key in parts:
            columns[key][np.isnan(columns[key])] = 0
        names = {key: called.get(key, key) for key in columns if key in parts}
        roles = {name: (self._role_of(name), columns[key]) for key, name in names.items()}
        return StepRows(number.astype(np.int64), roles, values)

    def _role_of(self, name: str) -> Role:
        if self.is_named_comm(name):
            return Role.COMM
        return next((role for rule, role in _ROLES if re.search(rule, name)), Role.COMPUTE)

    def category(self, name: str, cat: str) -> str:
        return name

    def rank_steps(self, rank: RankTrace, by: str | None = None) -> RankSteps:
        raise TraceError(
            f"{rank.trace.path}: a step log, which has no single events; diagnose, statistic, compare and "
            "3dcompare read it"
        )


def _rows(trace: Trace, begin: int, end: int) -> Trace:
    """Cut the rows from `begin` to before `end` from a trace in which all rows have all arguments."""
    rows = slice(begin, end)
    return replace(
        trace,
        name_id=trace.name_id[rows], cat_id=trace.cat_id[rows], track_id=trace.track_id[rows],
        ts_ns=trace.ts_ns[rows], dur_ns=trace.dur_ns[rows],
        args={key: ArgColumn(arg.rows[: end - begin], arg.values[rows]) for key, arg in trace.args.items()},
    )  # fmt: skip
