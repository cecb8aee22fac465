"""The PUSH and PULL transfers of ps-lite in one packet capture, request with response."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from arrays import Int32, Int64, NDArray
from collector.network.packets import Capture, Ends, read_segments
from collector.network.pslite import Meta, Node, begins_message, identity, read_header
from collector.network.tcp import Receiver, Streams
from collector.network.zmtp import Message, MessageReader

_UNASSIGNED = (1 << 15) - 1  # ids from here on are placeholders of nodes that have none yet
_MOST_OPEN = 1 << 16  # requests of a connection that wait for their response; older ones are given up


class Connection(Struct, frozen=True):
    """The two ends of a TCP connection between a worker and a server; ids are ps-lite's, if known."""

    worker_host: str
    worker_port: int
    server_host: str
    server_port: int
    worker_id: int | None
    server_id: int | None
    round_trip_ns: int = 0  # from the place of the capture to the server and back; 0 if it was not captured
    worker: str = ""  # the names of the two, once all captures tell them
    server: str = ""


class Transfers(Struct, frozen=True):
    """One row (n,) per request with its response, in the order in which they were complete."""

    connection: Int32  # index into the connections
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
        return len(self.connection)


class Traffic(Struct, frozen=True):
    """The ps-lite traffic in a capture."""

    capture: Capture
    transfers: Transfers
    connections: list[Connection]
    nodes: frozenset[Node]  # as the scheduler announced them, if that was captured


def read_traffic(path: Path) -> Traffic:
    """Read one capture; memory grows with the number of transfers only, about 80 bytes each.

    Raises TraceError where the file cannot be opened, is empty, or is not a capture.
    """
    capture = Capture(path)
    matcher = _Matcher()
    streams = Streams(matcher.receivers, capture)
    for segment in read_segments(capture):
        streams.take(segment)
    return matcher.result(capture)


class _Part(NamedTuple):
    """A request or a response."""

    start_ns: int
    end_ns: int
    key: int | None
    value_bytes: int
    wire_bytes: int


_Number = tuple[int, int, bool, int]  # application, customer, push, timestamp


class _Link(Struct):
    """One TCP connection; direction 0 is that of `ends`, 1 the other."""

    ends: Ends
    identities: list[int | None] = field(default_factory=lambda: [None, None])
    readers: tuple[MessageReader, ...] = ()
    asks: int = 0  # direction in which requests go
    has_messages: bool = False
    #: Messages without their counterpart, requests and responses.
    open: dict[bool, dict[_Number, _Part]] = field(default_factory=lambda: {True: {}, False: {}})
    index: int = -1  # in the list of connections with transfers


class _Matcher:
    """Puts requests and responses together."""

    def __init__(self) -> None:
        self._links: list[_Link] = []  # with messages
        self._with_transfers: list[_Link] = []
        self._nodes: set[Node] = set()
        self._rows: list[tuple[int, ...]] = []  # the fields of `Transfers`

    def receivers(self, ends: Ends) -> tuple[Receiver, Receiver]:
        """Make the readers of a new connection; see `tcp.Streams`."""
        link = _Link(ends)
        link.readers = readers = self._reader(link, 0), self._reader(link, 1)
        return readers

    def _reader(self, link: _Link, direction: int) -> MessageReader:
        def on_message(message: Message) -> None:
            meta = read_header(message)
            if meta is not None and meta.control is not None:
                self._nodes.update(node for node in meta.nodes if node.id < _UNASSIGNED)
            elif meta is not None:
                self._data(link, direction, meta, message)

        def on_identity(name: bytes) -> None:
            link.identities[direction] = identity(name)

        return MessageReader(on_message, on_identity, begins_message)

    def _data(self, link: _Link, direction: int, meta: Meta, message: Message) -> None:
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        part = _Part(message.start_ns, message.end_ns, meta.key, meta.value_bytes, message.wire_bytes)
        if not link.has_messages:
            link.has_messages = True
            self._links.append(link)
        if meta.sender is not None:
            link.identities[direction] = meta.sender
        link.asks = direction if meta.request else 1 - direction
        other = link.open[not meta.request].pop(number, None)
        if other is None:
            waiting = link.open[meta.request]
            if len(waiting) >= _MOST_OPEN:
                del waiting[next(iter(waiting))]
            waiting[number] = part
        else:
            self._add(link, meta, *((part, other) if meta.request else (other, part)))

    def _add(self, link: _Link, meta: Meta, request: _Part, response: _Part) -> None:
        key = request.key if request.key is not None else response.key
        if key is None:
            return
        if link.index < 0:
            link.index = len(self._with_transfers)
            self._with_transfers.append(link)
        times = request.start_ns, request.end_ns, response.start_ns, response.end_ns
        n_bytes = request.value_bytes if meta.push else response.value_bytes
        wire_bytes = request.wire_bytes + response.wire_bytes
        self._rows.append((link.index, meta.push, key, meta.timestamp, *times, n_bytes, wire_bytes))

    def result(self, capture: Capture) -> Traffic:
        """Return the transfers; the messages that are left over are counted in `capture`."""
        for link in self._links:
            capture.n_unanswered += len(link.open[True])
            capture.n_unasked += len(link.open[False])
        types = [np.int32, np.bool_, np.uint64, *[np.int64] * 7]
        values = zip(*self._rows, strict=True) if self._rows else [()] * len(types)
        columns: list[Any] = [np.array(column, kind) for column, kind in zip(values, types, strict=True)]
        connections = [_connection(link) for link in self._with_transfers]
        return Traffic(capture, Transfers(*columns), connections, frozenset(self._nodes))


def _connection(link: _Link) -> Connection:
    source, sport, target, tport = link.ends
    ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
    asks, answers = link.asks, 1 - link.asks
    ids = link.identities[asks], link.identities[answers]
    return Connection(*ends[asks], *ends[answers], *ids, link.readers[answers].trip_ns)
