"""Arrivals of ranks at their meetings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, Mask
from analyzer.base.arrays.numbering import connected, unique
from analyzer.model.graph.step_graph import Recording, StepGraph
from analyzer.reading.dialects.edge_rules import EdgeKind, kinds_of
from analyzer.reading.dialects.roles import Role

if TYPE_CHECKING:
    from analyzer.answers.diagnose.steps.job_view import JobView


class Arrivals(Struct, frozen=True):
    """The k arrivals of ranks at the meetings of one step."""

    meeting: Int64  # (k,) from 0
    owner: Int64
    event: Int64
    at_ns: Int64  # begin of the event


def meetings_of(recording: Recording, rows: Sequence[int]) -> list[Arrivals]:
    """Find the meetings of each of the steps `rows`."""
    is_meeting = recording.which(lambda operation: operation.role is Role.MEETING)
    number = recording.numbered(lambda operation: (operation.main, operation.transfer.key))[1]
    pieces = np.where(recording.which(lambda operation: operation.transfer.key is not None), number, -1)
    steps = (recording.steps[row] for row in rows)
    return [_of_step(len(recording.owners), step, pieces, is_meeting) for step in steps]


def _of_step(n_owners: int, step: StepGraph, piece_of: Int64, is_meeting: Mask) -> Arrivals:
    """Find the meetings of a step: events that edges between owners connect, or one partition's pushes.

    `piece_of` (n,) is the partition of each operation, equal on all ranks, or -1.
    """
    edges = step.edges[np.isin(kinds_of(step.edges), (EdgeKind.GROUP, EdgeKind.MESSAGE))]
    meets = is_meeting[step.operation[edges[:, :2]]].any(axis=1)
    edges = edges[(step.owner[edges[:, 0]] != step.owner[edges[:, 1]]) | meets]
    source, target = edges[:, 0], edges[:, 1]
    pieces = piece_of[step.operation[source]]
    order = np.argsort(pieces, kind="stable")
    alike = (pieces[order[1:]] == pieces[order[:-1]]) & (pieces[order[1:]] >= 0)
    tails = np.concatenate([source, source[order[1:][alike]]])
    heads = np.concatenate([target, source[order[:-1][alike]]])
    events, index = np.unique(np.concatenate([tails, heads]), return_inverse=True)
    part = connected(len(events), *index.reshape(2, -1))
    source = unique(source[~is_meeting[step.operation[source]]])
    part, owner = part[np.searchsorted(events, source)], step.owner[source]
    arrivals = np.column_stack([part, owner, source, step.start_ns[source]])
    arrivals = arrivals[np.lexsort((source, owner, part))]
    cell = arrivals[:, 0] * n_owners + arrivals[:, 1]
    by_time = np.lexsort((arrivals[:, 3], cell))
    first = by_time[np.append(np.ones(min(len(cell), 1), np.bool_), np.diff(cell[by_time]) != 0)]
    arrivals = arrivals[first]  # GPUs of a worker reduce together, and broadcast together later
    meeting = np.unique(arrivals[:, 0], return_inverse=True)[1].reshape(-1)
    return Arrivals(meeting, arrivals[:, 1], arrivals[:, 2], arrivals[:, 3])


#: The last owner at each meeting of a step, and its delay after the one before (ns).
LastArrivals: TypeAlias = tuple[Int64, Int64]


def last_arrivals(
    view: JobView, *, of_own_step: bool = False, among: Sequence[int] = ()
) -> list[LastArrivals]:
    """List the last arrivals of each whole step, at meetings with an owner of `among` if given.

    `of_own_step`: count from the end of the owner's step before. A rank that is served last ends, and begins,
    its steps later than the others without being slow.
    """
    last = []
    tails = np.array([step.tail_ns for step in view.recording.steps])
    for row, met in zip(view.rows, view.meetings, strict=True):
        step = view.recording.steps[row]
        before_ns = tails[row - 1] if row else np.median(tails, axis=0)
        since = (step.begin_ns - before_ns).astype(np.int64)
        at_ns = met.at_ns - since[met.owner] if of_own_step else met.at_ns
        order = np.lexsort((at_ns, met.meeting))
        after_ns = np.diff(at_ns[order], prepend=0)
        is_last = np.append(np.diff(met.meeting[order]) != 0, np.ones(min(len(order), 1), np.bool_))
        if len(among):
            is_last &= np.isin(met.meeting[order], met.meeting[np.isin(met.owner, among)])
        last.append((met.owner[order[is_last]], after_ns[is_last]))
    return last


def longest_awaited(arrivals: Sequence[LastArrivals]) -> Int64:
    """Find the owner that was awaited longest in each step with a meeting."""
    awaited = [np.bincount(owner, after_ns).argmax() for owner, after_ns in arrivals if len(owner)]
    return np.array(awaited, np.int64)
