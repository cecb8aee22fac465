"""The PUSH and PULL transfers of ps-lite: of one packet capture, and of all captures of a job."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from analyzer.base.arrays import Int64, NDArray
from analyzer.base.arrays.numbering import places_by_value
from analyzer.base.errors import Repairs
from collector.network.packets import Capture, Ends, Half, read_segments, reassemble
from collector.network.pslite import MessageReader, Meta, key_base, read_header, server_rank

_UNASSIGNED = (1 << 15) - 1  # ids from here on are placeholders of nodes that have none yet
_KEYS_END = 1 << 32  # a partition key has a 16-bit declared key above 16 bits of partition
_MOST_SERVERS = 4096  # tried if their number is unknown
UNKNOWN = -1

NodeKey = int | str  # ps-lite id or host
_TIMES = "request_start_ns", "request_end_ns", "response_start_ns", "response_end_ns"  # first and last bytes
#: A request with its response; the fields from `connection` on are filled in when all captures are read.
TRANSFER = np.dtype(
    [
        ("push", np.bool_),  # True PUSH, False PULL
        ("wire_key", np.uint64),  # with the base of the server's key range
        ("timestamp", np.int64),  # ps-lite's number of the request
        *((name, np.int64) for name in _TIMES),
        ("value_bytes", np.int64),  # of the tensor: sent by a PUSH, received by a PULL
        ("wire_bytes", np.int64),  # of both messages with all their frames
        ("connection", np.int64),  # index into the connections of all captures
        ("worker", np.int64),  # index into the names of the nodes, as `server`
        ("server", np.int64),
        ("key", np.int64),  # of the partition; -1 where the key range of the server is not known
        ("initial", np.bool_),  # a PUSH that only gives the server the tensor's size, before the first step
        ("trip_ns", np.int64),  # the network's round trip between request and response; 0: not known
        ("waiting_ns", np.int64),  # the server's wait for the PUSH of other workers; -1: not known
    ]
)
_LATER = (0,) * 6 + (-1,)  # of the fields that are filled in later
#: Transfers (n,), each a `TRANSFER`; ``wire.key`` is a column.
Wire: TypeAlias = "np.recarray[Any, Any]"


class Connection(Struct, frozen=True):
    """A TCP connection between a worker and a server in one capture; ids are ps-lite's, if known."""

    path: Path  # of the capture
    worker_host: str
    worker_port: int
    server_host: str
    server_port: int
    worker_id: int | None
    server_id: int | None
    round_trip_ns: int  # from the capture to the server and back; 0 if it was not captured
    transfers: Wire  # in the order of completion
    worker: str = ""  # names of the two nodes, set when all captures are read
    server: str = ""


def read_traffic(path: Path) -> Capture:
    """Read one capture; memory grows with the number of transfers only, about 150 bytes each.

    Raises TraceError if the file cannot be opened, is empty, or is not a capture.
    """
    capture = Capture(path)
    links: list[_Link] = []

    def halves(ends: Ends) -> tuple[Half, Half]:
        links.append(_Link(ends, capture))
        return links[-1].readers[0], links[-1].readers[1]

    reassemble(read_segments(capture), halves, capture)
    capture.n_unanswered = sum(len(link.open[True]) for link in links)
    capture.n_unasked = sum(len(link.open[False]) for link in links)
    capture.connections = [link.connection() for link in links if link.rows]
    return capture


_Number = tuple[int, int, bool, int]  # application, customer, push, timestamp
_Half = tuple[Meta, int, int, int]  # a request or response: capture times of first and last byte, wire bytes


