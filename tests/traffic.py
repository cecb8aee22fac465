"""Makes packet captures of ps-lite traffic: messages, TCP segments, files."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

SERVER_BASE = (2**64 - 1) // 2  # beginning of the key range of the second of two servers
SYN, ACK, FIN = 2, 16, 1


def greeting(name: str, socket: bytes = b"DEALER") -> bytes:
    """A ZMTP 3 greeting and the READY command of a socket with this identity."""
    head = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL".ljust(23, b"\0") + bytes(32)
    ready = b"\x05READY" + _property(b"Socket-Type", socket) + _property(b"Identity", name.encode())
    return head + b"\x04" + bytes([len(ready)]) + ready


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value


def message(*bodies: bytes) -> bytes:
    """The frames of one message."""
    parts = []
    for i, body in enumerate(bodies):
        more = 1 if i + 1 < len(bodies) else 0
        if len(body) > 255:
            parts.append(struct.pack(">BQ", more | 2, len(body)) + body)
        else:
            parts.append(bytes([more, len(body)]) + body)
    return b"".join(parts)


def struct_meta(request: bool, push: bool, timestamp: int, n_types: int = 0, command: int = 0) -> bytes:
    """RawMeta of newer ps-lite, followed by its data types."""
    body = bytearray(112)
    struct.pack_into("<iIi", body, 0, 0, 0, command)
    body[32], body[68] = request, push
    struct.pack_into("<iiI", body, 36, 0, timestamp, n_types)
    struct.pack_into("<iiii", body, 48, 1, 0, 1, 0)
    return bytes(body) + struct.pack(f"<{n_types}i", *(8, 11, 3)[:n_types])


def protobuf_meta(request: bool, push: bool, timestamp: int, n_types: int = 0) -> bytes:
    """PBMeta of older ps-lite."""
    fields = [(1, 0), (4, request), (5, push), (6, 0), (7, 0), (8, timestamp)]
    body = b"".join(bytes([number << 3]) + varint(value) for number, value in fields)
    if n_types:
        body += bytes([9 << 3 | 2, n_types]) + bytes((8, 11, 3)[:n_types])
    return body + bytes([10 << 3]) + varint(0)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@dataclass(frozen=True)
class Dialect:
    """One generation of ps-lite."""

    new: bool

    def meta(self, request: bool, push: bool, timestamp: int, n_types: int) -> bytes:
        return (struct_meta if self.new else protobuf_meta)(request, push, timestamp, n_types)

    def push(self, timestamp: int, key: int, value: bytes) -> bytes:
        lens = struct.pack("<i", len(value))
        return message(self.meta(True, True, timestamp, 3), struct.pack("<Q", key), value, lens)

    def pushed(self, server: int, timestamp: int, key: int) -> bytes:
        name = f"ps{server}".encode()
        if self.new:
            return message(name, self.meta(False, True, timestamp, 0))
        return message(name, self.meta(False, True, timestamp, 0), struct.pack("<Q", key % SERVER_BASE), b"")

    def pull(self, timestamp: int, key: int) -> bytes:
        return message(self.meta(True, False, timestamp, 2), struct.pack("<Q", key), b"")

    def pulled(self, server: int, timestamp: int, key: int, value: bytes) -> bytes:
        lens = struct.pack("<i", len(value))
        name = f"ps{server}".encode()
        return message(name, self.meta(False, False, timestamp, 3), struct.pack("<Q", key), value, lens)


NEW, OLD = Dialect(True), Dialect(False)


@dataclass(frozen=True)
class Packet:
    """One IP packet."""

    ts_ns: int
    data: bytes


def tcp(
    source: tuple[str, int], target: tuple[str, int], seq: int, ack: int, flags: int, payload: bytes = b""
) -> bytes:
    """An IPv4 or IPv6 packet with a TCP segment; checksums are left empty, as offloading leaves them."""
    (shost, sport), (thost, tport) = source, target
    head = struct.pack(
        "!HHIIBBHHH", sport, tport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 5 << 4, flags, 8192, 0, 0
    )
    src, dst = ip_address(shost).packed, ip_address(thost).packed
    size = len(head) + len(payload)
    if len(src) == 16:
        return struct.pack("!IHBB", 6 << 28, size, 6, 64) + src + dst + head + payload
    size += 20
    ip = struct.pack("!BBHHHBBH", 0x45, 0, size if size < 65536 else 0, 0, 0x4000, 64, 6, 0)
    return ip + src + dst + head + payload


@dataclass
class Connection:
    """One TCP connection as packets; both directions count their bytes."""

    client: tuple[str, int]
    server: tuple[str, int]
    mss: int = 1448
    first: tuple[int, int] = (1000, 2000)  # initial sequence numbers
    packets: list[Packet] = field(default_factory=list)
    sent: list[int] = field(default_factory=lambda: [0, 0])  # bytes of client and server

    def open(self, at_ns: int, trip_ns: int = 100_000) -> None:
        """The three packets of the handshake, as seen beside the client."""
        a, b = self.first
        self._packet(at_ns, 0, a, 0, SYN)
        self._packet(at_ns + trip_ns, 1, b, a + 1, SYN | ACK)
        self._packet(at_ns + trip_ns, 0, a + 1, b + 1, ACK)

    def send(self, side: int, data: bytes, at_ns: int, gap_ns: int = 1000) -> int:
        """Send `data` from the client (0) or the server (1); return the time of the last segment."""
        for start in range(0, len(data), self.mss):
            piece = data[start : start + self.mss]
            seq = self.first[side] + 1 + self.sent[side]
            self._packet(at_ns, side, seq, self.first[1 - side] + 1 + self.sent[1 - side], ACK, piece)
            self.sent[side] += len(piece)
            at_ns += gap_ns
        return at_ns - gap_ns

    def _packet(self, at_ns: int, side: int, seq: int, ack: int, flags: int, payload: bytes = b"") -> None:
        ends = (self.client, self.server) if side == 0 else (self.server, self.client)
        self.packets.append(Packet(at_ns, tcp(*ends, seq, ack, flags, payload)))


def in_order(connections: Iterable[Connection]) -> list[Packet]:
    """The packets of all connections by time."""
    return sorted((p for c in connections for p in c.packets), key=lambda packet: packet.ts_ns)


ETHERNET = b"\x02" * 6 + b"\x04" * 6


def framed(link: int, data: bytes) -> bytes:
    """An IP packet in the link layer of that number."""
    kind = b"\x86\xdd" if data[0] >> 4 == 6 else b"\x08\x00"
    return {
        0: struct.pack("<I", 2),
        1: ETHERNET + kind,
        101: b"",
        113: struct.pack("!HHH8s", 4, 1, 6, bytes(8)) + kind,
        276: kind + struct.pack("!HIHBB8s", 0, 2, 1, 4, 6, bytes(8)),
    }[link] + data


def tagged(data: bytes) -> bytes:
    """An IPv4 packet on Ethernet with a VLAN tag."""
    return ETHERNET + b"\x81\x00\x00\x2a\x08\x00" + data


def pcap(
    packets: Iterable[Packet], link: int = 1, *, order: str = "<", ns: bool = False, snaplen: int = 262144
) -> Iterator[bytes]:
    """The pieces of a classic capture."""
    yield struct.pack(order + "IHHiIII", 0xA1B23C4D if ns else 0xA1B2C3D4, 2, 4, 0, 0, snaplen, link)
    for packet in packets:
        data = framed(link, packet.data)
        seconds, rest = divmod(packet.ts_ns, 10**9)
        cut = data[:snaplen]
        head = struct.pack(order + "IIII", seconds, rest if ns else rest // 1000, len(cut), len(data))
        yield head + cut


def pcapng(packets: Iterable[Packet], link: int = 1, *, order: str = "<") -> Iterator[bytes]:
    """The pieces of a pcapng capture in nanoseconds."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + size + body + size

    yield block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    resolution = struct.pack(order + "HH", 9, 1) + b"\x09\0\0\0" + bytes(4)
    yield block(1, struct.pack(order + "HHI", link, 0, 0) + resolution)
    for packet in packets:
        data = framed(link, packet.data)
        times = packet.ts_ns >> 32, packet.ts_ns & 0xFFFFFFFF
        yield block(6, struct.pack(order + "IIIII", 0, *times, len(data), len(data)) + data)


