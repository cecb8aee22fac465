"""TCP streams out of segments: in order, each byte once; a hole ends the message in which it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from collector.network.packets import ACK, SYN, Capture, Ends, Segment

_FAR = 1 << 28  # no window reaches so far: another connection, or a pause in the capture


class Receiver(Protocol):
    """Takes the bytes of one direction."""

    trip_ns: int  # how long a packet took from the place of the capture to the sender and back; 0: not known

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes, captured at `now_ns`."""

    def lost(self) -> None:
        """Take note that bytes are missing here."""


class _Half(Struct):
    """One direction of a connection."""

    receiver: Receiver
    capture: Capture
    first_seq: int | None = None  # of the first byte
    next_seq: int = 0
    syn_ns: int | None = None  # time of the SYN, until it is answered

    def begin(self, seq: int) -> None:
        """Note the number of the first byte."""
        if self.first_seq is None:
            self.first_seq = self.next_seq = seq & 0xFFFFFFFF

    def take(self, segment: Segment) -> None:
        """Add one segment that carries payload."""
        seq = segment.seq + 1 if segment.flags & SYN else segment.seq
        self.begin(seq)
        ahead = ((seq - self.next_seq + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        if ahead > 0 or ahead < -_FAR:
            self.capture.lost_bytes += ahead if 0 < ahead <= _FAR else 0
            self.receiver.lost()
            ahead, self.next_seq = 0, seq
        n_new = segment.length + ahead  # the rest was sent before
        if n_new > 0:
            new = segment.payload[-ahead:]
            self.next_seq = (self.next_seq + n_new) & 0xFFFFFFFF
            self.receiver.feed(new, segment.ts_ns)
            if len(new) < n_new:
                self.receiver.lost()


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

    def _add(self, ends: Ends) -> tuple[_Half, _Half]:
        self.capture.n_connections += 1
        forth, back = (_Half(receiver, self.capture) for receiver in self._make(ends))
        self._flows[ends] = forth, back
        self._flows[ends[2], ends[3], ends[0], ends[1]] = back, forth
        return forth, back
