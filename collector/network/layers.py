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
    try:
        from scapy.all import conf  # fills the table of link layers
        from scapy.layers.inet import IP
        from scapy.layers.inet6 import IPv6

        layer = conf.l2types.num2layer.get(link)
    except ImportError:
        layer = None
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