class _Link:
    """Requests and responses of one TCP connection; direction 0 is that of `ends`, 1 the other."""

    def __init__(self, ends: Ends, capture: Capture) -> None:
        self.ends, self.capture = ends, capture
        self.asks = 0  # direction of the requests
        #: Messages without their counterpart, requests and responses.
        self.open: dict[bool, dict[_Number, _Half]] = {True: {}, False: {}}
        self.rows: list[tuple[Any, ...]] = []  # the fields of `TRANSFER`
        receive = [partial(self._receive, direction) for direction in (0, 1)]
        self.readers = tuple(MessageReader(capture, on_message=each) for each in receive)

    def _receive(
        self, direction: int, frames: Sequence[bytes], start_ns: int, end_ns: int, wire_bytes: int
    ) -> None:
        """Take a message; if its counterpart is known, add their transfer."""
        meta = read_header(frames)
        if meta is None:
            return
        if meta.control is not None:
            self.capture.nodes.update(node for node in meta.nodes if node.id < _UNASSIGNED)
            return
        if meta.sender is not None:
            self.readers[direction].node_id = meta.sender
        self.asks = direction if meta.request else 1 - direction
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        half = (meta, start_ns, end_ns, wire_bytes)
        other = self.open[not meta.request].pop(number, None)
        if other is None:
            self.open[meta.request][number] = half
            return
        (request, *sent_ns, sent), (response, *received_ns, received) = (
            (half, other) if meta.request else (other, half)
        )
        key = response.key if request.key is None else request.key
        if key is not None:
            n_bytes = request.value_bytes if meta.push else response.value_bytes
            row = (meta.push, key, meta.timestamp, *sent_ns, *received_ns, n_bytes, sent + received)
            self.rows.append((*row, *_LATER))

    def connection(self) -> Connection:
        """Make the connection with its transfers."""
        source, sport, target, tport = self.ends
        ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
        asks, answers = self.asks, 1 - self.asks
        ids = self.readers[asks].node_id, self.readers[answers].node_id
        trip_ns = self.readers[answers].trip_ns
        transfers = np.array(self.rows, TRANSFER).view(np.recarray)
        return Connection(self.capture.path, *ends[asks], *ends[answers], *ids, trip_ns, transfers)


# ---- all captures of a job


def named_connections(captures: Sequence[Capture], served: Mapping[str, Collection[int]]) -> list[Connection]:
    """Give the ends of all connections their names.

    A node is named after the file or directory of the capture in which it is the only one of its role
    (``worker_0.pcap``), or after the key log with its keys (`served`: partition keys by name of the server);
    other nodes after their ps-lite rank; if files name some nodes, after the remaining number or the id.
    """
    connections = [connection for capture in captures for connection in capture.connections]
    workers, servers = (_nodes(role, captures, connections) for role in ("worker", "server"))
    by_log = _named_by_logs(connections, servers, served, n_announced(captures, "server"))
    worker_names = _names("worker", connections, workers, {})
    server_names = _names("server", connections, servers, by_log)
    return [
        replace(connection, worker=worker_names[worker], server=server_names[server])
        for connection, worker, server in zip(connections, workers, servers, strict=True)
    ]


def _nodes(role: str, captures: Sequence[Capture], connections: Sequence[Connection]) -> list[NodeKey]:
    """Identify the node of a role at each connection: by id, else by the only id of the role on its host."""
    ends = [(getattr(c, f"{role}_host"), getattr(c, f"{role}_id")) for c in connections]
    announced = [(node.host, node.id) for capture in captures for node in capture.nodes if node.role == role]
    ids: dict[str, set[int]] = defaultdict(set)
    for host, node_id in (*announced, *ends):
        ids[host].update(() if node_id is None else [node_id])
    return [
        next(iter(ids[host])) if node_id is None and len(ids[host]) == 1 else node_id or host
        for host, node_id in ends
    ]


