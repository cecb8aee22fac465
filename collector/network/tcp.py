"""TCP streams out of segments: in order, each byte once, holes reported, in bounded memory.

A receiver gets each direction of a connection as the application would have: retransmissions and
overlaps are dropped, what came early waits for what is missing. A hole that the capture will not fill
any more (the peer acknowledged the bytes, or too much waits behind it) is reported as lost bytes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from collector.network.packets import Capture, Ends, Segment

FIN, SYN, RST, ACK = 1, 2, 4, 16
MAX_WAITING = 4 << 20  # bytes a direction may hold back behind a hole
_MAX_WAITING_SEGMENTS = 1 << 13
_PATIENCE_NS = 50_000_000  # how much later than its acknowledgement a captured segment may come
_FAR = 1 << 28  # no window reaches so far: another connection, or a pause in the capture
_MAX_FLOWS = 1 << 16  # connections remembered; the oldest without a message are forgotten first


class Receiver(Protocol):
    """Takes the bytes of one direction."""

    skip: int  # this many bytes more need not be shown
    wanted: bool  # False: this is not traffic of interest, nothing more needs to be shown
    from_start: bool  # whether the first byte that comes is the first of the connection
    trip_ns: int | None  # how long a packet took from the place of the capture to the sender and back

    def feed(self, block: bytes, start: int, end: int, seen_ns: int, now_ns: int) -> None:
        """Take ``block[start:end]``, captured at `seen_ns` and in order since `now_ns`."""

    def lost(self, n_bytes: int | None, now_ns: int) -> None:
        """`n_bytes` (None: nobody knows how many) are missing here."""

    def close(self) -> None:
        """Nothing more comes."""


class Half(Struct):
    """One direction of a connection."""

    receiver: Receiver
    capture: Capture
    first_seq: int | None = None  # of the SYN
    syn_ns: int | None = None  # its time, until it is answered
    next_seq: int | None = None
    waiting: list[tuple[int, int, bytes]] = field(default_factory=list)  # (distance base, time, bytes)
    waiting_bytes: int = 0
    offset: int = 0  # stream position of `next_seq`
    finished: bool = False

    def take(self, segment: Segment) -> None:
        """Add one segment that carries payload."""
        if not self.receiver.wanted:
            self.waiting.clear()
            return
        seq = segment.seq + 1 if segment.flags & SYN else segment.seq
        if self.next_seq is None:
            self.next_seq = seq
        distance = ((seq - self.next_seq + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
        if abs(distance) > _FAR:
            self._drain_all()
            self.receiver.lost(None, segment.ts_ns)
            distance, self.next_seq = 0, seq
        if distance > 0:
            self._hold(segment, self.offset + distance)
            return
        known, ts_ns = -distance, segment.ts_ns
        if known:
            self.capture.retransmitted_bytes += min(known, segment.length)
        if segment.length > known:
            start = min(segment.start + known, segment.end)
            self._deliver(segment.block, start, segment.end, segment.length - known, ts_ns, ts_ns)
            if self.waiting:
                self._drain(ts_ns)

    def begins_with(self, seq: int) -> bool:
        """Whether a SYN of this sequence number belongs here: repeated, late, or the first packet of all."""
        if self.first_seq is not None:
            return self.first_seq == seq
        return not self.offset or (seq + 1 + self.offset) & 0xFFFFFFFF == self.next_seq

    def acknowledged(self, ack: int, now_ns: int) -> None:
        """Note that the peer has everything before `ack`: a hole before it will not be filled."""
        if self.next_seq is None or now_ns - self.waiting[0][1] < _PATIENCE_NS:
            return
        beyond = (ack - self.next_seq) & 0xFFFFFFFF
        if 0 < beyond < _FAR and self.offset + beyond >= self.waiting[0][0]:
            self._give_up_hole()

    def close(self) -> None:
        """Hand over what waits, with its holes, and end the stream."""
        self._drain_all()
        self.receiver.close()

    def _deliver(self, block: bytes, start: int, end: int, length: int, seen_ns: int, now_ns: int) -> None:
        receiver, n = self.receiver, end - start
        self.offset += length
        self.next_seq = ((self.next_seq or 0) + length) & 0xFFFFFFFF
        if receiver.skip > n:
            receiver.skip -= n
        elif n:
            receiver.feed(block, start, end, seen_ns, now_ns)
        if length > n:
            receiver.lost(length - n, now_ns)

    def _hold(self, segment: Segment, position: int) -> None:
        data = segment.block[segment.start : segment.end]
        if not data:
            return
        insort(self.waiting, (position, segment.ts_ns, data))
        self.waiting_bytes += len(data)
        while self.waiting_bytes > MAX_WAITING or len(self.waiting) > _MAX_WAITING_SEGMENTS:
            self._give_up_hole()

    def _drain(self, since_ns: int) -> None:
        """Hand over what waits and is in order, which it is since `since_ns` at the earliest."""
        taken = 0
        for position, seen_ns, data in self.waiting:
            if position > self.offset:
                break
            taken += 1
            self.waiting_bytes -= len(data)
            since_ns = max(since_ns, seen_ns)
            known = self.offset - position
            if known < len(data):
                self._deliver(data, known, len(data), len(data) - known, seen_ns, since_ns)
        del self.waiting[:taken]

    def _give_up_hole(self) -> None:
        """Count the bytes missing before the first waiting ones as lost, although the peer had them."""
        position, seen_ns, _ = self.waiting[0]
        n_lost = position - self.offset
        self.capture.lost_bytes += n_lost
        self.offset = position
        self.next_seq = ((self.next_seq or 0) + n_lost) & 0xFFFFFFFF
        self.receiver.lost(n_lost, seen_ns)
        self._drain(seen_ns)

    def _drain_all(self) -> None:
        while self.waiting and self.receiver.wanted:
            self._give_up_hole()
        self.waiting.clear()
        self.waiting_bytes = 0


class Streams:
    """All connections; `make` returns the receivers of a packet's direction and of the other, by its ends."""

    def __init__(self, make: Callable[[Ends], tuple[Receiver, Receiver]], capture: Capture) -> None:
        self._make, self.capture = make, capture
        self._flows: dict[Ends, tuple[Half, Half]] = {}  # both directions, each with its own half first

    def take(self, segment: Segment) -> None:
        """Add one segment of any connection."""
        flow = self._flows.get(segment.ends)
        flags = segment.flags
        if flags & SYN or flow is None:
            flow = self._opened(segment, flow)
            if flow is None:
                return
        half, back = flow
        if segment.ack >= 0:
            if back.syn_ns is not None and not flags & SYN:
                _answered(half, back, segment.ts_ns)
            if back.next_seq is None:
                if half.first_seq is not None:  # the answer to the SYN was not captured: here it begins
                    back.next_seq = segment.ack
            elif back.waiting:
                back.acknowledged(segment.ack, segment.ts_ns)
        if segment.length:
            half.take(segment)
        if flags & (FIN | RST):
            half.finished = True
            if flags & RST or (back.finished and not back.waiting and not half.waiting):
                self._close(segment.ends)

    def close(self) -> None:
        """End all streams: the capture ends here."""
        for ends in list(self._flows):
            self._close(ends)

    def _opened(self, segment: Segment, flow: tuple[Half, Half] | None) -> tuple[Half, Half] | None:
        """Return the connection that `segment` belongs to when it may open one; None: nothing to follow."""
        opens = bool(segment.flags & SYN)
        if flow is not None and not flow[0].begins_with(segment.seq):
            self._close(segment.ends)  # the ports are used again
            flow = None
        if flow is None:
            if not opens and not segment.length:
                return None
            flow = self._add(segment.ends)
        if opens:  # it may also be a repeated SYN, or the answer to one
            _begin(*flow, segment)
        return flow

    def _add(self, ends: Ends) -> tuple[Half, Half]:
        if len(self._flows) >= _MAX_FLOWS:
            self._forget()
        self.capture.n_connections += 1
        forth, back = (Half(receiver, self.capture) for receiver in self._make(ends))
        self._flows[ends] = forth, back
        self._flows[_turned(ends)] = back, forth
        return forth, back

    def _close(self, ends: Ends) -> None:
        flow = self._flows.pop(ends, ())
        self._flows.pop(_turned(ends), None)
        for half in flow:
            half.close()

    def _forget(self) -> None:
        """Drop the older half of the connections, first those that carried nothing of interest."""
        older = list(self._flows)[: len(self._flows) // 2]
        for ends in older:
            flow = self._flows.get(ends)
            if flow is not None and not any(half.offset and half.receiver.wanted for half in flow):
                self._close(ends)
        if len(self._flows) > _MAX_FLOWS * 3 // 4:
            for ends in older:
                self._close(ends)


def _turned(ends: Ends) -> Ends:
    return ends[2], ends[3], ends[0], ends[1]


def _begin(half: Half, back: Half, segment: Segment) -> None:
    if half.first_seq is None:
        half.first_seq = segment.seq
        if not half.offset:
            half.next_seq = (segment.seq + 1) & 0xFFFFFFFF
            half.receiver.from_start = True
        _answered(half, back, segment.ts_ns)
    half.syn_ns = segment.ts_ns


def _answered(half: Half, back: Half, now_ns: int) -> None:
    """Tell the receiver of `half` how long its SYN, or ACK, came after the SYN that it answers."""
    if back.syn_ns is not None:
        half.receiver.trip_ns = max(now_ns - back.syn_ns, 0)
        back.syn_ns = None
