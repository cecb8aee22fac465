"""A graph compiled to integers: what the engine runs and what a what-if edits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from formats.columns import Int64

#: The device of an operation that never waits for another one: links and threads without contention.
UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations as columns, and who comes after whom.

    Attributes
    ----------
    dur_ns : (n,) how long an operation holds its device, at least 0
    gap_ns : (n,) what passes between an operation's last input and its joining the device's queue
    device : (n,) index into `slots`, or `UNLIMITED`
    priority : (n,) in the queue of a device the smallest goes first, then first ready, then by number
    slots : (m,) how many operations a device runs at a time
    after_ptr, after : the successors of operation i are ``after[after_ptr[i]:after_ptr[i + 1]]``
    """

    dur_ns: Int64
    gap_ns: Int64
    device: Int64
    priority: Int64
    slots: Int64
    after_ptr: Int64
    after: Int64

    def __len__(self) -> int:
        return len(self.dur_ns)

    def n_inputs(self) -> Int64:
        """Return the number of inputs of each operation (n,)."""
        return np.bincount(self.after, minlength=len(self)).astype(np.int64)

    def edges(self) -> tuple[Int64, Int64]:
        """Return sources and targets of all edges, by source."""
        return np.repeat(np.arange(len(self)), np.diff(self.after_ptr)), self.after


def make_plan(
    dur_ns: ArrayLike,
    edges: ArrayLike = (),
    *,
    device: ArrayLike | None = None,
    priority: ArrayLike | None = None,
    gap_ns: ArrayLike | None = None,
    slots: ArrayLike | None = None,
) -> Plan:
    """Return the plan of n operations with the given durations and (e, 2) edges.

    Without `device` nothing contends; without `slots` a device runs one operation at a time; without
    `priority` a device serves who is ready first.
    """
    dur = np.asarray(dur_ns, np.int64)
    n = len(dur)
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    where = np.full(n, UNLIMITED) if device is None else np.asarray(device, np.int64)
    n_devices = int(where.max(initial=UNLIMITED)) + 1
    after_ptr, after = _by_source(pairs, n)
    return Plan(
        dur_ns=dur,
        gap_ns=_or_zeros(gap_ns, n),
        device=where.astype(np.int64),
        priority=_or_zeros(priority, n),
        slots=np.ones(n_devices, np.int64) if slots is None else np.asarray(slots, np.int64),
        after_ptr=after_ptr,
        after=after,
    )


def _or_zeros(values: ArrayLike | None, n: int) -> Int64:
    return np.zeros(n, np.int64) if values is None else np.asarray(values, np.int64)


def _by_source(pairs: Int64, n: int) -> tuple[Int64, Int64]:
    order = np.argsort(pairs[:, 0], kind="stable")
    source = pairs[order, 0]
    return np.searchsorted(source, np.arange(n + 1)).astype(np.int64), pairs[order, 1]
