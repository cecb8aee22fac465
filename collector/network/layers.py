"""Packets as TCP segments: link layers, IPv4, IPv6, TCP.

The link layers that are met where training jobs run are decoded here, the commonest in one step; any
other that scapy knows goes through scapy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from collector.network.pcap import Capture, Packet, read_packets

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
    offset = raw.find(bytes(inner.original)[:20])
    return packet.start + offset if offset >= 0 else None


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
