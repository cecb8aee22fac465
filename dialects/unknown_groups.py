"""Infers process groups that the trace does not name, from counts that match between ranks.

All of one thread is done in one group, threads are made group by group, and a group has no more than two
(as many as gloo makes). The ranks of a group do as many things of a kind in it as each other, and the n-th
of one is the n-th of the others, which none leaves before all have come.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from msgspec.structs import replace

from arrays import Int64
from dialects.step_parts import InStep, Meetings, RankStep

_THREADS_OF_GROUP = 2
#: Clocks of processes agree to about this.
_TOLERANCE_NS = 50_000
#: Where a rank's threads can be divided among its groups in more ways, or after so many trials, none is told.
_MOST_WAYS, _MOST_TRIED = 10_000, 20_000


class Group(NamedTuple):
    """Ranks, and by what key they meet in something that is done among them."""

    key: Hashable
    members: tuple[int | None, ...]


class Among(NamedTuple):
    """The key of a `Meeting` in one of several `groups`, in the order in which they were made.

    Threads are numbered as they were made; `all_wait` is as of `SyncPart`.
    """

    thread: int
    groups: tuple[Group, ...]
    all_wait: bool


#: What is known by a key now.
_Known: TypeAlias = Mapping[Among, Hashable]
#: When the last rank came to what is done under each key, time by time, and when the first one left it.
_Came: TypeAlias = Mapping[Hashable, tuple[Int64, Int64]]


class _Done(NamedTuple):
    """The operations of a rank under `keys` (k,), by key and turn: once each, not step by step."""

    keys: Sequence[Hashable]
    key: Int64
    turn: Int64
    begin_ns: Int64
    end_ns: Int64

    @property
    def among(self) -> list[Among]:
        """The keys that are not known."""
        return list(dict.fromkeys(key for key in map(_bare, self.keys) if isinstance(key, Among)))

    def under(self, known: _Known) -> dict[Hashable, Int64]:
        """Return which are done under each key, by their begin."""
        names = [known[key] if isinstance(key, Among) else key for key in map(_bare, self.keys)]
        order = np.argsort(self.begin_ns, kind="stable")
        return {
            name: order[np.isin(self.key[order], [i for i, one in enumerate(names) if one == name])]
            for name in dict.fromkeys(names)
        }


def with_groups(ranks: Sequence[int | None], steps: Sequence[Sequence[RankStep]]) -> list[list[RankStep]]:
    """Return the steps of each rank, with what it does in a group that is not known as the other ranks tell.

    Where they do not tell it, it meets nobody there.
    """
    key_lists = {id(step.meetings.keys): step.meetings.keys for own in steps for step in own}
    bare = (_bare(key) for keys in key_lists.values() for key in keys)
    among = dict.fromkeys(key for key in bare if isinstance(key, Among))
    if not among:
        return [list(own) for own in steps]
    members = {group.key: group.members for one in among for group in one.groups}
    waits = {group.key: one.all_wait for one in among for group in one.groups}
    done = [_done(own, members) for own in steps]
    known = _known(ranks, done, members, waits) or [None] * len(done)
    return [_named(own, one, names) for own, one, names in zip(steps, done, known, strict=True)]


def _done(own: Sequence[RankStep], wanted: Mapping[Hashable, object]) -> _Done:
    all_keys = dict.fromkeys(key for step in own for key in step.meetings.keys)
    keys = [key for key in all_keys if isinstance(_bare(key), Among) or _bare(key) in wanted]
    columns = [np.empty((4, 0), np.int64)]
    for step in own:
        rows, key = _rows(step.meetings, keys)
        event = step.meetings.event[rows]
        begin, end = (times[event].astype(np.int64) + step.since_ns for times in (step.start_ns, step.end_ns))
        columns.append(np.stack([key, step.meetings.turn[rows], begin, end]))
    table = np.concatenate(columns, axis=1)
    _, first = np.unique(table[:2], axis=1, return_index=True)  # in later steps it is cut to begin with them
    return _Done(keys, *table[:, first])


def _bare(key: Hashable) -> Hashable:
    """Return a key without its step: the steps here are those that all ranks have."""
    return key.key if isinstance(key, InStep) else key


def _rows(meetings: Meetings, keys: Sequence[Hashable]) -> tuple[Int64, Int64]:
    """Return which meetings have one of the `keys`, and which one."""
    place = {key: i for i, key in enumerate(keys)}
    key = np.array([place.get(key, -1) for key in meetings.keys], np.int64)[meetings.key]
    rows = np.flatnonzero(key >= 0)
    return rows, key[rows]


def _known(
    ranks: Sequence[int | None],
    done: Sequence[_Done],
    members: Mapping[Hashable, Sequence[int | None]],
    waits: Mapping[Hashable, bool],
) -> Sequence[_Known | None]:
    """Return the first keys of each rank that fit all ranks; none where none do."""
    own_keys = [[key for key, inside in members.items() if rank in inside] for rank in ranks]
    untried = [_ways(done[0].among)]
    taken: list[_Known] = []
    came: list[_Came] = [{}]
    for _ in range(_MOST_TRIED):
        here = len(taken)
        way = next(untried[-1], None)
        if way is None:  # back to the rank before, which takes its next one
            if not taken:
                break
            for stack in (untried, taken, came):
                stack.pop()
        elif (joined := _joined(came[-1], done[here], way, own_keys[here], waits)) is not None:
            taken.append(way)
            if len(taken) == len(done):
                return taken
            came.append(joined)
            untried.append(_ways(done[here + 1].among))
    return ()


def _ways(among: Sequence[Among]) -> Iterator[_Known]:
    """Return by which keys a rank's may be known: each way to divide its threads among its groups."""
    if not among:
        yield {}
        return
    threads = sorted({one.thread for one in among})
    sizes = tuple(len(group.members) for group in among[0].groups)  # its other kinds of work have the same
    for way in _divided(len(threads), sizes):
        yield {one: one.groups[way[threads.index(one.thread)]].key for one in among}


