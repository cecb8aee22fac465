"""ps-lite's messages over ZeroMQ: headers of both generations, and where a message begins.

The header ("meta") is a protobuf message in older versions (`src/meta.proto`: PBMeta) and a C struct
in newer ones (`src/meta.h`: RawMeta). A message is [identity of the server,] meta, keys, values,
lengths; a control message is a meta alone.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from analyzer.reading.formats.protobuf_messages import declared
from collector.network.zmtp import Message

RAW_META, RAW_NODE = 112, 552  # bytes of the structs
MORE_SHORT = 1  # flags of a short frame that is not the last of its message
ROLES = ("server", "worker", "scheduler")  # by number, in both generations


class Node(NamedTuple):
    """A member of the job as the scheduler announces it."""

    role: str
    id: int
    host: str
    port: int


class Meta(NamedTuple):
    """The fields of a message's header that are used."""

    request: bool
    push: bool
    timestamp: int  # number of the request; its response repeats it
    app_id: int = 0
    customer_id: int = 0
    control: int | None = None  # command of a control message
    nodes: tuple[Node, ...] = ()
    sender: int | None = None  # ps-lite id in front of a response; these three of a whole message
    key: int | None = None  # wire key
    value_bytes: int = 0


def server_rank(node_id: int) -> int:
    """Return the rank of a server or worker by its ps-lite id (8 + 2r, 9 + 2r)."""
    return (node_id - 8) // 2


def key_base(rank: int, n_servers: int) -> int:
    """Return where the key range of the server of this rank begins."""
    return (2**64 - 1) // n_servers * rank


def read_header(message: Message) -> Meta | None:
    """Return the header of a ZMTP message with sender, key and size; None if it is not one of ps-lite's."""
    frames = message.frames
    sender = identity(frames[0]) if len(frames) > 1 else None
    first = 0 if sender is None else 1
    meta = read_meta(frames[first])
    if meta is None:
        return None
    keys = frames[first + 1] if len(frames) > first + 1 else b""
    if len(keys) % 8 or (meta.control is not None and len(frames) > first + 1):
        return None
    key = int.from_bytes(keys[:8], "little") if keys else None
    return meta._replace(sender=sender, key=key, value_bytes=sum(map(len, frames[first + 2 : first + 3])))


def identity(frame: bytes) -> int | None:
    """Return the ps-lite id in an identity frame (``ps11``)."""
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
