"""The time of a step by role: each instant counts once, for one role and its operations.

Durations of operations do not add up to the time of a step: they nest and overlap. Here each instant goes to
the first of these roles that runs on any track (thread, stream, partition) of a rank:

1. computation, but for communication and waits inside it. Preparation and frames inside it (Python's
   functions) count as computation.
2. communication, parts before wholes. Communication without computation beside it is *exposed*. A whole
   communication also covers the time of its parts in queues.
3. the update of the model (BytePS's STEP): computation where no communication runs, for which it waits.
4. copies and fills of a device's memory: neither computation nor communication.
5. loading of input, waiting for other ranks, and the host's preparation of a device's work.
6. spans that only frame others.

An idle thread gets nothing, nor do the spans around its wait. On one track the innermost operation of a role
counts; operations of one role on several tracks share an instant equally. The remaining time is "nothing
recorded". Intervals are cut at the borders of the steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Float64, Int64, Mask, NDArray
from analyzer.base.arrays.distributions import median, outliers
from analyzer.base.arrays.intervals import clipped_lengths, innermost, lies_inside, union
from analyzer.base.arrays.numbering import ranges, unique
from analyzer.reading import dialects
from analyzer.reading.dialects import Role, is_communication
from analyzer.reading.dialects.roles import CLAIMS
from analyzer.reading.dialects.steps import Step
from analyzer.reading.formats.columns import Trace

#: The category of the time of a step in which no event was recorded.
NOTHING = "time without events"
_Claims = NDArray[np.integer]

#: The rank of each role's claim to an instant (0 first); `_NOBODY` claims none.
_NOBODY = len(CLAIMS)
_CLAIM_OF = np.array([
    next((claim for claim, roles in enumerate(CLAIMS) if role in roles), _NOBODY) for role in Role
], np.int8)  # fmt: skip
_COMPUTE, _HOST = int(_CLAIM_OF[Role.COMPUTE]), int(_CLAIM_OF[Role.HOST])
#: The last claim that `breakdown` counts: later ones are idle time.
_LAST_WORK = int(_CLAIM_OF[Role.COPY])
_MANY = 1 << 19  # pieces that are shared at a time


class Breakdown(Struct, frozen=True):
    """The time of each kind of work in k steps of a rank, (k,) each; step None is the whole trace."""

    step: Sequence[int | None]
    wall_ns: Int64
    compute_ns: Int64
    comm_ns: Int64
    overlap_ns: Int64  # computation and communication at once
    idle_ns: Int64  # nothing, or only preparation and frames; copies and fills are not idle
    rule: str = ""  # a sentence on roles

    def __len__(self) -> int:
        return len(self.step)

    @property
    def exposed_comm_ns(self) -> Int64:
        """Communication that no computation hid (k,)."""
        return self.comm_ns - self.overlap_ns

    def without(self, steps: Collection[int]) -> Breakdown:
        """Leave out the steps with these labels."""
        kept = np.array([step not in steps for step in self.step], np.bool_)
        columns = self.wall_ns, self.compute_ns, self.comm_ns, self.overlap_ns, self.idle_ns
        wall, compute, comm, overlap, idle = (column[kept] for column in columns)
        labels = list(itertools.compress(self.step, kept))
        return Breakdown(labels, wall, compute, comm, overlap, idle, self.rule)


NO_BREAKDOWN = Breakdown((), *np.zeros((5, 0), np.int64))


def breakdown(trace: Trace, roles: NDArray[np.int8], steps: Sequence[Step]) -> Breakdown:
    """Split the time of each step (in order), else of the whole trace, by the roles (n,) of slices."""
    if len(trace) == 0:
        return NO_BREAKDOWN
    counts = roles != Role.IGNORED
    counts |= not counts.any()
    bounds = int(trace.ts_ns[counts].min()), int(trace.end_ns[counts].max())
    windows: list[tuple[int | None, int, int]] = [*steps] or [(None, *bounds)]
    starts, ends = (np.array([window[column] for window in windows], np.int64) for column in (1, 2))
    slices = Slices.of(trace.ts_ns, trace.end_ns, trace.track_id, roles)
    claim, left, right = _united(slices)
    took = _shared((left, right, claim, claim), _LAST_WORK + 1, starts, ends)
    compute, comm, whole, update, copies = took.round().astype(np.int64).T
    of_comm = is_communication(roles)
    all_comm = clipped_lengths(union(slices.start[of_comm], slices.end[of_comm]), starts, ends)
    wall, exposed, compute = ends - starts, comm + whole, compute + update
    idle = wall - compute - exposed - copies
    labels, rule = [window[0] for window in windows], dialects.of(trace).rule(trace)
    return Breakdown(labels, wall, compute, all_comm, all_comm - exposed, idle, rule)


def time_by_operation(
    trace: Trace, roles: NDArray[np.int8], steps: Sequence[Step], ids: Int64, n_ids: int
) -> Float64:
    """Compute the time of each operation in each of k steps (in order): nanoseconds (k, n_ids + 1).

    `roles` and `ids` (n,) are the role and the operation (0 … `n_ids` - 1) of slices. The last column is
    the time without a recorded operation; each row adds up to its step.
    """
    spent = np.zeros((len(steps), n_ids + 1))
    if len(steps):
        starts, ends = (np.array([step[column] for step in steps], np.int64) for column in (1, 2))
        slices = Slices.of(trace.ts_ns, trace.end_ns, trace.track_id, roles)
        near = (slices.end > starts[0]) & (slices.start < ends[-1])
        if not near.all():
            slices, ids = slices.at(np.flatnonzero(near)), ids[near]
        spent[:, :-1] = time_of_ids(slices, ids, n_ids, starts, ends)
        spent[:, -1] = np.maximum((ends - starts) - spent.sum(1), 0.0)
    return spent


def time_of_ids(slices: Slices, ids: Int64, n_ids: int, starts: Int64, ends: Int64) -> Float64:
    """Compute the time (k, n_ids) of slices by `ids` (n,) between `starts` and `ends` (k,)."""
    inside = _interrupts(slices)
    claim = slices.claim.copy()
    claim[_part_of_computation(slices, inside)] = _COMPUTE
    slices = slices._replace(claim=claim)
    row, left, right = _innermost(slices, slices.at(inside))
    return _shared((left, right, claim[row], ids[row]), n_ids, starts, ends)


class Slices(NamedTuple):
    """n slices: times (ns), track, `Role`, and the rank of the role's claim."""

    start: Int64
    end: Int64
    track: NDArray[np.integer]
    role: NDArray[np.int8]
    claim: NDArray[np.int8]

    @classmethod
    def of(cls, start: Int64, end: Int64, track: NDArray[np.integer], role: NDArray[np.int8]) -> Slices:
        """Make slices with the claims of their roles."""
        return cls(start, end, track, role, _CLAIM_OF[role])

    def at(self, rows: Int64) -> Slices:
        """Select rows."""
        return Slices(self.start[rows], self.end[rows], self.track[rows], self.role[rows], self.claim[rows])


