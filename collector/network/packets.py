"""Packet captures (pcap and pcapng, plain or gzip) as packets, and these as TCP segments.

A packet is a place in the block that was read: nothing is copied and no object is made for it. The link
layers that are met where training jobs run are decoded here, the commonest in one step; any other that scapy
knows goes through scapy.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from errors import TraceError
from formats.stream import ByteStream
from formats.values import FARTHEST_NS

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


#: One captured packet: time (ns), link type, a block of the file, where in it the packet begins and ends,
#: and how many bytes were on the wire. A plain tuple, because captures have millions.
Packet = tuple[int, int, bytes, int, int, int]


class Capture(Struct):
    """Counts and damage of a capture, filled while it is read and its streams are put together."""

    path: Path
    n_packets: int = 0
    n_bytes: int = 0  # of the packets as captured
    n_cut: int = 0  # packets shorter than they were on the wire
    n_fragments: int = 0  # IP fragments: not put together
    n_roce: int = 0  # InfiniBand over Ethernet or UDP: RDMA
    other_links: set[int] = field(default_factory=set)  # link types nobody can decode
    damage: str = ""  # why reading stopped before the end
    n_connections: int = 0  # TCP connections of any kind
    retransmitted_bytes: int = 0
    lost_bytes: int = 0  # of TCP streams of interest
    n_unanswered: int = 0  # requests without response
    n_unasked: int = 0  # responses without request


#: tcpdump numbers the files when it begins a new one after some size or time (`worker_0.pcap1`).
_NAME = re.compile(r"\.(pcap|pcapng|cap)[0-9]*(\.gz)?$", re.IGNORECASE)


def is_capture(path: Path) -> bool:
    """Whether the name says that `path` is a packet capture."""
    return _NAME.search(path.name) is not None


def read_packets(capture: Capture, on_bytes: Callable[[int], object] = lambda n: None) -> Iterator[Packet]:
    """Yield the packets of ``capture.path``; damage ends the packets and is noted in `capture`.

    `on_bytes` gets the number of bytes of the file that were read since its last call. Raises TraceError
    where the file cannot be opened, is empty, or is not a capture.
    """
    source = _Blocks(capture, on_bytes)
    source.have(4)
    magic = source.block[:4]
    if not magic:
        raise TraceError(f"{capture.path}: {capture.damage or 'empty'}: no packets in it")
    if magic in _CLASSIC:
        if not source.have(24):
            raise TraceError(f"{capture.path}: cut off in the file header: no packets in it")
        yield from _classic(source, *_CLASSIC[magic])
    elif magic == _SECTION:
        yield from _next_generation(source)
    else:
        raise TraceError(f"{capture.path}: not a packet capture (neither pcap nor pcapng)")
    if source.at < len(source.block) and not capture.damage:
        capture.damage = f"cut off inside a packet at byte {source.passed + source.at}"


class _Blocks:
    """The content of a file as blocks in which whole records lie."""

    def __init__(self, capture: Capture, on_bytes: Callable[[int], object]) -> None:
        self._capture = capture
        self._on_bytes = on_bytes
        self._stream = ByteStream(capture.path)
        self._pieces = iter(self._stream)
        self._reported = 0
        self.block = b""
        self.at = 0  # of the next unread byte in `block`
        self.passed = 0  # bytes before `block` in the (unpacked) file

    def have(self, n: int) -> bool:
        """Whether `n` more bytes are there; they then lie in `block` from `at` on."""
        size = len(self.block) - self.at
        if size >= n:
            return True
        parts = [self.block[self.at :]]
        while size < n and (piece := next(self._pieces, b"")):
            parts.append(piece)
            size += len(piece)
            self._on_bytes(self._stream.consumed - self._reported)
            self._reported = self._stream.consumed
        self.passed += self.at
        self.block, self.at = b"".join(parts), 0
        if self._stream.damage:
            self._capture.damage = self._stream.damage
        return size >= n

    def damaged(self, back: int = 0) -> None:
        """Note that what begins `back` bytes before the next unread one makes no sense."""
        self._capture.damage = f"damaged at byte {self.passed + self.at - back}: the rest was not read"


def _classic(source: _Blocks, order: str, ticks: int, record: int) -> Iterator[Packet]:
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
            ts_ns = seconds * 10**9 + fraction * scale
            yield ts_ns, link, block, start, at, size if size > length else length
        source.at = at
        if at <= last:  # the packet goes on behind the block
            if size > _LARGEST_PACKET:
                source.damaged()
                return
            if not source.have(record + size):
                break


_Interface = tuple[int, int, int, int]  # link type, snapshot length, ticks per second, offset (ns)


def _next_generation(source: _Blocks) -> Iterator[Packet]:
    """Yield the packets of a pcapng file (draft-ietf-opsawg-pcapng): blocks in sections."""
    order = "<"
    interfaces: list[_Interface] = []
    last_ns = 0
    while source.have(12):
        if source.block[source.at : source.at + 4] == _SECTION:
            order = "<" if source.block[source.at + 8 : source.at + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        kind, size = struct.unpack_from(order + "II", source.block, source.at)
        if size < 12 or size % 4 or size > _LARGEST_PACKET:
            source.damaged()
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
                source.damaged(size)
                return
            last_ns = packet[0]
            yield packet


def _block_packet(
    kind: int, block: bytes, body: int, stop: int, order: str, interfaces: list[_Interface], last_ns: int
) -> Packet | None:
    """Return the packet of a simple (3), enhanced (6) or obsolete (2) packet block; None: damaged."""
    if kind == 3:  # no time in it: that of the packet before
        if stop - body < 4:
            return None
        (length,) = struct.unpack_from(order + "I", block, body)
        link, snaplen, *_ = interfaces[0]
        size = min(length, snaplen or length, stop - body - 4)
        return last_ns, link, block, body + 4, body + 4 + size, length
    if stop - body < 20:
        return None
    which, high, low, size, length = struct.unpack_from(
        order + ("IIIII" if kind == 6 else "H2xIIII"), block, body
    )
    if which >= len(interfaces) or size > stop - body - 20:
        return None
    link, _, ticks, offset_ns = interfaces[which]
    ts_ns = (high << 32 | low) * 10**9 // ticks + offset_ns
    if not 0 <= ts_ns < FARTHEST_NS:
        return None
    start = body + 20
    return ts_ns, link, block, start, start + size, max(size, length)


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
    return link, snaplen, ticks, offset_ns


Ends = tuple[bytes, int, bytes, int]  # source address, source port, destination address, port


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


def read_segments(capture: Capture, on_bytes: Callable[[int], object] = lambda n: None) -> Iterator[Segment]:
    """Yield the TCP segments of ``capture.path``; see `read_packets`."""
    plain = _ETHERNET_IPV4.unpack_from
    for packet in read_packets(capture, on_bytes):
        ts_ns, link, block, start, end, length = packet
        capture.n_packets += 1
        capture.n_bytes += end - start
        if length > end - start:
            capture.n_cut += 1
        segment: Segment | None = None
        if link == 1 and end - start >= 54:
            kind, version, size, fragment, protocol, src, dst = plain(block, start)
            if kind == 0x0800 and version == 0x45 and protocol == 6 and not fragment & 0x3FFF:
                wire_end = start + (14 + size if size else length)
                segment = _tcp(ts_ns, src, dst, block, start + 34, end, wire_end)
        if segment is None:
            segment = _segment(packet, capture)
        if segment is not None:
            yield segment


_ETHERNET_IPV4 = struct.Struct("!12xHBxH2xHxB2x4s4s")
_TCP = struct.Struct("!HHIIBB")  # ports, numbers of sequence and acknowledgement, header size, flags


def _tcp(ts_ns: int, src: bytes, dst: bytes, block: bytes, at: int, end: int, wire_end: int) -> Segment:
    """Return the segment whose header is at `at`; it was captured up to `end`."""
    sport, dport, seq, ack, size, flags = _TCP.unpack_from(block, at)
    payload = at + (size >> 4) * 4
    return Segment(
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


#: Link type -> (bytes of its header, where in it the type of what follows is; None: all is IP).
_LINKS = {
    1: (14, 12),  # Ethernet
    113: (16, 14),  # Linux cooked
    276: (20, 0),  # Linux cooked, version 2
    **dict.fromkeys((0, 108), (4, None)),  # BSD and OpenBSD loopback: a family word, in either byte order
    **dict.fromkeys((12, 14, 101, 228, 229), (0, None)),  # raw IP, as different systems number it
}
_VLAN = {0x8100, 0x88A8, 0x9100}
_HOMES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def _segment(packet: Packet, capture: Capture) -> Segment | None:
    """Decode any packet; None when it holds no TCP."""
    ts_ns, _, block, start, end, length = packet
    at = _ip_start(packet, capture)
    version = block[at] >> 4 if at is not None and at < end else 0
    if at is None or version not in (4, 6) or at + (20 if version == 4 else 40) > end:
        return None
    if version == 4:
        size, fragment, protocol, src, dst = struct.unpack_from("!2xH2xHxB2x4s4s", block, at)
        inner, wire_end = at + (block[at] & 15) * 4, at + size
        is_fragment = bool(fragment & 0x3FFF)
    else:
        size, protocol, src, dst = struct.unpack_from("!4xHBx16s16s", block, at)
        inner, wire_end = at + 40, at + 40 + size
        while protocol in (0, 43, 51, 60) and inner + 8 <= end:  # extension headers
            extra = (block[inner + 1] + 2) * 4 if protocol == 51 else (block[inner + 1] + 1) * 8
            protocol, inner = block[inner], inner + extra
        is_fragment = protocol == 44
    if is_fragment:
        capture.n_fragments += 1
    elif protocol == 17 and inner + 4 <= end and block[inner + 2 : inner + 4] == b"\x12\xb7":
        capture.n_roce += 1  # UDP port 4791: RoCEv2
    elif protocol == 6 and inner + 20 <= end:
        if not size:  # larger than the field can say
            wire_end = start + length
        return _tcp(ts_ns, src, dst, block, inner, end, wire_end)
    return None


def _ip_start(packet: Packet, capture: Capture) -> int | None:
    """Where the IP header begins in the packet's block; counts RDMA over Ethernet."""
    _, link, block, start, end, _ = packet
    if link not in _LINKS:
        return _by_scapy(packet, capture)
    size, type_at = _LINKS[link]
    if type_at is None:
        return start + size
    at = start + type_at
    kind = int.from_bytes(block[at : at + 2], "big")
    while kind in _VLAN and link != 276 and at + 4 < end:
        at += 4
        kind = int.from_bytes(block[at : at + 2], "big")
    if at + 2 <= end and kind == 0x8915:
        capture.n_roce += 1
    return at + size - type_at if at + 2 <= end and kind in (0x0800, 0x86DD) else None


def _by_scapy(packet: Packet, capture: Capture) -> int | None:
    """Find the IP header in a link layer that only scapy knows (Wi-Fi, PPP, …)."""
    _, link, block, start, end, _ = packet
    if link in capture.other_links:
        return None
    own = dict(os.environ)
    os.environ.update(dict.fromkeys(_HOMES, os.devnull))  # it makes directories there when it is imported
    try:
        from scapy.all import conf  # fills the table of link layers
        from scapy.layers.inet import IP
        from scapy.layers.inet6 import IPv6

        layer = conf.l2types.num2layer.get(link)
    except ImportError:
        layer = None
    finally:
        os.environ.clear()
        os.environ.update(own)
    if layer is None:
        capture.other_links.add(link)
        return None
    raw = block[start:end]
    try:
        dissected = layer(raw)
    except Exception:  # scapy raises whatever its layers raise on odd bytes
        return None
    inner = dissected.getlayer(IP) or dissected.getlayer(IPv6)
    offset = raw.find(bytes(inner.original)[:20]) if inner is not None else -1
    return start + offset if offset >= 0 else None