@lru_cache(maxsize=64)  # ranks are alike
def _divided(n_threads: int, sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return how threads can be divided among groups of these sizes: to few first, of these to large ones."""
    if comb(n_threads + len(sizes) - 1, n_threads) > _MOST_WAYS:
        return []
    ways = combinations_with_replacement(range(len(sizes)), n_threads)
    found = [way for way in ways if max(map(way.count, way)) <= _THREADS_OF_GROUP]
    return sorted(found, key=lambda way: (len({*way}), -sum(sizes[group] for group in {*way})))


def _joined(
    came: _Came, done: _Done, way: _Known, own: Sequence[Hashable], waits: Mapping[Hashable, bool]
) -> _Came | None:
    """Return who came to what with one more rank, in groups of the keys `own`; None if it does not fit."""
    under = done.under(way)
    joined = dict(came)
    for key in own:
        rows = under.get(key, np.empty(0, np.int64))
        last, first = done.begin_ns[rows], done.end_ns[rows]
        if key in came:
            if len(came[key][0]) != len(rows):
                return None
            last, first = np.maximum(last, came[key][0]), np.minimum(first, came[key][1])
            if waits[key] and (last > first + _TOLERANCE_NS).any():
                return None
        joined[key] = last, first
    return joined


def _named(own: Sequence[RankStep], done: _Done, known: _Known | None) -> list[RankStep]:
    """Return a rank's steps with the keys that are `known`, and turns to them; without those that are not."""
    turn = done.turn.copy()
    for rows in () if known is None else done.under(known).values():
        turn[rows] = np.arange(len(rows))
    n_turns = int(done.turn.max(initial=0)) + 1
    numbers = done.key * n_turns + done.turn
    named: dict[int, list[Hashable]] = {}
    counted = set(done.keys)
    steps = []
    for step in own:
        meetings = step.meetings
        if id(meetings.keys) not in named:
            # what is counted here is counted over all steps
            named[id(meetings.keys)] = [
                key if known is None or key not in counted else known.get(cast(Among, _bare(key)), _bare(key))
                for key in meetings.keys
            ]
        keys = named[id(meetings.keys)]
        rows, key = _rows(meetings, done.keys)
        turns = meetings.turn.astype(np.int64)
        turns[rows] = turn[np.searchsorted(numbers, key * n_turns + turns[rows])]
        meetings = replace(meetings, keys=keys, turn=turns)
        kept = np.flatnonzero(
            np.array([not isinstance(_bare(key), Among) for key in keys], np.bool_)[meetings.key]
        )
        steps.append(replace(step, meetings=meetings.select(kept, meetings.event[kept])))
    return steps
