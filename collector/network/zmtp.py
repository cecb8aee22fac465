"""ZMTP 3.x (the wire protocol of ZeroMQ, rfc.zeromq.org/spec/23): messages out of a byte stream.

A stream that was joined in its middle, or lost bytes, is searched for the next message that
`MessageReader.locate` recognises. The bodies of large frames are counted, not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

from msgspec import Struct, field

MORE, LONG, COMMAND = 1, 2, 4
GREETING = 64  # bytes
_GREETING = re.compile(rb"\xff(?:.{0,8}|.{8}\x7f\x03?)", re.DOTALL)  # its first 11: padding, version 3
_KEPT = 1 << 10  # bytes of a frame body that are kept whatever the frame
_KEPT_FIRST = 1 << 20  # bytes that are kept of the first two frames
_LARGEST_FRAME = 1 << 31
_MOST_FRAMES = 16
_MOST_UNKNOWN = 64  # messages of a connection that make no sense before it counts as another protocol
_TAIL = 1 << 10  # bytes a search looks back over the end of what came before


class Message(Struct):
    """Frames up to the first without MORE."""

    frames: list[bytes] = field(default_factory=list)  # bodies; empty where a body was too large to keep
    sizes: list[int] = field(default_factory=list)  # lengths of the bodies
    start_ns: int = -1  # capture time of the first byte
    end_ns: int = -1  # when the last byte was there, all before it included
    wire_bytes: int = 0  # with the frame headers


class _State(Enum):
    GREETING = auto()
    FRAMES = auto()
    SEARCH = auto()


class MessageReader(Struct):
    """One direction of a connection as ZMTP messages (a `tcp.Receiver`)."""

    on_message: Callable[[Message], bool]  # returns False where a message makes no sense: the framing is lost
    on_identity: Callable[[bytes], object]  # takes the Identity that the peer states in its READY command
    locate: Callable[[bytes], int]  # returns the offset of the first recognisable message, or -1
    trailer: int = 0  # bytes of the frame behind a large body; where just these are lost, framing is not
    skip: int = 0
    wanted: bool = True
    from_start: bool = False  # what then does not begin with the greeting is another protocol
    trip_ns: int | None = None
    _n_messages: int = 0
    _n_unknown: int = 0
    _n_searches: int = 0  # times the framing had to be found anew
    _state: _State = _State.GREETING
    _held: bytearray = field(default_factory=bytearray)  # what is not decoded yet
    _needed: int = 0  # bytes that `_held` must have before it is worth looking again
    _marks: list[tuple[int, int]] = field(default_factory=list)  # in a search: (end in `_held`, capture time)
    _message: Message = field(default_factory=Message)  # the one that was begun
    _more: bool = False  # whether it goes on behind the frame that was begun

    def _reset(self) -> None:
        self.skip = 0
        self._message = Message()
        self._more = False

    def feed(self, block: bytes, start: int, end: int, seen_ns: int, now_ns: int) -> None:
        """Take the next bytes in order; see `tcp.Receiver`."""
        if self.skip:
            taken = min(self.skip, end - start)
            self.skip -= taken
            if self.skip:
                return
            start += taken
            if not self._body_done(b"", now_ns):
                self._lose_framing()
        if start == end or not self.wanted:
            return
        if self._held and self._state is not _State.SEARCH:
            self._held += block[start:end]
            if len(self._held) < self._needed:
                return
            block, start, end = bytes(self._held), 0, len(self._held)
            self._held.clear()
        if self._state is not _State.SEARCH:
            nonsense_at = self._decode(block, start, end, seen_ns, now_ns)
            if nonsense_at is None:
                return
            start = nonsense_at
            self._lose_framing()
        if self.wanted and start < end:
            self._find(block[start:end], seen_ns, now_ns)

    def lost(self, n_bytes: int | None, now_ns: int) -> None:
        """Step over missing bytes inside a large body; anything more loses the framing.

        A message whose large body ends within what is missing is passed on all the same: all that is worth
        knowing of it came before.
        """
        if not self.wanted:
            return
        if not n_bytes or not self.skip:
            self._begin_search()
            return
        stepped = min(n_bytes, self.skip)
        self.skip -= stepped
        if self.skip:
            return
        beyond = n_bytes - stepped
        if beyond:
            self._more = False
        if not self._body_done(b"", now_ns) or beyond not in (0, self.trailer):
            self._begin_search()

    def close(self) -> None:
        """Forget an incomplete message."""
        self._held.clear()
        self._reset()

    def _decode(self, data: bytes, at: int, end: int, seen_ns: int, now_ns: int) -> int | None:
        """Decode frames from ``data[at:end]``; return the offset after which they made no sense."""
        if self._state is _State.GREETING:
            if not _GREETING.fullmatch(data, at, min(end, at + 11)):
                return at
            if end - at < GREETING:
                self._hold(data, at, end, GREETING)
                return None
            self._state = _State.FRAMES
            at += GREETING
        while at < end:
            message = self._message
            if message.start_ns < 0:
                message.start_ns = seen_ns
            flags, index = data[at], len(message.sizes)
            header = 9 if flags & LONG else 2
            if flags > 7 or index >= _MOST_FRAMES:
                return at
            if end - at < header:
                self._hold(data, at, end, header)
                return None
            size = int.from_bytes(data[at + 1 : at + 9], "big") if flags & LONG else data[at + 1]
            if size > (_LARGEST_FRAME if index else _KEPT_FIRST):
                return at + 1
            body = at + header
            kept = size <= _KEPT or (index < 2 and size <= _KEPT_FIRST)
            whole = end - body >= size
            if kept and not whole:
                self._hold(data, at, end, header + size)
                return None
            at = body + size
            if flags & COMMAND:
                self._command(data[body:at])
                if not index:
                    message.start_ns = -1
                continue
            message.wire_bytes += header + size
            message.sizes.append(size)
            self._more = bool(flags & MORE)
            if not whole:
                self.skip = at - end
                return None
            if not self._body_done(data[body:at] if kept else b"", now_ns):
                return body
        return None

    def _hold(self, data: bytes, at: int, end: int, needed: int) -> None:
        """Wait until `needed` bytes are there from `at` on."""
        self._held = bytearray(data[at:end])
        self._needed = needed

    def _body_done(self, body: bytes, now_ns: int) -> bool:
        """Close a frame, and the message with it where no more follow; False: it makes no sense."""
        self._message.frames.append(body)
        if self._more:
            return True
        message = self._message
        message.end_ns = now_ns
        self._reset()
        if self.on_message(message):
            self._n_messages += 1
            return True
        self._n_unknown += 1
        certain = self.from_start and not self._n_searches  # the framing was never lost
        return certain and (self._n_messages > 0 or self._n_unknown < _MOST_UNKNOWN)

    def _command(self, body: bytes) -> None:
        """Read the Identity out of READY: properties of (name length, name, 4-byte length, value)."""
        if body[:6] != b"\x05READY":
            return
        at = 6
        while at < len(body):
            value_at = at + 1 + body[at] + 4
            name = body[at + 1 : value_at - 4]
            size = int.from_bytes(body[value_at - 4 : value_at], "big")
            if name.lower() == b"identity":
                self.on_identity(body[value_at : value_at + size])
            at = value_at + size

    def _lose_framing(self) -> None:
        """Search from here; a protocol that never made sense from its first byte is left alone."""
        if self.from_start and self._n_messages == 0 and self._n_searches == 0:
            self.wanted = False
            self.close()
        else:
            self._begin_search()

    def _begin_search(self) -> None:
        self.close()
        self._marks.clear()
        self._state = _State.SEARCH
        self._n_searches += 1

    def _find(self, data: bytes, seen_ns: int, now_ns: int) -> None:
        """Look for a message in `data` and what is held before it, and go on decoding there."""
        self._marks.append((len(self._held) + len(data), seen_ns))
        held = bytes(self._held) + data
        self._held.clear()
        beyond = 0
        while (found := self.locate(held[beyond:])) >= 0:
            at = beyond + found
            self._state = _State.FRAMES
            self._message.start_ns = next((ns for stop, ns in self._marks if at < stop), seen_ns)
            nonsense_at = self._decode(held, at, len(held), seen_ns, now_ns)
            if nonsense_at is None:
                self._marks.clear()
                return
            self._reset()
            self._state = _State.SEARCH
            self._n_searches += 1
            beyond = max(nonsense_at, at + 1)
        cut = max(len(held) - _TAIL, 0)
        self._held = bytearray(held[cut:])
        self._marks = [(stop - cut, ns) for stop, ns in self._marks if stop > cut]