@dataclass(frozen=True)
class Expected:
    """One transfer as it was made."""

    key: int
    push: bool
    timestamp: int
    n_bytes: int
    request_start_ns: int
    request_end_ns: int
    response_start_ns: int
    response_end_ns: int


def train(
    connection: Connection,
    dialect: Dialect,
    *,
    server: int,
    worker: int,
    keys: Sequence[tuple[int, int]],
    steps: int,
    start_ns: int,
    seed: int = 0,
) -> list[Expected]:
    """A worker's traffic with one server: per step and (wire key, bytes) a PUSH and a PULL."""
    rng = random.Random(seed)
    made = []
    connection.open(start_ns)
    connection.send(0, greeting(f"ps{worker}"), start_ns + 200_000)
    connection.send(1, greeting("", b"ROUTER"), start_ns + 200_000)
    now, timestamp = start_ns + 1_000_000, 0
    for _ in range(steps):
        for key, size in keys:
            value = rng.randbytes(size)
            for push in (True, False):
                ask = dialect.push(timestamp, key, value) if push else dialect.pull(timestamp, key)
                answer = (
                    dialect.pushed(server, timestamp, key)
                    if push
                    else dialect.pulled(server, timestamp, key, value)
                )
                asked = connection.send(0, ask, now)
                answered = connection.send(1, answer, asked + 50_000)
                made.append(Expected(key, push, timestamp, size, now, asked, asked + 50_000, answered))
                now, timestamp = answered + 20_000, timestamp + 1
    return made
