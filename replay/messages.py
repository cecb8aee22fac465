"""Split transfers into messages, which connections carry in turn, and an unexplained rest.

A worker's PUSH is its bytes and the server's acknowledgement, its PULL a request and the answer. A connection
carries them first come, first served, a request behind the bytes of PUSHes, an acknowledgement behind
answers; connections share the bandwidth of their nodes. So a recorded PUSH is longer than the time of its
bytes while the server answers others. Edits change these waits, so the simulation must produce them; they are
no work.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64, Mask
from analyzer.model.graph.step_graph import NO_LINK, Recording, StepGraph
from analyzer.reading.dialects.edge_rules import Rule
from analyzer.reading.dialects.step_parts import Joint, Operation, OperationTable, edge_rows
from replay.engine import make_plan, simulate
from replay.links import LinkRate, bytes_of, connection, ends_of, receiving


def as_messages(recording: Recording, network: LinkRate) -> Recording:
    """Split each PUSH and each PULL into two messages and a rest.

    The `network` limits what nodes send and receive. The time of a transfer that bytes and
    queues do not explain (server and worker threads, unknown waits) is the work of its rest, after the
    messages and on no link. If only one direction is recorded, a transfer keeps its link, and small messages
    take no time.
    """
    pushes = recording.which(lambda op: op.transfer.is_sent)
    pulls = recording.which(lambda op: op.transfer.is_answer)
    other = receiving(recording)
    transfers = np.flatnonzero(pushes | pulls)
    n, links = len(pushes), list(recording.links)
    to_back, rest = np.full((2, n), -1)
    to_back[transfers] = n + np.arange(len(transfers))
    rest[transfers] = n + len(transfers) + np.arange(len(transfers))
    operations = list(recording.operations)
    backs, rests = [], []
    for i in transfers.tolist():
        large = recording.operations[i]
        carries, other_way = large.transfer.link, ""
        if other[i] >= 0:
            ends = carries, links[other[i]]
            carries, other_way = connection(*ends), connection(*ends[::-1])
        small = _with(large, n_bytes=0, direction=None, link=other_way)
        rests.append(_with(large, n_bytes=0, link=""))
        large = _with(large, link=carries)
        operations[i], back = (small, large) if pulls[i] else (large, small)
        backs.append(back)
    operations += [*backs, *rests]
    nodes = sorted({node for back in backs for node in ends_of(back.transfer.link) or ()})
    links += [connection(*pair) for pair in itertools.permutations(nodes, 2)]
    index_of = {link: i for i, link in enumerate(links)}
    sides, carries = network.limits(links)
    link = np.array([index_of.get(op.transfer.link, NO_LINK) for op in operations], np.int64)
    wire_ns = bytes_of(recording) / network.at_most
    messages = _Messages(recording, pulls, (to_back, rest), link, wire_ns, (np.array(sides), carries))
    return replace(
        recording,
        operations=OperationTable(operations),
        links=links,
        sides=sides,
        carries=carries,
        steps=messages.steps(),
    )


def _with(operation: Operation, **fields: Any) -> Operation:
    return operation._replace(transfer=operation.transfer._replace(**fields))


class _Messages:
    """The transfers (k,) of all steps, as messages over connections."""

    def __init__(
        self,
        recording: Recording,
        pull: Mask,
        parts: tuple[Int64, Int64],
        link: Int64,
        wire_ns: Float64,
        limits: tuple[Int64, Sequence[float]],
    ) -> None:
        self.recording, self.link, self.parts = recording, link, parts
        self.back = parts[0]
        #: The transfers of each step, PUSHes before PULLs.
        self.split: list[Int64] = []
        feeds, first = [], 0
        for step in recording.steps:
            chosen = (self.back[step.operation] >= 0) & (step.link != NO_LINK)
            chosen[step.continued[:, 1]] = False
            events = np.flatnonzero(chosen)
            feeds.append(first + _feeds(step, events, pull))
            self.split.append(events)
            first += len(events)
        operation, start, self.end_ns = (
            np.concatenate(
                [
                    getattr(step, name)[events]
                    for step, events in zip(recording.steps, self.split, strict=True)
                ]
            )
            for name in ("operation", "start_ns", "end_ns")
        )
        self.is_pull = pull[operation]
        wire = np.rint(wire_ns[operation]).astype(np.int64)
        self.there_takes, self.home_takes = np.where(self.is_pull, 0, wire), np.where(self.is_pull, wire, 0)
        k, origin = len(operation), int(start.min(initial=0))
        fed, pulls = np.concatenate(feeds).T
        edges = np.concatenate([np.stack([np.arange(k), k + np.arange(k)], 1), np.stack([fed, k + pulls], 1)])
        schedule = simulate(
            make_plan(
                np.concatenate([self.there_takes, self.home_takes]),
                edges,
                device=np.concatenate([link[operation], link[self.back[operation]]]),
                gap_ns=np.concatenate([start - origin, np.zeros(k, np.int64)]),
                sides=limits[0],
                carries=limits[1],
            )
        )
        #: Ends of the first and of the second message of each transfer.
        self.there_ns, self.home_ns = np.minimum(schedule.end_ns.reshape(2, k) + origin, self.end_ns)
        self.begun_ns = np.minimum(self.there_ns, self.home_ns)
        np.maximum.at(self.begun_ns, pulls, self.there_ns[fed])
        self.begun_ns = np.minimum(self.begun_ns, self.home_ns)

    def steps(self) -> list[StepGraph]:
        """Split the transfers of all steps."""
        split: list[StepGraph] = []
        ends: list[Int64] = []
        bounds = itertools.pairwise(np.cumsum([0, *map(len, self.split)]).tolist())
        for step, events, (low, high) in zip(self.recording.steps, self.split, bounds, strict=True):
            n, k = len(step), len(events)
            ends.append(np.arange(n))
            ends[-1][events] = n + k + np.arange(k)
            split.append(self._step(step, events, slice(low, high), ends))
        return split

    def _step(self, step: StepGraph, events: Int64, part: slice, so_far: Sequence[Int64]) -> StepGraph:
        """Split the transfers of a step; `so_far` has the last parts of events (n,) up to it."""
        ends = so_far[-1]
        n, k, operation = len(step), len(events), step.operation[events]
        back, rest = (numbers[operation] for numbers in self.parts)
        there_ns, home_ns, end_ns = self.there_ns[part], self.home_ns[part], self.end_ns[part]
        columns = {
            "operation": (operation, back, rest),
            "owner": (step.owner[events],) * 3,
            "link": (self.link[operation], self.link[back], np.full(k, NO_LINK)),
            "start_ns": (step.start_ns[events], self.begun_ns[part], home_ns),
            "end_ns": (there_ns, home_ns, end_ns),
            "work_ns": (self.there_takes[part], self.home_takes[part], end_ns - home_ns),
            "gap_ns": (step.gap_ns[events], np.zeros(k, np.int64), np.zeros(k, np.int64)),
        }
        new = {}
        for name, (first, second, third) in columns.items():
            new[name] = np.concatenate([getattr(step, name), second, third])
            new[name][events] = first
        continued, across = step.continued.copy(), step.across.copy()
        for rows, back_by in ((continued, np.ones(len(continued), np.int64)), (across, across[:, 3])):
            for by in range(1, min(int(back_by.max(initial=0)) + 1, len(so_far))):
                chosen = back_by == by
                rows[chosen, 0] = so_far[-1 - by][rows[chosen, 0]]
        return replace(
            step,
            **new,
            edges=self._edges(step, events, self.is_pull[part], ends),
            last=ends[step.last],
            turn=np.zeros(n + 2 * k, np.int64),
            overtaken=np.empty((0, 2), np.int64),
            held=np.zeros(n + 2 * k, np.bool_),
            continued=continued,
            across=across,
        )

    def _edges(self, step: StepGraph, events: Int64, is_pull: Mask, ends: Int64) -> Int64:
        n, k = len(step), len(events)
        back = np.full(n, -1)
        back[events] = n + np.arange(k)
        source, target, joint, _ = step.edges.T
        edges = step.edges.copy()
        ended = (joint == Joint.END_TO_HEAD) | (joint == Joint.END_TO_BODY)
        edges[ended, 0] = ends[source[ended]]
        # Edges into the body of a transfer lead to its second message.
        into_body = (joint >= Joint.END_TO_BODY) & (back[target] >= 0)
        edges[into_body, 1] = back[target[into_body]]
        pulls = np.zeros(n, np.bool_)
        pulls[events] = is_pull
        fed = into_body & (back[source] >= 0) & pulls[target] & ~pulls[source]
        edges[fed, 0], edges[fed, 2] = source[fed], Joint.END_TO_HEAD
        further = (
            edge_rows(sources, targets, Joint.END_TO_HEAD, Rule.SERVER)
            for sources, targets in ((events, back[events]), (back[events], ends[events]))
        )
        return np.concatenate([edges, *further])


def _feeds(step: StepGraph, events: Int64, pull: Mask) -> Int64:
    """Pair each PUSH with the PULL that waits for its bytes (p, 2), as indices of `events`."""
    index_of = np.full(len(step), -1)
    index_of[events] = np.arange(len(events))
    source, target, joint, _ = step.edges.T
    is_pull = pull[step.operation]
    feeds = (joint >= Joint.END_TO_BODY) & (index_of[source] >= 0) & (index_of[target] >= 0)
    feeds &= ~is_pull[source] & is_pull[target]
    return np.stack([index_of[source[feeds]], index_of[target[feeds]]], axis=1)
