"""Computation that takes longer while transfers are on their way: cores that both need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from arrays import Float64, Int64
from arrays.intervals import clipped_lengths, union
from dag.step_graph import Recording, StepGraph
from replay.links import begins

#: Shorter computation (ns) is mostly noise.
_SHORTEST_NS = 200_000
#: Computation is longer for sure by this factor; and the share of its time that transfers are on their way
#: must vary so much (a standard deviation) beyond what operation and rank explain.
_LONGER, _VARIES = 1.1, 0.05
#: Rounds of alternating means, in which they settle.
_ALTERNATING = 30


class SharedCores(NamedTuple):
    """By what factor computation takes longer while the rank's transfers are on their way; and when they are.

    `share` (n,) is which part of each operation's time that is.
    """

    factor: float
    share: Float64

    def at(self, times: float) -> Float64:
        """Return by which factor each operation (n,) changes if it meets transfers `times` as long."""
        more = self.factor - 1
        return (1 + more * np.minimum(self.share * times, 1.0)) / (1 + more * self.share)


def shared_cores(recording: Recording) -> SharedCores | None:
    """Return how much longer computation takes while transfers are on their way; None where nothing tells.

    By least squares: the logarithm of an operation's time is that of its name and of its rank, and grows with
    the share of the time for which transfers of the rank are on their way. So an operation is compared with
    itself in other steps and on other ranks.
    """
    computes = recording.which(lambda one: one.is_compute and one.is_traced)
    moves = recording.which(lambda one: bool(one.transfer.link) or (one.is_collective and not one.on_device))
    _, name = recording.numbered(lambda one: one.name)
    found: list[tuple[Int64 | Float64, ...]] = []
    for step in map(recording.steps.__getitem__, recording.whole_steps):
        chosen = computes[step.operation] & (step.work_ns > _SHORTEST_NS)
        for owner in range(len(recording.owners)):
            events = np.flatnonzero(chosen & (step.owner == owner))
            share = _met(step, events, np.flatnonzero(moves[step.operation] & (step.owner == owner)))
            what = step.operation[events]
            found.append((what, name[what], step.owner[events], np.log(step.work_ns[events]), share))
    if not found:
        return None
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    operation, kind, owners = (column.astype(np.int64) for column in columns[:3])
    took, share = columns[3:]
    if not share.any():
        return None
    beyond, left = (_beyond(column, kind, owners) for column in (share, took))
    spread = float(beyond @ beyond)
    if spread < _VARIES**2 * len(took):
        return None
    grows = float(beyond @ left) / spread
    error = np.sqrt(np.mean((left - grows * beyond) ** 2) / spread)
    if grows - 2 * error < np.log(_LONGER):
        return None
    n = len(recording.operations)
    times = np.maximum(np.bincount(operation, minlength=n), 1)
    return SharedCores(float(np.exp(grows)), np.bincount(operation, share, n) / times)


def _beyond(values: Float64, *groups: Int64) -> Float64:
    """Return the rest of values (k,) beside a part of each of their groups (k,), by alternating means."""
    left: Float64 = values.copy()
    for _ in range(_ALTERNATING):
        for group in groups:
            left -= (np.bincount(group, left) / np.maximum(np.bincount(group), 1))[group]
    return left


def _met(step: StepGraph, events: Int64, transfers: Int64) -> Float64:
    """Return the share of its time for which each of some events (k,) meets `transfers` of its rank."""
    begin, over = step.start_ns[events], step.end_ns[events]
    on_their_way = union(begins(step)[transfers], step.end_ns[transfers])
    return np.asarray(clipped_lengths(on_their_way, begin, over) / np.maximum(over - begin, 1))
