"""ps-lite's messages over ZeroMQ: headers of both generations, and where a message begins.

The header ("meta") is a protobuf message in older versions (`src/meta.proto`: PBMeta) and a C struct
in newer ones (`src/meta.h`: RawMeta). A message is [identity of the server,] meta, keys, values,
lengths; a control message is a meta alone.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from collector.network.zmtp import Message

RAW_META, RAW_NODE = 112, 552  # bytes of the structs
MORE_SHORT = 1  # flags of a short frame that is not the last of its message
LENGTHS_FRAME = 6  # bytes of the frame behind the values of one key
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


def role_of(node_id: int) -> str:
    """Return the role that a ps-lite id stands for."""
    if node_id < 8:
        return "scheduler"
    return "worker" if node_id % 2 else "server"


def key_base(rank: int, n_servers: int) -> int:
    """Return where the key range of the server of this rank begins."""
    return (2**64 - 1) // n_servers * rank


def read_header(message: Message) -> Meta | None:
    """Return the header of a ZMTP message with sender, key and size; None if it is not one of ps-lite's."""
    frames = message.frames
    sender = identity(frames[0]) if len(frames) > 1 else None
    at = 0 if sender is None else 1
    meta = read_meta(frames[at])
    if meta is None:
        return None
    keys = frames[at + 1] if len(frames) > at + 1 else b""
    if len(keys) % 8 or (meta.control is not None and len(frames) > at + 1):
        return None
    key = int.from_bytes(keys[:8], "little") if keys else None
    return meta._replace(sender=sender, key=key, value_bytes=sum(message.sizes[at + 2 : at + 3]))


def identity(frame: bytes) -> int | None:
    """Return the ps-lite id in an identity frame (``ps11``)."""
    return int(frame[2:]) if frame[:2] == b"ps" and len(frame) < 12 and frame[2:].isdigit() else None


def read_meta(body: bytes) -> Meta | None:
    """Decode a header of either generation; None if it is neither."""
    return _raw_meta(body) or _protobuf_meta(body)


_RAW = struct.Struct("<4xIiI16x?3xiiI16xi?")
_RAW_HOST = struct.Struct("<ii64s132xi")


def _raw_meta(body: bytes) -> Meta | None:
    if len(body) < RAW_META or body[32] > 1 or body[68] > 1:
        return None
    n_body, command, n_nodes, request, app_id, timestamp, n_types, customer, push = _RAW.unpack_from(body)
    nodes_at = RAW_META + n_body + 4 * n_types
    if len(body) != nodes_at + RAW_NODE * n_nodes or not 0 <= command < 32:
        return None
    raw = [_RAW_HOST.unpack_from(body, at) for at in range(nodes_at, len(body), RAW_NODE)]
    nodes = tuple(_node(role, node_id, host.split(b"\0")[0], port) for role, node_id, host, port in raw)
    return Meta(request, push, timestamp, app_id, customer, command or None, nodes)


def _protobuf_meta(body: bytes) -> Meta | None:
    """Decode PBMeta: 3 control, 4 request, 5 push, 7 application, 8 timestamp, 10 customer."""
    fields = dict(_fields(body) or ())
    control = fields.get(3)
    numbers = {number: value & 0xFFFFFFFF for number, value in fields.items() if isinstance(value, int)}
    if control is None and not {4, 5, 8} <= numbers.keys():
        return None
    request, push, timestamp, app_id, customer = (numbers.get(i, 0) for i in (4, 5, 8, 7, 10))
    command, nodes = _control(control) if isinstance(control, bytes) else (None, ())
    return Meta(bool(request), bool(push), timestamp, app_id, customer, command, nodes)


def _control(body: bytes) -> tuple[int, tuple[Node, ...]]:
    """Decode Control: 1 command, 2 nodes (1 role, 2 id, 3 host name, 4 port)."""
    fields = _fields(body) or []
    command = dict(fields).get(1, 0)
    nodes = []
    for part in (part for number, part in fields if number == 2 and isinstance(part, bytes)):
        role, node_id, host, port = (dict(_fields(part) or ()).get(i, 0) for i in (1, 2, 3, 4))
        if isinstance(role, int) and isinstance(node_id, int) and isinstance(port, int):
            nodes.append(_node(role, node_id, host if isinstance(host, bytes) else b"", port))
    return (command if isinstance(command, int) else 0), tuple(nodes)


def _node(role: int, node_id: int, host: bytes, port: int) -> Node:
    name = ROLES[role] if 0 <= role < len(ROLES) else f"role {role}"
    return Node(name, node_id, host.decode("ascii", "replace"), port)


def _fields(body: bytes) -> list[tuple[int, int | bytes]] | None:
    """Decode one level of a protobuf message; None if it is not one, or has fields beyond ps-lite's."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0
    try:
        while at < len(body):
            tag, at = _varint(body, at)
            value, at = _varint(body, at)
            number, kind = tag >> 3, tag & 7
            end = at + value if kind == 2 else at
            if not 0 < number < 32 or kind not in (0, 2) or end > len(body):
                return None
            fields.append((number, body[at:end] if kind == 2 else value))
            at = end
    except IndexError:
        return None
    return fields


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return (value, offset behind it); IndexError where none is there."""
    value = 0
    for i in range(10):
        byte = body[at + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise IndexError


#: A data message begins with a server's identity; with a struct that ends in data types below 256,
#: in front of a key frame; or with protobuf fields 1, 4, 5, 6 and 7.
_IDENTITIES = b"|".join(rb"\x%02xps\d{%d}" % (digits + 2, digits) for digits in range(1, 10))
_STRUCTS = b"|".join(
    rb"\x%02x.{%d}\x00{3}\x01\x08" % (size, size - 3) for size in range(RAW_META + 4, RAW_META + 17, 4)
)
_PROTOBUF = rb"[\x0c-\xff]\x08.{1,5}?\x20[\x00\x01]\x28[\x00\x01]\x30\x00\x38"
_BEGINNING = re.compile(
    rb"\x01(?:((?:%b)(?=[\x00-\x03]))|(?=%b|%b))" % (_IDENTITIES, _STRUCTS, _PROTOBUF), re.DOTALL
)


def locate(data: bytes) -> int:
    """Return the offset of the first data message that is certain to be one, or -1.

    What is recognised is a meta of either generation that decodes whole and is followed by what must
    follow it, so a payload that looks like one by chance is improbable (less than 1 in 2^64).
    """
    for match in _BEGINNING.finditer(data):
        if _meta_at(data, match.end() if match[1] else match.start()):
            return match.start()
    return -1


def _meta_at(data: bytes, at: int) -> bool:
    """Whether a whole meta frame of a data message is at `at`, and a key frame behind it if it says so."""
    if at + 2 > len(data) or data[at] > 1:
        return False
    end = at + 2 + data[at + 1]
    meta = read_meta(data[at + 2 : end]) if end <= len(data) else None
    if meta is None or meta.control is not None:
        return False
    key_frame = data[end : end + 2]
    return data[at] != MORE_SHORT or (
        len(key_frame) == 2 and key_frame[0] == MORE_SHORT and key_frame[1] % 8 == 0 and key_frame[1] > 0
    )
