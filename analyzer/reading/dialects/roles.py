"""Roles and phases: the purpose of a slice or an operation in a step, in the same words for all systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np

from analyzer.base.arrays import Mask, NDArray
from analyzer.reading.dialects.name_rules import is_wait
from analyzer.reading.formats.columns import Trace


def by_cat(trace: Trace, accept: Callable[[str], object]) -> Mask:
    """Mask the slices (n,) whose category `accept` takes."""
    return _by_table(trace.cats, trace.cat_id, accept)


def by_name(trace: Trace, accept: Callable[[str], object], among: Mask | None = None) -> Mask:
    """Mask the slices (n,), of those `among`, whose name `accept` takes; other names are not tried."""
    if among is None:
        return _by_table(trace.names, trace.name_id, accept)
    accepted = np.zeros(len(trace.names), np.bool_)
    accepted[trace.name_id[among]] = True
    for i in np.flatnonzero(accepted).tolist():
        accepted[i] = bool(accept(trace.names[i]))
    return among & accepted[trace.name_id] if len(accepted) else among


def _by_table(table: Sequence[str], ids: NDArray[np.int32], accept: Callable[[str], object]) -> Mask:
    accepted: Mask = np.fromiter(map(bool, map(accept, table)), np.bool_, len(table))
    return accepted[ids] if len(table) else np.zeros(len(ids), np.bool_)


class Role(IntEnum):
    """The role of a slice or an operation; `CLAIMS` orders those that run at the same time."""

    COMPUTE = 0  # computation: a kernel, or an operator of the host where no work of a device is recorded
    COMM = 1  # moves data between ranks
    WHOLE_COMM = 2  # a whole communication whose parts are slices too: it also covers the time in queues
    COPY = 3  # copies and fills on a device
    UPDATE = 4  # the update of the model, with its wait for communication in it (BytePS's STEP)
    INPUT = 5  # loading of input data
    WAIT = 6  # until the other ranks are ready: no bytes move
    HOST = 7  # work of the host that only prepares that of a device
    CALL = 8  # a call of the device's runtime or driver: a launch, a wait, an allocation
    FRAME = 9  # a span around others; its own time is that in which none of them ran
    IDLE = 10  # a thread other than the main one waits for another of its rank, or for time to pass
    IGNORED = 11  # stands for the recording itself, or repeats other slices
    UNTRACED = 12  # of operations: computation inferred from the time before the next event
    MEETING = 13  # of operations: no work, the moment at which the last of many ranks arrives

    @property
    def word(self) -> str:
        """The name in edits and tables; "" for operations that are named by their phase."""
        return _ROLE_WORDS.get(self, "")


class Phase(IntEnum):
    """The part of the training loop in which an operation runs."""

    NONE = 0  # none, or not known
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3
    INPUT = 4
    CALLBACK = 5  # logging, checkpoints, schedules

    @property
    def word(self) -> str:
        """The name in edits and tables; "" for none."""
        return _PHASE_WORDS[self]


#: Where several roles run at once, the first group in this list gets the time; roles of one group share it.
#: While a thread is idle, the spans around the wait get nothing. `figures.time_by_role` has the reasons.
CLAIMS: Sequence[Sequence[Role]] = (
    (Role.COMPUTE,),
    (Role.COMM,),
    (Role.WHOLE_COMM,),
    (Role.UPDATE,),
    (Role.COPY,),
    (Role.INPUT, Role.WAIT, Role.HOST, Role.CALL),
    (Role.FRAME,),
)

_ROLE_WORDS = {
    Role.COMM: "Comm", Role.WHOLE_COMM: "Comm", Role.INPUT: "I/O", Role.WAIT: "wait",
    Role.FRAME: "annotation",
}  # fmt: skip
_PHASE_WORDS = ("", "FW", "BW", "STEP", "I/O", "callback")


def is_communication(roles: NDArray[np.int8]) -> Mask:
    """Mask the communication (n,), whole or in part."""
    return np.asarray((roles == Role.COMM) | (roles == Role.WHOLE_COMM))


def idle(trace: Trace, roles: NDArray[np.int8]) -> Mask:
    """Mask the waits (n,) of threads other than the main one: they delay nothing.

    The main thread is the one with the most calls that neither wait, communicate nor copy.
    """
    moves = np.isin(roles, (Role.COMM, Role.COPY))
    waits: Mask = by_name(trace, is_wait) & ~moves & (roles != Role.IGNORED)
    if not waits.any():
        return waits
    calls = np.bincount(trace.track_id[~waits & ~moves], minlength=len(trace.tracks))
    return np.asarray(waits & (trace.track_id != calls.argmax()))
