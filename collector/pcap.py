"""Packet captures as TCP segments: classic pcap and pcapng, plain or gzip, read in pieces.

Only headers are decoded, from the block that was read, without an object per packet. Link layers that
are met where training jobs run are decoded here; any other that scapy knows goes through scapy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from errors import TraceError

BLOCK = 4 << 20  # bytes read at once
_LATEST_NS = 1 << 62  # a later time is damage
_LARGEST_PACKET = 64 << 20  # a longer one is a damaged length field; captures hold at most 512 KiB

#: First four bytes of a file -> (byte order, ticks per second, bytes of a record header).
_CLASSIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6, 16),
    b"\xa1\xb2\xc3\xd4": (">", 10**6, 16),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9, 16),
    b"\xa1\xb2\x3c\x4d": (">", 10**9, 16),
    b"\x34\xcd\xb2\xa1": ("<", 10**6, 24),  # Kuznetzov's variant: 8 bytes more in a record
    b"\xa1\xb2\xcd\x34": (">", 10**6, 24),
}
_SECTION = b"\x0a\x0d\x0d\x0a"

Ends = tuple[bytes, int, bytes, int]  # source address, source port, destination address, port


class Packet(NamedTuple):
    """One captured packet: bytes `start` to `end` of `block`; `length` bytes were on the wire."""

    ts_ns: int
    link: int
    block: bytes
    start: int
    end: int
    length: int


class Segment(NamedTuple):
    """One TCP segment; its captured payload is ``block[start:end]``, `length` bytes were sent."""

    ts_ns: int
    ends: Ends
    seq: int
    ack: int  # -1 without an acknowledgement
    flags: int
    block: bytes
    start: int
    end: int
    length: int


@dataclass(slots=True)
class Capture:
    """What was met while a capture was read."""

    path: Path
    n_packets: int = 0
    n_bytes: int = 0  # of the packets as captured
    n_cut: int = 0  # packets shorter than they were on the wire
    n_tcp: int = 0
    n_fragments: int = 0  # IP fragments: not put together
    n_roce: int = 0  # InfiniBand over Ethernet or UDP: RDMA
    other_links: set[int] = field(default_factory=set)  # link types nobody can decode
    damage: str = ""  # why reading stopped before the end


def is_capture(path: Path) -> bool:
    """Whether the name says that `path` is a packet capture."""
    return _NAME.search(path.name) is not None


#: tcpdump numbers the files when it begins a new one after some size or time (`worker_0.pcap1`).
_NAME = re.compile(r"\.(pcap|pcapng|cap)[0-9]*(\.gz)?$", re.IGNORECASE)


#: The fields of a `Packet`, without the cost of making one for each.
PacketFields = tuple[int, int, bytes, int, int, int]


def read_packets(
    capture: Capture, on_bytes: Callable[[int], object] = lambda n: None
) -> Iterator[PacketFields]:
    """Yield the packets of ``capture.path``; damage ends the packets and is noted in `capture`.

    `on_bytes` is told how many bytes of the file were read.

    Raises
    ------
    TraceError
        The file cannot be opened, is empty, or is no capture.
    """
    try:
        with open(capture.path, "rb") as raw:
            source = _Blocks(raw, capture, on_bytes)
            magic = source.peek(4)
            if not magic:
                raise TraceError(f"{capture.path}: {capture.damage or 'empty'}: no packets in it")
            if magic in _CLASSIC:
                yield from _classic(source, capture)
            elif magic == _SECTION:
                yield from _next_generation(source, capture)
            else:
                raise TraceError(f"{capture.path}: not a packet capture (neither pcap nor pcapng)")
    except OSError as error:
        raise TraceError(f"{capture.path}: cannot be read: {error.strerror or error}") from error


def read_segments(capture: Capture, on_bytes: Callable[[int], object] = lambda n: None) -> Iterator[Segment]:
    """Yield the TCP segments of ``capture.path``; see `read_packets`."""
    plain = _ETHERNET_IPV4_TCP.unpack_from
    for packet in read_packets(capture, on_bytes):
        ts_ns, link, block, start, end, length = packet
        capture.n_packets += 1
        capture.n_bytes += end - start
        if length > end - start:
            capture.n_cut += 1
        if link == 1 and end - start >= 54:
            kind, version, size, fragment, protocol, src, dst, sport, dport, seq, ack, offset, flags = plain(
                block, start
            )
            if kind == 0x0800 and version == 0x45 and protocol == 6 and not fragment & 0x3FFF:
                payload = start + 34 + (offset >> 4) * 4
                wire_end = start + (14 + size if size else length)  # 0: larger than the field can say
                capture.n_tcp += 1
                yield Segment(
                    ts_ns,
                    (src, sport, dst, dport),
                    seq,
                    ack if flags & 0x10 else -1,
                    flags,
                    block,
                    payload,
                    payload if wire_end <= payload else end if wire_end > end else wire_end,
                    wire_end - payload if wire_end > payload else 0,
                )
                continue
        segment = _segment(Packet(*packet), capture)
        if segment is not None:
            capture.n_tcp += 1
            yield segment


_ETHERNET_IPV4_TCP = struct.Struct("!12xHBxH2xHxB2x4s4sHHIIBB")


class _Blocks:
    """A file as blocks in which whole records lie; unpacks gzip on the way."""

    def __init__(self, raw: IO[bytes], capture: Capture, on_bytes: Callable[[int], object]) -> None:
        self._raw = raw
        self._capture = capture
        self._on_bytes = on_bytes
        self._told = 0
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self._stream: IO[bytes] = _gunzip(raw) if packed else raw
        self.block = b""
        self.at = 0  # of the next unread byte in `block`
        self.passed = 0  # bytes before `block`

    def peek(self, n: int) -> bytes:
        """Return the next `n` bytes (fewer at the end) without taking them."""
        self.have(n)
        return self.block[self.at : self.at + n]

    def have(self, n: int) -> bool:
        """Whether `n` more bytes are there; they then lie in `block` from `at` on."""
        while len(self.block) - self.at < n:
            more = self._read(max(BLOCK, n))
            if not more:
                return False
            self.passed += self.at
            self.block = self.block[self.at :] + more
            self.at = 0
        return True

    def _read(self, n: int) -> bytes:
        try:
            more = self._stream.read(n)
        except (EOFError, OSError, ValueError) as error:  # what gzip readers raise for damage
            if isinstance(error, OSError) and error.errno is not None:
                raise
            self._capture.damage = "the gzip file is damaged or cut off"
            return b""
        except Exception as error:  # isal.isal_zlib.IsalError, zlib.error: no common base
            if type(error).__name__ not in ("error", "IsalError"):
                raise
            self._capture.damage = "the gzip file is damaged or cut off"
            return b""
        position = self._raw.tell()
        self._on_bytes(position - self._told)
        self._told = position
        return more

    @property
    def position(self) -> int:
        """Offset of the next unread byte in the (unpacked) file."""
        return self.passed + self.at

    @property
    def left(self) -> int:
        """Bytes after `at` that were read."""
        return len(self.block) - self.at


def _gunzip(raw: IO[bytes]) -> IO[bytes]:
    from importlib import import_module

    try:
        gzip: Any = import_module("isal.igzip")
    except ImportError:
        gzip = import_module("gzip")
    stream: IO[bytes] = gzip.GzipFile(fileobj=raw, mode="rb")
    return stream


def _classic(source: _Blocks, capture: Capture) -> Iterator[PacketFields]:
    order, ticks, record = _CLASSIC[source.peek(4)]
    if not source.have(24):
        raise TraceError(f"{capture.path}: cut off in the file header: no packets in it")
    link = struct.unpack_from(order + "I", source.block, source.at + 20)[0] & 0xFFFF
    source.at += 24
    unpack = struct.Struct(order + "IIII").unpack_from
    scale = 10**9 // ticks
    while source.have(record):
        block, at = source.block, source.at
        last = len(block) - record
        while at <= last:
            seconds, fraction, size, length = unpack(block, at)
            start = at + record
            if start + size > len(block):
                break
            at = start + size
            yield (
                seconds * 10**9 + fraction * scale,
                link,
                block,
                start,
                at,
                size if size > length else length,
            )
        source.at = at
        if at <= last:  # the packet goes on behind the block
            if size > _LARGEST_PACKET:
                capture.damage = f"damaged at byte {source.position}: the rest was not read"
                return
            if not source.have(record + size):
                break
    if source.left and not capture.damage:
        capture.damage = f"cut off inside a packet at byte {source.position}"


class _Interface(NamedTuple):
    link: int
    snaplen: int
    ticks: int  # per second
    offset_ns: int


def _next_generation(source: _Blocks, capture: Capture) -> Iterator[PacketFields]:
    """Yield the packets of a pcapng file (draft-ietf-opsawg-pcapng): blocks in sections."""
    order = "<"
    interfaces: list[_Interface] = []
    last_ns = 0
    while source.have(12):
        kind_bytes = source.peek(4)
        if kind_bytes == _SECTION:
            order = "<" if source.block[source.at + 8 : source.at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, size = struct.unpack_from(order + "II", source.block, source.at)
        if size < 12 or size % 4 or size > _LARGEST_PACKET:
            capture.damage = f"damaged at byte {source.position}: the rest was not read"
            return
        if not source.have(size):
            break
        body, stop = source.at + 8, source.at + size - 4
        source.at += size
        if kind == 1 and stop - body >= 8:
            interfaces.append(_interface(source.block, body, stop, order))
        elif kind in (2, 3, 6) and interfaces:
            packet = _block_packet(kind, source.block, body, stop, order, interfaces, last_ns)
            if packet is None:
                capture.damage = f"damaged at byte {source.position - size}: the rest was not read"
                return
            last_ns = packet.ts_ns
            yield packet
    if source.left and not capture.damage:
        capture.damage = f"cut off inside a packet at byte {source.position}"


def _block_packet(
    kind: int, block: bytes, body: int, stop: int, order: str, interfaces: list[_Interface], last_ns: int
) -> Packet | None:
    """Return the packet of a simple (3), enhanced (6) or obsolete (2) packet block; None: damaged."""
    if kind == 3:  # no time in it: that of the packet before
        if stop - body < 4:
            return None
        (length,) = struct.unpack_from(order + "I", block, body)
        interface = interfaces[0]
        size = min(length, interface.snaplen or length, stop - body - 4)
        return Packet(last_ns, interface.link, block, body + 4, body + 4 + size, length)
    if stop - body < 20:
        return None
    which, high, low, size, length = struct.unpack_from(
        order + ("IIIII" if kind == 6 else "H2xIIII"), block, body
    )
    if which >= len(interfaces) or size > stop - body - 20:
        return None
    interface = interfaces[which]
    ts_ns = (high << 32 | low) * 10**9 // interface.ticks + interface.offset_ns
    if not 0 <= ts_ns < _LATEST_NS:
        return None
    start = body + 20
    return Packet(ts_ns, interface.link, block, start, start + size, max(size, length))


def _interface(block: bytes, body: int, stop: int, order: str) -> _Interface:
    link, snaplen = struct.unpack_from(order + "H2xI", block, body)
    ticks, offset_ns, at = 10**6, 0, body + 8
    while at + 4 <= stop:
        code, size = struct.unpack_from(order + "HH", block, at)
        value = block[at + 4 : min(at + 4 + size, stop)]
        if code == 9 and len(value) == 1:  # if_tsresol
            ticks = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == 14 and len(value) == 8:  # if_tsoffset, seconds
            offset_ns = struct.unpack(order + "q", value)[0] * 10**9
        elif code == 0:
            break
        at += 4 + (size + 3) // 4 * 4
    return _Interface(link, snaplen, ticks, offset_ns)


#: Link types in which the packet begins with IP itself (raw IP, as different systems number it).
_RAW = {12, 14, 101, 228, 229}
_VLAN = {0x8100, 0x88A8, 0x9100}


def _segment(packet: Packet, capture: Capture) -> Segment | None:
    """Decode any packet; None when it holds no TCP."""
    at = _ip_start(packet, capture)
    if at is None or at >= packet.end:
        return None
    version = packet.block[at] >> 4
    if version == 4:
        return _ipv4(packet, at, capture)
    return _ipv6(packet, at, capture) if version == 6 else None


def _ip_start(packet: Packet, capture: Capture) -> int | None:
    """Where the IP header begins in the packet's block."""
    _, link, block, start, end, _ = packet
    if link in _RAW:
        return start
    if link in (0, 108):  # BSD loopback, OpenBSD loopback: a family word, in either byte order
        return start + 4
    if link == 1:
        at = start + 12
    elif link == 113:  # Linux cooked
        at = start + 14
    elif link == 276:  # Linux cooked, version 2: the protocol comes first
        return start + 20 if _ethertype(block, start, end, capture) else None
    else:
        return _by_scapy(packet, capture)
    while block[at : at + 2] and int.from_bytes(block[at : at + 2], "big") in _VLAN and at + 4 < end:
        at += 4
    return at + 2 if _ethertype(block, at, end, capture) else None


