"""Waits between ranks and open calls, and the causes at their ends.

Ranks and open calls are the nodes of a graph: a rank leads to the first open call of each of its groups, a
call to the members that have not made it, or else to those that an earlier call holds. The ends of paths are
causes:

- a rank that is not waiting for anyone, while others wait for it: it never reached their call;
- a rank without a dump, where nothing else explains the waiting: it has died, or could not write;
- ranks that wait for each other in a circle;
- a call that all members have made, with different arguments: the minority is at fault, and if the sides are
  equal, the calls of this number in similar groups (of the same description and size) decide.

Beside these, a rank whose record lacks completions that all members of a group took part in has stopped: its
device, or its library's thread, no longer answers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from analyzer.answers.diagnose.finding import HALF
from analyzer.reading.formats.recorder.standing import UNKNOWN, DumpedCall, Group, Lane, Standing

Key = tuple[str, Sequence[int]]  # a group's name and members
_UNNAMED = ("", "undefined")  # descriptions of groups that were given none


def _calls(lanes: Mapping[int, Lane]) -> Iterator[tuple[int, DumpedCall]]:
    for rank, lane in lanes.items():
        for call in (*lane.done, *lane.first):
            yield rank, call


def _role(group: Group) -> tuple[object, ...]:
    if group.is_named and group.description not in _UNNAMED:
        return group.description, len(group.members)
    return group.key


def _differing_calls(lanes: Mapping[Key, Mapping[int, Lane]]) -> dict[tuple[Key, int], dict[str, list[int]]]:
    """Group the ranks of each open call that members made differently by its signature."""
    differing: dict[tuple[Key, int], dict[str, list[int]]] = {}
    for key in filter(lambda key: key[1], lanes):
        open_numbers = {call.number for lane in lanes[key].values() for call in lane.first}
        by: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, call in _calls(lanes[key]):
            if call.number in open_numbers:
                by[call.number][call.signature].append(rank)
        differing |= {(key, number): ranks for number, ranks in by.items() if len(ranks) > 1}
    return differing


class HangCause(Enum):
    """Causes of open calls, in the words of tables."""

    ABSENT = "never reached it"
    BEHIND = "its dump ends early"
    NO_DUMP = "left no dump"
    CYCLE = "wait for each other"
    MISMATCH = "calls differ"


class Root(NamedTuple):
    """A cause: the ranks at fault, the call that does not complete, and the ranks that wait in it."""

    cause: HangCause
    ranks: Sequence[int]
    call: DumpedCall
    waiting: Sequence[int] = ()
    differ: Mapping[str, Sequence[int]] = {}  # signatures of calls, and their ranks


class Wait(NamedTuple):
    """A rank waits in its first open call for `on`: ranks that have not come, or are held (`is_held`)."""

    call: DumpedCall
    on: Sequence[int]
    is_held: bool


_Node = Hashable  # a rank, or an open call


class Waits:
    """The standings of all ranks, side by side."""

    def __init__(self, ranks: Mapping[int, Standing]) -> None:
        self.ranks = ranks
        self.lanes: dict[Key, dict[int, Lane]] = defaultdict(dict)
        for rank, standing in ranks.items():
            for lane in standing.lanes.values():
                self.lanes[lane.group.key][rank] = lane
        messages = [call for standing in ranks.values() for call in standing.messages]
        self.lost = {rank for _, members in self.lanes for rank in members}  # without a dump
        self.lost |= {call.peer for call in messages if call.peer is not None and call.peer != UNKNOWN}
        self.lost -= ranks.keys()
        #: Numbers of the last call and the last completed one of each group and member; -1 if unknown.
        self.reached: dict[Key, dict[int, tuple[int, int]]] = {}
        for key, lanes in self.lanes.items():
            with_counters = not any(lane.has_messages for lane in lanes.values())
            reached = dict.fromkeys((rank for rank in key[1] if rank in ranks), (-1, -1))
            self.reached[key] = reached | {
                rank: lane.reached(with_counters=with_counters) for rank, lane in lanes.items()
            }
        self.frozen: dict[int, Root] = {}  # ranks whose record stopped
        self._seen_through: dict[tuple[Key, int], int] = {}  # group and rank: calls up to this one are done
        self._differ = _differing_calls(self.lanes)
        self.sure = [key for key in self.lanes if key[1]]  # a group without a list of ranks may be several
        for key in self.sure:
            self._find_frozen(key)
        self.opens = {rank: self._open_calls(rank) for rank in ranks}
        self._callers: dict[_Node, dict[int, DumpedCall]] = defaultdict(dict)
        for rank, calls in self.opens.items():
            for call in calls:
                self._callers[_node(rank, call)][rank] = call
        self._first = {rank: calls[0].order for rank, calls in self.opens.items() if calls}
        self.running: list[DumpedCall] = []  # open calls that all members have made, found by `ends`
        self._targets: dict[_Node, tuple[Sequence[int], bool]] = {}

    # ---- open calls

    def _find_frozen(self, key: Key) -> None:
        """Find the ranks with open calls that a member completed, which needs all members."""
        completed = {rank: done for rank, (_, done) in self.reached[key].items()}
        top = max(completed.values())
        unseen: dict[int, list[DumpedCall]] = {}
        for rank, lane in self.lanes[key].items():
            calls = [call for call in lane.first if call.number <= top and call.all_wait]
            if calls and not any((key, call.number) in self._differ for call in calls):
                unseen[rank] = calls
        if len(unseen) > HALF * len(completed):
            return
        for rank, calls in unseen.items():
            self._seen_through[key, rank] = calls[-1].number
            if rank not in self.frozen or calls[0].order < self.frozen[rank].call.order:
                done_by = [member for member, n in completed.items() if n >= calls[0].number]
                self.frozen[rank] = Root(HangCause.BEHIND, (rank,), calls[0], done_by)

    def _open_calls(self, rank: int) -> list[DumpedCall]:
        """List the first open call of each group, and of each kind of message to each peer, in order."""
        first: dict[Hashable, DumpedCall] = {}
        for lane in self.ranks[rank].lanes.values():
            seen = self._seen_through.get((lane.group.key, rank), -1)
            for call in [call for call in lane.first if call.number > seen][:1]:
                first[lane.group.name] = call
        # a record that stopped does not know which messages are done
        for call in self.ranks[rank].messages if rank not in self.frozen else ():
            first.setdefault((call.group.name, call.kind, call.peer), call)
        return sorted(first.values(), key=lambda call: call.order)

    # ---- edges

    def targets(self, rank: int, call: DumpedCall) -> tuple[Sequence[int], bool]:
        """List the ranks that an open call of `rank` waits for, and tell if they are only held."""
        node = _node(rank, call)
        if node not in self._targets:
            self._targets[node] = self._call_targets(call) if call.peer is None else self._peers(rank, call)
        return self._targets[node]

    def _call_targets(self, call: DumpedCall) -> tuple[Sequence[int], bool]:
        key = call.group.key
        reached = self.reached[key]
        absent = [rank for rank, (entered, _) in reached.items() if entered < call.number]
        absent = absent or [rank for rank in key[1] if rank in self.lost]
        if absent:
            return absent, False
        order = {rank: member.order for rank, member in self._calls(key, call.number).items()}
        waiting = [rank for rank, (_, completed) in reached.items() if completed < call.number]
        return self._held({rank: order.get(rank, inf) for rank in waiting}), True

    def _peers(self, rank: int, call: DumpedCall) -> tuple[Sequence[int], bool]:
        """List the ranks that a batch of messages waits for; see `targets`.

        Some messages of an open batch may be done, and their answers belong to a later batch. So a batch may
        wait for all batches of its peers.
        """
        batch = self._batch(rank, call)
        pairs = [(message.peer, self._answer(rank, message)) for message in batch]
        absent = [peer for peer, answer in pairs if answer is None]
        if absent:
            return list(dict.fromkeys(peer for peer in absent if peer is not None)), False
        order = {peer: answer.order for peer, answer in pairs if answer and peer is not None}
        several = [peer for peer in order if len(self._batch(peer, self.opens[peer][0])) > 1]
        return self._held(order | {rank: call.order}) or several, True

    def _may_run(self, rank: int) -> bool:
        """Tell if all messages of a rank's first call are answered."""
        call = self.opens[rank][0]
        if call.peer is None or not self.targets(rank, call)[1]:
            return False
        pairs = [(message.peer, self._answer(rank, message)) for message in self._batch(rank, call)]
        return not any(
            answer and peer is not None and self._first[peer] < answer.order for peer, answer in pairs
        )

    def _batch(self, rank: int, call: DumpedCall) -> Sequence[DumpedCall]:
        """List the open messages of `rank` that were launched together with this one."""
        return [message for message in self.ranks[rank].messages if message.order == call.order]

    def _answer(self, rank: int, call: DumpedCall) -> DumpedCall | None:
        """Find the peer's open message that belongs to this one of `rank`."""
        kind, group = "recv" if call.kind.startswith("send") else "send", call.group.name
        for other in self.opens.get(-1 if call.peer is None else call.peer, ()):
            if other.peer == rank and other.kind.startswith(kind) and other.group.name == group:
                return other
        return None

    def _held(self, order: Mapping[int, float]) -> list[int]:
        """List the ranks whose first open call comes before the given order of this one."""
        return [rank for rank, index in order.items() if self._first.get(rank, inf) < index]

    def _calls(self, key: Key, number: int) -> dict[int, DumpedCall]:
        """Map ranks to their open calls of a collective."""
        lanes = self.lanes[key].items()
        return {rank: call for rank, lane in lanes for call in lane.first if call.number == number}

    def wait(self, rank: int) -> Wait | None:
        """Describe the wait of a rank in its first open call; None if none is open, or all have come."""
        for call in self.opens[rank][:1]:
            on, is_held = self.targets(rank, call)
            if call.peer is not None:  # the message of the batch that waits
                call = next((message for message in self._batch(rank, call) if message.peer in on), call)
            on = [other for other in on if other not in (rank, UNKNOWN)]
            return Wait(call, on, is_held) if on else None
        return None

    # ---- ends of paths

    def ends(self) -> list[Root]:
        """Find the causes at the ends of paths."""
        roots = []
        for part in self._sinks(self.opens):
            ranks = [node for node in part if isinstance(node, int)]
            if len(ranks) < 2:
                roots.append(self._end(part))
            else:  # a circle: look at first calls only
                roots += map(self._end, self._sinks({rank: self.opens[rank][:1] for rank in ranks}))
        return [root for root in roots if root is not None]

    def _sinks(self, opens: Mapping[int, Sequence[DumpedCall]]) -> Iterable[set[_Node]]:
        """Find the strongly connected parts, without a path out, of the graph of ranks and open calls."""
        import networkx

        graph: Any = networkx.DiGraph()
        graph.add_nodes_from(opens)
        for rank, calls in opens.items():
            for call in calls:
                node = _node(rank, call)
                if node not in graph:
                    graph.add_edges_from((node, on) for on in self.targets(rank, call)[0])
                graph.add_edge(rank, node)
        parts: Iterable[set[_Node]] = networkx.attracting_components(graph)
        return parts

    def _end(self, part: Iterable[_Node]) -> Root | None:
        """Find the cause in a part; None if its call may be running."""
        ranks = sorted(node for node in part if isinstance(node, int))
        if len(ranks) > 1:
            return self._circle(ranks)
        if ranks:
            call, waiting = self._waiting_for(ranks[0])
            cause = HangCause.NO_DUMP if ranks[0] in self.lost else HangCause.ABSENT
            return Root(cause, ranks, call, waiting) if call and ranks != [UNKNOWN] else None
        (node,) = part
        calls = self._callers[node]
        first = next(iter(calls.values()))
        root = self._differing(first.group.key, first.number) if first.peer is None else None
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
        """Find the first of the open calls that wait for a rank, and the ranks in it.

        Calls with absent ranks come before calls with held ranks.
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
        """Find the first differing call from this number on: a rank that left one out differs later."""
        first = min((n for other, n in self._differ if other == key and n >= number), default=None)
        if first is None or any(entered < number for entered, _ in self.reached[key].values()):
            return None
        calls, guilty = self._calls(key, first), self._guilty(key, first)
        call = min(calls.values(), key=age)
        by = self._differ[key, first]
        return Root(HangCause.MISMATCH, guilty, call, sorted(calls), by) if guilty else None

    def _guilty(self, key: Key, number: int) -> Sequence[int]:
        """Find the ranks at fault in a differing call: all if unknown; () if some have not made it."""
        by = self._differ[key, number]
        sizes = sorted(map(len, by.values()))
        is_whole = sum(sizes) == len(key[1])
        if sizes[-1] > sizes[-2] and (is_whole or sizes[-1] > HALF * len(key[1])):
            return sorted(rank for ranks in by.values() if len(ranks) < sizes[-1] for rank in ranks)
        role = _role(next(iter(self.lanes[key].values())).group)
        similar = [
            (rank, call)
            for other, lanes in self.lanes.items()
            for rank, call in (_calls(lanes) if other[1] else ())
            if _role(call.group) == role
        ]
        n_calls = Counter((rank, call.number) for rank, call in similar)
        unclear = {*key[1], *(rank for (rank, _), n in n_calls.items() if n > 1)}  # in two similar groups
        usual = {call.signature for rank, call in similar if call.number == number and rank not in unclear}
        if len(usual & by.keys()) == 1:
            return sorted(rank for words, ranks in by.items() if words not in usual for rank in ranks)
        return sorted(rank for ranks in by.values() for rank in ranks) if is_whole else ()


def _unbalanced(calls: Mapping[int, DumpedCall]) -> Root | None:
    """Find the cause in an all-to-all whose members do not take as much as they give.

    At fault is the one rank with which the sums would agree if it had the size of another member, else all.
    """
    call = min(calls.values(), key=age)
    is_unknown = any(min(member.given, member.taken) < 0 for member in calls.values())
    more = sum(member.given - member.taken for member in calls.values())
    if len(calls) < len(call.group.members) or is_unknown or not more:
        return None
    given, taken = ({getattr(member, way) for member in calls.values()} for way in ("given", "taken"))
    odd = [
        rank for rank, member in calls.items() if member.given - more in given or member.taken + more in taken
    ]
    differ: dict[str, list[int]] = defaultdict(list)
    for rank, member in calls.items():
        differ[f"gives {member.given:,} and takes {member.taken:,} elements"].append(rank)
    guilty = odd if len(odd) == 1 else sorted(calls)
    return Root(HangCause.MISMATCH, guilty, call, sorted(calls), differ)


def age(call: DumpedCall) -> tuple[bool, int]:
    """Make a key that sorts calls by time, calls without a time last."""
    return call.at_ns < 0, call.at_ns


def _node(rank: int, call: DumpedCall) -> _Node:
    """Identify an open call: a collective is one node of all members, a batch of messages one of its rank."""
    key = call.group.key
    return (key, call.number) if call.peer is None else (key, rank, call.order)
