"""What one packet capture holds: the PUSH and PULL transfers of ps-lite, request with response."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.network.layers import Ends, read_segments
from collector.network.pcap import Capture
from collector.network.pslite import LENGTHS_FRAME, Header, Node, identity, locate, read_header
from collector.network.tcp import Counts, Receiver, Streams
from collector.network.zmtp import Message, Reader
from formats.columns import Int32, Int64

_UNASSIGNED = (1 << 15) - 1  # ids from here on are placeholders of nodes that have none yet
_MOST_OPEN = 1 << 16  # requests of a connection that wait for their response; older ones are given up


@dataclass(frozen=True, slots=True)
class Connection:
    """The two ends of a TCP connection between a worker and a server; ids are ps-lite's, if known.

    `round_trip_ns` : of the connection's first packets, from the place of the capture to the server and
        back; 0 if they were not captured
    """

    worker_host: str
    worker_port: int
    server_host: str
    server_port: int
    worker_id: int | None
    server_id: int | None
    round_trip_ns: int = 0


@dataclass(frozen=True, slots=True)
class Transfers:
    """One row per request with its response, in the order in which they were complete.

    connection : (n,) index into the connections
    push : (n,) True PUSH, False PULL
    wire_key : (n,) uint64, with the base of the server's key range
    timestamp : (n,) ps-lite's number of the request
    request_start_ns, request_end_ns, response_start_ns, response_end_ns : (n,) capture times of first and
        last bytes
    value_bytes : (n,) of the tensor: sent by a PUSH, received by a PULL
    wire_bytes : (n,) of both messages with all their frames
    """

    connection: Int32
    push: NDArray[np.bool_]
    wire_key: NDArray[np.uint64]
    timestamp: Int64
    request_start_ns: Int64
    request_end_ns: Int64
    response_start_ns: Int64
    response_end_ns: Int64
    value_bytes: Int64
    wire_bytes: Int64

    def __len__(self) -> int:
        return len(self.connection)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a capture holds of ps-lite."""

    capture: Capture
    transfers: Transfers
    connections: list[Connection]
    nodes: frozenset[Node]  # as the scheduler announced them, if that was captured
    counts: Counts
    n_connections: int  # TCP connections of any kind
    n_unanswered: int  # requests without response
    n_unasked: int  # responses without request


def read_traffic(path: Path, on_bytes: Callable[[int], object] = lambda n: None) -> Traffic:
    """Read one capture; memory grows with the number of transfers only, about 80 bytes each.

    Raises
    ------
    TraceError
        The file cannot be opened, is empty, or is not a capture.
    """
    capture = Capture(path)
    matcher = _Matcher()
    streams = Streams(matcher.receivers)
    for segment in read_segments(capture, on_bytes):
        streams.take(segment)
    streams.close()
    return matcher.result(capture, streams)


@dataclass(slots=True)
class _Half:
    """A request or a response that waits for the other."""

    start_ns: int
    end_ns: int
    key: int | None
    value_bytes: int
    wire_bytes: int


_Number = tuple[int, int, bool, int]  # application, customer, push, timestamp


@dataclass(slots=True)
class _Link:
    """One TCP connection; direction 0 is that of `ends`, 1 the other."""

    ends: Ends
    identities: list[int | None] = field(default_factory=lambda: [None, None])
    readers: tuple[Reader, ...] = ()
    asks: int | None = None  # direction in which requests go
    has_requests: bool = False
    has_responses: bool = False
    requests: dict[_Number, _Half] = field(default_factory=dict)
    responses: dict[_Number, _Half] = field(default_factory=dict)
    index: int = -1  # in the list of connections with transfers


