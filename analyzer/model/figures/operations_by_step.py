"""The operations of ranks, step by step: their number, durations and shares; they add up over ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, NDArray
from analyzer.base.arrays.numbering import numbered, occurrence_number
from analyzer.base.errors import check_cells
from analyzer.base.names import OpName
from analyzer.model.figures.durations import operations_of_slices
from analyzer.model.figures.time_by_role import time_by_operation
from analyzer.reading import dialects
from analyzer.reading.dialects.steps import Step, Steps
from analyzer.reading.dialects.system import STEP_MARK, STEP_MARKS
from analyzer.reading.formats.columns import Trace

#: Parts of names that differ from call to call, and their replacements.
_FOLDS = (
    (re.compile(STEP_MARK), STEP_MARKS),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}\b"), "0x…"),  # <function f at 0x7f63ad2b1510>
    (re.compile(r"#\d+\b"), "#*"),
    (re.compile(r"\b((?:\w*_)?(?:step|iteration|iter|batch|epoch)[ _#:=-]+)\d+\b", re.IGNORECASE), r"\1*"),
)
_BATCHES = 10  # samples of the occurrences of an operation where no step is marked


class OpKey(NamedTuple):
    """An operation of a run: ranks merged, workers told apart by ``wk<i>.`` where there are several."""

    name: str
    cat: str


class Operations(Struct, frozen=True):
    """The m operations of a rank, or of several together, in each of k steps; by first appearance."""

    keys: Sequence[OpKey]
    count: Int64  # (m, k) events
    total_ns: Float64  # (m, k) sum of their durations
    labels: Sequence[int] = ()  # (k',) of the whole steps
    #: (k', m + 1) share of each operation, and last of no operation, in the whole steps: the mean over ranks.
    spent_ns: Float64 = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def mean_ns(self) -> Float64:
        """Average duration of each operation's events (m,)."""
        return np.asarray(self.total_ns.sum(1) / np.maximum(self.count.sum(1), 1))


def operations_of(trace: Trace, steps: Steps, roles: NDArray[np.int8] | None = None) -> Operations:
    """Tabulate the operations of one rank, step by step; with `roles` (n,) also their shares of steps.

    An event belongs to the step in which it begins (before the first: the first). BytePS's communications
    overlap the next step, so there the n-th event of a name on a track is the n-th step's. Without marked
    steps, the occurrences of each operation are cut into at most ten stretches of equal length, in order of
    time ("batch means": Law and Kelton, Simulation Modeling and Analysis). TraceError as `check_cells`.
    """
    bounds = sorted((*steps.whole, *steps.partial), key=lambda step: step.start_ns)
    keys, ids = op_ids(trace)
    step = _step_ids(trace, bounds, ids)
    m, k = len(keys), 1 + int(step.max(initial=0))
    check_cells(trace.path, m, k, len(ids))
    cell = ids * k + step
    count = np.bincount(cell, minlength=m * k).reshape(m, k)
    total_ns = np.bincount(cell, trace.dur_ns, m * k).reshape(m, k).astype(np.float64)
    if roles is None:
        return Operations(keys, count, total_ns)
    labels = [step.label for step in steps.whole]
    spent_ns = time_by_operation(trace, roles, steps.whole, ids, m)
    return Operations(keys, count, total_ns, labels, spent_ns)


def merged(parts: Sequence[Operations], prefixes: Sequence[str], *, path: object = "") -> Operations:
    """Merge the operations of several ranks, with prefixes of their names; TraceError as `check_cells`."""
    named = list(zip(parts, prefixes, strict=True))
    keys, row = numbered(OpKey(prefix + key.name, key.cat) for part, prefix in named for key in part.keys)
    m, k = len(keys), max(part.count.shape[1] for part in parts)
    check_cells(path, m, k, sum(int(part.count.sum()) for part in parts))
    if len(parts) == 1 and m == len(parts[0].keys):
        return replace(parts[0], keys=keys)
    count, total_ns = np.zeros((m, k), np.int64), np.zeros((m, k))
    spent: dict[int, list[Float64]] = {}
    ends = np.cumsum([len(part.keys) for part in parts])
    for part, rows in zip(parts, np.split(row, ends[:-1]), strict=True):
        count[rows, : part.count.shape[1]] += part.count
        total_ns[rows, : part.count.shape[1]] += part.total_ns
        for label, of_part in zip(part.labels, part.spent_ns, strict=True):
            of_all = np.zeros(m + 1)
            of_all[np.append(rows, m)] = of_part
            spent.setdefault(label, []).append(of_all)
    labels = sorted(spent)
    means = np.array([sum(spent[label]) / len(spent[label]) for label in labels]).reshape(-1, m + 1)
    return Operations(keys, count, total_ns, labels, means)


def op_ids(trace: Trace) -> tuple[list[OpKey], Int64]:
    """Find the operations of a rank, comparable between runs, and the operation of each slice (n,).

    By first appearance; names are without their rank and parts that change from call to call.
    """
    of_slice, pairs = operations_of_slices(trace)
    is_parsed = dialects.of(trace).names_by_track
    names = (str(OpName.parse(name).bare()) if is_parsed else folded(name) for name, _ in pairs)
    keys, number = numbered(map(OpKey, names, (cat for _, cat in pairs)))
    return keys, number.astype(np.int64)[of_slice]


@lru_cache(maxsize=65536)
def folded(name: str) -> str:
    """Replace the parts of a name that change from call to call: addresses and numbers of steps."""
    for pattern, instead in _FOLDS:
        name = pattern.sub(instead, name)
    return name


def _step_ids(trace: Trace, bounds: Sequence[Step], ids: Int64) -> Int64:
    """Find the step of each slice (n,), by its start and by turns; see `operations_of`."""
    if bounds:
        starts = np.array([step.start_ns for step in bounds], np.int64)
        inside = np.maximum(np.searchsorted(starts, trace.ts_ns, side="right") - 1, 0)
    else:
        n_turns = np.bincount(ids)[ids]
        inside = _turns(ids, trace.ts_ns) * np.minimum(n_turns, _BATCHES) // n_turns
    by_turn = dialects.of(trace).runs_into_next_step(trace)
    if not by_turn.any():
        return inside
    series = trace.name_id.astype(np.int64) * len(trace.tracks) + trace.track_id
    return np.where(by_turn, _turns(series, trace.ts_ns), inside)


def _turns(series: Int64, ts_ns: Int64) -> Int64:
    """Index each event within its series, by time."""
    order = np.argsort(ts_ns, kind="stable")
    turn = np.empty(len(series), np.int64)
    turn[order] = occurrence_number(series[order])
    return turn