def _ethertype(block: bytes, at: int, end: int, capture: Capture) -> bool:
    """Whether the type field at `at` says IP; counts RDMA over Ethernet."""
    kind = int.from_bytes(block[at : at + 2], "big") if at + 2 <= end else 0
    if kind == 0x8915:
        capture.n_roce += 1
    return kind in (0x0800, 0x86DD)


def _by_scapy(packet: Packet, capture: Capture) -> int | None:
    """Find the IP header in a link layer that only scapy knows (Wi-Fi, PPP, …)."""
    if packet.link in capture.other_links:
        return None
    try:
        from scapy.all import conf  # fills the table of link layers
        from scapy.layers.inet import IP
        from scapy.layers.inet6 import IPv6
    except ImportError:
        capture.other_links.add(packet.link)
        return None
    layer = conf.l2types.num2layer.get(packet.link)
    if layer is None:
        capture.other_links.add(packet.link)
        return None
    raw = packet.block[packet.start : packet.end]
    try:
        dissected = layer(raw)
    except Exception:  # scapy raises whatever its layers raise on odd bytes
        return None
    inner = dissected.getlayer(IP) or dissected.getlayer(IPv6)
    if inner is None:
        return None
    found = raw.find(bytes(inner.original)[:20])
    return packet.start + found if found >= 0 else None