def _names(
    role: str, connections: Sequence[Connection], nodes: Sequence[NodeKey], by_log: Mapping[NodeKey, str]
) -> dict[NodeKey, str]:
    """Name the nodes of a role; `nodes` has that of each connection."""
    names = dict(by_log)
    in_capture: dict[Path, set[NodeKey]] = defaultdict(set)
    for connection, node in zip(connections, nodes, strict=True):
        in_capture[connection.path].add(node)
    for path, shown in in_capture.items():
        index = index_in_path(path, role)
        if index is not None and len(shown) == 1:
            names.setdefault(next(iter(shown)), f"{role}_{index}")
    others = sorted({*nodes} - names.keys(), key=str)
    left = {f"{role}_{i}" for i in range(len(names) + 1)} - set(names.values())
    if names and len(others) == len(left) == 1:  # the only remaining number
        return names | {others[0]: left.pop()}
    by_id = f"{role}_ps{{0}}" if names else f"{role}_{{1}}"
    for node in others:
        is_host = isinstance(node, str)
        names[node] = f"{role} {node}" if is_host else by_id.format(node, server_rank(int(node)))
    return names


def _named_by_logs(
    connections: Sequence[Connection],
    servers: Sequence[NodeKey],
    served: Mapping[str, Collection[int]],
    n_servers: int,
) -> dict[NodeKey, str]:
    """Name servers after the key log that shares most of their keys, more than half of both together."""
    keys: dict[NodeKey, set[int]] = defaultdict(set)
    for connection, server in zip(connections, servers, strict=True):
        keys[server].update(partition_keys(connection, n_servers).tolist())
    names: dict[NodeKey, str] = {}
    for name, in_log in served.items():
        shared = {node: len(of & set(in_log)) / max(len(of | set(in_log)), 1) for node, of in keys.items()}
        best = max(shared, key=lambda node: shared[node], default=None)
        if best is not None and shared[best] > 0.5:
            names.setdefault(best, name)
    return names


def n_announced(captures: Sequence[Capture], role: str) -> int:
    """Count the nodes of a role that the scheduler announced; 0 where that was not captured."""
    return len({node.id for capture in captures for node in capture.nodes if node.role == role})


def index_in_path(path: Path, role: str) -> int | None:
    """Find i of the innermost ``<role>_<i>`` in a path's file or directory names."""
    for part in reversed(path.parts):
        if match := re.match(rf"{role}[_-]?(\d+)(?![0-9])", part):
            return int(match[1])
    return None


