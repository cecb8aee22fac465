"""TCP streams out of segments: in order, each byte once; a hole ends the message in which it lies.

Retransmissions and overlaps are dropped; what came early waits for what is missing, until too much waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from collector.network.packets import ACK, SYN, Capture, Ends, Segment

MAX_WAITING = 4 << 20  # bytes a direction may hold back behind a hole
_FAR = 1 << 28  # no window reaches so far: another connection, or a pause in the capture
_MAX_FLOWS = 1 << 16  # connections remembered


class Receiver(Protocol):
    """Takes the bytes of one direction."""

    trip_ns: int  # how long a packet took from the place of the capture to the sender and back; 0: not known

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes, which are there and in order since `now_ns`."""

    def lost(self) -> None:
        """Take note that bytes are missing here."""


class _Half(Struct):
    """One direction of a connection."""

    receiver: Receiver
    capture: Capture
    first_seq: int | None = None  # of the first byte
    syn_ns: int | None = None  # time of the SYN, until it is answered
    next_seq: int = 0
    offset: int = 0  # stream position of `next_seq`
    now_ns: int = 0
    waiting: list[tuple[int, int, bytes]] = field(default_factory=list)  # a heap of (position, time, bytes)
    waiting_bytes: int = 0

    def begin(self, seq: int) -> None:
        """Note the number of the first byte."""
        if self.first_seq is None:
            self.first_seq = self.next_seq = seq & 0xFFFFFFFF

    def take(self, segment: Segment) -> None:
        """Add one segment that carries payload."""
        seq = segment.seq + 1 if segment.flags & SYN else segment.seq
        self.begin(seq)
        distance = ((seq - self.next_seq + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        if abs(distance) > _FAR:
            self.drain()
            self.receiver.lost()
            distance, self.next_seq = 0, seq
        if distance > 0:
            heapq.heappush(self.waiting, (self.offset + distance, segment.ts_ns, segment.payload))
            self.waiting_bytes += len(segment.payload)
            if self.waiting_bytes > MAX_WAITING:
                self._skip_hole()
        elif segment.length + distance > 0:
            self._deliver(segment.payload[-distance:], segment.length + distance, segment.ts_ns)
        self._deliver_waiting()

    def drain(self) -> None:
        """Hand over what waits, with its holes."""
        while self.waiting:
            self._skip_hole()
            self._deliver_waiting()

    def _deliver_waiting(self) -> None:
        while self.waiting and self.waiting[0][0] <= self.offset:
            position, ts_ns, data = heapq.heappop(self.waiting)
            self.waiting_bytes -= len(data)
            if new := data[self.offset - position :]:
                self._deliver(new, len(new), ts_ns)

    def _deliver(self, data: bytes, length: int, ts_ns: int) -> None:
        self._advance(length)
        self.now_ns = max(self.now_ns, ts_ns)
        self.receiver.feed(data, self.now_ns)
        if length > len(data):
            self.receiver.lost()

    def _skip_hole(self) -> None:
        n_lost = self.waiting[0][0] - self.offset
        self.capture.lost_bytes += n_lost
        self._advance(n_lost)
        self.receiver.lost()

    def _advance(self, n: int) -> None:
        self.offset += n
        self.next_seq = (self.next_seq + n) & 0xFFFFFFFF


class Streams:
    """All connections; `make` returns the receivers of a packet's direction and of the other, by its ends."""

    def __init__(self, make: Callable[[Ends], tuple[Receiver, Receiver]], capture: Capture) -> None:
        self._make, self.capture = make, capture
        self._flows: dict[Ends, tuple[_Half, _Half]] = {}  # both directions, each with its own half first

    def take(self, segment: Segment) -> None:
        """Add one segment of any connection."""
        flow = self._flows.get(segment.ends)
        opens = segment.flags & SYN
        first_seq = (segment.seq + 1) & 0xFFFFFFFF
        if opens and flow is not None and flow[0].first_seq not in (None, first_seq):
            flow = None  # the ports are used again
        if flow is None:
            if not opens and not segment.length:
                return
            flow = self._add(segment.ends)
        half, back = flow
        if segment.flags & ACK and back.syn_ns is not None:
            half.receiver.trip_ns = max(segment.ts_ns - back.syn_ns, 0)
            back.syn_ns = None
        if opens:
            half.begin(first_seq)
            half.syn_ns = segment.ts_ns
        if segment.length:
            half.take(segment)

    def close(self) -> None:
        """End all streams: the capture ends here."""
        self._forget(len(self._flows))

    def _add(self, ends: Ends) -> tuple[_Half, _Half]:
        if len(self._flows) >= _MAX_FLOWS:
            self._forget(_MAX_FLOWS // 2)
        self.capture.n_connections += 1
        turned = (ends[2], ends[3], ends[0], ends[1])
        for half in self._flows.pop(ends, ()):
            half.drain()
        self._flows.pop(turned, None)
        forth, back = (_Half(receiver, self.capture) for receiver in self._make(ends))
        self._flows[ends], self._flows[turned] = (forth, back), (back, forth)
        return forth, back

    def _forget(self, n: int) -> None:
        """End the `n` oldest streams."""
        for ends in list(self._flows)[:n]:
            self._flows.pop(ends)[0].drain()
