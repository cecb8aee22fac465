"""What a step's time was spent on: each instant of it goes to the operations that decided it.

Durations of operations do not add up to the time of a step: they nest, and they run beside each other.
Here every instant of a step is given away exactly once, so that the parts add up to the step and the
changes of the parts to the change of the step:

- on one track (thread, stream, partition) the innermost operation counts;
- among the tracks of a rank, computing comes before communicating before the host's preparing before
  spans that only frame others: communication counts where nothing computes ("exposed");
- operations of the same layer that run at the same time share the instant equally;
- what is left is "nothing recorded".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

import dialects
from arrays import Float64, Int64
from arrays.innermost import innermost
from arrays.numbering import unique
from arrays.ranges import ranges
from dialects import Role
from dialects.steps import Step
from figures.rank_operations import RankExposure
from figures.run_table import MeasuredRun, Operations
from formats.columns import Trace

NOTHING = "(nothing recorded)"

#: The layers, in the order in which they claim an instant. `WAITING` and `IGNORED` spans claim nothing;
#: while a thread waits, the spans around the wait claim nothing either.
COMPUTE, COMMUNICATION, HOST, FRAME, WAITING, IGNORED = range(6)
_LAYER_OF = np.full(len(Role), FRAME)
_LAYER_OF[Role.COMPUTE] = COMPUTE
_LAYER_OF[[Role.COMM, Role.COPY]] = COMMUNICATION
_LAYER_OF[[Role.HOST, Role.INPUT, Role.WAIT]] = HOST
_LAYER_OF[Role.IDLE] = WAITING
_LAYER_OF[Role.IGNORED] = IGNORED


class RankSpent(Struct, frozen=True):
    """What one rank spent its whole steps on, nanoseconds."""

    name: str
    labels: Sequence[int]  # of the k steps
    own: Float64  # (k,) what it computed, prepared or recorded nothing in
    communication: Float64  # (k,) what it only communicated or waited in
    mean: Float64  # (m + 1,) what each operation, and last nothing, took of an average step
    is_comm: NDArray[np.bool_]  # (m + 1,) which of them are communication


class Spent(Struct, frozen=True):
    """What a run spent its whole steps on."""

    names: Sequence[str]  # (m + 1) the operations, and `NOTHING`
    job: Float64  # (k, m + 1) averaged over the ranks step by step
    ranks: Sequence[RankSpent]
    layer: Int64  # (m,) the first layer that events of each operation belong to


def time_spent(run: MeasuredRun, ops: Operations) -> Spent:
    """Return what each operation took of each whole step, as this module gives time away."""
    n_columns = len(ops.keys) + 1
    by_label: dict[int, list[Float64]] = {}
    ranks: list[RankSpent] = []
    layer = np.full(len(ops.keys), IGNORED)
    for rank, at in zip(run.ranks, ops.places, strict=True):
        exposure = rank.exposure
        if exposure is None:
            raise ValueError(f"{rank.name}: measured without what its steps were spent on")
        layer[at] = np.minimum(layer[at], exposure.layer)
        if rank.steps.whole:
            steps = exposure.spent_ns
            if not np.array_equal(at, np.arange(len(ops.keys))):
                steps = np.zeros((len(rank.steps.whole), n_columns))
                steps[:, [*at, -1]] = exposure.spent_ns
            is_comm = np.zeros(n_columns, np.bool_)
            is_comm[at] = exposure.is_comm
            alone, communication = steps[:, ~is_comm].sum(1), steps[:, is_comm].sum(1)
            labels = [step.label for step in rank.steps.whole]
            ranks.append(RankSpent(rank.name, labels, alone, communication, steps.mean(0), is_comm))
            for label, row in zip(labels, steps, strict=True):
                by_label.setdefault(label, []).append(row)
    job = np.zeros((len(by_label), n_columns))
    for row, (_, rows) in zip(job, sorted(by_label.items()), strict=True):
        row[:] = sum(rows) / len(rows)
    names = [*(key.name for key in ops.keys), NOTHING]
    return Spent(names, job, ranks, layer)


def rank_exposure(trace: Trace, steps: Sequence[Step], ids: Int64, n_ids: int) -> RankExposure:
    """Return what one rank spent its k whole steps on; the parameters are those of `exposed_ns`."""
    of_slice = layers(trace)
    layer, is_comm = np.full(n_ids, IGNORED), np.zeros(n_ids, np.bool_)
    np.minimum.at(layer, ids, of_slice)
    is_comm[ids[of_slice == COMMUNICATION]] = True
    return RankExposure(layer, is_comm, exposed_ns(trace, of_slice, ids, n_ids, steps))


def exposed_ns(
    trace: Trace, layer: NDArray[np.integer], ids: Int64, n_ids: int, steps: Sequence[Step]
) -> Float64:
    """Return what each operation took of each step.

    Parameters
    ----------
    layer, ids : (n,) the layer and the operation (0 … `n_ids` - 1) of each slice
    steps : k steps that do not overlap, in order

    Returns
    -------
    (k, n_ids + 1) nanoseconds
        The last column is the time in which nothing was recorded. Each row adds up to its step.
    """
    starts = np.array([step.start_ns for step in steps], np.int64)
    ends = np.array([step.end_ns for step in steps], np.int64)
    result = np.zeros((len(steps), n_ids + 1))
    if not len(steps):
        return result
    rows = np.flatnonzero((layer < IGNORED) & (trace.end_ns > starts[0]) & (trace.ts_ns < ends[-1]))
    row, left, right = innermost(trace.ts_ns[rows], trace.end_ns[rows], trace.track_id[rows])
    owner = rows[row]
    owner, left, right, step = _cut(owner, left, right, starts, ends)
    share = _shares(left, right, np.asarray(layer)[owner])
    cell = step * (n_ids + 1) + ids[owner]
    result += np.bincount(cell, share, result.size).reshape(result.shape)
    result[:, -1] = np.maximum((ends - starts) - result[:, :-1].sum(1), 0.0)
    return result


def layers(trace: Trace) -> Int64:
    """Return the layer of each slice (n,).

    Whole communications and model updates frame: queues, and the time from backward to forward, are in them.
    """
    return np.asarray(_LAYER_OF[dialects.of(trace).roles(trace)])


def _cut(
    owner: Int64, left: Int64, right: Int64, starts: Int64, ends: Int64
) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut pieces at the bounds of the steps; return (slice, start, end, step) of what lies in a step."""
    first = np.searchsorted(ends, left, side="right")
    last = np.searchsorted(starts, right, side="left")  # one beyond
    step, row = ranges(first, last)
    return owner[row], np.maximum(left[row], starts[step]), np.minimum(right[row], ends[step]), step


def _shares(left: Int64, right: Int64, layer_of: NDArray[np.integer]) -> Float64:
    """Return how much time each piece gets when the lowest layer claims an instant, equals sharing it."""
    points = unique(np.r_[left, right])
    if len(points) < 2:
        return np.zeros(len(left))
    at_left, at_right = np.searchsorted(points, left), np.searchsorted(points, right)
    lengths = np.diff(points)
    free = np.ones(len(lengths), np.bool_)
    share = np.zeros(len(left))
    for which in (COMPUTE, COMMUNICATION, HOST, FRAME):
        mine = layer_of == which
        change = np.bincount(at_left[mine], minlength=len(points)) - np.bincount(
            at_right[mine], minlength=len(points)
        )
        active = np.cumsum(change)[:-1]
        each = np.where(free & (active > 0), lengths / np.maximum(active, 1), 0.0)
        until = np.r_[0.0, np.cumsum(each)]
        share[mine] = until[at_right[mine]] - until[at_left[mine]]
        free &= active == 0
    return share
