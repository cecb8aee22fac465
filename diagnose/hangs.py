"""Why a job hangs: who waits for whom in which call, and the roots of the chain over all groups.

Each rank says where it stood (`Standing`). Ranks and open calls are the nodes of a graph: a rank leads to the
first open call of each of its groups, a call to the members that have not called it, or else to those that an
earlier call holds. Whoever waits has a way out of its node. Where ways end is the cause:

- a rank that waits for nobody: it has not come, while others wait for it;
- a rank without a dump, where nothing else explains the waiting: it has died, or could not write;
- ranks that wait for each other in a circle, or the one of them without which nobody would;
- a call that all members have made, with different arguments, or that some devices have not started.

Beside these, a rank whose record lacks completions that all members of a group took part in has stopped by
itself: its device, or its library's thread, no longer answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import chain, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

import dialects
from arrays import Int64
from arrays.numbering import places_by_value, unique
from diagnose.finding_thresholds import DUMPED_WITHIN_NS, FEWEST_CALLS, HALF, OUTLYING
from errors import in_words
from formats.columns import Trace
from formats.recorder.standing import UNKNOWN, DumpedCall, Lane, Standing


class HangCause(Enum):
    """Why calls do not complete; the words are those of tables."""

    ABSENT = "has not come"
    BEHIND = "its record stopped"
    NO_DUMP = "left no dump"
    CYCLE = "wait for each other"
    ELSEWHERE = "waits elsewhere"
    MISMATCH = "calls differ"
    NOT_STARTED = "its device has not started"


#: Causes that time may end.
_LATE = {HangCause.ABSENT, HangCause.BEHIND, HangCause.NO_DUMP, HangCause.NOT_STARTED}


class Root(NamedTuple):
    """One cause: the guilty `ranks`, the call that does not complete, and who waits in it."""

    cause: HangCause
    ranks: Sequence[int]
    call: DumpedCall
    waiting: Sequence[int] = ()
    differ: Mapping[str, Sequence[int]] = {}  # what was called, and by whom


class Wait(NamedTuple):
    """A rank waits in its first open call for `on`: ranks that have not come, or are held (`is_held`)."""

    call: DumpedCall
    on: Sequence[int]
    is_held: bool


class Hang(Struct):
    """The answer of some dumps; `reason` says why no hang is claimed where there is no root.

    `doubt` says why the job may only be slow, `caveat` what else is not known.
    """

    roots: Sequence[Root]
    waits: Mapping[int, Wait]
    reason: str = ""
    caveat: str = ""
    doubt: str = ""


_Group = Sequence[int]  # its members
_Key = tuple[str, _Group]
_Node = Hashable  # a rank, or an open call


def find_hang(ranks: Mapping[int, Standing]) -> Hang:
    """Return why the job of these ranks hangs, or why that is not claimed."""
    job = _Job(ranks)
    waits = {rank: wait for rank in ranks if (wait := job.wait(rank)) is not None}
    roots = _merged(job.ends())
    known = [root for root in roots if root.cause is not HangCause.NO_DUMP]
    named = {rank for root in known or roots for rank in root.ranks}
    moved, missing = job.moved(), job.all_of([*job.lost])
    reason = caveat = ""
    if roots and not known and len(missing) >= len(ranks):
        reason = f"the others wait for {in_words(missing)} without a dump; give the dumps of all ranks"
    elif moved and (len(moved) >= HALF * len(ranks) or not named <= {*moved}):
        reason = (
            f"others completed calls that {in_words(moved)} had not made: the dumps are of different "
            "moments, and the job moved between them"
        )
    elif not roots:
        reason = job.why_not()
    elif moved:
        caveat = f"the record of {in_words(moved)} ends before calls that others completed with it"
    elif left := sorted({*missing}.difference(job.all_of([*named]))):
        caveat = f"{in_words(left)} left no dump: whether they wait, too, is not known"
    roots = [*(known or roots), *(root for rank, root in job.frozen.items() if rank not in named)]
    reason = reason or job.signs_of_life(roots)
    roots = [] if reason else [root._replace(ranks=job.all_of(root.ranks)) for root in roots]
    return Hang(sorted(roots, key=_since), waits, reason, caveat, job.doubt(roots))


def _since(root: Root) -> tuple[bool, bool, int]:
    return root.cause is HangCause.BEHIND, *_age(root.call)


def _age(call: DumpedCall) -> tuple[bool, int]:
    """Return a key that sorts calls by their time, those without one last."""
    return call.at_ns < 0, call.at_ns


def _merged(roots: Iterable[Root]) -> list[Root]:
    """Return the roots without those whose ranks all stand in an earlier one; a mismatch comes first."""
    found: list[Root] = []
    named: set[int] = set()
    for root in sorted(roots, key=lambda one: one.cause is not HangCause.MISMATCH):
        if not named.issuperset(root.ranks):
            found.append(root)
            named.update(root.ranks)
    return found


class _Job:
    """The standings of all ranks, side by side.

    `lost` are the ranks without a dump, by the first of those that are in the same groups: these wait for
    nobody and are awaited alike, so the first is the node of all of them. `frozen` are the ranks whose record
    stopped. `reached` are, of each group and member with a dump, the numbers of its last call and of the last
    completed one; -1 where unknown.
    """

    def __init__(self, ranks: Mapping[int, Standing]) -> None:
        self.ranks = ranks
        self.lanes: dict[_Key, dict[int, Lane]] = defaultdict(dict)
        for rank, one in ranks.items():
            for lane in one.lanes.values():
                self.lanes[lane.group.key][rank] = lane
        messages = [call for one in ranks.values() for call in one.messages]
        peers = {call.peer for call in messages if call.peer is not None and call.peer != UNKNOWN}
        groups: set[_Group] = {*(members for _, members in self.lanes), *((peer,) for peer in peers)}
        present = {group: [rank for rank in group if rank in ranks] for group in groups}
        absent = (
            (group, np.array([rank for rank in group if rank not in ranks], np.int64)) for group in groups
        )
        self.lost, self._lost_in = _alike({group: own for group, own in absent if len(own)})
        self.reached: dict[_Key, dict[int, tuple[int, int]]] = {}
        for key, lanes in self.lanes.items():
            with_counters = not any(lane.has_messages for lane in lanes.values())
            known = dict.fromkeys(present[key[1]], (-1, -1))
            own = {rank: lane.reached(with_counters=with_counters) for rank, lane in lanes.items()}
            self.reached[key] = known | own
        self.frozen: dict[int, Root] = {}
        self._seen_through: dict[tuple[_Key, int], int] = {}  # group and rank: calls up to this one are done
        self._differ = self._mismatched()
        # one of which no ranks are listed may be several
        self._sure = [key for key in self.lanes if key[1]]
        for key in self._sure:
            self._find_frozen(key)
        self.opens = {rank: self._open_calls(rank) for rank in ranks}
        self._callers: dict[_Node, dict[int, DumpedCall]] = defaultdict(dict)
        for rank, calls in self.opens.items():
            for call in calls:
                self._callers[_node(rank, call)][rank] = call
        self._first = {rank: calls[0].order for rank, calls in self.opens.items() if calls}
        # open ones that all members have made, as far as `ends` found them
        self.running: list[DumpedCall] = []
        self._targets: dict[_Node, tuple[Sequence[int], bool]] = {}
        self._waiting: dict[tuple[_Node, ...], tuple[DumpedCall | None, Sequence[int]]] = {}

    # ---- what the records say

    def _mismatched(self) -> dict[tuple[_Key, int], dict[str, list[int]]]:
        """Return the open collectives that members called, but not alike: what was called, and by whom."""
        found = {}
        for key, lanes in ((key, lanes) for key, lanes in self.lanes.items() if key[1]):
            for number in {lane.first[0].number for lane in lanes.values() if lane.first}:
                by: dict[str, list[int]] = defaultdict(list)
                for rank, lane in lanes.items():
                    call = next((one for one in (*lane.first, *lane.done) if one.number == number), None)
                    if call is not None:
                        by[call.signature].append(rank)
                if len(by) > 1:
                    found[key, number] = dict(by)
        return found

    def _find_frozen(self, key: _Key) -> None:
        """Find the ranks with calls open that a member completed, as no one can without them."""
        completed = {rank: done for rank, (_, done) in self.reached[key].items()}
        top = max(completed.values())
        unseen: dict[int, list[DumpedCall]] = {}
        for rank, lane in self.lanes[key].items():
            calls = [one for one in lane.first if one.number <= top and one.all_wait]
            if calls and not any((key, one.number) in self._differ for one in calls):
                unseen[rank] = calls
        if len(unseen) > HALF * len(completed):
            return
        for rank, calls in unseen.items():
            self._seen_through[key, rank] = calls[-1].number
            if rank not in self.frozen or calls[0].order < self.frozen[rank].call.order:
                done_by = [one for one, n in completed.items() if n >= calls[0].number]
                self.frozen[rank] = Root(HangCause.BEHIND, (rank,), calls[0], done_by)

    def _open_calls(self, rank: int) -> list[DumpedCall]:
        """Return the first open call of each group, and of each kind of message to each peer, in order."""
        found: dict[Hashable, DumpedCall] = {}
        for lane in self.ranks[rank].lanes.values():
            seen = self._seen_through.get((lane.group.key, rank), -1)
            for call in [one for one in lane.first if one.number > seen][:1]:
                found[lane.group.name] = call
        # which of its messages are done a record that stopped does not know
        for call in self.ranks[rank].messages if rank not in self.frozen else ():
            found.setdefault((call.group.name, call.kind, call.peer), call)
        return sorted(found.values(), key=lambda call: call.order)

    # ---- who waits for whom

    def targets(self, rank: int, call: DumpedCall) -> tuple[Sequence[int], bool]:
        """Return the ranks that an open call of `rank` waits for, and whether they are only held."""
        node = _node(rank, call)
        if node not in self._targets:
            found = self._call_targets(call) if call.peer is None else self._peer(rank, call, call.peer)
            self._targets[node] = found
        return self._targets[node]

    def _call_targets(self, call: DumpedCall) -> tuple[Sequence[int], bool]:
        key = call.group.key
        reached = self.reached[key]
        absent = [rank for rank, (entered, _) in reached.items() if entered < call.number]
        absent = absent or self._lost_in.get(key[1], [])
        if absent:
            return absent, False
        own = {rank: one.order for rank, one in self._calls(key, call.number).items()}
        waiting = [rank for rank, (_, completed) in reached.items() if completed < call.number]
        return self._held({rank: own.get(rank, inf) for rank in waiting}), True

    def _peer(self, rank: int, call: DumpedCall, peer: int) -> tuple[Sequence[int], bool]:
        """Return whom a message waits for: its peer, as long as that has no message for it open, too."""
        answer = self._answer(rank, call)
        return (self._held({peer: answer.order, rank: call.order}), True) if answer else ([peer], False)

    def _answer(self, rank: int, call: DumpedCall) -> DumpedCall | None:
        """Return the open message of the peer that belongs to this one of `rank`."""
        wanted = "recv" if call.kind.startswith("send") else "send"
        for one in self.opens.get(-1 if call.peer is None else call.peer, ()):
            if one.peer == rank and one.kind.startswith(wanted) and one.group.name == call.group.name:
                return one
        return None

    def _held(self, order: Mapping[int, float]) -> list[int]:
        """Return the ranks for which another call is the first open one, by the place of this one."""
        return [rank for rank, own in order.items() if self._first.get(rank, inf) < own]

    def _calls(self, key: _Key, number: int) -> dict[int, DumpedCall]:
        """Return the open calls of a collective."""
        lanes = self.lanes[key].items()
        return {rank: call for rank, lane in lanes for call in lane.first if call.number == number}

    def wait(self, rank: int) -> Wait | None:
        """Return for whom a rank waits in its first open call; None where none is open, or all have come."""
        for call in self.opens[rank][:1]:
            on, is_held = self.targets(rank, call)
            on = [one for one in on if one not in (rank, UNKNOWN)]
            return Wait(call, self.all_of(on), is_held) if on else None
        return None

    def all_of(self, nodes: Sequence[int]) -> Sequence[int]:
        """Return ranks, and those without a dump for which one of them stands."""
        if self.lost.keys().isdisjoint(nodes):
            return nodes
        return sorted(chain.from_iterable(self.lost.get(rank, (rank,)) for rank in nodes))

    # ---- where the ways end

    def ends(self) -> list[Root]:
        """Return the causes at which the ways end."""
        found = []
        for part in self._sinks(self.opens):
            ranks = [node for node in part if isinstance(node, int)]
            if len(ranks) < 2:
                found.append(self._end(part))
            else:  # a circle: in their first calls, whoever else follows
                found += map(self._end, self._sinks({rank: self.opens[rank][:1] for rank in ranks}))
        return [root for root in found if root is not None]

    def _sinks(self, ways: Mapping[int, Sequence[DumpedCall]]) -> Iterable[set[_Node]]:
        """Return the strongly connected parts of the graph from which no way leads out."""
        import networkx

        parts: Iterable[set[_Node]] = networkx.attracting_components(self._graph(ways))
        return parts

    def _graph(self, ways: Mapping[int, Sequence[DumpedCall]]) -> Any:
        """Return the graph of these ranks and calls (a `networkx.DiGraph`): who waits for whom."""
        import networkx

        graph: Any = networkx.DiGraph()
        graph.add_nodes_from(ways)
        for rank, calls in ways.items():
            for call in calls:
                node = _node(rank, call)
                if node not in graph:
                    graph.add_edges_from((node, on) for on in self.targets(rank, call)[0])
                graph.add_edge(rank, node)
        return graph

    def _end(self, part: Iterable[_Node]) -> Root | None:
        ranks = sorted(node for node in part if isinstance(node, int))
        if len(ranks) > 1:
            calls = [self.opens[rank][0] for rank in ranks]
            for call in calls:
                if call.peer is None and (call.group.key, call.number) in self._differ:
                    return self._differing(call.group.key, call.number)
            begun = {rank for rank in ranks if any(call.has_started for call in self.opens[rank])}
            late = [rank for rank in ranks if rank not in begun and self.ranks[rank].tells_start]
            if begun and 0 < len(late) <= HALF * len(ranks):
                return Root(HangCause.NOT_STARTED, late, self.opens[late[0]][0], sorted(begun))
            if (odd := self._odd_one(ranks)) is not None:
                first, waiting = self._waiting_in(tuple(self._awaited[odd]))
                return first and Root(HangCause.ELSEWHERE, [odd], first, waiting)
            return Root(HangCause.CYCLE, ranks, min(calls, key=_age), ranks)
        if not ranks:
            (node,) = part
            for key, number in self._differ.keys() & {node}:
                return self._differing(key, number)
            own = dict(self._callers[node])
            for rank, call in [*own.items()]:
                if call.peer is not None and (answer := self._answer(rank, call)):
                    own[call.peer] = answer
            root = self._not_started(own)
            if root is None:
                self.running.append(max(own.values(), key=lambda call: call.at_ns))
            return root
        first, waiting = self._waiting_in(tuple(self._awaited.get(ranks[0], ())))
        cause = HangCause.NO_DUMP if ranks[0] in self.lost else HangCause.ABSENT
        return Root(cause, ranks, first, waiting) if first and ranks != [UNKNOWN] else None

    def _odd_one(self, circle: Sequence[int]) -> int | None:
        """Return the one rank without which none of the others would wait in a circle, if there is one.

        It has left a call out, or made it in another order than they have.
        """
        import networkx

        graph = self._graph({rank: self.opens[rank][:1] for rank in circle})
        maybe = {node for node, _ in networkx.find_cycle(graph) if isinstance(node, int)}
        found: list[int] = []
        while maybe and len(found) < 2:
            rank = maybe.pop()
            try:  # who is not in each circle is not the one
                maybe &= {node for node, _ in networkx.find_cycle(graph.subgraph(graph.nodes - {rank}))}
            except networkx.NetworkXNoCycle:
                found.append(rank)
        return found[0] if len(found) == 1 else None

    @cached_property
    def _awaited(self) -> Mapping[int, Sequence[_Node]]:
        """The open calls that wait for a rank, but not those of its own alone."""
        found: dict[int, list[_Node]] = defaultdict(list)
        for node, callers in self._callers.items():
            for on in self.targets(*next(iter(callers.items())))[0]:
                if callers.keys() != {on}:
                    found[on].append(node)
        return found

    def _waiting_in(self, nodes: tuple[_Node, ...]) -> tuple[DumpedCall | None, Sequence[int]]:
        """Return the first of open calls, and the ranks in it; those come first whose ranks have not come."""
        if nodes not in self._waiting:  # thousands of ranks may be awaited in the same calls
            pairs = [pair for node in nodes for pair in self._callers[node].items()]
            pairs = [pair for pair in pairs if not self.targets(*pair)[1]] or pairs
            by, first = min(
                pairs, key=lambda pair: (pair[1].peer is not None, *_age(pair[1])), default=(0, None)
            )
            self._waiting[nodes] = first, sorted(self._callers[_node(by, first)]) if first else ()
        return self._waiting[nodes]

    def _not_started(self, own: Mapping[int, DumpedCall]) -> Root | None:
        """Return the members whose device has not started a call that others have started."""
        started = sorted(rank for rank, call in own.items() if call.has_started)
        late = sorted(rank for rank in own if rank not in started and self.ranks[rank].tells_start)
        if not started or not late or len(late) > HALF * len(own):
            return None
        return Root(HangCause.NOT_STARTED, late, own[late[0]], started)

    def _differing(self, key: _Key, number: int) -> Root | None:
        """Return a call that all members made, but not alike; the fewer are guilty."""
        calls = self._calls(key, number)
        if not calls or any(entered < number for entered, _ in self.reached[key].values()):
            return None
        by = self._differ[key, number]
        most = max(map(len, by.values()))
        is_even = min(map(len, by.values())) == most
        odd = sorted(rank for ranks in by.values() for rank in ranks if is_even or len(ranks) < most)
        return Root(HangCause.MISMATCH, odd, min(calls.values(), key=_age), sorted(calls), by)

    # ---- signs of life

    def why_not(self) -> str:
        """Return why nothing is claimed where no way ends."""
        if self.frozen:
            return self._several_moments()
        if not any(one.last for one in self.ranks.values()):
            return "the dumps hold no call" + self._by_counters()
        if any(not call.group.members for calls in self.opens.values() for call in calls):
            return "calls are open, and the dumps do not list the ranks of their groups"
        if any(self.opens.values()):
            return "every open call has been made by all of its members: they may still be running"
        return "no call is open: every rank has completed all that it called"

    def _several_moments(self) -> str:
        return (
            f"calls are open on {in_words(sorted(self.frozen))} that others completed, perhaps "
            "because the dumps are of different moments"
        )

    def _by_counters(self) -> str:
        """Return a sentence of the ranks whose counters are behind those of others in a group."""
        behind = set()
        for reached in self.reached.values():
            top = max(entered for entered, _ in reached.values())
            behind |= {rank for rank, (entered, _) in reached.items() if entered < top}
        return f"; by their counters {in_words([*behind])} called fewer than others" if behind else ""

    def moved(self) -> list[int]:
        """Return the ranks that had not made a call that others had completed, as no one can without them."""
        found = set()
        for key in self._sure:
            done = (call.number for lane in self.lanes[key].values() for call in lane.done if call.all_wait)
            top = max(done, default=-1)
            found |= {rank for rank, (entered, _) in self.reached[key].items() if 0 <= entered < top}
        return sorted(found)

    def signs_of_life(self, roots: Sequence[Root]) -> str:
        """Return why a job with these causes may only be slow; "" where nothing speaks for that."""
        if any(root.cause is HangCause.MISMATCH for root in roots):
            return ""
        last_ns, written_ns, longest_ns = self._times()
        if running := [call for call in self.running if last_ns - call.at_ns < longest_ns]:
            return f"{running[0].title} is still running, as it has been made by all of its members"
        since_ns = min(root.call.at_ns for root in roots)
        several = len(self.frozen) > 1 and any(root.cause is not HangCause.BEHIND for root in roots)
        if several and (last_ns - since_ns < longest_ns or len(self.frozen) > len(self.ranks) // 8):
            return self._several_moments()
        waited_ns = written_ns - since_ns
        if 0 < HALF * waited_ns < longest_ns:
            took = f"calls took up to {longest_ns / 1e6:,.0f} ms before"
            return f"the dumps were written {waited_ns / 1e6:,.0f} ms later, and {took}"
        if any(_timeouts(roots, written_ns)):
            return ""
        named = {rank for root in roots for rank in root.ranks}
        if idle := sorted(rank for rank, calls in self.opens.items() if not calls and rank not in named):
            wait = "waits" if len(idle) == 1 else "wait"
            return f"{in_words(idle)} {wait} for nobody, and nobody for them: they may run"
        if not all(self._is_usual(root, last_ns) for root in roots):
            return ""
        late = in_words(sorted(rank for root in roots for rank in root.ranks))
        return (
            f"{late} came as late to each of the last calls, and the dumps end before the others have waited "
            "for longer than then"
        )

    def doubt(self, roots: Sequence[Root]) -> str:
        """Return why a job in which ranks have not come may only be slow; "" where that cannot be.

        Files that are older than a timeout are copies: only the times in them tell how long ranks waited.
        """
        last_ns, written_ns, longest_ns = self._times()
        waited_ns = last_ns - min((root.call.at_ns for root in roots), default=0)
        is_late = {root.cause for root in roots} <= _LATE
        if not is_late or waited_ns >= longest_ns or _timeouts(roots, written_ns):
            return ""
        waited, took = (f"{took_ns / 1e6:,.0f} ms" for took_ns in (waited_ns, longest_ns))
        return (
            f"the times in the dumps end after {waited} of waiting, and calls took up to {took} before: "
            "if no timeout made the job write them, it may only be slow"
        )

    def _times(self) -> tuple[int, int, int]:
        """Return the last time in the dumps, when they were written, and what a call took at most (ns)."""
        last_ns, written_ns, longest_ns = (
            max(getattr(one, f"{what}_ns") for one in self.ranks.values())
            for what in ("last", "written", "longest")
        )
        return last_ns, written_ns, longest_ns

    def _is_usual(self, root: Root, last_ns: int) -> bool:
        """Whether who has not come is as late in every call, or ever later, and now not later still."""
        lanes = self.lanes[root.call.group.key]
        made: dict[int, dict[int, int]] = defaultdict(dict)
        for rank, lane in lanes.items():
            for call in lane.done:
                made[call.number][rank] = call.at_ns
        whole = [times for times in made.values() if len(times) == len(lanes) and min(times.values()) > 0]
        late = root.ranks[0]
        if root.cause is not HangCause.ABSENT or late not in lanes or len(whole) < FEWEST_CALLS:
            return False
        behind: dict[int, list[int]] = defaultdict(list)
        for times in whole:
            first_ns = min(times.values())
            for rank, at_ns in times.items():
                behind[rank].append(at_ns - first_ns)
        others = max(sum(each) for rank, each in behind.items() if rank != late)
        growth_ns = max(
            after - before for before, after in pairwise(behind[late])
        )  # it may fall behind ever more
        longest_ns = max(behind[late]) + max(growth_ns, 0)
        return sum(behind[late]) > OUTLYING * others and last_ns - root.call.at_ns <= longest_ns


def _timeouts(roots: Iterable[Root], written_ns: int) -> list[bool]:
    """Return of the calls that waited no longer when the dumps were written whether their timeout had passed.

    No longer than to the timeout, and as long as writing takes then: else the files are copies.
    """
    waits = ((root.call.timeout_ns, written_ns - root.call.at_ns) for root in roots)
    return [waited > timeout for timeout, waited in waits if 0 < waited < timeout + DUMPED_WITHIN_NS]


def _alike(groups: Mapping[_Group, Int64]) -> tuple[dict[int, list[int]], dict[_Group, list[int]]]:
    """Return ranks by the first of those that are in the same groups, and these first ones in each group."""
    ranks = unique(np.concatenate([np.empty(0, np.int64), *groups.values()]))
    part, n = np.zeros(len(ranks), np.int64), 0
    places = {group: np.searchsorted(ranks, own) for group, own in groups.items()}
    for own in places.values():  # splits each part into the ranks in the group, and the others
        before, new = np.unique(part[own], return_inverse=True)
        part[own], n = n + 1 + new, n + len(before)
    _, first, turn = np.unique(part, return_index=True, return_inverse=True)
    firsts = {group: ranks[unique(first[turn[own]])].tolist() for group, own in places.items()}
    parts = (ranks[alike].tolist() for alike in places_by_value(turn))
    return {alike[0]: alike for alike in parts}, firsts


def _node(rank: int, call: DumpedCall) -> _Node:
    """Return an open call as a node: a collective is one of all its members, a message one of its own."""
    key = call.group.key
    return (key, call.number) if call.peer is None else (key, rank, call.kind, call.peer)


def standing_of(_: object, trace: Trace) -> Standing | None:
    """Return where the rank of a trace stood; None where its system does not record that."""
    return dialects.of(trace).standing(trace)
