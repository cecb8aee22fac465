"""What was recorded, step by step, in the form from which a model is made; knows no dialect.

An event's *head* is its start, its *body* the work up to its end. An edge leads from the start or the
end of one event to the head or the body of another: what an event needs in order to start enters its
head, what it waits for once started (the other workers, a link that is busy) enters its body.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from formats.columns import Track
from replay.plan import UNLIMITED, Int64

Bool = NDArray[np.bool_]

#: Category of negotiation: until the last rank has computed the tensor, no bytes move.
WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Operation:
    """What one event does, the same in every step in which it occurs."""

    name: str  # as in the trace, without worker and rank
    cat: str  # FW BW Comm I/O STEP of BytePS, else as in the trace
    track: Track
    owner: int  # index into `Recording.owners`
    trace_cat: str = ""  # as in the trace
    phase: str = ""  # what it is for, whatever the system: FW BW Comm I/O STEP
    whole: str = ""  # the operation that it is a part of: Comm.x for Comm.x.PUSH; "" for none
    stage: str = ""  # BytePS's queue stage
    key: int | None = None  # BytePS's partition key
    device: int = UNLIMITED  # index into `Recording.devices`: the link that its body occupies
    n_bytes: int = 0  # what a transfer carries; 0 means unknown
    is_traced: bool = True  # False: work that is only seen as the time before the next event
    is_collective: bool = False  # ranks do it together

    @property
    def label(self) -> str:
        """The name, with the partition where it is one, and with the whole where the name does not say it."""
        if self.whole and not self.name.startswith(self.whole):
            return f"{self.whole}.{self.name}"
        return self.name if self.key is None else f"{self.name}.{self.key}"

    @property
    def main(self) -> str:
        """The name of the whole of which it is a part, else its own."""
        return self.whole or self.name

    @property
    def is_communication(self) -> bool:
        """Whether it moves data between ranks."""
        return self.cat == "Comm" or self.is_collective

    @property
    def is_compute(self) -> bool:
        """Whether it is work of a rank: neither communication nor the loading of input."""
        return not self.is_communication and "I/O" not in (self.cat, self.phase)


@dataclass(frozen=True, slots=True)
class Edges:
    """Who waits for whom in a step, as rows (source, target) of events, by the ends they join."""

    after_end: Int64  # (e, 2) the target starts after the source ended
    after_start: Int64  # (e, 2) the target starts after the source started
    body_after_end: Int64  # (e, 2) the target's body begins after the source ended
    body_after_start: Int64  # (e, 2) the target's body begins after the source started


@dataclass(slots=True)
class EdgeList:
    """Collects edges; see `Edges`."""

    after_end: list[tuple[int, int]] = field(default_factory=list)
    after_start: list[tuple[int, int]] = field(default_factory=list)
    body_after_end: list[tuple[int, int]] = field(default_factory=list)
    body_after_start: list[tuple[int, int]] = field(default_factory=list)

    def freeze(self) -> Edges:
        """Return the edges as arrays."""
        kinds = (self.after_end, self.after_start, self.body_after_end, self.body_after_start)
        return Edges(*(np.array(kind, np.int64).reshape(-1, 2) for kind in kinds))


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The n events of one step of the job, of all owners, on one clock.

    `begin_ns` (owners,) is when each owner's step begins; `next_ns` when its next one does, -1 where
    the recording does not say. `carried` (k, 2) are what reaches into the step from the one before, which
    had not ended when this one began: (event of the step before, event of this step that starts after it).
    """

    operation: Int64  # (n,) index into `Recording.operations`
    start_ns: Int64
    end_ns: Int64
    edges: Edges
    begin_ns: Int64
    next_ns: Int64
    carried: Int64 = field(default_factory=lambda: np.empty((0, 2), np.int64))

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def iteration_ns(self) -> Int64:
        """How long the step took for each owner (owners,); -1 where unknown."""
        return np.where(self.next_ns < 0, -1, self.next_ns - self.begin_ns)


@dataclass(frozen=True, slots=True)
class Recording:
    """The steps of a job.

    Attributes
    ----------
    owners : what runs its own sequence of steps: a GPU or rank; its prefix without the last dot
    devices : links that carry one transfer at a time
    operations, steps : what occurs, and when
    notes : what the reader of the answer should know about the recording, a sentence each
    """

    owners: Sequence[str]
    devices: Sequence[str]
    operations: Sequence[Operation]
    steps: Sequence[RecordedStep]
    notes: Sequence[str] = ()

    @property
    def n_events(self) -> int:
        """Events of all steps."""
        return sum(map(len, self.steps))


def chain(edges: list[tuple[int, int]], events: Sequence[int]) -> None:
    """Add edges from each of `events` to the next."""
    edges.extend(itertools.pairwise(events))
