"""Waits between ranks and open calls, and the causes at their ends.

Ranks and open calls are the nodes of a graph: a rank leads to the first open call of each of its groups, a
call to the members that have not made it, or else to those that an earlier call holds. Whoever waits has a
way out of its node. Where ways end is the cause:

- a rank that is not waiting for anyone, while others wait for it: it never reached their call;
- a rank without a dump, where nothing else explains the waiting: it has died, or could not write;
- ranks that wait for each other in a circle;
- a call that all members have made, with different arguments.

Beside these, a rank whose record lacks completions that all members of a group took part in has stopped by
itself: its device, or its library's thread, no longer answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from analyzer.answers.diagnose.finding import HALF
from analyzer.answers.diagnose.hangs.differing_calls import DifferingCalls, Key
from analyzer.reading.formats.recorder.standing import UNKNOWN, DumpedCall, Lane, Standing


class HangCause(Enum):
    """Why calls do not complete; the words are those of tables."""

    ABSENT = "never reached it"
    BEHIND = "its dump ends early"
    NO_DUMP = "left no dump"
    CYCLE = "wait for each other"
    MISMATCH = "calls differ"


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


_Node = Hashable  # a rank, or an open call


class Waits:
    """The standings of all ranks, side by side.

    `lost` are the ranks without a dump, `frozen` those whose record stopped. `reached` are, of each group and
    member with a dump, the numbers of its last call and of the last completed one; -1 where unknown.
    """

    def __init__(self, ranks: Mapping[int, Standing]) -> None:
        self.ranks = ranks
        self.lanes: dict[Key, dict[int, Lane]] = defaultdict(dict)
        for rank, standing in ranks.items():
            for lane in standing.lanes.values():
                self.lanes[lane.group.key][rank] = lane
        messages = [call for standing in ranks.values() for call in standing.messages]
        self.lost = {rank for _, members in self.lanes for rank in members}
        self.lost |= {call.peer for call in messages if call.peer is not None and call.peer != UNKNOWN}
        self.lost -= ranks.keys()
        self.reached: dict[Key, dict[int, tuple[int, int]]] = {}
        for key, lanes in self.lanes.items():
            with_counters = not any(lane.has_messages for lane in lanes.values())
            reached = dict.fromkeys((rank for rank in key[1] if rank in ranks), (-1, -1))
            self.reached[key] = reached | {
                rank: lane.reached(with_counters=with_counters) for rank, lane in lanes.items()
            }
        self.frozen: dict[int, Root] = {}
        self._seen_through: dict[tuple[Key, int], int] = {}  # group and rank: calls up to this one are done
        self._differ = DifferingCalls(self.lanes)
        # a group of which no ranks are listed may be several
        self.sure = [key for key in self.lanes if key[1]]
        for key in self.sure:
            self._find_frozen(key)
        self.opens = {rank: self._open_calls(rank) for rank in ranks}
        self._callers: dict[_Node, dict[int, DumpedCall]] = defaultdict(dict)
        for rank, calls in self.opens.items():
            for call in calls:
                self._callers[_node(rank, call)][rank] = call
        self._first = {rank: calls[0].order for rank, calls in self.opens.items() if calls}
        # open calls that all members have made, as far as `ends` came across them
        self.running: list[DumpedCall] = []
        self._targets: dict[_Node, tuple[Sequence[int], bool]] = {}

    # ---- what the records say

    def _find_frozen(self, key: Key) -> None:
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
            found = self._call_targets(call) if call.peer is None else self._peers(rank, call)
            self._targets[node] = found
        return self._targets[node]

    def _call_targets(self, call: DumpedCall) -> tuple[Sequence[int], bool]:
        key = call.group.key
        reached = self.reached[key]
        absent = [rank for rank, (entered, _) in reached.items() if entered < call.number]
        absent = absent or [rank for rank in key[1] if rank in self.lost]
        if absent:
            return absent, False
        own = {rank: one.order for rank, one in self._calls(key, call.number).items()}
        waiting = [rank for rank, (_, completed) in reached.items() if completed < call.number]
        return self._held({rank: own.get(rank, inf) for rank in waiting}), True

    def _peers(self, rank: int, call: DumpedCall) -> tuple[Sequence[int], bool]:
        """Return whom a message waits for, and those launched as one with it; see `targets`.

        Of a batch that is open some messages may be done, and what answers them belongs to a later one. So a
        batch may wait for all others in which its peers are.
        """
        batch = self._batch(rank, call)
        answers = [self._answer(rank, one) for one in batch]
        absent = [one.peer for one, answer in zip(batch, answers, strict=True) if answer is None]
        if absent:
            return list(dict.fromkeys(peer for peer in absent if peer is not None)), False
        order = {
            one.peer: answer.order
            for one, answer in zip(batch, answers, strict=True)
            if answer and one.peer is not None
        }
        several = [peer for peer in order if len(self._batch(peer, self.opens[peer][0])) > 1]
        return self._held(order | {rank: call.order}) or several, True

    def _may_run(self, rank: int) -> bool:
        """Whether a rank is at messages that are all answered."""
        call = self.opens[rank][0]
        return (
            call.peer is not None
            and self.targets(rank, call)[1]
            and not any(
                self._first[peer] < answer.order
                for one in self._batch(rank, call)
                if (peer := one.peer) is not None and (answer := self._answer(rank, one))
            )
        )

    def _batch(self, rank: int, call: DumpedCall) -> Sequence[DumpedCall]:
        """Return the open messages of `rank` that were launched as one with this one."""
        return [one for one in self.ranks[rank].messages if one.order == call.order]

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

    def _calls(self, key: Key, number: int) -> dict[int, DumpedCall]:
        """Return the open calls of a collective."""
        lanes = self.lanes[key].items()
        return {rank: call for rank, lane in lanes for call in lane.first if call.number == number}

    def wait(self, rank: int) -> Wait | None:
        """Return for whom a rank waits in its first open call; None where none is open, or all have come."""
        for call in self.opens[rank][:1]:
            on, is_held = self.targets(rank, call)
            if call.peer is not None:  # of a batch the one that waits
                call = next((one for one in self._batch(rank, call) if one.peer in on), call)
            on = [one for one in on if one not in (rank, UNKNOWN)]
            return Wait(call, on, is_held) if on else None
        return None

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
        if not ranks:
            return self._of_call(part)
        if len(ranks) > 1:
            return self._circle(ranks)
        call, waiting = self._waiting_for(ranks[0])
        cause = HangCause.NO_DUMP if ranks[0] in self.lost else HangCause.ABSENT
        return Root(cause, ranks, call, waiting) if call and ranks != [UNKNOWN] else None

    def _of_call(self, part: Iterable[_Node]) -> Root | None:
        """Return the cause in a call that all members have made; None where it may be running."""
        (node,) = part
        calls = self._callers[node]
        call = next(iter(calls.values()))
        root = self._differing(call.group.key, call.number) if call.peer is None else None
        root = root or _unbalanced(calls)
        if root is None:
            self.running.append(max(calls.values(), key=lambda call: call.at_ns))
        return root

    def _circle(self, ranks: Sequence[int]) -> Root | None:
        calls = [self.opens[rank][0] for rank in ranks]
        for call in calls:
            if call.peer is None and (call.group.key, call.number) in self._differ:
                return self._differing(call.group.key, call.number)
        if may_run := [rank for rank in ranks if self._may_run(rank)]:
            self.running.append(self.opens[may_run[0]][0])
            return None
        return Root(HangCause.CYCLE, ranks, min(calls, key=age), ranks)

    def _waiting_for(self, rank: int) -> tuple[DumpedCall | None, Sequence[int]]:
        """Return the first of the open calls that wait for a rank, and the ranks in it.

        Those in which ranks have not come are before those in which they are held.
        """
        pairs = [
            pair
            for callers in self._callers.values()
            if callers.keys() != {rank} and rank in self.targets(*next(iter(callers.items())))[0]
            for pair in callers.items()
        ]
        pairs = [pair for pair in pairs if not self.targets(*pair)[1]] or pairs
        if not pairs:
            return None, ()
        by, call = min(pairs, key=lambda pair: (pair[1].peer is not None, *age(pair[1])))
        if call.peer is not None:
            call = next((message for message in self._batch(by, call) if message.peer == rank), call)
        return call, sorted(self._callers[_node(by, call)])

    def _differing(self, key: Key, number: int) -> Root | None:
        """Return the first call from this number on that members made differently."""
        first = self._differ.from_number(key, number)
        if first is None or any(entered < number for entered, _ in self.reached[key].values()):
            return None
        calls, by = self._calls(key, first), self._differ.by_signature(key, first)
        guilty = self._differ.guilty(key, first)
        call = min(calls.values(), key=age)
        return Root(HangCause.MISMATCH, guilty, call, sorted(calls), by) if guilty else None


def _unbalanced(calls: Mapping[int, DumpedCall]) -> Root | None:
    """Return the cause in an all-to-all whose members do not take what they give, by rank.

    At fault is the one with whose size as another member has it the sums would agree, else all.
    """
    call = min(calls.values(), key=age)
    if len(calls) < len(call.group.members) or any(
        min(member.given, member.taken) < 0 for member in calls.values()
    ):
        return None
    more = sum(member.given - member.taken for member in calls.values())
    given, taken = ({getattr(member, way) for member in calls.values()} for way in ("given", "taken"))
    odd = [
        rank
        for rank, member in calls.items()
        if more and (member.given - more in given or member.taken + more in taken)
    ]
    differ: dict[str, list[int]] = defaultdict(list)
    for rank, member in calls.items():
        differ[f"gives {member.given:,} and takes {member.taken:,} elements"].append(rank)
    guilty = odd if len(odd) == 1 else sorted(calls)
    return Root(HangCause.MISMATCH, guilty, call, sorted(calls), differ) if more else None


def age(call: DumpedCall) -> tuple[bool, int]:
    """Return a key that sorts calls by their time, those without one last."""
    return call.at_ns < 0, call.at_ns


def _node(rank: int, call: DumpedCall) -> _Node:
    """Return an open call as a node: a collective is one of all its members, a batch of messages one."""
    key = call.group.key
    return (key, call.number) if call.peer is None else (key, rank, call.order)
