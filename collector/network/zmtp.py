"""ZMTP 3.x (the wire protocol of ZeroMQ, rfc.zeromq.org/spec/23): messages out of a byte stream.

After a hole, or where a capture begins in the middle, messages are decoded from the next segment on that
begins with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

MORE, LONG, COMMAND = 1, 2, 4
GREETING = 64  # bytes
_LARGEST_FRAME = 1 << 30
_MOST_FRAMES = 16


class Message(Struct):
    """Frames up to the first without MORE."""

    frames: Sequence[bytes]  # their bodies
    start_ns: int  # capture time of the first byte
    end_ns: int  # … of the last one
    wire_bytes: int  # with the frame headers


class MessageReader(Struct):
    """One direction of a connection as ZMTP messages (a `tcp.Receiver`)."""

    on_message: Callable[[Message], object]
    on_identity: Callable[[bytes], object]  # takes the Identity that the peer states in its READY command
    begins_message: Callable[[bytes], bool]  # whether bytes begin with a message
    trip_ns: int = 0
    _is_framed: bool = False  # whether it is known where frames begin
    _greeting: int = 0  # bytes that come before the first frame
    _held: bytearray = field(default_factory=bytearray)  # the beginning of the next frame
    _needed: int = 0  # bytes that `_held` must have to be worth decoding
    _frames: list[bytes] = field(default_factory=list)  # of the message that was begun
    _start_ns: int = 0
    _wire_bytes: int = 0

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes; see `tcp.Receiver`."""
        if not self._is_framed:
            is_greeting = data[:1] == b"\xff" and data[9:10] == b"\x7f"
            if not is_greeting and not self.begins_message(data):
                return
            self._is_framed, self._greeting = True, GREETING * is_greeting
        if not self._held and not self._frames:
            self._start_ns = now_ns
        self._held += data
        if self._greeting and len(self._held) >= self._greeting:
            del self._held[: self._greeting]
            self._greeting = 0
        while not self._greeting and len(self._held) >= max(self._needed, 2) and self._take_frame(now_ns):
            pass

    def lost(self) -> None:
        """Forget the message that was begun."""
        self._is_framed, self._greeting, self._needed, self._wire_bytes = False, 0, 0, 0
        self._held.clear()
        self._frames.clear()

    def _take_frame(self, now_ns: int) -> bool:
        """Take a whole frame off the bytes held; False where there is none."""
        flags = self._held[0]
        header = 9 if flags & LONG else 2
        size = int.from_bytes(self._held[1:header], "big")
        is_odd = flags > 7 or len(self._frames) >= _MOST_FRAMES or bool(flags & COMMAND and self._frames)
        if is_odd or size > _LARGEST_FRAME:
            self.lost()
            return False
        self._needed = header + (size if len(self._held) >= header else 0)
        if len(self._held) < self._needed:
            return False
        body = bytes(self._held[header : self._needed])
        del self._held[: self._needed]
        if flags & COMMAND:
            self._read_command(body)
            self._start_ns = now_ns
        else:
            self._frames.append(body)
            self._wire_bytes += self._needed
            if not flags & MORE:
                message = Message(self._frames, self._start_ns, now_ns, self._wire_bytes)
                self._frames, self._start_ns, self._wire_bytes = [], now_ns, 0
                self.on_message(message)
        self._needed = 0
        return True

    def _read_command(self, body: bytes) -> None:
        """Read the Identity out of READY: properties of (name length, name, 4-byte length, value)."""
        if body[:6] != b"\x05READY":
            return
        offset = 6
        while offset < len(body):
            value_at = offset + 1 + body[offset] + 4
            name = body[offset + 1 : value_at - 4]
            size = int.from_bytes(body[value_at - 4 : value_at], "big")
            if name.lower() == b"identity":
                self.on_identity(body[value_at : value_at + size])
            offset = value_at + size
