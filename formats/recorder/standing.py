"""Where a rank stood when it wrote down what it had called: which calls are open, and what came before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

Spans = tuple[tuple[int, int, int], ...]


class Group(NamedTuple):
    """A group of ranks, as spans (first, after the last, step); () where no rank is listed."""

    name: str
    description: str
    spans: Spans

    @property
    def members(self) -> Sequence[int]:
        """The ranks in the order of the group."""
        return members_of(self.spans)

    def __str__(self) -> str:
        is_named = self.description not in ("", self.name)
        return f"{self.description} ({self.name})" if is_named else f"group {self.name}"


@cache
def members_of(spans: Spans) -> Sequence[int]:
    """Return the ranks of spans.

    >>> members_of(((0, 6, 2), (9, 10, 1)))
    (0, 2, 4, 9)
    """
    return tuple(chain.from_iterable(range(*span) for span in spans))


def spans_of(members: Sequence[int]) -> Spans:
    """Return ranks as spans.

    >>> spans_of((0, 2, 4, 9))
    ((0, 6, 2), (9, 10, 1))
    """
    found: list[tuple[int, int, int]] = []
    for rank in members:
        first, after, step = found[-1] if found else (rank, rank, 0)
        if found and after == first + 1 and rank > first:  # the second of a span tells its step
            found[-1] = (first, 2 * rank - first, rank - first)
        elif found and rank == after:
            found[-1] = (first, after + step, step)
        else:
            found.append((rank, rank + 1, 1))
    return tuple(found)


class Call(NamedTuple):
    """A call of a collective, or of a send or a receive, by one rank.

    `number` counts the collectives of the group, and is the same on all members; `order` counts all calls of
    the rank. `peer` is the other rank of a message. `all_wait`: no member completes it before all have come.
    """

    group: Group
    kind: str
    number: int
    order: int
    peer: int | None
    all_wait: bool
    sizes: str  # of the parts of the data that all members must agree on
    dtypes: str
    shapes: str  # as recorded, for people
    at_ns: int  # -1 where unknown
    has_started: bool
    frames: Sequence[str] = ()  # of the Python stack, the innermost first


class Lane(Struct):
    """The collectives of one group on one rank; numbers are -1 where unknown.

    `first` are the first open ones and `done` the last completed ones, a few of each, in order.
    """

    group: Group
    entered: int = -1  # the number of the last one that was called
    completed: int = -1
    first: Sequence[Call] = ()
    done: Sequence[Call] = ()
    n_open: int = 0


class Standing(Struct):
    """The calls of one rank; `messages` are the open sends and receives in order, some of many.

    `counters` are, per group, the last number called and the last one completed, of collectives or, where the
    group also has messages (`with_messages`), of either.
    """

    groups: Mapping[str, Group]
    lanes: Mapping[str, Lane]
    messages: Sequence[Call]
    counters: Mapping[str, tuple[int, int]]
    with_messages: frozenset[str]
    last: Call | None
    last_ns: int  # the latest time in the file; -1 where there is none
    n_calls: int
    tells_start: bool  # whether the start of operations is recorded
    rank_by: str = ""  # what tells the rank
