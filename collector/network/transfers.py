"""The PUSH and PULL transfers of ps-lite in one packet capture, request with response."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from analyzer.base.arrays import Int64, NDArray
from collector.network.packets import Capture, Ends, Receiver, Streams, read_segments
from collector.network.pslite import Message, MessageReader, Node, identity, read_header

_UNASSIGNED = (1 << 15) - 1  # ids from here on are placeholders of nodes that have none yet


class Transfers(Struct, frozen=True):
    """One row (n,) per request with its response, in the order of completion."""

    push: NDArray[np.bool_]  # True PUSH, False PULL
    wire_key: NDArray[np.uint64]  # with the base of the server's key range
    timestamp: Int64  # ps-lite's number of the request
    request_start_ns: Int64  # capture times of first and last bytes
    request_end_ns: Int64
    response_start_ns: Int64
    response_end_ns: Int64
    value_bytes: Int64  # of the tensor: sent by a PUSH, received by a PULL
    wire_bytes: Int64  # of both messages with all their frames

    def __len__(self) -> int:
        return len(self.push)


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
    transfers: Transfers
    worker: str = ""  # names of the two nodes, set when all captures are read
    server: str = ""


class Traffic(Struct, frozen=True):
    """The ps-lite traffic in a capture."""

    capture: Capture
    connections: list[Connection]  # those with transfers
    nodes: set[Node]  # as the scheduler announced them, if that was captured

    @property
    def n_transfers(self) -> int:
        """Transfers of all connections."""
        return sum(len(connection.transfers) for connection in self.connections)


def read_traffic(path: Path) -> Traffic:
    """Read one capture; memory grows with the number of transfers only, about 80 bytes each.

    Raises TraceError if the file cannot be opened, is empty, or is not a capture.
    """
    capture = Capture(path)
    links: list[_Link] = []
    nodes: set[Node] = set()

    def receivers(ends: Ends) -> tuple[Receiver, Receiver]:
        links.append(_Link(ends, nodes))
        return links[-1].readers

    streams = Streams(receivers, capture)
    for segment in read_segments(capture):
        streams.take(segment)
    capture.n_unanswered = sum(len(link.open[True]) for link in links)
    capture.n_unasked = sum(len(link.open[False]) for link in links)
    return Traffic(capture, [link.connection(path) for link in links if link.rows], nodes)


class _Side(NamedTuple):
    start_ns: int
    end_ns: int
    key: int | None
    value_bytes: int
    wire_bytes: int


_Number = tuple[int, int, bool, int]  # application, customer, push, timestamp


class _Link:
    """Requests and responses of one TCP connection; direction 0 is that of `ends`, 1 the other."""

    def __init__(self, ends: Ends, nodes: set[Node]) -> None:
        self.ends, self.nodes = ends, nodes  # announced nodes are added
        self.identities: list[int | None] = [None, None]
        self.asks = 0  # direction of the requests
        #: Messages without their counterpart, requests and responses.
        self.open: dict[bool, dict[_Number, _Side]] = {True: {}, False: {}}
        self.rows: list[tuple[Any, ...]] = []  # the fields of `Transfers`
        self.readers = self._reader(0), self._reader(1)

    def _reader(self, direction: int) -> MessageReader:
        def identify(name: bytes) -> None:
            self.identities[direction] = identity(name)

        return MessageReader(partial(self._receive, direction), identify)

    def _receive(self, direction: int, message: Message) -> None:
        """Take a message; if its counterpart is known, add their transfer."""
        meta = read_header(message)
        if meta is None:
            return
        if meta.control is not None:
            self.nodes.update(node for node in meta.nodes if node.id < _UNASSIGNED)
            return
        if meta.sender is not None:
            self.identities[direction] = meta.sender
        self.asks = direction if meta.request else 1 - direction
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        half = _Side(message.start_ns, message.end_ns, meta.key, meta.value_bytes, message.wire_bytes)
        other = self.open[not meta.request].pop(number, None)
        if other is None:
            self.open[meta.request][number] = half
            return
        request, response = (half, other) if meta.request else (other, half)
        key = response.key if request.key is None else request.key
        if key is not None:
            times = request.start_ns, request.end_ns, response.start_ns, response.end_ns
            n_bytes = request.value_bytes if meta.push else response.value_bytes
            wire_bytes = request.wire_bytes + response.wire_bytes
            self.rows.append((meta.push, key, meta.timestamp, *times, n_bytes, wire_bytes))

    def connection(self, path: Path) -> Connection:
        """Make the connection with its transfers."""
        source, sport, target, tport = self.ends
        ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
        asks, answers = self.asks, 1 - self.asks
        kinds: list[Any] = [np.bool_, np.uint64, *[np.int64] * 7]
        columns: list[Any] = [
            np.array(column, kind) for column, kind in zip(zip(*self.rows, strict=True), kinds, strict=True)
        ]
        ids = self.identities[asks], self.identities[answers]
        trip_ns = self.readers[answers].trip_ns
        return Connection(path, *ends[asks], *ends[answers], *ids, trip_ns, Transfers(*columns))
