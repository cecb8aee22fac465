"""The PUSH and PULL transfers of ps-lite in one packet capture, request with response."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from arrays import Int32, Int64, NDArray
from collector.network.packets import Capture, Ends, read_segments
from collector.network.pslite import LENGTHS_FRAME, Meta, Node, identity, locate, read_header
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
    sure: bool = False  # a file's name tells which worker it is


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


def read_traffic(path: Path, on_bytes: Callable[[int], object] = lambda n: None) -> Traffic:
    """Read one capture; memory grows with the number of transfers only, about 80 bytes each.

    Raises TraceError where the file cannot be opened, is empty, or is not a capture.
    """
    capture = Capture(path)
    matcher = _Matcher()
    streams = Streams(matcher.receivers, capture)
    for segment in read_segments(capture, on_bytes):
        streams.take(segment)
    streams.close()
    return matcher.result(capture)


class _Unmatched(NamedTuple):
    """A request or a response that waits for the other."""

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
    kinds: set[bool] = field(default_factory=set)  # of messages that were met: True requests, False responses
    #: Messages without their counterpart, requests and responses.
    open: dict[bool, dict[_Number, _Unmatched]] = field(default_factory=lambda: {True: {}, False: {}})
    index: int = -1  # in the list of connections with transfers

    @property
    def hosts(self) -> frozenset[bytes]:
        return frozenset((self.ends[0], self.ends[2]))


class _Matcher:
    """Puts requests and responses together."""

    def __init__(self) -> None:
        self._links: list[_Link] = []  # with transfers
        self._between: dict[frozenset[bytes], list[_Link]] = {}  # links with messages, by pair of hosts
        self._nodes: set[Node] = set()
        self._columns = {
            name: array("Q" if name == "wire_key" else "q") for name in Transfers.__struct_fields__
        }

    def receivers(self, ends: Ends) -> tuple[Receiver, Receiver]:
        """Make the readers of a new connection; see `tcp.Streams`."""
        link = _Link(ends)
        link.readers = readers = self._reader(link, 0), self._reader(link, 1)
        return readers

    def _reader(self, link: _Link, direction: int) -> MessageReader:
        def on_message(message: Message) -> bool:
            meta = read_header(message)
            if meta is None:
                return False
            if meta.control is not None:
                self._nodes.update(node for node in meta.nodes if node.id < _UNASSIGNED)
            else:
                self._data(link, direction, meta, message)
            return True

        def on_identity(name: bytes) -> None:
            link.identities[direction] = identity(name)

        return MessageReader(on_message, on_identity, locate, trailer=LENGTHS_FRAME)

    def _data(self, link: _Link, direction: int, meta: Meta, message: Message) -> None:
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        if not link.kinds:
            self._between.setdefault(link.hosts, []).append(link)
        link.kinds.add(meta.request)
        half = _Unmatched(message.start_ns, message.end_ns, meta.key, meta.value_bytes, message.wire_bytes)
        if meta.sender is not None:
            link.identities[direction] = meta.sender
        link.asks = direction if meta.request else 1 - direction
        other = self._take(link, number, not meta.request)
        if other is not None:
            self._add(link, meta, *((half, other) if meta.request else (other, half)))
            return
        waiting = link.open[meta.request]
        if len(waiting) >= _MOST_OPEN:
            del waiting[next(iter(waiting))]
        waiting[number] = half

    def _take(self, link: _Link, number: _Number, request: bool) -> _Unmatched | None:
        """Return the other half of `number`: on this connection, or on the one of the other direction."""
        if number in link.open[request]:
            return link.open[request].pop(number)
        if len(link.kinds) == 2:
            return None
        holders = [
            other.open[request]
            for other in self._between[link.hosts]
            if other is not link and len(other.kinds) == 1 and number in other.open[request]
        ]
        return holders[0].pop(number) if len(holders) == 1 else None

    def _add(self, link: _Link, meta: Meta, request: _Unmatched, response: _Unmatched) -> None:
        key = request.key if request.key is not None else response.key
        if key is None:
            return
        if link.index < 0:
            link.index = len(self._links)
            self._links.append(link)
        row: Mapping[str, int] = {
            "connection": link.index,
            "push": meta.push,
            "wire_key": key,
            "timestamp": meta.timestamp,
            "request_start_ns": request.start_ns,
            "request_end_ns": request.end_ns,
            "response_start_ns": response.start_ns,
            "response_end_ns": response.end_ns,
            "value_bytes": request.value_bytes if meta.push else response.value_bytes,
            "wire_bytes": request.wire_bytes + response.wire_bytes,
        }
        for name, column in self._columns.items():
            column.append(row[name])

    def result(self, capture: Capture) -> Traffic:
        """Return the transfers; the messages that are left over are counted in `capture`."""
        for link in (link for links in self._between.values() for link in links):
            capture.n_unanswered += len(link.open[True])
            capture.n_unasked += len(link.open[False])
        types = {"connection": np.int32, "push": np.bool_, "wire_key": np.uint64}
        columns: dict[str, Any] = {
            name: np.array(column, types.get(name, np.int64)) for name, column in self._columns.items()
        }
        connections = [_connection(link) for link in self._links]
        return Traffic(capture, Transfers(**columns), connections, frozenset(self._nodes))


def _connection(link: _Link) -> Connection:
    source, sport, target, tport = link.ends
    ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
    asks, answers = link.asks, 1 - link.asks
    trip_ns = link.readers[answers].trip_ns or 0
    return Connection(*ends[asks], *ends[answers], link.identities[asks], link.identities[answers], trip_ns)