class _Matcher:
    """Puts requests and responses together."""

    def __init__(self) -> None:
        self._links: list[_Link] = []  # with transfers
        self._between: dict[frozenset[bytes], list[_Link]] = {}  # links with messages, by pair of hosts
        self._nodes: set[Node] = set()
        self._columns = {name: array("Q" if name == "wire_key" else "q") for name in Transfers.__slots__}

    def receivers(self, ends: Ends) -> tuple[Receiver, Receiver]:
        """Make the readers of a new connection; see `tcp.MakeReceivers`."""
        link = _Link(ends)
        forth, back = self._reader(link, 0), self._reader(link, 1)
        link.readers = forth, back
        return forth, back

    def _reader(self, link: _Link, direction: int) -> Reader:
        def on_message(message: Message) -> bool:
            header = read_header(message)
            if header is None:
                return False
            if header.meta.control is not None:
                self._nodes.update(node for node in header.meta.nodes if node.id < _UNASSIGNED)
            else:
                self._data(link, direction, header, message)
            return True

        def on_identity(name: bytes) -> None:
            link.identities[direction] = identity(name)

        return Reader(on_message, on_identity, locate, trailer=LENGTHS_FRAME)

    def _data(self, link: _Link, direction: int, header: Header, message: Message) -> None:
        meta = header.meta
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        if not (link.has_requests or link.has_responses):
            self._between.setdefault(frozenset((link.ends[0], link.ends[2])), []).append(link)
        half = _Half(message.start_ns, message.end_ns, header.key, header.value_bytes, message.wire_bytes)
        if header.sender is not None:
            link.identities[direction] = header.sender
        link.asks = direction if meta.request else 1 - direction
        request: _Half | None
        response: _Half | None
        if meta.request:
            link.has_requests = True
            request, response = half, self._take(link, number, "responses")
        else:
            link.has_responses = True
            request, response = self._take(link, number, "requests"), half
        if request is None or response is None:
            _put(link.requests if meta.request else link.responses, number, half)
        else:
            self._add(link, meta.push, meta.timestamp, request, response)

    def _take(self, link: _Link, number: _Number, side: str) -> _Half | None:
        """Return what belongs to `number`: of this connection, or of the one that only goes the other way."""
        own: dict[_Number, _Half] = getattr(link, side)
        if number in own:
            return own.pop(number)
        if link.has_requests and link.has_responses:
            return None
        one_way = [
            other
            for other in self._between[frozenset((link.ends[0], link.ends[2]))]
            if other is not link and not (other.has_requests and other.has_responses)
        ]
        holders = [getattr(other, side) for other in one_way if number in getattr(other, side)]
        return holders[0].pop(number) if len(holders) == 1 else None

    def _add(self, link: _Link, push: bool, timestamp: int, request: _Half, response: _Half) -> None:
        key = request.key if request.key is not None else response.key
        if key is None:
            return
        if link.index < 0:
            link.index = len(self._links)
            self._links.append(link)
        row: Mapping[str, int] = {
            "connection": link.index,
            "push": push,
            "wire_key": key,
            "timestamp": timestamp,
            "request_start_ns": request.start_ns,
            "request_end_ns": request.end_ns,
            "response_start_ns": response.start_ns,
            "response_end_ns": response.end_ns,
            "value_bytes": request.value_bytes if push else response.value_bytes,
            "wire_bytes": request.wire_bytes + response.wire_bytes,
        }
        for name, column in self._columns.items():
            column.append(row[name])

    def result(self, capture: Capture, streams: Streams) -> Traffic:
        """Return the transfers and what is left over."""
        links = [link for links in self._between.values() for link in links]
        types = {"connection": np.int32, "push": np.bool_, "wire_key": np.uint64}
        columns: dict[str, Any] = {
            name: np.array(column, types.get(name, np.int64)) for name, column in self._columns.items()
        }
        return Traffic(
            capture,
            Transfers(**columns),
            [_connection(link) for link in self._links],
            frozenset(self._nodes),
            streams.counts,
            streams.n_connections,
            sum(len(link.requests) for link in links),
            sum(len(link.responses) for link in links),
        )


def _put(waiting: dict[_Number, _Half], number: _Number, half: _Half) -> None:
    if len(waiting) >= _MOST_OPEN:
        del waiting[next(iter(waiting))]
    waiting[number] = half


def _connection(link: _Link) -> Connection:
    source, sport, target, tport = link.ends
    ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
    asks = link.asks or 0
    worker, server = ends[asks], ends[1 - asks]
    trip_ns = link.readers[1 - asks].trip_ns or 0
    return Connection(*worker, *server, link.identities[asks], link.identities[1 - asks], trip_ns)