def _united(slices: Slices) -> tuple[Int64, Int64, Int64]:
    """Unite the slices of each claim up to `_LAST_WORK`: claim, start and end (m,).

    Tracks on which computation is interrupted are taken slice by slice.
    """
    inside = _interrupts(slices)
    mixed = np.isin(slices.track, unique(slices.track[inside]))
    interrupted = np.flatnonzero(mixed & (slices.claim == _COMPUTE))
    _, left, right = _innermost(slices.at(interrupted), slices.at(inside))
    parts = [union(left, right)]
    for which in range(_LAST_WORK + 1):
        rows = np.flatnonzero((slices.claim == which) & ~(mixed & (which == _COMPUTE)))
        parts.append(union(slices.start[rows], slices.end[rows]))
    parts[:2] = [union(*(np.concatenate(side) for side in zip(*parts[:2], strict=True)))]
    claim = np.repeat(np.arange(len(parts)), [len(left) for left, _ in parts])
    left, right = (np.concatenate(side) for side in zip(*parts, strict=True))
    return claim, left, right


def _interrupts(slices: Slices) -> Int64:
    """Rows of the communications and waits inside a computation of their track."""
    waits = is_communication(slices.role) | np.isin(slices.role, (Role.WAIT, Role.IDLE))
    computes = slices.claim == _COMPUTE
    either = np.flatnonzero((waits | computes) & np.isin(slices.track, unique(slices.track[waits])))
    part = slices.at(either)
    inside = lies_inside(part.start, part.end, part.track, computes[either])
    return either[inside & waits[either]]


def _part_of_computation(slices: Slices, inside: Int64) -> Int64:
    """Rows of slices that prepare or frame inside a computation, not begun while `inside` interrupts it."""
    computes = slices.claim == _COMPUTE
    may_be = (slices.claim > _LAST_WORK) & (slices.claim < _NOBODY) & (slices.role != Role.WAIT)
    may_be &= np.isin(slices.track, unique(slices.track[computes]))
    rows = np.flatnonzero(may_be)
    rows = rows[_lie_inside(slices, rows, slices.end[rows], np.flatnonzero(computes))]
    return rows[~_lie_inside(slices, rows, slices.start[rows] + 1, inside)]


