"""Packet captures as packets: classic pcap and pcapng, plain or gzip, read in pieces.

A packet is a place in the block that was read: nothing is copied and no object is made for it.
"""

from __future__ import annotations

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
    """Counts and damage of a capture, filled while it is read."""

    path: Path
    n_packets: int = 0
    n_bytes: int = 0  # of the packets as captured
    n_cut: int = 0  # packets shorter than they were on the wire
    n_fragments: int = 0  # IP fragments: not put together
    n_roce: int = 0  # InfiniBand over Ethernet or UDP: RDMA
    other_links: set[int] = field(default_factory=set)  # link types nobody can decode
    damage: str = ""  # why reading stopped before the end


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


class _Interface(NamedTuple):
    link: int
    snaplen: int
    ticks: int  # per second
    offset_ns: int


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
        interface = interfaces[0]
        size = min(length, interface.snaplen or length, stop - body - 4)
        return last_ns, interface.link, block, body + 4, body + 4 + size, length
    if stop - body < 20:
        return None
    which, high, low, size, length = struct.unpack_from(
        order + ("IIIII" if kind == 6 else "H2xIIII"), block, body
    )
    if which >= len(interfaces) or size > stop - body - 20:
        return None
    interface = interfaces[which]
    ts_ns = (high << 32 | low) * 10**9 // interface.ticks + interface.offset_ns
    if not 0 <= ts_ns < FARTHEST_NS:
        return None
    start = body + 20
    return ts_ns, interface.link, block, start, start + size, max(size, length)


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
