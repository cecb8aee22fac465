"""ZMTP 3.x (the wire protocol of ZeroMQ, rfc.zeromq.org/spec/23): messages out of a byte stream.

After a hole, or where a capture begins in the middle, messages are decoded from the next segment on that
begins with one. The bodies of large frames are counted, not kept.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

MORE, LONG, COMMAND = 1, 2, 4
GREETING = 64  # bytes
_KEPT = 1 << 10  # bytes of a frame body that are kept whatever the frame
_KEPT_FIRST = 1 << 20  # bytes of the first two frames of a message, which are always kept
_LARGEST_FRAME = 1 << 31
_MOST_FRAMES = 16


class Message(Struct):
    """Frames up to the first without MORE."""

    frames: list[bytes] = field(default_factory=list)  # bodies; empty where a body was too large to keep
    sizes: list[int] = field(default_factory=list)  # lengths of the bodies
    start_ns: int = -1  # capture time of the first byte
    end_ns: int = -1  # when the last byte was there, all before it included
    wire_bytes: int = 0  # with the frame headers


class MessageReader(Struct):
    """One direction of a connection as ZMTP messages (a `tcp.Receiver`)."""

    on_message: Callable[[Message], object]
    on_identity: Callable[[bytes], object]  # takes the Identity that the peer states in its READY command
    begins_message: Callable[[bytes], bool]  # whether bytes begin with a message
    trip_ns: int = 0
    _is_framed: bool = False  # whether it is known where frames begin
    _skip: int = 0  # bytes of a large body that are to come
    _begin: int = 0  # where in `_held` frames begin
    _needed: int = 0  # bytes that `_held` must have before it is worth looking again
    _held: bytearray = field(default_factory=bytearray)  # what is not decoded yet
    _message: Message = field(default_factory=Message)  # the one that was begun
    _more: bool = False  # whether it goes on behind the frame that was begun

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes; see `tcp.Receiver`."""
        if self._skip:
            taken = min(self._skip, len(data))
            self._skip -= taken
            if self._skip:
                return
            data = data[taken:]
            self._end_frame(b"", now_ns)
        if not self._is_framed:
            is_greeting = data[:1] == b"\xff" and data[9:10] == b"\x7f"
            if not is_greeting and not self.begins_message(data):
                return
            self._is_framed, self._begin = True, GREETING * is_greeting
        self._held += data
        if len(self._held) >= max(self._needed, self._begin):
            data = bytes(self._held)
            self._held.clear()
            self._decode(data, now_ns)

    def lost(self) -> None:
        """Forget the message that was begun."""
        self._held.clear()
        self._is_framed, self._skip, self._needed, self._begin = False, 0, 0, 0
        self._message = Message()

    def _decode(self, data: bytes, now_ns: int) -> None:
        at, self._begin, self._needed = self._begin, 0, 0
        while at < len(data):
            message = self._message
            if message.start_ns < 0:
                message.start_ns = now_ns
            flags, index = data[at], len(message.sizes)
            header = 9 if flags & LONG else 2
            if len(data) - at < header:
                return self._hold(data[at:], header)
            size = int.from_bytes(data[at + 1 : at + header], "big")
            if flags > 7 or index >= _MOST_FRAMES or (flags & COMMAND and index):
                return self.lost()
            if size > (_KEPT_FIRST if index < 2 else _LARGEST_FRAME):
                return self.lost()
            body, is_kept = at + header, index < 2 or size <= _KEPT
            if is_kept and body + size > len(data):
                return self._hold(data[at:], header + size)
            at = body + size
            if flags & COMMAND:
                self._command(data[body:at])
                message.start_ns = -1
                continue
            message.wire_bytes += header + size
            message.sizes.append(size)
            self._more = bool(flags & MORE)
            if at > len(data):
                self._skip = at - len(data)
                return None
            self._end_frame(data[body:at] if is_kept else b"", now_ns)
        return None

    def _hold(self, data: bytes, needed: int) -> None:
        self._held, self._needed = bytearray(data), needed

    def _end_frame(self, body: bytes, now_ns: int) -> None:
        """Close a frame, and the message with it where no more follow."""
        self._message.frames.append(body)
        if not self._more:
            message, self._message = self._message, Message()
            message.end_ns = now_ns
            self.on_message(message)

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