def partition_keys(connection: Connection, n_servers: int) -> Int64:
    """Subtract the base of the server's key range from a connection's wire keys (n,); -1 if none fits.

    `n_servers` is the announced number, 0 if unknown.
    """
    wire_keys = connection.transfers.wire_key
    middle = int(np.sort(wire_keys)[len(wire_keys) // 2])  # robust against damaged keys
    for n in [n_servers] if n_servers else range(1, _MOST_SERVERS):
        near = middle * n // (2**64 - 1)
        for rank in (near, near + 1):
            if connection.server_id is not None and rank != server_rank(connection.server_id):
                continue
            base = np.uint64(key_base(rank, n))
            offsets = wire_keys - base
            fits = (wire_keys >= base) & (offsets < np.uint64(_KEYS_END))
            if fits.sum() * 2 > len(fits):
                return np.where(fits, offsets.astype(np.int64), -1)
    return np.full(len(wire_keys), -1, np.int64)


def spans_ns(wire: Wire) -> Int64:
    """From the first byte of each request to the last of its response (n,)."""
    return np.asarray(wire.response_end_ns - wire.request_start_ns)


def gaps_ns(wire: Wire) -> Int64:
    """From the last byte of each request to the first of its response (n,)."""
    return np.asarray(np.maximum(wire.response_start_ns - wire.request_end_ns, 0))


def merge(
    captures: Sequence[Capture], links: Sequence[Connection], repairs: Repairs
) -> tuple[Wire, list[str]]:
    """Put the transfers of all captures in order, a connection in two of them once; name the nodes."""
    nodes = sorted({name for link in links for name in (link.worker, link.server)})
    n_servers = n_announced(captures, "server")
    doubled = _doubled(links)
    unknown: Counter[Path] = Counter()
    pieces = []
    for i, link in enumerate(links):
        if i in doubled:
            continue
        piece = link.transfers.copy()
        piece.key = partition_keys(link, n_servers)
        piece.connection, piece.trip_ns = i, link.round_trip_ns
        piece.worker, piece.server = nodes.index(link.worker), nodes.index(link.server)
        pieces.append(piece)
        unknown[link.path] += int((piece.key == UNKNOWN).sum())
    again = Counter(links[i].path for i in doubled)
    for path in (capture.path for capture in captures):
        if again[path]:
            repairs.add(path, f"{again[path]} connections are in another capture too")
        if unknown[path]:
            repairs.add(path, f"{unknown[path]:,} transfers lie in no server's key range")
    joined = np.concatenate(pieces)
    wire: Wire = joined[np.argsort(joined["request_start_ns"], kind="stable")].view(np.recarray)
    wire.initial = initial_pushes(wire.worker, wire.key, wire.push, wire.request_start_ns)
    return wire, nodes


def _doubled(links: Sequence[Connection]) -> set[int]:
    """Find the connections that another capture, the worker's if possible, shows at the same time."""
    known: dict[tuple[str, int, str, int], list[tuple[int, int]]] = {}
    doubled = set()
    for i in sorted(range(len(links)), key=lambda i: index_in_path(links[i].path, "worker") is None):
        link = links[i]
        starts_ns = link.transfers.request_start_ns
        first, last = int(starts_ns.min()), int(starts_ns.max())
        spans = known.setdefault((link.worker_host, link.worker_port, link.server_host, link.server_port), [])
        if any(first <= end and begin <= last for begin, end in spans):
            doubled.add(i)
        else:
            spans.append((first, last))
    return doubled


def initial_pushes(
    worker: NDArray[Any], key: Int64, push: NDArray[np.bool_], start_ns: Int64
) -> NDArray[np.bool_]:
    """Mark each PUSH that is followed by another PUSH of the same worker and key (n,)."""
    order = np.lexsort((start_ns, key, worker))
    same = (worker[order[:-1]] == worker[order[1:]]) & (key[order[:-1]] == key[order[1:]])
    initial = np.zeros(len(key), np.bool_)
    initial[order[:-1]] = same & push[order[:-1]] & push[order[1:]]
    return initial


def job_size(captures: Sequence[Capture], wire: Wire) -> int | None:
    """Count the workers of the job; None if the captures may not show all of them."""
    announced, seen = n_announced(captures, "worker"), len(np.unique(wire.worker))
    if announced:
        return max(announced, seen)
    at_server = any(index_in_path(capture.path, "server") is not None for capture in captures)
    return seen if seen > 1 or at_server else None


def waiting_ns(wire: Wire, n_workers: int | None) -> Int64:
    """Time (n,) that each transfer waited for other workers; -1 if unknown.

    A server answers a PULL when every worker has pushed the key for that step, and an initial PUSH
    likewise. The last such PUSH is the latest, over the workers, of each one's last PUSH that was complete
    before the response began. Any other PUSH is acknowledged at once. `n_workers` is the size of the
    job, None if unknown.
    """
    waits = np.where(wire.push & ~wire.initial, 0, UNKNOWN).astype(np.int64)
    order = np.argsort(wire.request_end_ns, kind="stable")
    for rows in (order[places] for places in places_by_value(wire.key[order])):
        pushes = rows[wire.push[rows]]
        pushers = [pushes[places] for places in places_by_value(wire.worker[pushes])]
        waiters = rows[waits[rows] == UNKNOWN]
        if n_workers is None or len(pushers) < n_workers or not len(waiters):
            continue
        answered_ns, asked_ns = wire.response_start_ns[waiters], wire.request_end_ns[waiters]
        last_ns = np.full(len(waiters), np.iinfo(np.int64).min)
        known = np.ones(len(waiters), np.bool_)
        for group in pushers:
            pushed_ns = wire.request_end_ns[group]
            row = np.searchsorted(pushed_ns, answered_ns, side="right") - 1
            known &= row >= 0
            last_ns = np.maximum(last_ns, pushed_ns[np.maximum(row, 0)])
        waits[waiters[known]] = np.clip(last_ns - asked_ns, 0, gaps_ns(wire)[waiters])[known]
    return waits
