"""The state of a rank in its dump: its open calls, and the last completed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

#: The peer of a message in a group whose ranks are not listed.
UNKNOWN = -1


class Group(NamedTuple):
    """A group of ranks, in its order: a `range` where that is possible; () where none is listed."""

    name: str
    description: str
    members: Sequence[int]

    @property
    def key(self) -> tuple[str, Sequence[int]]:
        """The name and the ranks: processes that number their own groups give one name to several."""
        return self.name, self.members

    @property
    def is_named(self) -> bool:
        """Check for a name besides the number."""
        return self.description not in ("", self.name)

    def __str__(self) -> str:
        return f"{self.description} ({self.name})" if self.is_named else f"group {self.name}"


class DumpedCall(NamedTuple):
    """A call of a collective, or of a send or a receive, by one rank.

    `number` counts the collectives of the group, equally on all members; `order` all calls of the rank.
    `peer` is the other rank of a message, or `UNKNOWN`. `all_wait`: no member completes it before all called.
    """

    group: Group
    kind: str
    number: int
    order: int
    peer: int | None
    all_wait: bool
    signature: str  # equal on all members: the kind, and types and elements of the data
    data: str  # types and shapes as recorded: ``Float [120]``
    at_ns: int  # -1 where unknown
    frames: Sequence[str] = ()  # of the Python stack, the innermost first
    timeout_ns: int = -1  # of the watchdog; -1 where unknown
    given: int = -1  # elements that a member of an all-to-all sends and receives; -1 where unknown
    taken: int = -1

    @property
    def title(self) -> str:
        """The call with its number and group: ``all_reduce 17 of DP (3)``."""
        if self.peer == UNKNOWN:
            return f"{self.kind} in {self.group}"
        if self.peer is not None:
            way = "to" if self.kind.startswith("send") else "from"
            return f"{self.kind} {way} rank {self.peer} in {self.group}"
        return f"{self.kind} {self.number} of {self.group}"

    def __str__(self) -> str:
        return f"{self.title}, {self.data}" if self.data else self.title


class Lane(Struct):
    """The collectives of one group on one rank; numbers are -1 where unknown.

    `first` has the first open ones and `done` the last completed ones, a few of each, in order.
    """

    group: Group
    entered: int = -1  # the number of the last one that was called
    completed: int = -1
    first: Sequence[DumpedCall] = ()
    done: Sequence[DumpedCall] = ()
    n_open: int = 0
    counted: tuple[int, int] = (-1, -1)  # entered and completed as the group's counters have them
    has_messages: bool = False  # then the counters may be those of messages

    def reached(self, *, with_counters: bool) -> tuple[int, int]:
        """Numbers of the last call and of the last completed one."""
        if not with_counters:
            return self.entered, self.completed
        return max(self.entered, self.counted[0]), max(self.completed, self.counted[1])


class Standing(Struct):
    """The calls of one rank: a lane for each of its groups, and some open messages in order."""

    lanes: Mapping[str, Lane]
    messages: Sequence[DumpedCall]
    last: DumpedCall | None
    last_ns: int  # the latest time in the file; -1 if there is none
    written_ns: int  # the time of writing, or of a later copy
    longest_ns: int  # the longest completed call, from the call on
    rank_by: str = ""  # the source of the rank
    just_completed_ns: int = -1  # the time of writing if a call had just completed; else -1
