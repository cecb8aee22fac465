"""The PUSH and PULL transfers of ps-lite in one packet capture, request with response."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from collector.network.packets import Capture, Ends, Half, read_segments, reassemble
from collector.network.pslite import MessageReader, identity, read_header

_UNASSIGNED = (1 << 15) - 1  # ids from here on are placeholders of nodes that have none yet


_TIMES = (
    "request_start_ns",
    "request_end_ns",
    "response_start_ns",
    "response_end_ns",
)  # first and last bytes
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
        return links[-1].readers

    reassemble(read_segments(capture), halves, capture)
    capture.n_unanswered = sum(len(link.open[True]) for link in links)
    capture.n_unasked = sum(len(link.open[False]) for link in links)
    capture.connections = [link.connection() for link in links if link.rows]
    return capture


class _Side(NamedTuple):
    start_ns: int
    end_ns: int
    key: int | None
    value_bytes: int
    wire_bytes: int


_Number = tuple[int, int, bool, int]  # application, customer, push, timestamp


class _Link:
    """Requests and responses of one TCP connection; direction 0 is that of `ends`, 1 the other."""

    def __init__(self, ends: Ends, capture: Capture) -> None:
        self.ends, self.capture = ends, capture
        self.identities: list[int | None] = [None, None]
        self.asks = 0  # direction of the requests
        #: Messages without their counterpart, requests and responses.
        self.open: dict[bool, dict[_Number, _Side]] = {True: {}, False: {}}
        self.rows: list[tuple[Any, ...]] = []  # the fields of `TRANSFER`
        self.readers = self._reader(0), self._reader(1)

    def _reader(self, direction: int) -> MessageReader:
        def identify(name: bytes) -> None:
            self.identities[direction] = identity(name)

        receive = partial(self._receive, direction)
        return MessageReader(self.capture, on_message=receive, on_identity=identify)

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
            self.identities[direction] = meta.sender
        self.asks = direction if meta.request else 1 - direction
        number = (meta.app_id, meta.customer_id, meta.push, meta.timestamp)
        half = _Side(start_ns, end_ns, meta.key, meta.value_bytes, wire_bytes)
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
            self.rows.append((meta.push, key, meta.timestamp, *times, n_bytes, wire_bytes, *_LATER))

    def connection(self) -> Connection:
        """Make the connection with its transfers."""
        source, sport, target, tport = self.ends
        ends = [(str(ip_address(source)), sport), (str(ip_address(target)), tport)]
        asks, answers = self.asks, 1 - self.asks
        ids = self.identities[asks], self.identities[answers]
        trip_ns = self.readers[answers].trip_ns
        transfers = np.array(self.rows, TRANSFER).view(np.recarray)
        return Connection(self.capture.path, *ends[asks], *ends[answers], *ids, trip_ns, transfers)
