"""Transfers taken apart: bytes that queue on a link, acknowledgements and requests that stand in the queues.

A PUSH is recorded until its acknowledgement has come back. That stands behind the answers to PULLs on the
server's link, and a PULL's request behind the bytes of PUSHes on the worker's: on a link of another rate
these waits change with the bytes of others, not with their own. A PULL is recorded until the worker has
taken the answer; by then an acknowledgement that came behind the bytes may have been read already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from arrays import Float64, Int64
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from dag_utils import fitted
from dialects.step_parts import EdgeKind, Joint, edge_rows
from replay.links import begins

#: How long a worker takes to take an answer, at most: for each, and for each byte (1 GB/s).
_TAKEN_NS, _TAKEN_NS_PER_BYTE = 300_000, 1.0
#: What an answer holds its link for, at most: its bytes, headers and acknowledgements, and so much (ns).
_MOST_OVERHEAD, _MESSAGE_NS = 1.05, 50_000


def as_messages(recording: Recording, rate: float, *, by_bytes: bool) -> Recording:
    """Return the recording with each PUSH as its bytes, on the link, and their acknowledgement, on none.

    Links carry `rate` bytes per nanosecond, first sent first. The recording replays as it did: what the bytes
    and the queues do not explain stays the work of the acknowledgement, or of the answer. An acknowledgement
    is an operation of the PUSH's name without a link; what a worker does with an answer while an
    acknowledgement that came behind it is read already, one of the PULL's. With `by_bytes` that is all that
    an answer takes beyond its own bytes: messages of another size wait otherwise.
    """
    pushes = recording.which(lambda one: one.transfer.is_sent and one.transfer.link)
    pulls = recording.which(lambda one: one.transfer.is_answer)
    if not pushes.any():
        return recording
    split = np.flatnonzero(pushes | pulls)
    number = np.full(len(pushes), -1)
    number[split] = len(pushes) + np.arange(len(split))
    transfers = (recording.operations[i] for i in split.tolist())
    more = [one._replace(transfer=one.transfer._replace(link="")) for one in transfers]
    n_bytes = recording.column(lambda one: one.transfer.n_bytes)
    key = recording.column(lambda one: -1 if one.transfer.key is None else one.transfer.key)
    splits: list[_Split] = []
    for step in recording.steps:
        what = step.operation
        before = splits[-1] if splits else None
        splits.append(_Split(step, pushes[what], pulls[what], n_bytes[what], rate, key[what], before))
    for one in splits:
        if by_bytes:
            one.serve_answers()
        else:
            one.let_answers_through()
    return replace(
        recording,
        operations=[*recording.operations, *more],
        steps=[one.step(number) for one in splits],
    )


class _Split:
    """One step of n events, k of which are PUSHes that become two, as do some PULLs.

    Attributes
    ----------
    through : (n,) when the bytes of a PUSH, or of an answer, were through their link; else the event's end
    """

    def __init__(
        self,
        step: StepGraph,
        push: Bool,
        pull: Bool,
        n_bytes: Int64,
        rate: float,
        key: Int64,
        before: _Split | None,
    ) -> None:
        begun_before = np.zeros(len(step), np.bool_)
        begun_before[step.continued[:, 1]] = True
        self.old, self.key = step, key
        self.before = before if before and step.number == before.old.number + 1 else None
        self.pushes = np.flatnonzero(push & ~begun_before & (step.link != NO_LINK))
        self.pulls = np.flatnonzero(pull & ~begun_before & (step.link != NO_LINK))
        self.through = step.end_ns.copy()
        self.taken_ns = _TAKEN_NS + np.rint(n_bytes * _TAKEN_NS_PER_BYTE).astype(np.int64)
        self.wire_ns = n_bytes / rate
        self.in_order: dict[int, Int64] = {}  # by link, the PUSHes in the order in which they were sent
        for link in np.unique(step.link[self.pushes]).tolist():
            mine = self.pushes[step.link[self.pushes] == link]
            mine = mine[np.lexsort((step.end_ns[mine], step.start_ns[mine]))]
            self.through[mine] = _served(step.start_ns[mine], self.wire_ns[mine], step.end_ns[mine])
            self.in_order[link] = mine

    def serve_answers(self) -> None:
        """Let each answer hold its link no longer than its bytes take, from when it could begin.

        What it took beyond that held nobody up: it was in queues of its own, or nobody knows where.
        """
        ready, step = self._ready(), self.old
        for link in np.unique(step.link[self.pulls]).tolist():
            mine = self.pulls[step.link[self.pulls] == link]
            mine = mine[np.argsort(step.end_ns[mine], kind="stable")]
            takes = self.wire_ns[mine] * _MOST_OVERHEAD + _MESSAGE_NS
            self.through[mine] = _served(ready[mine], takes, step.end_ns[mine])

    def _ready(self) -> Int64:
        """Return when each event (n,) is let on by what holds its body, PUSHes by their bytes."""
        ready: Int64 = self.old.start_ns.copy()
        into = self.old.edges[self.old.edges[:, 2] == Joint.END_TO_BODY]
        np.maximum.at(ready, into[:, 1], self.through[into[:, 0]])
        return ready

    @cached_property
    def halved(self) -> Int64:
        """The events that become two: all PUSHes, and the PULLs whose answer was through before their end."""
        early = self.pulls[self.through[self.pulls] < self.old.end_ns[self.pulls]]
        return np.concatenate([self.pushes, early])

    @cached_property
    def ends(self) -> Int64:
        """The event that is over when the recorded one was (n,): its second half, else itself."""
        ends = np.arange(len(self.old))
        ends[self.halved] = len(self.old) + np.arange(len(self.halved))
        return ends

    def let_answers_through(self) -> None:
        """Find out which answers of this step, and of the one before, were through before their PULL ended.

        An acknowledgement that ended a little before a PULL, and long after all else that it may have
        waited for, stood behind the answer.
        """
        since = self.through[self.pushes]
        self._let_through(self, since)
        if self.before is not None:
            self._let_through(self.before, since)

    def _let_through(self, answering: _Split, since_ns: Int64) -> None:
        ready = begins(answering.old)
        for answers, mine in self._of_server(answering):
            answers = answers[np.argsort(answering.old.end_ns[answers], kind="stable")]
            acknowledged = self.old.end_ns[self.pushes[mine]]
            at = np.searchsorted(answering.old.end_ns[answers], acknowledged, side="right")
            at, some = np.minimum(at, len(answers) - 1), at < len(answers)
            next_one = answers[at]
            last = np.where(at > 0, answering.old.end_ns[answers[at - 1]], np.iinfo(np.int64).min)
            unexplained = acknowledged - np.maximum(last, since_ns[mine])
            late = answering.old.end_ns[next_one] - acknowledged
            taken = answering.taken_ns[next_one]
            could = (ready[next_one] < acknowledged) & (
                ready[next_one] + answering.wire_ns[next_one] <= acknowledged + taken
            )
            stood = some & could & (late <= taken) & (unexplained > taken)
            np.minimum.at(answering.through, next_one[stood], acknowledged[stood])

    def step(self, rest: Int64) -> StepGraph:
        """Return the step; `rest` is the operation of each second half, by the recorded one."""
        old, halved = self.old, self.halved
        edges = self._edges()
        continued, across = (self._from_before(rows) for rows in (old.continued, old.across))
        start = np.concatenate([old.start_ns, self.through[halved]])
        late = self._behind_the_step_before(edges)
        if self.before is not None:
            start[late[:, 1]] = self.before.through[late[:, 0]]
            across = np.concatenate([across, late])
        made = fitted(
            replace(
                old,
                operation=np.concatenate([old.operation, rest[old.operation[halved]]]),
                owner=np.concatenate([old.owner, old.owner[halved]]),
                link=np.concatenate([old.link, np.full(len(halved), NO_LINK)]),
                start_ns=start,
                end_ns=np.concatenate([self.through, old.end_ns[halved]]),
                edges=edges,
                continued=continued,
                across=across,
            ),
            [None] * len(old.begin_ns),
            len(old) + len(halved),
        )
        gap = made.gap_ns.copy()
        gap[late[:, 1]] = 0  # that is the waiting for the answers of the step before
        turn = np.argsort(np.argsort(made.end_ns, kind="stable"))
        return replace(made, gap_ns=gap, last=self.ends[old.last], tail_ns=old.tail_ns, turn=turn)

    def _from_before(self, rows: Int64) -> Int64:
        """Return rows of (event of the step before, event of this step, …) of the steps as they are made."""
        rows = rows.copy()
        if len(rows) and self.before is not None:
            rows[:, 0] = self.before.ends[rows[:, 0]]
        return rows

    def _edges(self) -> Int64:
        edges = self.old.edges.copy()
        source, target, joint, _ = edges.T
        is_pull = np.zeros(len(self.old), np.bool_)
        is_pull[self.pulls] = True
        is_push = np.zeros(len(self.old), np.bool_)
        is_push[self.pushes] = True
        # an answer waits for the bytes of all workers, not for their acknowledgements
        by_bytes = is_push[source] & is_pull[target] & (joint >= Joint.END_TO_BODY)
        in_time = by_bytes & (self.through[source] <= self.through[target])
        edges[in_time, 2] = Joint.END_TO_BODY
        ends = (joint == Joint.END_TO_HEAD) | (joint == Joint.END_TO_BODY)
        moves = ends & ~by_bytes
        edges[moves, 0] = self.ends[source[moves]]
        own = edge_rows(self.halved, self.ends[self.halved], Joint.END_TO_HEAD, EdgeKind.PART)
        waits = [self._requests(), self._acknowledgements(), self._sharing()]
        return np.unique(np.concatenate([edges, own, *waits]), axis=0)

    def _requests(self) -> Int64:
        """Return edges that let an answer wait until the bytes sent before its request are through."""
        old, sources, targets = self.old, [], []
        for mine in self.in_order.values():
            asked = self.pulls[old.owner[self.pulls] == old.owner[mine[0]]]
            at = np.searchsorted(old.start_ns[mine], old.start_ns[asked]) - 1
            before = mine[np.maximum(at, 0)]
            waits = (at >= 0) & (self.through[before] <= self.through[asked])
            sources.append(before[waits])
            targets.append(asked[waits])
        return _rows(sources, targets)

    def _acknowledgements(self) -> Int64:
        """Return edges that let an acknowledgement wait for the answers that stood before it in the queue."""
        pairs = self._behind(self, self.through[self.pushes])
        return edge_rows(pairs[:, 0], pairs[:, 1], Joint.END_TO_BODY, EdgeKind.MESSAGE)

    def _sharing(self) -> Int64:
        """Return edges that let an acknowledgement wait for bytes sent to other servers before its own.

        Each server has a connection of its own, and these share the worker's link: a message to one server
        is not through before what was sent to another one while it was on its way.
        """
        sources, targets = [], []
        for mine in self.in_order.values():
            server = self._servers(mine)
            for one in np.unique(server).tolist():
                own, others = mine[server == one], mine[server != one]
                others = others[np.argsort(self.through[others], kind="stable")]
                at = np.searchsorted(self.through[others], self.old.end_ns[own], side="right") - 1
                own, last = own[at >= 0], others[at[at >= 0]]
                shared = self.through[last] > self.through[own]
                sources.append(last[shared])
                targets.append(self.ends[own[shared]])
        return _rows(sources, targets)

    def _servers(self, pushes: Int64) -> Int64:
        """Return the link by which each PUSH (k,) is answered, -1 where nobody asks."""
        server = dict(zip(self.key[self.pulls].tolist(), self.old.link[self.pulls].tolist(), strict=True))
        return np.array([server.get(key, NO_LINK) for key in self.key[pushes].tolist()], np.int64)

    def _behind_the_step_before(self, edges: Int64) -> Int64:
        """Return the same for answers to others that began the step before later, as rows of `across`."""
        if self.before is None:
            return np.empty((0, 4), np.int64)
        since = np.concatenate([self.through, self.through[self.halved]])
        into = edges[(edges[:, 1] >= len(self.old)) & (edges[:, 2] == Joint.END_TO_BODY)]
        np.maximum.at(since, into[:, 1], np.append(self.through, self.old.end_ns[self.halved])[into[:, 0]])
        pairs = self._behind(self.before, since[self.ends[self.pushes]])
        return np.column_stack([pairs, np.tile([Joint.END_TO_HEAD, 1], (len(pairs), 1))])

    def _behind(self, answering: _Split, since_ns: Int64) -> Int64:
        """Return pairs (p, 2) of an answer of a step and the acknowledgement of this one that stood behind.

        Messages of one link arrive in the order in which they were sent. So an acknowledgement that was not
        back yet stood behind the last answer that arrived before it; only such after `since_ns` (k,) count.
        """
        found = [np.empty((0, 2), np.int64)]
        for answers, mine in self._of_server(answering):
            answers = answers[np.argsort(answering.through[answers], kind="stable")]
            acknowledged = self.old.end_ns[self.pushes[mine]]
            at = np.searchsorted(answering.through[answers], acknowledged, side="right") - 1
            last = answers[np.maximum(at, 0)]
            behind = (at >= 0) & (answering.through[last] > since_ns[mine])
            found.append(np.stack([last[behind], self.ends[self.pushes[mine[behind]]]], axis=1))
        return np.concatenate(found)

    def _of_server(self, answering: _Split) -> Iterator[tuple[Int64, Int64]]:
        """Yield of each server its answers in a step, and the places of this step's PUSHes to it."""
        link, of_push = answering.old.link, self._servers(self.pushes)
        for one in np.unique(link[answering.pulls]).tolist():
            yield answering.pulls[link[answering.pulls] == one], np.flatnonzero(of_push == one)


def _served(start_ns: Int64, wire_ns: Float64, end_ns: Int64) -> Int64:
    """Return when each of the messages (n,) is through that a link carries one after the other."""
    through, free = [], -np.inf
    for start, takes, end in zip(start_ns.tolist(), wire_ns.tolist(), end_ns.tolist(), strict=True):
        free = min(max(start, free) + takes, end)
        through.append(free)
    return np.maximum(np.rint(through).astype(np.int64), start_ns)


def _rows(sources: Sequence[Int64], targets: Sequence[Int64]) -> Int64:
    none = np.empty(0, np.int64)
    return edge_rows(
        np.concatenate([none, *sources]),
        np.concatenate([none, *targets]),
        Joint.END_TO_BODY,
        EdgeKind.MESSAGE,
    )
