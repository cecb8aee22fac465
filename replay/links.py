"""Link rates of a job, as far as the recording shows them, and the bytes of transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from analyzer.base.arrays import Float64, Int64
from analyzer.model.graph.step_graph import NO_LINK, Recording, StepGraph
from analyzer.reading.dialects.step_parts import Direction, Joint, Operation, OperationTable

#: A stretch of time shows a link's rate if it has this share of the link's bytes in a step: the first bytes
#: after a pause may be faster than the link can sustain (a token bucket). A link with this share of the
#: busiest link's bytes is busy.
_GOOD_PART = 0.25
#: The rate of a link is known if its best rate reaches this share of the highest possible rate.
_CERTAIN = 0.85
#: Number of starts of stretches that are tried for a link in a step.
_MOST_STRETCHES = 64
#: Assumed bytes of a full partition of unknown size.
_UNIT = 1_000_000
#: A plateau above this rate (bytes/ns, 2 Gbit/s) may come from threads that copy and check the data; the link
#: may then be faster by this factor.
_THREADS, _HIDDEN = 0.25, 2.0
#: Separates the two nodes in the name of a connection.
_TO = " > "
#: A node is slow if each other node of its kind sends and receives faster by this factor.
_SLOWER = 1.2
#: Pushes faster than all others by this factor stay within a machine; only pushes with this share of the
#: largest push's bytes count.
_LOCAL, _LARGE = 3.0, 0.2
#: Speed of transfers within a machine, relative to those over the network.
_WITHIN = 1e3
#: A node's side is the limit if the best rate of its median step is this share of its best rate of all steps;
#: another side agrees with it if its best rate is this share of the highest.
_PLATEAU = 0.95


def is_sized(recording: Recording) -> bool:
    """Check whether the bytes of transfers are known (true without transfers)."""
    transfers = [op.transfer for op in recording.operations.kinds if op.transfer.link or op.is_communication]
    return not transfers or any(transfer.n_bytes for transfer in transfers)


class LinkRate(NamedTuple):
    """The rate of a job's links, bytes per nanosecond, as far as the recording shows it.

    A side of a node that is the limit has the same rate in all steps; then the rate is known. Otherwise
    `at_least` was reached in one step, and the true rate is uncertain: `at_most` exceeds the best rate by the
    ratio of the best to the usual rate (the median over steps and busy sides). It is at least the best
    receiving rate, and twice the best rate if threads may be the limit.
    """

    at_least: float
    at_most: float
    only_sending: bool = False  # receiving is not limited
    machines: Mapping[str, str] = {}  # server on a worker's machine -> the worker's link
    slow: Mapping[str, float] = {}  # rates of nodes that are slower than others

    def limits(self, links: Sequence[str]) -> tuple[Sequence[tuple[int, int]], list[float]]:
        """List the two sides of each link, and the capacity of each side as a share of `at_most`.

        Within a machine nothing limits.
        """
        index_of = {link: i for i, link in enumerate(links)}
        carries = [min(self.slow.get(link, np.inf) / self.at_most, 1.0) for link in links] * 2
        sides = []
        for ends in map(ends_of, links):
            source, target = (
                index_of.get(self.machines.get(node, node), NO_LINK) for node in ends or ("", "")
            )
            if source == target != NO_LINK:
                sides.append((2 * len(links), NO_LINK))
            else:
                is_free = self.only_sending or target == NO_LINK
                sides.append((source, NO_LINK if is_free else len(links) + target))
        return sides, [*carries, _WITHIN]

    @property
    def likely(self) -> float:
        """The likely rate of a link."""
        return float((self.at_least * self.at_most) ** 0.5)

    @property
    def is_certain(self) -> bool:
        """True if a side was clearly the limit."""
        return self.at_most * _CERTAIN <= self.at_least


def link_rate(recording: Recording) -> LinkRate | None:
    """Estimate the rate of the job's links; None without sizes.

    The bytes of a transfer move between its start and its end. A PUSH starts with its sending, a PULL with
    its request or with the sending of the last PUSH that it waits for. So a node's side is at least as fast
    as the bytes inside any stretch of time over its length. If the best of these bounds, over stretches with
    a good part of the side's bytes, is the same in all steps, the side was the limit. (Nodes are taken to be
    alike.)
    """
    machines = local_servers(recording)
    sides = busy_sides(recording, machines)
    slow = _slow_nodes(recording, sides)
    sides = [side for side in sides if side.link not in slow]
    best = [
        max([side.most for side in sides if side.receives == is_in], default=0.0) for is_in in (False, True)
    ]
    if not best[0]:
        return None
    for is_in in (True, False):  # a receiving side is the limit if no side carries more
        level = [
            (side.most, side.usual)
            for side in sides
            if side.receives == is_in and side.is_level and side.most >= _PLATEAU * best[is_in]
        ]
        most, usual = max(level, default=(0.0, 0.0))
        if _PLATEAU * best[0] <= most <= _THREADS:
            only_sending = not is_in and best[1] * _PLATEAU > most
            return LinkRate(most, most * most / usual, only_sending, machines, slow)
    usual = float(np.median(np.concatenate([side.rates for side in sides if not side.receives])))
    by_threads = _HIDDEN * best[0] if best[0] > _THREADS else 0.0
    at_most = max(best[0] * best[0] / usual, best[1], by_threads)
    return LinkRate(best[0], at_most, machines=machines, slow=slow)


class Side(NamedTuple):
    """Best rates of a sending or receiving node in each step (steps,)."""

    link: str  # by which the node sends
    receives: bool
    rates: Float64

    @property
    def most(self) -> float:
        """The best rate of all steps."""
        return float(self.rates.max())

    @property
    def usual(self) -> float:
        """The best rate of the median step."""
        return float(np.median(self.rates))

    @property
    def is_level(self) -> bool:
        """True if the best rate is the same in all steps."""
        return self.usual >= _PLATEAU * self.most


def busy_sides(recording: Recording, machines: Mapping[str, str]) -> list[Side]:
    """Measure the node sides that carry a good part of the busiest side's bytes.

    Transfers within one of the `machines` (server to worker link) pass neither side.
    """
    recording = with_sizes(recording)
    n_bytes, sides = bytes_of(recording), []
    index_of = {link: i for i, link in enumerate(recording.links)}
    machine = np.array([*(index_of[machines.get(link, link)] for link in recording.links), NO_LINK])
    sends, receives = machine[sending(recording)], machine[receiving(recording)]
    passes = sends != receives
    for is_in, side in enumerate(np.where(passes, (sends, receives), NO_LINK)):
        rates: dict[int, list[float]] = {}
        for step in recording.steps:
            size, begin, link = n_bytes[step.operation], begins(step), side[step.operation]
            sums = np.bincount(link[link >= 0], size[link >= 0])
            for number in np.flatnonzero(sums > _GOOD_PART * sums.max(initial=0)).tolist():
                carried = np.flatnonzero(link == number)
                fastest = _fastest(size[carried], begin[carried], step.end_ns[carried])
                rates.setdefault(number, []).append(fastest)
        sides += [
            Side(recording.links[number], bool(is_in), np.array(of_steps))
            for number, of_steps in rates.items()
        ]
    return sides


def slower_nodes(recording: Recording, sides: Sequence[Side]) -> dict[str, list[Side]]:
    """Find nodes whose best rates, both ways, are clearly below those of all others of their kind."""
    servers = _servers(recording)
    nodes: dict[str, list[Side]] = {}
    for side in sides:
        nodes.setdefault(side.link, []).append(side)
    both = {link: pair for link, pair in nodes.items() if len(pair) > 1}
    slower = {}
    for link, pair in both.items():
        peers = [
            pair_of
            for other, pair_of in both.items()
            if other != link and (other in servers) == (link in servers)
        ]
        if peers and all(
            of_peer.usual > _SLOWER * side.usual
            for pair_of in peers
            for of_peer, side in zip(pair_of, pair, strict=True)
        ):
            slower[link] = pair
    return slower


def _slow_nodes(recording: Recording, sides: Sequence[Side]) -> dict[str, float]:
    """Rates of the nodes whose own limit is below their fair share of what their peers carry."""
    servers, rates = _servers(recording), {}
    n_workers = len({op.transfer.link for op in recording.operations.kinds if op.transfer.is_sent})
    for link, pair in slower_nodes(recording, sides).items():
        most, ratio = max(side.most for side in pair), n_workers / max(len(servers), 1)
        share = min(ratio if link in servers else 1 / ratio, 1.0)
        peers = [
            side.most for side in sides if side.link != link and (side.link in servers) == (link in servers)
        ]
        if any(side.is_level for side in pair) and most * _SLOWER < share * max(peers):
            rates[link] = most
    return rates


def _servers(recording: Recording) -> set[str]:
    return {op.transfer.link for op in recording.operations.kinds if op.transfer.is_answer}


def local_servers(recording: Recording) -> dict[str, str]:
    """Map each server that runs on a worker's machine to that worker's link.

    Their transfers pass no network: the worker's pushes to that server are much faster than its pushes to
    other servers, and than pushes of other workers to that server. (With two workers and one server this is
    ambiguous.)
    """
    n_bytes, sends, receives = bytes_of(recording), sending(recording), receiving(recording)
    pushes = recording.which(lambda op: op.transfer.is_sent) & (receives >= 0)
    pushes &= n_bytes >= _LARGE * n_bytes.max(initial=1)
    rates: dict[tuple[int, int], list[float]] = {}
    for step in recording.steps:
        for event in np.flatnonzero(pushes[step.operation]).tolist():
            number, took = step.operation[event], step.end_ns[event] - step.start_ns[event]
            pair = int(sends[number]), int(receives[number])
            rates.setdefault(pair, []).append(n_bytes[number] / max(took, 1))
    usual = {pair: float(np.median(of_pair)) for pair, of_pair in rates.items()}
    worker_links = {}
    for (worker, server), rate in usual.items():
        others = [other for (a, b), other in usual.items() if (a == worker) != (b == server)]
        if len(others) > 1 and rate > _LOCAL * max(others):
            worker_links[recording.links[server]] = recording.links[worker]
    return worker_links


def ends_of(link: str) -> tuple[str, str] | None:
    """Sender and receiver of a connection; None for another link."""
    source, to, target = link.partition(_TO)
    return (source, target) if to else None


def connection(source: str, target: str) -> str:
    """Name the link from one node to another."""
    return source + _TO + target


def sending(recording: Recording) -> Int64:
    """Find the sending link of each operation (n,), -1 for none."""
    index_of = {link: i for i, link in enumerate(recording.links)}
    return recording.column(lambda op: index_of.get(op.transfer.link, NO_LINK))


def receiving(recording: Recording) -> Int64:
    """Link of the receiving node of each operation (n,), -1 for none."""
    index_of = {link: i for i, link in enumerate(recording.links)}
    kinds = recording.operations.kinds
    server = {
        op.transfer.key: index_of.get(op.transfer.link, NO_LINK) for op in kinds if op.transfer.is_answer
    }
    worker = {op.owner: index_of.get(op.transfer.link, NO_LINK) for op in kinds if op.transfer.is_sent}

    def receiver(operation: Operation) -> int:
        if operation.transfer.is_sent:
            return server.get(operation.transfer.key, NO_LINK)
        return worker.get(operation.owner, NO_LINK) if operation.transfer.is_answer else NO_LINK

    return recording.column(receiver)


def begins(step: StepGraph) -> Int64:
    """Earliest time (n,) at which bytes of each event can have moved."""
    begin: Int64 = step.start_ns.copy()
    into = step.edges[step.edges[:, 2] >= Joint.END_TO_BODY]
    np.maximum.at(begin, into[:, 1], step.start_ns[into[:, 0]])
    return begin


def _fastest(size: Int64, begin_ns: Int64, end_ns: Int64) -> float:
    """Highest rate over a stretch of time with a good part of all bytes.

    Stretches lead from the start of one transfer (n,) to the end of one.
    """
    total = float(size.sum())
    order = np.argsort(end_ns, kind="stable")
    size, begin_ns, end_ns = size[order], begin_ns[order], end_ns[order]
    since = np.unique(begin_ns)
    since = since[np.linspace(0, len(since) - 1, min(len(since), _MOST_STRETCHES)).astype(int)]
    fastest = 0.0
    for first in since.tolist():
        carried = np.cumsum(np.where(begin_ns >= first, size, 0))
        rate = np.where(end_ns > first, carried / np.maximum(end_ns - first, 1), 0.0)
        fastest = float(rate.max(initial=fastest, where=carried >= _GOOD_PART * total))
    return fastest


def with_sizes(recording: Recording) -> Recording:
    """Add the sizes of partitions; relative sizes if no log has them.

    The copy of a partition to host memory (COPYD2H) takes longer the larger it is: the shortest copy counts
    as 0 bytes, the usual copy of a full partition as one unit.
    """
    if any(op.transfer.n_bytes for op in recording.operations.kinds):
        return recording
    to_host = recording.which(lambda op: op.transfer.direction is Direction.TO_HOST)
    copies: dict[tuple[int, int | None], float] = {}  # shortest copy of each partition, by (owner, key)
    for step in recording.steps:
        events = np.flatnonzero(to_host[step.operation])
        for number, work in zip(step.operation[events].tolist(), step.work_ns[events].tolist(), strict=True):
            op = recording.operations[number]
            if op.transfer.key is not None:
                partition = op.owner, op.transfer.key
                copies[partition] = min(copies.get(partition, work), work)
    # All partitions of a tensor except the last are full.
    full = [ns for (owner, key), ns in copies.items() if key is not None and (owner, key + 1) in copies]
    empty_ns = min(copies.values(), default=0)
    full_ns = float(np.median(full)) if full else max(copies.values(), default=0)
    if full_ns <= empty_ns:
        return recording

    def sized(operation: Operation) -> Operation:
        if (partition := (operation.owner, operation.transfer.key)) not in copies:
            return operation
        share = min((copies[partition] - empty_ns) / (full_ns - empty_ns), 1.0)
        return operation._replace(transfer=operation.transfer._replace(n_bytes=round(_UNIT * share)))

    return replace(recording, operations=OperationTable(map(sized, recording.operations)))


def bytes_of(recording: Recording) -> Int64:
    """Bytes that each operation (n,) moves; 0 if unknown."""
    return recording.column(lambda op: op.transfer.n_bytes)
