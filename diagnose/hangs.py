"""Why a job hangs: who waits for whom in which call, and the roots of the chain over all groups.

Each rank says where it stood (`Standing`). Ranks and open calls are the nodes of a graph: a rank leads to the
first open call of each of its groups, a call to the members that have not called it, or else to those that an
earlier call holds. Whoever waits has a way out of its node. Where ways end is the cause:

- a rank that waits for nobody: it has not come, while others wait for it;
- a rank without a dump, where nothing else explains the waiting: it has died, or could not write;
- ranks that wait for each other in a circle;
- a call that all members have made, with different arguments, or that some devices have not started.

Beside these, a rank whose record lacks completions that all members of a group took part in has stopped by
itself: its device, or its library's thread, no longer answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

import dialects
from diagnose.finding_thresholds import FEWEST_CALLS, HALF, OUTLYING
from errors import listed
from formats.columns import Trace
from formats.recorder.standing import Call, Group, Lane, Spans, Standing, members_of


class HangCause(Enum):
    """Why calls do not complete; the words are those of tables."""

    ABSENT = "has not come"
    BEHIND = "its record stopped"
    NO_DUMP = "left no dump"
    CYCLE = "wait for each other"
    MISMATCH = "calls differ"
    NOT_STARTED = "its device has not started"


class Root(NamedTuple):
    """One cause: the guilty `ranks`, the call that does not complete, and who waits in it."""

    cause: HangCause
    ranks: Sequence[int]
    call: Call | None
    waiting: Sequence[int] = ()
    differ: Mapping[str, Sequence[int]] = {}  # what was called, and by whom


class Wait(NamedTuple):
    """A rank waits in its first open call for `on`: ranks that have not come, or are held (`is_held`)."""

    rank: int
    call: Call
    on: Sequence[int]
    is_held: bool


class Hang(Struct):
    """The answer of some dumps; `reason` says why no hang is claimed where there is no root."""

    roots: Sequence[Root]
    waits: Mapping[int, Wait]
    no_dump: Sequence[int]
    reason: str = ""
    caveat: str = ""


_Key = tuple[str, Spans]
_Node = Hashable


def find_hang(ranks: Mapping[int, Standing]) -> Hang:
    """Return why the job of these ranks hangs, or why that is not claimed."""
    job = _Job(ranks)
    roots = [*job.ends(), *job.mismatches()]
    roots = _merged([root for root in roots if root.ranks])
    waits = {rank: wait for rank in ranks if (wait := job.wait(rank)) is not None}
    no_dump = sorted(job.lost)
    known = [root for root in roots if root.cause is not HangCause.NO_DUMP]
    caveat = ""
    if known and len(known) < len(roots):
        roots = known
    if roots and not known and len(job.lost) >= len(ranks):
        reason = f"the others wait for {ranks_in_words(no_dump)} without a dump; give the dumps of all ranks"
        return Hang((), waits, no_dump, reason)
    if no_dump and known:
        caveat = f"{ranks_in_words(no_dump)} left no dump: whether they wait, too, is not known"
    if moved := job.moved():
        if 2 * len(moved) >= len(ranks) or not {*moved} >= {rank for root in roots for rank in root.ranks}:
            reason = (
                f"others completed calls that {ranks_in_words(moved)} had not made: the dumps are of "
                "different moments, and the job moved between them"
            )
            return Hang((), waits, no_dump, reason)
        caveat = f"the record of {ranks_in_words(moved)} ends before calls that others completed with it"
    if not roots:
        return Hang((), waits, no_dump, _why_not(job, waits))
    named = {rank for root in roots for rank in root.ranks}
    roots += [
        Root(HangCause.BEHIND, (rank,), job.first_unseen[rank], job.done_by[rank])
        for rank in sorted(job.frozen - named)
    ]
    if slow := job.usually_late(roots):
        return Hang((), waits, no_dump, slow)
    return Hang(sorted(roots, key=_since), waits, no_dump, "", caveat)


def _why_not(job: _Job, waits: Mapping[int, Wait]) -> str:
    if job.frozen:
        return (
            f"calls are open on {ranks_in_words(sorted(job.frozen))} that others completed, perhaps because "
            "the dumps are of different moments"
        )
    if not any(one.n_calls for one in job.ranks.values()):
        return "the dumps hold no call"
    if any(job.opens.values()):
        return "every open call has been made by all of its members: they may still be running"
    return "no call is open: every rank has completed all that it called"


def _since(root: Root) -> tuple[bool, bool, int]:
    return root.cause is HangCause.BEHIND, *((True, 0) if root.call is None else _age(root.call))


def _age(call: Call) -> tuple[bool, int]:
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
    """The standings of all ranks, side by side."""

    def __init__(self, ranks: Mapping[int, Standing]) -> None:
        self.ranks = ranks
        groups = [group for one in ranks.values() for group in one.groups.values()]
        world = {member for group in groups for member in group.members}
        world |= {call.peer for one in ranks.values() for call in one.messages if call.peer is not None}
        self.lost = world - ranks.keys()
        self.mixed = frozenset[str]().union(*(one.with_messages for one in ranks.values()))
        self.lanes: dict[_Key, dict[int, Lane]] = defaultdict(dict)
        for rank, one in ranks.items():
            for lane in one.lanes.values():
                self.lanes[_key(lane.group)][rank] = lane
        self.frozen: set[int] = set()
        self.first_unseen: dict[int, Call] = {}
        self.done_by: dict[int, Sequence[int]] = {}
        self._seen_through: dict[tuple[_Key, int], int] = {}  # lane and rank: calls up to this one are done
        self._differ = self._mismatched()
        for key in self.lanes:
            self._find_frozen(key)
        self.opens = {rank: self._open_calls(rank) for rank in ranks}
        self._first = {rank: calls[0].order for rank, calls in self.opens.items() if calls}
        self._targets: dict[_Node, tuple[list[int], bool]] = {}

    # ---- what the records say

    def members(self, key: _Key) -> Sequence[int]:
        """Return the ranks of a group; those with a record of it where no file lists them."""
        return members_of(key[1]) or sorted(self.lanes[key])

    def entered(self, rank: int, key: _Key) -> int:
        """Return the number of the last collective that a rank called in a group; -1 where unknown."""
        return self._counter(rank, key, 0)

    def completed(self, rank: int, key: _Key) -> int:
        """Return the number of the last one that its record calls completed; -1 where unknown."""
        return self._counter(rank, key, 1)

    def _counter(self, rank: int, key: _Key, which: int) -> int:
        lane = self.lanes[key].get(rank)
        known = -1 if lane is None else (lane.entered, lane.completed)[which]
        if key[0] in self.mixed:  # counters are of messages, too
            return known
        return max(known, self.ranks[rank].counters.get(key[0], (-1, -1))[which])

    def _mismatched(self) -> dict[tuple[_Key, int], dict[str, list[int]]]:
        """Return the open collectives that members called, but not alike: what was called, and by whom."""
        found = {}
        for key, lanes in self.lanes.items():
            for number in {lane.first[0].number for lane in lanes.values() if lane.first}:
                by: dict[str, list[int]] = defaultdict(list)
                for rank, lane in lanes.items():
                    for call in (*lane.first, *lane.done):
                        if call.number == number:
                            by[signature(call)].append(rank)
                            break
                if len(by) > 1:
                    found[key, number] = dict(by)
        return found

    def _find_frozen(self, key: _Key) -> None:
        """Find the ranks with calls open that a member completed, as no one can without them."""
        completed = {rank: self.completed(rank, key) for rank in self.members(key) if rank in self.ranks}
        top = max(completed.values(), default=-1)
        unseen: dict[int, list[Call]] = {}
        for rank, lane in self.lanes[key].items():
            calls = [one for one in lane.first if one.number <= top and one.all_wait]
            if calls and not any((key, one.number) in self._differ for one in calls):
                unseen[rank] = calls
        if not unseen or len(unseen) > HALF * len(completed):
            return
        for rank, calls in unseen.items():
            self.frozen.add(rank)
            self._seen_through[key, rank] = calls[-1].number
            if rank not in self.first_unseen or calls[0].order < self.first_unseen[rank].order:
                self.first_unseen[rank] = calls[0]
                self.done_by[rank] = [one for one, n in completed.items() if n >= calls[0].number]

    def _open_calls(self, rank: int) -> list[Call]:
        """Return the first open call of each group, and of each kind of message to each peer, in order."""
        one = self.ranks[rank]
        found = []
        for lane in one.lanes.values():
            seen = self._seen_through.get((_key(lane.group), rank), -1)
            found += [call for call in lane.first if call.number > seen][:1]
        messages: dict[Hashable, Call] = {}
        for call in one.messages:
            if rank not in self.frozen:  # which of its messages are done its record does not know
                messages.setdefault((call.group.name, call.kind, call.peer), call)
        return sorted([*found, *messages.values()], key=lambda call: call.order)

    # ---- who waits for whom

    def targets(self, rank: int, call: Call) -> tuple[list[int], bool]:
        """Return the ranks that an open call of `rank` waits for, and whether they are only held."""
        node = self._node(rank, call)
        if node not in self._targets:
            found = self._message_targets(rank, call) if call.peer is not None else self._call_targets(call)
            self._targets[node] = found
        return self._targets[node]

    def _node(self, rank: int, call: Call) -> _Node:
        key = _key(call.group)
        return (key, rank, call.kind, call.peer) if call.peer is not None else (key, call.number)

    def _call_targets(self, call: Call) -> tuple[list[int], bool]:
        key = _key(call.group)
        known = [rank for rank in self.members(key) if rank in self.ranks]
        absent = [rank for rank in known if self.entered(rank, key) < call.number]
        absent = absent or [rank for rank in self.members(key) if rank in self.lost]
        if absent:
            return absent, False
        held = []
        for rank in known:
            lane = self.lanes[key].get(rank)
            own = next((one for one in lane.first if one.number == call.number), None) if lane else None
            is_open = self.completed(rank, key) < call.number
            if is_open and self._first.get(rank, 1 << 62) < (own.order if own else 1 << 61):
                held.append(rank)
        return held, True

    def _message_targets(self, rank: int, call: Call) -> tuple[list[int], bool]:
        peer = call.peer
        assert peer is not None
        if peer not in self.ranks:
            return [peer], False
        answer = self._answer(rank, call)
        if answer is None:
            return [peer], False
        sides = ((peer, answer), (rank, call))
        return [one for one, own in sides if self._first.get(one, 1 << 62) < own.order], True

    def _answer(self, rank: int, call: Call) -> Call | None:
        """Return the open message of the peer that belongs to this one of `rank`."""
        assert call.peer is not None
        wanted = "recv" if call.kind.startswith("send") else "send"
        for one in self.opens.get(call.peer, ()):
            if one.peer == rank and one.kind.startswith(wanted) and one.group.name == call.group.name:
                return one
        return None

    def wait(self, rank: int) -> Wait | None:
        """Return for whom a rank waits in its first open call; None where none is open, or all have come."""
        for call in self.opens[rank][:1]:
            on, is_held = self.targets(rank, call)
            on = [one for one in on if one != rank]
            return Wait(rank, call, on, is_held) if on else None
        return None

    # ---- where the ways end

    def ends(self) -> list[Root]:
        """Return the causes at which the ways end."""
        ways = {rank: [(rank, call) for call in calls] for rank, calls in self.opens.items()}
        found = []
        for part in self._sinks(ways):
            ranks = [node for node in part if isinstance(node, int)]
            if len(part) > 1 and len(ranks) > 1:  # a circle: in their first calls, whoever else follows
                inside = {rank: ways[rank][:1] for rank in ranks}
                found += [
                    self._end([node for node in inner if isinstance(node, int)], inner)
                    for inner in self._sinks(inside)
                ]
            else:
                found.append(self._end(ranks, part))
        return [root for root in found if root is not None]

    def _end(self, ranks: list[int], part: Sequence[_Node]) -> Root | None:
        if len(ranks) > 1:
            calls = [self.opens[rank][0] for rank in ranks]
            for call in calls:
                if call.peer is None and (_key(call.group), call.number) in self._differ:
                    return self._differing(_key(call.group), call.number)
            return Root(HangCause.CYCLE, sorted(ranks), min(calls, key=_age), sorted(ranks))
        if not ranks:
            return self._not_started(part)
        rank = ranks[0]
        waiting = [(one, call) for one, calls in self.opens.items() for call in calls
                   if one != rank and rank in self.targets(one, call)[0]]  # fmt: skip
        if not waiting:
            return None
        absent = [pair for pair in waiting if not self.targets(*pair)[1]] or waiting
        first = min((call for _, call in absent), key=lambda call: (call.peer is not None, *_age(call)))
        node = self._node(absent[0][0], first) if first.peer is None else None
        those = sorted(
            one for one, call in absent if call is first or (node and self._node(one, call) == node)
        )
        cause = HangCause.NO_DUMP if rank in self.lost else HangCause.ABSENT
        return Root(cause, (rank,), first, those)

    def _not_started(self, part: Sequence[_Node]) -> Root | None:
        """Return the members whose device has not started a call that others have started."""
        (node,) = part
        own = {
            rank: call
            for rank, calls in self.opens.items()
            for call in calls
            if self._node(rank, call) == node
        }
        started = {rank for rank, call in own.items() if call.has_started}
        late = [r for r in own if r not in started and self.ranks[r].tells_start]
        if not started or not late or len(late) > HALF * len(own):
            return None
        return Root(HangCause.NOT_STARTED, sorted(late), own[late[0]], sorted(started))

    def mismatches(self) -> list[Root]:
        """Return the calls that all their members are at, with different arguments."""
        found = []
        for key, number in self._differ:
            calls = self._waiting_in(key, number)
            if all(self._first.get(rank) == call.order for rank, call in calls.items()):
                found.append(self._differing(key, number))
        return [root for root in found if root is not None]

    def _differing(self, key: _Key, number: int) -> Root | None:
        """Return a call that all members made, but not alike; the fewer are guilty."""
        known = [rank for rank in self.members(key) if rank in self.ranks]
        calls = self._waiting_in(key, number)
        if not calls or any(self.entered(rank, key) < number for rank in known):
            return None
        by = self._differ[key, number]
        most = max(map(len, by.values()))
        odd = [ranks for ranks in by.values() if len(ranks) < most] or list(by.values())
        ranks = sorted(rank for ranks in odd for rank in ranks)
        return Root(HangCause.MISMATCH, ranks, min(calls.values(), key=_age), sorted(calls), by)

    def _waiting_in(self, key: _Key, number: int) -> dict[int, Call]:
        """Return the open calls of a collective."""
        lanes = self.lanes[key].items()
        return {rank: call for rank, lane in lanes for call in lane.first if call.number == number}

    def _sinks(self, ways: Mapping[int, Sequence[tuple[int, Call]]]) -> list[list[_Node]]:
        """Return the strongly connected parts of the graph from which no way leads out."""
        import numpy as np
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        place: dict[_Node, int] = {}
        pairs: list[tuple[int, int]] = []
        for rank, calls in ways.items():
            at = place.setdefault(rank, len(place))
            for call in calls:
                node = self._node(*call)
                is_new = node not in place
                to = place.setdefault(node, len(place))
                pairs.append((at, to))
                if is_new:
                    on = self.targets(*call)[0]
                    pairs += [(to, place.setdefault(one, len(place))) for one in on]
        nodes = list(place)
        edges = np.array(pairs, np.int64).reshape(-1, 2)
        matrix = coo_matrix((np.ones(len(edges), np.int8), edges.T), (len(nodes), len(nodes)))
        n, label = connected_components(matrix.tocsr(), directed=True, connection="strong")
        leads_out = np.zeros(n, np.bool_)
        crossing = label[edges[:, 0]] != label[edges[:, 1]]
        leads_out[label[edges[crossing, 0]]] = True
        parts: dict[int, list[_Node]] = defaultdict(list)
        for node, own in zip(nodes, label.tolist(), strict=True):
            if not leads_out[own]:
                parts[own].append(node)
        return list(parts.values())

    # ---- signs of life

    def moved(self) -> list[int]:
        """Return the ranks that had not made a call that others had completed, as no one can without them."""
        found = set()
        for key, lanes in self.lanes.items():
            done = [call.number for lane in lanes.values() for call in lane.done if call.all_wait]
            top = max(done, default=-1)
            found |= {
                rank
                for rank in self.members(key)
                if rank in self.ranks and 0 <= self.entered(rank, key) < top
            }
        return sorted(found)

    def usually_late(self, roots: Sequence[Root]) -> str:
        """Return a sentence where those who have not come are as late in every recorded call; else ""."""
        if any(root.cause is not HangCause.ABSENT or root.call is None for root in roots):
            return ""
        for root in roots:
            assert root.call is not None
            lanes = self.lanes[_key(root.call.group)]
            made: dict[int, dict[int, int]] = defaultdict(dict)
            for rank, lane in lanes.items():
                for call in lane.done:
                    made[call.number][rank] = call.at_ns
            whole = [times for times in made.values() if len(times) == len(lanes) and min(times.values()) > 0]
            (late,) = root.ranks
            if late not in lanes or len(whole) < FEWEST_CALLS:
                return ""
            behind = {rank: sum(times[rank] - min(times.values()) for times in whole) for rank in lanes}
            others = max(ns for rank, ns in behind.items() if rank != late)
            most = max(times[late] - min(times.values()) for times in whole)
            waited = max(one.last_ns for one in self.ranks.values()) - root.call.at_ns
            if behind[late] <= OUTLYING * others or waited > most:
                return ""
        late_ranks = sorted(rank for root in roots for rank in root.ranks)
        return (
            f"{ranks_in_words(late_ranks)} came as late to each of the last calls, and the dumps end before "
            "the others have waited for longer than then"
        )


def _key(group: Group) -> _Key:
    return group.name, group.spans


def signature(call: Call) -> str:
    """Return the kind and the data of a call, on which all members must agree, in words."""
    parts = [call.kind, call.dtypes, f"{call.sizes} elements" if call.sizes else ""]
    return ", ".join(filter(None, parts))


def standing_of(_: object, trace: Trace) -> Standing | None:
    """Return where the rank of a trace stood; None where its system does not record that."""
    return dialects.of(trace).standing(trace)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as text, neighbours as a span: ``ranks 1, 4 to 7 and 9``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [str(a) if a == b else f"{a} to {b}" if b > a + 1 else f"{a}, {b}" for a, b in spans]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(words, 8)}"
