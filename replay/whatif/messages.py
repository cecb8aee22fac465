"""Transfers taken apart: bytes that queue on a link, acknowledgements and requests that stand in the queues.

A PUSH is recorded until its acknowledgement has come back. That stands behind the answers to PULLs on the
server's link, and a PULL's request behind the bytes of PUSHes on the worker's: on a link of another rate
these waits change with the bytes of others, not with their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dag.join_ranks import fitted
from dag.step_graph import NO_LINK, Bool, Recording, StepGraph
from dialects.step_parts import Joint, Kind, edge_rows
from formats.columns import Int64

Float = NDArray[np.float64]


def as_messages(recording: Recording, rate: float) -> Recording:
    """Return the recording with each PUSH as its bytes, on the link, and their acknowledgement, on none.

    Links carry `rate` bytes per nanosecond, first sent first. The recording replays as it did: what the bytes
    and the queues do not explain stays the work of the acknowledgement, or of the answer. An acknowledgement
    is an operation of the PUSH's name without a link.
    """
    pushes = recording.which(lambda one: one.stage == "PUSH" and one.link)
    pulls = recording.which(lambda one: one.stage == "PULL" and one.link)
    if not pushes.any():
        return recording
    sent = np.flatnonzero(pushes)
    number = np.full(len(pushes), -1)
    number[sent] = len(pushes) + np.arange(len(sent))
    more = [recording.operations[i]._replace(link="") for i in sent.tolist()]
    wire = recording.column(lambda one: one.n_bytes) / rate
    key = recording.column(lambda one: -1 if one.key is None else one.key)
    steps: list[StepGraph] = []
    before: _Split | None = None
    for step in recording.steps:
        what = step.operation
        before = _Split(step, pushes[what], pulls[what], wire[what], key[what], before)
        steps.append(before.step(number))
    return replace(recording, operations=[*recording.operations, *more], steps=steps)


class _Split:
    """One step of n events, k of which are PUSHes that become two.

    Attributes
    ----------
    through : (n,) when the bytes of a PUSH were through its link; else the event's end
    ends : (n,) the event that is over when the recorded one was: a PUSH's acknowledgement, else itself
    """

    def __init__(
        self, step: StepGraph, push: Bool, pull: Bool, wire_ns: Float, key: Int64, before: _Split | None
    ) -> None:
        begun_before = np.zeros(len(step), np.bool_)
        begun_before[step.continued[:, 1]] = True
        self.old, self.key = step, key
        self.before = before if before and step.number == before.old.number + 1 else None
        self.pushes = np.flatnonzero(push & ~begun_before & (step.link != NO_LINK))
        self.pulls = np.flatnonzero(pull & ~begun_before & (step.link != NO_LINK))
        self.through = step.end_ns.copy()
        self.in_order: dict[int, Int64] = {}  # by link, the PUSHes in the order in which they were sent
        for link in np.unique(step.link[self.pushes]).tolist():
            mine = self.pushes[step.link[self.pushes] == link]
            mine = mine[np.lexsort((step.end_ns[mine], step.start_ns[mine]))]
            self.through[mine] = _served(step.start_ns[mine], wire_ns[mine], step.end_ns[mine])
            self.in_order[link] = mine
        self.ends = np.arange(len(step))
        self.ends[self.pushes] = len(step) + np.arange(len(self.pushes))

    def step(self, acknowledgement: Int64) -> StepGraph:
        """Return the step; `acknowledgement` is the operation of each PUSH's, by its own."""
        old, pushes = self.old, self.pushes
        edges = self._edges()
        continued, across = (self._from_before(rows) for rows in (old.continued, old.across))
        start = np.concatenate([old.start_ns, self.through[pushes]])
        late = self._behind_the_step_before(edges)
        if self.before is not None:
            start[late[:, 1]] = self.before.old.end_ns[late[:, 0]]
            across = np.concatenate([across, late])
        made = fitted(
            replace(
                old,
                operation=np.concatenate([old.operation, acknowledgement[old.operation[pushes]]]),
                owner=np.concatenate([old.owner, old.owner[pushes]]),
                link=np.concatenate([old.link, np.full(len(pushes), NO_LINK)]),
                start_ns=start,
                end_ns=np.concatenate([self.through, old.end_ns[pushes]]),
                edges=edges,
                continued=continued,
                across=across,
            ),
            [None] * len(old.begin_ns),
            len(old) + len(pushes),
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
        in_time = by_bytes & (self.through[source] <= self.old.end_ns[target])
        edges[in_time, 2] = Joint.END_TO_BODY
        ends = (joint == Joint.END_TO_HEAD) | (joint == Joint.END_TO_BODY)
        moves = ends & ~by_bytes
        edges[moves, 0] = self.ends[source[moves]]
        own = edge_rows(self.pushes, self.ends[self.pushes], Joint.END_TO_HEAD, Kind.PART)
        requests = self._requests()
        return np.unique(np.concatenate([edges, own, requests, self._acknowledgements()]), axis=0)

    def _requests(self) -> Int64:
        """Return edges that let an answer wait until the bytes sent before its request are through."""
        old, sources, targets = self.old, [], []
        for mine in self.in_order.values():
            asked = self.pulls[old.owner[self.pulls] == old.owner[mine[0]]]
            at = np.searchsorted(old.start_ns[mine], old.start_ns[asked]) - 1
            before = mine[np.maximum(at, 0)]
            waits = (at >= 0) & (self.through[before] <= old.end_ns[asked])
            sources.append(before[waits])
            targets.append(asked[waits])
        return _rows(sources, targets)

    def _acknowledgements(self) -> Int64:
        """Return edges that let an acknowledgement wait for the answers that stood before it in the queue."""
        pairs = self._behind(self, self.through[self.pushes])
        return edge_rows(pairs[:, 0], pairs[:, 1], Joint.END_TO_BODY, Kind.MESSAGE)

    def _behind_the_step_before(self, edges: Int64) -> Int64:
        """Return the same for answers to others that began the step before later, as rows of `across`."""
        if self.before is None:
            return np.empty((0, 3), np.int64)
        since = np.concatenate([self.through, self.through[self.pushes]])
        into = edges[(edges[:, 1] >= len(self.old)) & (edges[:, 2] == Joint.END_TO_BODY)]
        np.maximum.at(since, into[:, 1], self.old.end_ns[into[:, 0]])
        pairs = self._behind(self.before, since[self.ends[self.pushes]])
        return np.column_stack([pairs, np.full(len(pairs), Joint.END_TO_HEAD)])

    def _behind(self, answering: _Split, since_ns: Int64) -> Int64:
        """Return pairs (p, 2) of an answer of a step and the acknowledgement of this one that stood behind.

        Messages of one link arrive in the order in which they were sent. So an acknowledgement that was not
        back yet stood behind the last answer that arrived before it; only such after `since_ns` (k,) count.
        """
        old, link = answering.old, answering.old.link
        server = dict(zip(self.key[self.pulls].tolist(), self.old.link[self.pulls].tolist(), strict=True))
        of_push = np.array([server.get(key, NO_LINK) for key in self.key[self.pushes].tolist()], np.int64)
        found = [np.empty((0, 2), np.int64)]
        for one in np.unique(link[answering.pulls]).tolist():
            answers = answering.pulls[link[answering.pulls] == one]
            answers = answers[np.argsort(old.end_ns[answers], kind="stable")]
            mine = np.flatnonzero(of_push == one)
            at = np.searchsorted(old.end_ns[answers], self.old.end_ns[self.pushes[mine]]) - 1
            last = answers[np.maximum(at, 0)]
            behind = (at >= 0) & (old.end_ns[last] > since_ns[mine])
            found.append(np.stack([last[behind], self.ends[self.pushes[mine[behind]]]], axis=1))
        return np.concatenate(found)


def _served(start_ns: Int64, wire_ns: Float, end_ns: Int64) -> Int64:
    """Return when each of the messages (n,) is through that a link carries one after the other."""
    through, free = [], -np.inf
    for start, takes, end in zip(start_ns.tolist(), wire_ns.tolist(), end_ns.tolist(), strict=True):
        free = min(max(start, free) + takes, end)
        through.append(free)
    return np.maximum(np.rint(through).astype(np.int64), start_ns)


def _rows(sources: Sequence[Int64], targets: Sequence[Int64]) -> Int64:
    none = np.empty(0, np.int64)
    return edge_rows(
        np.concatenate([none, *sources]), np.concatenate([none, *targets]), Joint.END_TO_BODY, Kind.MESSAGE
    )