def _ipv4(packet: Packet, at: int, capture: Capture) -> Segment | None:
    block, end = packet.block, packet.end
    if at + 20 > end:
        return None
    size, fragment = struct.unpack_from("!2xH2xH", block, at)
    if fragment & 0x3FFF:
        capture.n_fragments += 1
        return None
    inner = at + (block[at] & 15) * 4
    wire_end = at + size if size else packet.start + packet.length
    addresses = block[at + 12 : at + 16], block[at + 16 : at + 20]
    return _transport(packet, block[at + 9], addresses, inner, wire_end, capture)


def _ipv6(packet: Packet, at: int, capture: Capture) -> Segment | None:
    block, end = packet.block, packet.end
    if at + 40 > end:
        return None
    size, protocol = struct.unpack_from("!4xHB", block, at)
    wire_end = at + 40 + size if size else packet.start + packet.length
    inner = at + 40
    while protocol in (0, 43, 51, 60) and inner + 8 <= end:  # extension headers
        unit = 4 if protocol == 51 else 8
        extra = (block[inner + 1] + (2 if protocol == 51 else 1)) * unit
        protocol, inner = block[inner], inner + extra
    if protocol == 44:
        capture.n_fragments += 1
        return None
    addresses = block[at + 8 : at + 24], block[at + 24 : at + 40]
    return _transport(packet, protocol, addresses, inner, wire_end, capture)


def _transport(
    packet: Packet, protocol: int, addresses: tuple[bytes, bytes], at: int, wire_end: int, capture: Capture
) -> Segment | None:
    block, end = packet.block, packet.end
    if protocol == 17 and at + 4 <= end and block[at + 2 : at + 4] == b"\x12\xb7":  # UDP port 4791: RoCEv2
        capture.n_roce += 1
    if protocol != 6 or at + 20 > end:
        return None
    sport, dport, seq, ack, offset, flags = struct.unpack_from("!HHIIBB", block, at)
    payload = at + (offset >> 4) * 4
    return Segment(
        packet.ts_ns,
        (addresses[0], sport, addresses[1], dport),
        seq,
        ack if flags & 0x10 else -1,
        flags,
        block,
        payload,
        max(payload, min(wire_end, end)),
        max(wire_end - payload, 0),
    )