def _lie_inside(slices: Slices, rows: Int64, end: Int64, outer: Int64) -> Mask:
    """Mask the `rows` (k,) that would lie inside a slice of `outer` if they ended at `end` (k,)."""
    outer = outer[np.isin(slices.track[outer], unique(slices.track[rows]))]
    if len(outer) == 0 or len(rows) == 0:
        return np.zeros(len(rows), np.bool_)
    both = np.concatenate([outer, rows])
    ends, is_outer = np.concatenate([slices.end[outer], end]), np.arange(len(both)) < len(outer)
    return lies_inside(slices.start[both], ends, slices.track[both], is_outer)[len(outer) :]


def _innermost(slices: Slices, inside: Slices) -> tuple[Int64, Int64, Int64]:
    """Find when each slice is the innermost of its claim on its track: row, start and end (m,).

    Preparation and frames are one claim here. Interruptions of a computation (`inside`, see `_interrupts`)
    and the waits of idle threads take the time of the slices around them.
    """
    aside = slices.at(np.flatnonzero(slices.role == Role.IDLE))
    works = np.flatnonzero(slices.claim < _NOBODY)
    start, end, track = (
        np.concatenate([column[works], *others])
        for column, *others in zip(slices[:3], inside[:3], aside[:3], strict=True)
    )
    around = np.repeat([_COMPUTE, _HOST], [len(inside.start), len(aside.start)])
    claim = np.concatenate([np.minimum(slices.claim[works], _HOST), around])
    row, left, right = innermost(start, end, track * _NOBODY + claim)
    has_time = row < len(works)
    return works[row[has_time]], left[has_time], right[has_time]


def _shared(
    pieces: tuple[Int64, Int64, _Claims, Int64], n_owners: int, starts: Int64, ends: Int64
) -> Float64:
    """Divide the time of each step (k,) among owners: nanoseconds (k, n_owners).

    Pieces are left, right, claim and owner, (m,) each. The first claim gets an instant; equal claims share
    it.
    """
    n_blocks = min(1 + len(pieces[0]) // _MANY, len(starts))  # bounds the memory of intermediate arrays
    parts = []
    for steps in np.array_split(np.arange(len(starts)), n_blocks):
        begin, end = starts[steps], ends[steps]
        rows = np.flatnonzero((pieces[0] < end[-1]) & (pieces[1] > begin[0]))
        left, right, claim, owner = (column[rows] for column in pieces)
        first = np.searchsorted(end, left, side="right")
        last = np.searchsorted(begin, right, side="left")  # one beyond
        step, piece = ranges(first, last)
        # each step has a time of its own, as neighbours may overlap
        shift = (np.cumsum(end - begin) - end)[step]
        within = np.maximum(left[piece], begin[step]) + shift, np.minimum(right[piece], end[step]) + shift
        share = _shares(*within, claim[piece])
        cell = step * n_owners + owner[piece]
        parts.append(np.bincount(cell, share, len(steps) * n_owners).reshape(len(steps), n_owners))
    return np.concatenate(parts)


def _shares(left: Int64, right: Int64, claim: _Claims) -> Float64:
    """Compute the time that each piece (m,) gets."""
    points = unique(np.concatenate([left, right]))
    share = np.zeros(len(left))
    if len(points) < 2:
        return share
    at_left, at_right = np.searchsorted(points, left), np.searchsorted(points, right)
    lengths = np.diff(points)
    free = np.ones(len(lengths), np.bool_)
    for which in unique(claim).tolist():
        rows = claim == which
        begun, ended = (np.bincount(moments[rows], minlength=len(points)) for moments in (at_left, at_right))
        active = np.cumsum(begun - ended)[:-1]
        each = np.where(free & (active > 0), lengths / np.maximum(active, 1), 0.0)
        until = np.concatenate([[0.0], np.cumsum(each)])
        share[rows] = until[at_right[rows]] - until[at_left[rows]]
        free &= active == 0
    return share


class RankSummary(NamedTuple):
    """The steps of one rank, in nanoseconds: mean and median length, and means by role."""

    rank: str
    outlier_steps: list[int]  # numbers of the steps that took far longer than the median
    steps: int
    mean_ns: float
    median_ns: float
    compute_ns: float
    comm_ns: float
    exposed_comm_ns: float
    idle_ns: float


def summaries(ranks: Iterable[tuple[str, Breakdown]]) -> list[RankSummary]:
    """Summarise the steps of each rank, given its name, that has any."""
    rows = []
    for name, steps in ranks:
        if len(steps):
            columns = steps.compute_ns, steps.comm_ns, steps.exposed_comm_ns, steps.idle_ns
            means = [float(column.mean()) for column in columns]
            far = [
                step for step in itertools.compress(steps.step, outliers(steps.wall_ns)) if step is not None
            ]
            wall = float(steps.wall_ns.mean()), median(steps.wall_ns)
            rows.append(RankSummary(name, far, len(steps), *wall, *means))
    return rows
