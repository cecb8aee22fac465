"""ps-lite's messages over ZeroMQ: headers of both generations, and where a message begins.

The header ("meta") is a protobuf message in older versions (`src/meta.proto`: PBMeta) and a C struct
in newer ones (`src/meta.h`: RawMeta). A message is [identity of the server,] meta, keys, values,
lengths; a control message is a meta alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import field

from analyzer.reading.formats.protobuf_messages import declared
from collector.network.packets import Half

MORE, LONG, COMMAND = 1, 2, 4
GREETING = 64  # bytes
_LARGEST_FRAME = 1 << 30
_MOST_FRAMES = 16


class MessageReader(Half, kw_only=True):
    """One direction of a connection as ZMTP messages.

    `on_message` takes the bodies of the frames up to the first without MORE, the capture times of the first
    and the last byte, and the bytes with the frame headers.
    """

    on_message: Callable[[Sequence[bytes], int, int, int], object]
    node_id: int | None = None  # of the sender: its Identity in READY
    _is_framed: bool = False  # the position is at the beginning of a frame
    _greeting: int = 0  # bytes before the first frame
    _held: bytearray = field(default_factory=bytearray)  # the beginning of the next frame
    _needed: int = 0  # bytes in `_held` before decoding is worthwhile
    _frames: list[bytes] = field(default_factory=list)  # of the incomplete message
    _start_ns: int = 0
    _wire_bytes: int = 0

    def feed(self, data: bytes, now_ns: int) -> None:
        """Take the next bytes."""
        if not self._is_framed:
            is_greeting = data[:1] == b"\xff" and data[9:10] == b"\x7f"
            if not is_greeting and not begins_message(data):
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
        """Discard the incomplete message."""
        self._is_framed, self._greeting, self._needed, self._wire_bytes = False, 0, 0, 0
        self._held.clear()
        self._frames.clear()

    def _take_frame(self, now_ns: int) -> bool:
        """Take a whole frame off the bytes held; False if there is none."""
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
                self.on_message(self._frames, self._start_ns, now_ns, self._wire_bytes)
                self._frames, self._start_ns, self._wire_bytes = [], now_ns, 0
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
                self.node_id = identity(body[value_at : value_at + size])
            offset = value_at + size


RAW_META, RAW_NODE = 112, 552  # bytes of the structs
MORE_SHORT = 1  # flags of a short frame that is not the last of its message
ROLES = ("server", "worker", "scheduler")  # by number, in both generations


class Node(NamedTuple):
    """A node of the job as announced by the scheduler."""

    role: str
    id: int
    host: str
    port: int


class Meta(NamedTuple):
    """The used fields of a message's header."""

    request: bool
    push: bool
    timestamp: int  # number of the request; its response repeats it
    app_id: int = 0
    customer_id: int = 0
    control: int | None = None  # command of a control message
    nodes: tuple[Node, ...] = ()
    # of a whole message:
    sender: int | None = None  # ps-lite id in front of a response
    key: int | None = None  # wire key
    value_bytes: int = 0


def server_rank(node_id: int) -> int:
    """Compute the rank of a server or worker from its ps-lite id (8 + 2r, 9 + 2r)."""
    return (node_id - 8) // 2


def key_base(rank: int, n_servers: int) -> int:
    """Compute the beginning of the key range of a server."""
    return (2**64 - 1) // n_servers * rank


def read_header(frames: Sequence[bytes]) -> Meta | None:
    """Decode the header of a ZMTP message with sender, key and size; None if it is not one of ps-lite's."""
    sender = identity(frames[0]) if len(frames) > 1 else None
    body, *data = frames if sender is None else frames[1:]
    meta = read_meta(body)
    keys = data[0] if data else b""
    if meta is None or len(keys) % 8 or (meta.control is not None and data):
        return None
    key = int.from_bytes(keys[:8], "little") if keys else None
    return meta._replace(sender=sender, key=key, value_bytes=sum(map(len, data[1:2])))


def identity(frame: bytes) -> int | None:
    """Parse the ps-lite id in an identity frame (``ps11``)."""
    return int(frame[2:]) if frame[:2] == b"ps" and len(frame) < 12 and frame[2:].isdigit() else None


def read_meta(body: bytes) -> Meta | None:
    """Decode a header of either generation; None if it is neither."""
    return _raw_meta(body) or _protobuf_meta(body)


#: The fields of PBMeta (`src/meta.proto`) that are used.
_PROTOBUF = """
Meta control:3:Control request:4:bool push:5:bool app_id:7:int32 timestamp:8:int32 customer_id:10:int32
Control command:1:int32 nodes:2:*Node
Node role:1:int32 id:2:int32 host:3:bytes port:4:int32
"""
_RAW = struct.Struct("<4xIiI16x?3xiiI16xi?")
_RAW_HOST = struct.Struct("<ii64s132xi")


def _raw_meta(body: bytes) -> Meta | None:
    if len(body) < RAW_META or body[32] > 1 or body[68] > 1:
        return None
    n_body, command, n_nodes, request, app_id, timestamp, n_types, customer, push = _RAW.unpack_from(body)
    nodes_at = RAW_META + n_body + 4 * n_types
    if len(body) != nodes_at + RAW_NODE * n_nodes or not 0 <= command < 32:
        return None
    raw = [_RAW_HOST.unpack_from(body, offset) for offset in range(nodes_at, len(body), RAW_NODE)]
    nodes = tuple(_node(role, node_id, host.split(b"\0")[0], port) for role, node_id, host, port in raw)
    return Meta(request, push, timestamp, app_id, customer, command or None, nodes)


def _protobuf_meta(body: bytes) -> Meta | None:
    from google.protobuf.message import DecodeError

    try:
        meta = declared(_PROTOBUF)["Meta"].FromString(body)
    except DecodeError:
        return None
    if not meta.HasField("control") and not all(map(meta.HasField, ("request", "push", "timestamp"))):
        return None
    nodes = tuple(_node(node.role, node.id, node.host, node.port) for node in meta.control.nodes)
    command = meta.control.command if meta.HasField("control") else None
    return Meta(meta.request, meta.push, meta.timestamp, meta.app_id, meta.customer_id, command, nodes)


def _node(role: int, node_id: int, host: bytes, port: int) -> Node:
    name = ROLES[role] if 0 <= role < len(ROLES) else f"role {role}"
    return Node(name, node_id, host.decode("ascii", "replace"), port)


def begins_message(data: bytes) -> bool:
    """Check whether `data` begins with a data message that is whole up to its header.

    >>> begins_message(b"GET / HTTP/1.1")
    False
    """
    offset = 0
    if data[:1] == bytes([MORE_SHORT]) and len(data) > 1 and identity(data[2 : 2 + data[1]]) is not None:
        offset = 2 + data[1]
    if offset + 2 > len(data) or data[offset] > MORE_SHORT or offset + 2 + data[offset + 1] > len(data):
        return False
    meta = read_meta(data[offset + 2 : offset + 2 + data[offset + 1]])
    return meta is not None and meta.control is None
